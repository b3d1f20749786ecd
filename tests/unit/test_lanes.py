"""lanes.py, timeline.py, draftcost.py: several drafters on the same prompts, their clock, and what ships of them."""

import dataclasses
import json
import math

import pytest

from specviz.bench import draft_cost, lanes
from specviz.bench.lanes import PLAIN, Lanes, LanesRequest
from specviz.cli import main
from specviz.errors import PairError, SettingsError, SpecVizError
from specviz.trace import codec, metrics
from specviz.trace.records import Settings
from specviz.views import timeline

TEXT = "the cat sees the dog and"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The toy pair: two prompts through two drafters and plain decoding."""
    patch = pytest.MonkeyPatch()
    patch.setenv("SPECVIZ_HOME", str(tmp_path_factory.mktemp("home")))
    order = LanesRequest(
        pair="toy",
        drafters=("autoregressive", "ngram"),
        texts=(TEXT, "the dog sees the"),
        settings=Settings(k=3, temperature=0.0, max_new_tokens=16),
        raw=True,
    )
    yield Lanes(order).execute()
    patch.undo()


@pytest.mark.slow
def test_every_prompt_runs_through_every_drafter_beside_plain_decoding(run):
    assert run.status == "complete" and run.progress.fraction == 1.0
    assert set(run.traces) == {
        (p, d) for p in ("Six words", "the dog sees the") for d in (PLAIN, "autoregressive", "ngram")
    }
    assert lanes.drafters_of(run.traces) == ["ngram", "autoregressive"]
    for (_, drafter), found in run.traces.items():
        assert found.settings.k == (0 if drafter == PLAIN else 3) and found.drafter == drafter
        assert found.end == "complete"


def test_greedy_lanes_write_plain_decodings_text(run):
    for drafter in ("autoregressive", "ngram"):
        assert lanes.same_text(run.traces, drafter) == (2, 2)


def test_an_order_that_cannot_run_is_a_sentence():
    for order, error in (
        (LanesRequest(pair="toy", drafters=("hybrid",), texts=(TEXT,)), PairError),
        (LanesRequest(pair="toy", drafters=(), texts=(TEXT,)), SettingsError),
        (LanesRequest(pair="toy", drafters=("ngram",), texts=(" ",)), SettingsError),
        (LanesRequest(pair="toy", drafters=("ngram",), texts=(TEXT,), settings=Settings(k=0)), SettingsError),
        (LanesRequest(pair="toy", drafters=("ngram",), texts=tuple(map(str, range(21)))), SettingsError),
    ):
        with pytest.raises(error):
            Lanes(order)


def test_a_stop_keeps_the_lanes_that_are_done(tmp_path, monkeypatch):
    monkeypatch.setenv("SPECVIZ_HOME", str(tmp_path))
    order = LanesRequest(
        pair="toy",
        drafters=("autoregressive", "ngram"),
        texts=(TEXT, "the dog sees the"),
        settings=Settings(k=2, max_new_tokens=8),
        raw=True,
    )
    stopped = Lanes(order)
    report = stopped.report

    def stop_at_the_third(stage, *share):
        report(stage, *share)
        if "(3 of" in stage:
            stopped.stop()

    stopped.report = stop_at_the_third
    stopped.execute()
    assert stopped.status == "stopped" and len(stopped.traces) == 2


def test_slimming_keeps_the_story_and_every_sum(run):
    """Verdicts, overlap, leftover, thresholds and the tokens stay; only unlikely tokens leave the support. The slim
    trace is one that can be read."""
    for whole in run.traces.values():
        small = lanes.slim(whole, 1)
        codec.from_json(codec.to_json(small))
        assert small.token_ids() == whole.token_ids()
        assert metrics.overlap(small.rounds) == pytest.approx(metrics.overlap(whole.rounds) or 0, abs=1e-4) or not (
            metrics.counts(whole.rounds).proposed
        )
        for a, b in zip(
            (x for r in whole.rounds for v in r.rows for x in v.positions),
            (x for r in small.rounds for v in r.rows for x in v.positions),
        ):
            assert set(b.support) <= set(a.support) and a.verdict == b.verdict
            assert sum(b.target_probs) + b.tail_target == pytest.approx(1, abs=1e-4)
            left = [sum(max(0, p - q) for p, q in zip(x.target_probs, x.draft_probs)) + x.tail_leftover for x in (a, b)]
            assert left[0] == pytest.approx(left[1], abs=1e-4)
            assert b.target_entropy == pytest.approx(a.target_entropy, rel=1e-4)
            if a.draft_token is not None:
                assert b.threshold == pytest.approx(a.threshold, rel=1e-3)
    assert sum(len(x.support) for r in small.rounds for v in r.rows for x in v.positions) < sum(
        len(x.support) for r in whole.rounds for v in r.rows for x in v.positions
    )


def test_lanes_are_saved_and_read_again_in_their_order(run, tmp_path):
    (tmp_path / "lane-99-old-plain.json.gz").write_bytes(b"left from before")
    written = lanes.save(run.traces, tmp_path)
    again = lanes.load(tmp_path)
    assert len(written) == len(again) == 6 and set(again) == set(run.traces)
    assert lanes.prompts_of(again) == lanes.prompts_of(run.traces)
    assert lanes.load(tmp_path / "nowhere") == {}


def test_prompts_with_the_same_beginning_get_names_of_their_own():
    long = "tell me everything that there is to know about harbours and "
    assert len(set(lanes._names([long + "ships", long + "boats"]))) == 2
    assert lanes.prompt_name(TEXT) == "Six words" and len(lanes.prompt_name(long)) <= 32


def test_a_recorded_entropy_is_that_of_the_raw_softmax(run):
    """All six tokens of the toy pair are kept, so the recorded figure can be computed again."""
    found = run.traces["Six words", "autoregressive"]
    for x in (x for r in found.rounds for v in r.rows for x in v.positions):
        p = [math.exp(z - x.target_logsumexp) for z in x.target_logits]
        assert x.target_entropy == pytest.approx(-sum(q * math.log(q) for q in p if q > 0), abs=1e-5)


# ---------------------------------------------------------------------------------------------- the clock


def test_a_lane_adds_its_rounds_up_in_time(run):
    """Rounds follow each other without gaps, the last ends at the lane's seconds, tokens add up."""
    found = run.traces["Six words", "autoregressive"]
    lane = timeline.lane(found, "autoregressive")
    at = 0.0
    for drawn, (round_, v) in zip(lane["rounds"], found.row_rounds(0), strict=True):
        assert drawn["start"] == pytest.approx(at, abs=1e-5)
        at += round_.seconds
        assert len(drawn["drafts"]) == v.verified and drawn["accepted"] == v.accepted
    assert lane["seconds"] == pytest.approx(found.seconds, abs=1e-5) and lane["tokens"] == len(found.token_ids())
    assert lane["tokens_per_second"] == pytest.approx(metrics.tokens_per_second(found.rounds))
    assert "".join(r["text"] for r in lane["rounds"]) == "".join(found.pieces[t] for t in found.token_ids())
    rows = timeline.table([("autoregressive", found)])
    assert len(rows) == 3 * len(found.rounds) and rows[-1]["end_seconds"] == pytest.approx(found.seconds)


def test_how_a_drafter_builds_is_told_from_its_rounds(run):
    told = {d: timeline.building(t) for (_, d), t in run.traces.items()}
    assert told == {PLAIN: "plain", "ngram": "lookup", "autoregressive": "serial"}
    shipped = lanes.load()
    assert {d: timeline.building(t) for (_, d), t in shipped.items()} == {
        PLAIN: "plain",
        "ngram": "lookup",
        "autoregressive": "serial",
        "parallel": "parallel",
        "hybrid": "hybrid",
        "lookup+parallel": "parallel",
    }


def test_the_shipped_lanes_are_small_and_complete():
    """One file a prompt and drafter, all of one run's settings, under half a megabyte with the costs."""
    found = lanes.load()
    prompts, drafters = lanes.prompts_of(found), [PLAIN, *lanes.drafters_of(found)]
    assert set(found) == {(p, d) for p in prompts for d in drafters} and len(prompts) >= 3
    assert len({dataclasses.replace(t.settings, k=0) for t in found.values()}) == 1
    assert sum(f.stat().st_size for f in lanes.FOLDER.iterdir()) < 500_000


# ---------------------------------------------------------------------------------------------- costs


def test_costs_are_measured_for_every_drafter_and_k(tmp_path, monkeypatch):
    monkeypatch.setenv("SPECVIZ_HOME", str(tmp_path))
    done = draft_cost.Costs("toy", ("autoregressive", "ngram"), (1, 4)).execute()
    assert done.status == "complete", done.error
    cost = done.cost
    assert set(cost.seconds) == {"autoregressive", "ngram"} and all(set(s) == {1, 4} for s in cost.seconds.values())
    assert cost.plain_seconds > 0 and cost.ratio("autoregressive") > 1.5
    draft_cost.save(cost, tmp_path / "cost.json")
    assert draft_cost.load(tmp_path / "cost.json") == cost
    assert draft_cost.load(tmp_path / "none.json") is None


def test_a_foreign_cost_file_is_a_sentence(tmp_path):
    for content in ("", "[]", "{}", '{"seconds": 3}'):
        (tmp_path / "cost.json").write_text(content)
        with pytest.raises(SpecVizError):
            draft_cost.load(tmp_path / "cost.json")


def test_the_growth_of_a_cost_is_that_of_its_ends():
    cost = draft_cost.DraftCost(
        pair="p",
        machine="m",
        device="cpu",
        precision="fp32",
        threads=2,
        measured_at="2026-01-01",
        context=10,
        plain_seconds=0.05,
        seconds={"a": {1: 0.004, 8: 0.030}, "b": {2: 1.0}},
    )
    assert cost.ratio("a") == pytest.approx(7.5) and cost.ratio("b") is None and cost.ratio("c") is None


# ---------------------------------------------------------------------------------------------- the command


@pytest.mark.slow
def test_the_command_runs_prints_and_writes(tmp_path, monkeypatch, capsys):
    """`lanes --pair toy` prints one line a drafter, or one JSON object, and writes traces that load again."""
    monkeypatch.setenv("SPECVIZ_HOME", str(tmp_path / "home"))
    arguments = ["lanes", "--pair", "toy", "--prompts", "1", "--k", "3", "--max-new-tokens", "12", "--drafter", "ngram"]
    assert main.main([*arguments, "--out", str(tmp_path / "out"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [row["drafter"] for row in told["drafters"]] == [PLAIN, "ngram"]
    assert told["drafters"][1]["same_text"] == told["drafters"][1]["compared"] == 1
    assert len(lanes.load(tmp_path / "out")) == 2
    assert main.main(["lanes", "--prompts", "0"]) == 2 and "--prompts" in capsys.readouterr().err
