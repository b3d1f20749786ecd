"""The proof on real runs: passes what is right, catches what is wrong, and passes nothing for nothing."""

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from specviz.checks import lossless
from specviz.checks.lossless import Bench, Difference, Finding, Greedy, Sampling, check, check_run
from specviz.cli import main
from specviz.engine import judging
from specviz.engine.request import RunRequest
from specviz.engine.run import Run
from specviz.errors import SettingsError
from specviz.sampling import rejection
from specviz.sampling.distributions import dense
from specviz.sampling.rejection import draw
from specviz.trace import files as trace_files
from specviz.trace.records import Settings
from specviz.worker import Task

FOLDER = Path(__file__).resolve().parents[2] / "assets" / "traces"


@pytest.fixture(autouse=True)
def home(empty_home):
    """No test touches a person's files."""


def order(drafter="autoregressive", temperature=1.0, k=3):
    return RunRequest("toy", drafter, "the cat the the dog", Settings(k=k, temperature=temperature), raw=True)


@pytest.mark.slow
def test_the_toy_pair_is_lossless_greedy_and_sampled():
    found = check("toy", "autoregressive", k=3, samples=400, prompts=4)
    assert found.verdict == "lossless"
    assert found.greedy.identical == found.greedy.runs == 4
    assert found.sampling.judged > 400


def rows_judged_by(one):
    """A judge of rows, from one of a single row: (p, q, tokens, uniforms, bonus) -> (accepted, bonus token)."""

    def judge_rows(p, starts, q, tokens, counts, accept_uniforms, bonus_uniforms):
        p, q, verdicts, at = dense(p), None if q is None else dense(q), [], 0
        for start, k, bonus in zip(starts, counts, bonus_uniforms):
            drafted = slice(at, at + k)
            verdicts.append(
                one(p[start : start + k + 1], q[drafted], tokens[drafted].tolist(), accept_uniforms[drafted], bonus)
                if k
                else (0, draw(p[start], bonus))
            )
            at += k
        return tuple(torch.tensor(part) for part in zip(*verdicts))

    return judge_rows


def broken(p, q, tokens, uniforms, bonus):
    """The correction from p instead of the leftover."""
    for slot, token in enumerate(tokens):
        if not rejection.accepts(float(p[slot, token]), float(q[slot, token]), uniforms[slot]):
            return slot, draw(p[slot], bonus)
    return len(tokens), draw(p[len(tokens)], bonus)


@pytest.mark.slow
def test_a_broken_accept_rule_is_found_by_sampling(monkeypatch):
    """The loop with a wrong correction: the counts differ, and the p-value says so."""
    monkeypatch.setattr(judging, "judge_rows", rows_judged_by(broken))
    bench = Bench(order())
    found = Finding(sampling=lossless.sampling(bench, bench.ids("the cat the the dog"), order().settings, 600))
    assert found.verdict == "differs" and found.sampling.p_value < 1e-6


def test_a_loop_that_accepts_everything_is_found_by_greedy(monkeypatch):
    everything = rows_judged_by(lambda p, q, tokens, us, u: (len(tokens), draw(p[len(tokens)], u)))
    monkeypatch.setattr(judging, "judge_rows", everything)
    found = lossless.greedy(Bench(order(temperature=0.0)), ["the cat the the dog", "dog dog dog"], 4, 16)
    assert found.verdict == "differs"
    first = found.differences[0]
    assert not first.near_tie and first.gap > 0.01 and "no tie" in found.sentence


def test_nothing_drafted_is_inconclusive():
    """A text without repetitions gives the lookup nothing to copy."""
    bench = Bench(order("ngram"))
    found = Finding(
        lossless.greedy(bench, ["the cat"], 2, 1),
        lossless.sampling(bench, bench.ids("the"), replace(order().settings, k=1), 0),
    )
    assert found.greedy.verdict == found.sampling.verdict == found.verdict == "inconclusive"
    assert "nothing was put to the test" in found.greedy.sentence.lower()


def test_too_few_samples_are_inconclusive():
    bench = Bench(order())
    found = lossless.sampling(bench, bench.ids("the cat the the dog"), order().settings, 40)
    assert found.verdict == "inconclusive"


def test_verdicts_add_up():
    good = Greedy(3, 3, 60, 30, ())
    tie = Greedy(3, 2, 60, 30, (Difference(0, 4, 1, 2, 1e-5, True),))
    bad = Greedy(3, 2, 60, 30, (Difference(0, 4, 1, 2, 0.7, False),))
    passed = Sampling(400, (0.4, 0.2), (0.01, 0.02), (0.01, 0.02), 300, 200)
    assert Finding(good, passed).verdict == "lossless"
    assert Finding(tie, passed).verdict == "lossless" and Finding(tie).plain()["near_ties"] == 1
    assert Finding(bad, passed).verdict == "differs"
    assert Finding(good, replace(passed, p_values=(0.4, 1e-5))).verdict == "differs"
    assert Finding(good, replace(passed, p_values=(None, None))).verdict == "inconclusive"
    assert Finding(good, replace(passed, judged=1)).verdict == "inconclusive"
    assert Finding().verdict == "inconclusive"


def test_the_smallest_p_value_is_corrected_for_their_number():
    assert Sampling(400, (0.4, None, 0.02), (0,), (0,), 1, 1).p_value == pytest.approx(0.04)


def test_a_recorded_greedy_run_is_proved_against_plain_decoding():
    """Its own tokens, from its own prompt; a changed token is found where it is."""
    run = Run(
        RunRequest("toy", "ngram", "the cat sees the dog and the cat", Settings(k=3, max_new_tokens=16), raw=True)
    ).execute()
    assert run.status == "complete", run.error
    assert check_run(run.trace, 0).verdict == "lossless"
    first = run.trace.rounds[0]
    verdict = first.rows[0]
    wrong = (verdict.emitted[0] + 1) % 6
    changed = replace(
        run.trace,
        rounds=(replace(first, rows=(replace(verdict, emitted=(wrong, *verdict.emitted[1:])),)), *run.trace.rounds[1:]),
    )
    found = check_run(changed, 0)
    assert found.verdict == "differs" and found.greedy.differences[0].token == 0


def test_a_sampled_run_is_proved_by_counts():
    found = check_run(trace_files.load(FOLDER / "9-toy-autoregressive.json.gz"), 300)
    assert found.sampling.samples == 300 and found.verdict == "lossless"


def test_bad_orders_are_refused_with_a_sentence():
    for arguments in ({"k": 0}, {"k": 99}, {"k": 2, "samples": -1}):
        with pytest.raises(SettingsError):
            check("toy", "ngram", **{"samples": 10, **arguments})


def test_a_job_can_be_stopped_and_says_how_far_it_is():
    job = Task(lambda job: check("toy", "autoregressive", 3, samples=10**5, prompts=1, job=job))
    deadline = time.monotonic() + 60
    while not job.progress.stage.startswith("Sampling") and time.monotonic() < deadline:
        job.poll()
        time.sleep(0.02)
    job.stop()
    job.join(30)
    assert job.status == "stopped" and job.result is None


def test_a_job_that_nobody_watches_stops_itself(monkeypatch):
    monkeypatch.setattr("specviz.worker.ABANDONED_SECONDS", 0.0)

    def work(job):
        while True:
            job.check()
            time.sleep(0.01)

    job = Task(work)
    job.join(10)
    assert job.status == "stopped"


def test_a_job_turns_a_defect_into_a_sentence(caplog):
    caplog.set_level("ERROR", logger="specviz")  # the command line, tested before, keeps the log quiet
    job = Task(lambda job: 1 / 0)
    job.join(10)
    assert job.status == "failed" and "ZeroDivisionError" in job.error
    assert "ZeroDivisionError" in caplog.text


KEYS = {
    "greedy_identical",
    "greedy_runs",
    "near_ties",
    "first_differences",
    "chi2_p",
    "total_variation",
    "drafted",
    "verdict",
}


def test_the_command_prints_its_keys_and_exits_by_its_verdict(capsys):
    """0 lossless, 3 inconclusive, 2 refused; 1 when the rule is broken."""
    common = ["check", "--pair", "toy", "--prompts", "2", "--json"]
    assert main.main([*common, "--drafter", "autoregressive", "--k", "2", "--samples", "200"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert set(said) == KEYS and said["verdict"] == "lossless" and said["greedy_runs"] == 2
    assert main.main([*common, "--drafter", "autoregressive", "--k", "2", "--samples", "40"]) == 3
    assert json.loads(capsys.readouterr().out)["verdict"] == "inconclusive"
    assert main.main([*common, "--k", "0"]) == 2
    assert capsys.readouterr().err.strip().endswith(".")


def test_the_command_exits_with_1_when_something_differs(monkeypatch, capsys):
    monkeypatch.setattr(judging, "judge_rows", rows_judged_by(broken))
    assert (
        main.main(
            ["check", "--pair", "toy", "--drafter", "autoregressive", "--k", "3", "--samples", "600", "--prompts", "1"]
        )
        == 1
    )
    assert "differs" in capsys.readouterr().out


def test_greedy_only_at_temperature_0(capsys):
    assert (
        main.main(
            [
                "check",
                "--pair",
                "toy",
                "--drafter",
                "ngram",
                "--k",
                "2",
                "--temperature",
                "0",
                "--prompts",
                "3",
                "--json",
            ]
        )
        == 0
    )
    said = json.loads(capsys.readouterr().out)
    assert said["chi2_p"] is None and said["total_variation"] is None
