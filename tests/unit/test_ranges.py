"""The one reader of ranges: what a person may write, and a sentence for everything else."""

import argparse

import pytest

from specviz.cli import main
from specviz.cli.ranges import numbers, parse_range
from specviz.errors import SettingsError


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("7", (7,)),
        ("1..8", tuple(range(1, 9))),
        ("0,3,7", (0, 3, 7)),
        ("1..3, 8", (1, 2, 3, 8)),
        (" 4 .. 4 ", (4,)),
        ("1,3..5", (1, 3, 4, 5)),
    ],
)
def test_ranges(text, found):
    assert parse_range(text) == numbers(text) == found


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a",
        "1..",
        "..3",
        "3..1",
        "1,,2",
        "-1",
        "1.5",
        "1..99999",
        "1,1",
        "٣",
        pytest.param("9" * 5000, id="long"),
    ],
)
def test_bad_ranges_are_refused_with_a_sentence(text):
    with pytest.raises(SettingsError) as error:
        parse_range(text)
    assert str(error.value).endswith(".") and len(str(error.value)) < 300
    with pytest.raises(argparse.ArgumentTypeError):
        numbers(text)


@pytest.mark.parametrize(
    "arguments",
    [
        ["roofline", "--k", "3..1"],
        ["sweep", "--batch", "x"],
        ["load", "--seeds", "1,1"],
        ["bench", "--k", "1.."],
        ["bottleneck", "--widths", "0..9999999"],
    ],
)
def test_every_command_with_a_range_names_the_option(arguments, capsys):
    assert main.main(arguments) == 2
    said = capsys.readouterr().err
    assert said.startswith(arguments[1] + ":") and said.strip().count("\n") == 0
