"""Numbers as text: Python's formatter meets every case of number_cases.json, as the browser's does (tests/js)."""

import json
from pathlib import Path

import pytest

from specviz import format

CASES = json.loads((Path(__file__).parent / "number_cases.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize(("name", "case"), [(name, case) for name, cases in CASES.items() for case in cases], ids=str)
def test_a_number_is_written_as_the_shared_table_says(name, case):
    *arguments, expected = case
    assert getattr(format, name)(*arguments) == expected


@pytest.mark.parametrize("name", ["number", "si", "percent", "probability", "seconds"])
def test_what_is_not_a_finite_number_is_never_a_figure(name):
    assert {getattr(format, name)(x) for x in (float("nan"), float("inf"), -float("inf"))} == {"n/a"}
