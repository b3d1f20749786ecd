"""The player's texts beside the pictures: what they say follows from a round's values, and each has its words."""

import importlib.util
import json
from pathlib import Path

import pytest

from specviz.views import captions, frames

_spec = importlib.util.spec_from_file_location("made_up_traces", Path(__file__).with_name("test_frames.py"))
_module = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_module)
ROUNDS = frames.row_rounds(_module.made_up(rows=2, rounds=6), 0)
COUNTERS = {
    "rounds": 1,
    "tokens": 3,
    "tokens_per_pass": 3.0,
    "proposed": 5,
    "accepted": 2,
    "acceptance_rate": 0.4,
    "tokens_per_second": 30.0,
    "plain_tokens_per_second": 12.0,
    "flops_per_token": 3e9,
    "plain_flops_per_token": 2e9,
}


def test_counters_compare_with_plain_decoding_and_say_what_was_measured():
    passes, rate, speed, flops = captions._counters(COUNTERS, rows=1)
    assert passes == ["Tokens per target pass", "3", "3 tokens in 1 pass, bonus included"]
    assert rate == ["Acceptance rate", "40 %", "2 of 5 drafts (counted)"]
    assert speed == ["Tokens per second", "30", "2.50× plain: 12 tokens/s in the same run (measured)"]
    assert flops == ["FLOPs per token", "3.00 GFLOP", "1.50× plain: 2.00 GFLOP (counted)"]
    assert captions._counters(COUNTERS, rows=2)[2][0] == "Tokens per second, all rows"


def test_what_was_not_measured_is_said_and_never_a_figure():
    nothing = COUNTERS | {name: None for name in COUNTERS if "per_" in name or name == "acceptance_rate"}
    shown = captions._counters(nothing, rows=1)
    assert [value for _, value, _ in shown] == ["–", "none drafted", "–", "–"]
    assert [note for *_, note in shown[2:]] == ["plain not measured in this run", "plain not counted in this run"]


@pytest.mark.parametrize(
    ("none", "point", "ceilings", "says"),
    [
        (False, {"flagged": True}, True, "measure the roofs again"),
        (
            False,
            {"flagged": False, "busy_fraction": 0.5, "stream_fraction": 0.25, "overhead_fraction": 0.25},
            True,
            "compute 50 % · memory 25 % · neither 25 %",
        ),
        (False, None, True, "no counted work (a lookup)"),
        (False, None, False, "shares need measured ceilings"),
    ],
)
def test_the_shares_of_a_pass_say_why_there_are_none(none, point, ceilings, says):
    assert says in captions._shares(none, point, ceilings)


def test_every_round_carries_all_texts_as_json():
    for data in json.loads(json.dumps(ROUNDS)):
        texts, count = data["texts"], len(data["slots"])
        assert len(texts["headings"]) == count + 2
        assert len(texts["kept"]) == len(data["emitted"]) + 1
        assert texts["busy"]["label"] and texts["roof"]["label"]
        assert (texts["bonus_row"] is None) == (data["bonus"] is None)
        for slot in data["slots"]:
            assert slot["texts"]["label"][3].endswith(slot["words"])
            assert slot["texts"]["row"][-1] == slot["verdict"]
            assert bool(slot["texts"]["verdict"]) == (slot["verdict"] != "dropped")
        assert all(f"round {data['number']}" in token["title"] for token in data["emitted"])


def test_a_point_carries_its_achieved_rate():
    points = [p for data in ROUNDS for p in data["points"].values() if p]
    assert all(p["rate"] == pytest.approx(p["flops"] / p["seconds"], rel=1e-4) for p in points if p["seconds"])
