"""frames.py: what the player is told. All traces here are made up, with a tiny vocabulary, by the real rule."""

import dataclasses
import itertools
import json
import math
import random

import pytest

from specviz.trace import token_text
from specviz.trace.records import Baseline, Ceilings, Cost, Machine, Position, Prompt, Round, Settings, Trace, Verdict
from specviz.views import frames

WORDS = [
    " the",
    " cat",
    " sat",
    " on",
    " a",
    " mat",
    "\n",
    "\t",
    "    ",
    "",
    " naïve",
    "\\xF0\\x9F",
    "é",
    " 猫",
    "🙂",
    "<|im_end|>",
    " quick",
    " brown",
    " internationalisation",
    ",",
    ".",
    " and",
    " dog",
    "\u200b",
    "\n\n",
    " of",
    " in",
    " to",
    " it",
    " was",
    " for",
    " his",
    " with",
    " that",
    " they",
    " were",
    " down",
    " up",
    "ing",
    "ed",
]
EOS = 15


def _softmax(logits, temperature):
    if temperature == 0:
        best = logits.index(max(logits))
        return [float(i == best) for i in range(len(logits))]
    top = max(logits)
    weights = [math.exp((z - top) / temperature) for z in logits]
    return [w / sum(weights) for w in weights]


def _draw(weights, u):
    running = 0.0
    for i, w in enumerate(weights):
        running += w
        if running > u * sum(weights):
            return i
    return max(i for i, w in enumerate(weights) if w > 0)


def _logsumexp(logits):
    return max(logits) + math.log(sum(math.exp(z - max(logits)) for z in logits))


def _position(target, draft, p, q, drafted, drawn, verdict, u, first_guess=None):
    def top(x):
        return sorted(range(len(x)), key=x.__getitem__, reverse=True)[:12]

    support = sorted(
        {*top(target), *(top(draft) if draft else []), *(t for t in (drafted, drawn, first_guess) if t is not None)}
    )
    rest = [i for i in range(len(p)) if i not in support]
    return Position(
        draft_token=drafted,
        verdict=verdict,
        accept_uniform=u,
        support=tuple(support),
        target_logits=tuple(target[i] for i in support),
        draft_logits=tuple(draft[i] for i in support) if draft else None,
        target_logsumexp=_logsumexp(target),
        draft_logsumexp=_logsumexp(draft) if draft else None,
        target_probs=tuple(p[i] for i in support),
        draft_probs=tuple(q[i] for i in support),
        tail_target=sum(p[i] for i in rest),
        tail_draft=sum(q[i] for i in rest),
        tail_min=sum(min(p[i], q[i]) for i in rest),
        tail_leftover=sum(max(0.0, p[i] - q[i]) for i in rest),
        confidence=None if drafted is None else 0.75,
        first_guess=first_guess,
    )


def _verdict(rng, row, settings, context, anchor, kind):
    size = len(WORDS)
    k = settings.k
    targets = [[rng.gauss(0, 2.2) for _ in range(size)] for _ in range(k + 1)]
    for z in targets:
        z[rng.randrange(size)] += 4
        z[EOS] -= 6
    drafts, ps, qs, tokens, us, guesses = [], [], [], [], [], []
    for i in range(k):
        z = [x + rng.gauss(0, 1.6) for x in targets[i]]
        if kind == "lookup":
            token = max(range(size), key=z.__getitem__)
            q, z = [float(j == token) for j in range(size)], None
        else:
            q = _softmax(z, settings.temperature)
            token = _draw(q, rng.random())
        drafts.append(z)
        qs.append(q)
        tokens.append(token)
        us.append(rng.random())
        guesses.append(rng.choice([token, (token + 3) % size]) if kind == "hybrid" else None)
    ps = [_softmax(z, settings.temperature) for z in targets]
    accepted = next((i for i in range(k) if not us[i] * qs[i][tokens[i]] < ps[i][tokens[i]]), k)
    bonus_u = rng.random()
    weights = ps[k] if accepted == k else [max(0.0, a - b) for a, b in zip(ps[accepted], qs[accepted])]
    bonus = _draw(weights, bonus_u)
    positions = []
    for i in range(k):
        verdict = "accepted" if i < accepted else "rejected" if i == accepted else "dropped"
        positions.append(
            _position(
                targets[i],
                drafts[i],
                ps[i],
                qs[i],
                tokens[i],
                bonus if i == accepted else None,
                verdict,
                us[i] if i <= accepted else None,
                guesses[i],
            )
        )
    positions.append(
        _position(targets[k], None, ps[k], [0.0] * size, None, bonus if accepted == k else None, "bonus", None)
    )
    return Verdict(
        row=row,
        context=context,
        anchor=anchor,
        proposed=k,
        verified=k,
        accepted=accepted,
        positions=tuple(positions),
        emitted=(*tokens[:accepted], bonus),
        kind="all_accepted" if accepted == k else "leftover",
        bonus_token=bonus,
        bonus_uniform=bonus_u,
    )


CEILINGS = Ceilings(
    device="cpu",
    precision="fp32",
    bandwidth=25e9,
    flops=150e9,
    bandwidth_spread=(24e9, 26e9),
    flops_spread=(140e9, 155e9),
    measured_at="2026-01-02T03:04:05",
)


def made_up(k=5, temperature=0.8, rounds=8, rows=1, kind="autoregressive", seed=1, ceilings=CEILINGS):
    """A trace whose numbers are made up but obey the rule. kind: autoregressive, lookup, parallel or hybrid."""
    rng = random.Random(seed)
    settings = Settings(k=k, temperature=temperature, max_new_tokens=200, seed=seed)
    context, anchor = [7] * rows, [21] * rows
    out = []
    for index in range(rounds):
        verdicts = []
        for row in range(rows):
            v = _verdict(rng, row, settings, context[row], anchor[row], kind)
            if index == rounds - 1:
                v = Verdict(**{**vars(v), "finished": "length"})
            context[row] += len(v.emitted)
            anchor[row] = v.emitted[-1]
            verdicts.append(v)
        draft = 0.0 if k == 0 else 1e-4 if kind == "lookup" else 0.004 * (1 if kind != "autoregressive" else k)
        out.append(
            Round(
                index=index,
                rows=tuple(verdicts),
                draft_seconds=draft * rng.uniform(0.9, 1.2),
                verify_seconds=0.036 * rng.uniform(0.95, 1.2),
                other_seconds=0.0015,
                recording_seconds=0.0,
                target_tokens=rows * (k + 1),
                draft_tokens=0 if kind == "lookup" else rows * k,
                target_cost=Cost(269_000_000 * rows * (k + 1), 538_000_000 + 90_000 * sum(context)),
                draft_cost=Cost(0, 0) if kind == "lookup" else Cost(20_000_000 * k * rows, 40_000_000 * max(k, 1)),
            )
        )
    return Trace(
        pair="made-up",
        target="made-up target",
        drafter=kind,
        drafter_label="made-up drafter",
        settings=settings,
        machine=Machine(
            device="cpu",
            name="made-up machine",
            precision="fp32",
            torch="0",
            transformers="0",
            threads=2,
            ceilings=ceilings,
        ),
        recorded_at="2026-01-02T03:04:05",
        prompts=tuple(Prompt("x", None, True, seed + r, (1, 21)) for r in range(rows)),
        texts=tuple("" for _ in range(rows)),
        pieces=dict(enumerate(WORDS)),
        rounds=tuple(out),
        prefill_seconds=0.1,
        baseline=Baseline(
            (0.031, 0.032, 0.033), (0.030, 0.031, 0.032), (rows,) * 3, Cost(269_000_000 * rows, 538_000_000)
        ),
        end="complete",
        vocab_size=len(WORDS),
        draft_parallel=kind in ("parallel", "hybrid"),
    )


def _kinds(round_):
    return [f["kind"] for f in round_["frames"]]


@pytest.mark.parametrize("kind", ["autoregressive", "lookup", "parallel", "hybrid"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("k", [0, 1, 5])
def test_every_frame_list_tells_the_round_in_its_real_order(kind, temperature, k):
    order = ["draft", "correct", "verify", "judge", "dropped", "leftover", "bonus", "end"]
    trace = made_up(k, temperature, kind=kind)
    for data in frames.row_rounds(trace):
        json.dumps(data, allow_nan=False)
        kinds = _kinds(data)
        assert kinds == sorted(kinds, key=order.index)
        judged = min(data["accepted"] + 1, data["verified"])
        assert kinds.count("judge") == judged
        assert kinds.count("verify") == kinds.count("bonus") == 1
        assert ("leftover" in kinds) == (data["kind"] == "leftover")
        assert ("dropped" in kinds) == (data["accepted"] + 1 < data["verified"])
        expected = 0 if k == 0 else 1 if kind in ("parallel", "hybrid") else k
        assert kinds.count("draft") == expected
        verify = next(f for f in data["frames"] if f["kind"] == "verify")
        assert verify["slots"] == list(range(data["verified"] + 1))
        assert all(f["words"].endswith(".") for f in data["frames"])


def test_a_hybrid_guesses_at_once_and_shows_every_correction():
    """One first frame for all guesses, then a frame for each replaced one from left to right; a round whose guesses
    were all kept says so in one frame. That the drafter itself is not `parallel` makes no difference."""
    trace = made_up(5, 0.8, kind="hybrid", rounds=12)
    for data in frames.row_rounds(dataclasses.replace(trace, draft_parallel=False)):
        drafts = [f for f in data["frames"] if f["kind"] == "draft"]
        assert [f["slots"] for f in drafts] == [[0, 1, 2, 3, 4]] and "rough guess" in drafts[0]["words"]
        changed = [s["slot"] for s in data["slots"] if s["first_guess"]["id"] != s["id"]]
        corrections = [f["slots"] for f in data["frames"] if f["kind"] == "correct"]
        assert corrections == ([[i] for i in changed] or [[0, 1, 2, 3, 4]])


def test_the_words_of_a_correction_count_what_was_kept():
    def slot(i, guess, final):
        rough = {"id": guess, "text": f"t{guess}"}
        return {"slot": i, "id": final, "text": f"t{final}", "q": 0.5, "first_guess": rough}

    told = frames._refined([slot(0, 1, 1), slot(1, 2, 2), slot(2, 3, 9), slot(3, 4, 8)])
    assert [at for at, _ in told] == [2, 3]
    assert told[0][1].startswith("After keeping 2 guesses, the serial pass")
    assert told[1][1].startswith("The serial pass") and "“t4” by “t8” (q = 0.500)" in told[1][1]
    assert frames._refined([slot(0, 1, 1)])[0][0] is None


def test_a_difference_is_the_tail_of_the_whole():
    """row_rounds(start=n) equals row_rounds()[n:], cumulative counters included."""
    trace = made_up(rows=3)
    for row in range(3):
        whole = frames.row_rounds(trace, row)
        assert [r["number"] for r in whole] == list(range(1, 9))
        for start in (0, 1, 5, 8, 99):
            assert frames.row_rounds(trace, row, start) == whole[start:]


def test_bars_and_tail_hold_all_the_probability():
    for data in frames.row_rounds(made_up()):
        for slot in data["slots"]:
            assert len(slot["bars"]) <= 9
            for name in ("p", "q"):
                assert sum(b[name] for b in slot["bars"]) + slot["tail"][name] == pytest.approx(1, abs=1e-4)
            assert sum(b["min"] for b in slot["bars"]) + slot["tail"]["min"] == pytest.approx(slot["overlap"], abs=1e-4)
            assert sum(b["left"] for b in slot["bars"]) + slot["tail"]["left"] == pytest.approx(
                slot["leftover"], abs=1e-4
            )
            assert [b["id"] for b in slot["bars"] if b["drafted"]] == [slot["id"]]
            shown = [max(b["p"], b["q"]) for b in slot["bars"]]
            assert shown == sorted(shown, reverse=True)
        assert not any(b["drafted"] for b in data["past"]["bars"])


def test_the_uniform_falls_on_the_interval_of_the_drawn_token():
    for seed in range(12):
        for data in frames.row_rounds(made_up(k=2, seed=seed)):
            bonus = data["bonus"]
            cuts = bonus["intervals"]
            assert cuts[0]["lo"] == 0 and cuts[-1]["hi"] == pytest.approx(1, abs=1e-5)
            for a, b in itertools.pairwise(cuts):
                assert a["hi"] == b["lo"]
            hit = [c for c in cuts if c["lo"] - 1e-5 <= bonus["u"] <= c["hi"] + 1e-5]
            assert any(c["drawn"] for c in hit)
            drawn = next(c for c in cuts if c["drawn"])
            assert drawn["id"] == bonus["id"]
            ids = [c["id"] for c in cuts if c["id"] is not None]
            assert ids == sorted(ids)
            place = data["slots"][bonus["slot"]] if bonus["kind"] == "leftover" else data["past"]
            assert [b["id"] for b in place["bars"] if b["drawn"]] == [bonus["id"]]


def test_words_state_the_inequality_and_the_verdict():
    seen = set()
    for seed in range(6):
        for data in frames.row_rounds(made_up(seed=seed)):
            for slot in data["slots"]:
                seen.add(slot["verdict"])
                if slot["verdict"] == "accepted":
                    assert slot["u"] < slot["threshold"]
                    assert slot["words"].startswith("u ") and "< min(1, p/q)" in slot["words"]
                elif slot["verdict"] == "rejected":
                    assert slot["u"] >= slot["ratio"]
                    assert "p/q" in slot["words"] and slot["words"].endswith("rejected.")
                else:
                    assert slot["u"] is None
    assert seen == {"accepted", "rejected", "dropped"}


def test_greedy_words_name_the_first_choice_and_raw_probabilities_stay_informative():
    for data in frames.row_rounds(made_up(temperature=0.0)):
        for slot in data["slots"]:
            assert {b["p"] for b in slot["bars"]} <= {0.0, 1.0}
            assert len({b["raw_p"] for b in slot["bars"]}) > 2
            assert sum(b["raw_p"] for b in slot["bars"]) + slot["tail"]["raw_p"] == pytest.approx(1, abs=1e-4)
            if slot["verdict"] != "dropped":
                assert "first choice" in slot["words"]
                assert (slot["first_choice"]["id"] == slot["id"]) == (slot["verdict"] == "accepted")


def test_a_lookup_has_no_raw_draft_probabilities_and_q_is_one():
    for data in frames.row_rounds(made_up(kind="lookup")):
        for slot in data["slots"]:
            assert slot["q"] == 1 and slot["threshold"] == slot["p"]
            assert all(b["raw_q"] is None for b in slot["bars"])
        assert data["points"]["draft"] is None


def test_a_text_that_ends_on_an_accepted_draft_has_no_bonus_token():
    trace = made_up(k=3, rounds=1)
    v = trace.rounds[0].rows[0]
    verdicts = ("accepted", "dropped", "dropped")
    changes = [{"verdict": x, "accept_uniform": 0.0 if x == "accepted" else None} for x in verdicts]
    positions = (*(Position(**{**vars(x), **c}) for x, c in zip(v.positions, changes)), v.positions[-1])
    v = Verdict(
        row=0,
        context=v.context,
        anchor=v.anchor,
        proposed=3,
        verified=3,
        accepted=1,
        positions=positions,
        emitted=(v.positions[0].draft_token,),
        kind=None,
        bonus_token=None,
        bonus_uniform=None,
        finished="eos",
    )
    round_ = Round(**{**vars(trace.rounds[0]), "rows": (v,)})
    (data,) = frames.row_rounds(Trace(**{**vars(trace), "rounds": (round_,)}))
    assert data["bonus"] is None
    assert _kinds(data) == ["draft"] * 3 + ["verify", "judge", "dropped", "end"]
    assert "text has ended" in data["frames"][-2]["words"]
    assert [t["origin"] for t in data["emitted"]] == ["draft"]


def test_drafts_that_were_not_sent_are_told():
    trace = made_up(k=3, rounds=1)
    v = Verdict(**{**vars(trace.rounds[0].rows[0]), "proposed": 7})
    (data,) = frames.row_rounds(Trace(**{**vars(trace), "rounds": (Round(**{**vars(trace.rounds[0]), "rows": (v,)}),)}))
    assert data["k"] == 7 and len(data["slots"]) == 3
    assert "Of 7 drafts only the first 3" in next(f["words"] for f in data["frames"] if f["kind"] == "verify")


def test_counters_count_what_they_say():
    trace = made_up(rows=2)
    last = frames.row_rounds(trace, 1)[-1]["counters"]
    mine = [v for r in trace.rounds for v in r.rows if v.row == 1]
    everyone = sum(len(v.emitted) for r in trace.rounds for v in r.rows)
    assert last["tokens"] == sum(len(v.emitted) for v in mine)
    assert last["acceptance_rate"] == pytest.approx(sum(v.accepted for v in mine) / (5 * 8), rel=1e-5)
    assert last["tokens_per_pass"] == pytest.approx(last["tokens"] / 8, rel=1e-5)
    assert last["tokens_per_second"] == pytest.approx(everyone / trace.seconds, rel=1e-5)
    assert last["plain_tokens_per_second"] == pytest.approx(2 / 0.032, rel=1e-5)
    assert last["plain_flops_per_token"] == pytest.approx(269e6)
    assert frames.row_rounds(made_up(k=0))[-1]["counters"]["acceptance_rate"] is None


def test_without_baseline_and_ceilings_the_figures_are_null_not_invented():
    trace = made_up(ceilings=None)
    trace = Trace(**{**vars(trace), "baseline": Baseline()})
    data = frames.row_rounds(trace)[-1]
    assert data["counters"]["plain_tokens_per_second"] is None
    assert data["seconds"]["plain"] is None
    assert data["points"] == {"draft": None, "verify": None, "plain": None}


@pytest.mark.parametrize(
    ("piece", "shown"),
    [
        (" the", "·the"),
        ("  ", "··"),
        ("\n", "↵"),
        ("\n\n", "↵↵"),
        ("\t", "→"),
        ("", "(empty)"),
        ("a b", "a b"),
        ("a ", "a·"),
        ("\u200b", "\\u200B"),
        ("\x00", "\\u0000"),
        ("\\xF0\\x9F", "\\xF0\\x9F"),
        ("猫", "猫"),
        ("\u0301", "◌\u0301"),
        ("\xa0", "\\u00A0"),
        ("\u202e", "\\u202E"),
        ("\r\n", "\\r↵"),
    ],
)
def test_no_token_is_invisible(piece, shown):
    assert token_text.visible(piece) == shown


def test_emitted_tokens_of_the_rounds_are_the_whole_text_with_origins():
    trace = made_up(rows=2)
    for row in (0, 1):
        tokens = [token for r in frames.row_rounds(trace, row) for token in r["emitted"]]
        assert [t["id"] for t in tokens] == trace.token_ids(row)
        assert {t["origin"] for t in tokens} <= {"draft", "leftover", "all_accepted"}
