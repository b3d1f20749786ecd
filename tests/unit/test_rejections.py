"""failures.py: kinds of tokens, entropy, and counts of rejections, on cases small enough to count by hand."""

import math

import pytest

from specviz.trace import rejections
from specviz.trace.records import Baseline, Cost, Machine, Position, Prompt, Round, Settings, Trace, Verdict

PIECES = {0: " the", 1: "cat", 2: " 7", 3: ",", 4: "\n", 5: "<|im_end|>", 6: "```", 7: " x", 8: "\\xe2"}


def position(draft, verdict, support=(0, 1), logits=None, lse=None, entropy=None, guess=None, confidence=None):
    n = len(support)
    logits = logits or tuple(0.0 for _ in support)
    return Position(
        draft_token=draft,
        verdict=verdict,
        accept_uniform=0.5 if verdict in ("accepted", "rejected") else None,
        support=support,
        target_logits=logits,
        draft_logits=None,
        target_logsumexp=math.log(n) if lse is None else lse,
        draft_logsumexp=None,
        target_probs=(1.0, *[0.0] * (n - 1)),
        draft_probs=tuple(1.0 if t == draft else 0.0 for t in support),
        tail_target=0.0,
        tail_draft=0.0,
        tail_min=0.0,
        tail_leftover=0.0,
        confidence=confidence,
        first_guess=guess,
        target_entropy=entropy,
    )


def verdict(drafts, accepted, bonus, **more):
    """A round of some drafts, of which the first `accepted` are right; `bonus` is the target's own token."""
    kinds = ["accepted"] * accepted + ["rejected"] * (accepted < len(drafts))
    kinds += ["dropped"] * (len(drafts) - len(kinds))
    support = tuple(dict.fromkeys((*drafts, bonus)))
    xs = tuple(position(d, k, support, **more) for d, k in zip(drafts, kinds))
    return Verdict(
        row=0,
        context=10,
        anchor=0,
        proposed=len(drafts),
        verified=len(drafts),
        accepted=accepted,
        positions=(*xs, position(None, "bonus", support)),
        emitted=(*drafts[:accepted], bonus),
        kind="all_accepted" if accepted == len(drafts) else "leftover",
        bonus_token=bonus,
        bonus_uniform=0.5,
    )


def made(*verdicts):
    rounds = tuple(
        Round(
            index=i,
            rows=(v,),
            draft_seconds=0.01,
            verify_seconds=0.02,
            other_seconds=0.0,
            recording_seconds=0.0,
            target_tokens=1 + v.verified,
            draft_tokens=v.verified,
            target_cost=Cost(1, 1),
            draft_cost=Cost(1, 1),
        )
        for i, v in enumerate(verdicts)
    )
    return Trace(
        pair="p",
        target="t",
        drafter="d",
        drafter_label="d",
        settings=Settings(),
        machine=Machine(device="cpu", name="m", precision="fp32", torch="0", transformers="0", threads=1),
        recorded_at="2026-01-01",
        prompts=(Prompt("x", None, True, 0, (1,)),),
        texts=("",),
        pieces=PIECES,
        rounds=rounds,
        prefill_seconds=0.1,
        baseline=Baseline(),
        end="complete",
    )


@pytest.mark.parametrize(
    ("piece", "before", "code", "kind"),
    [
        (" the", "see", False, "word start"),
        ("cat", "see the", False, "inner piece"),
        ("The", "", False, "word start"),
        ("The", "end.\n", False, "word start"),
        (" 7", "of", False, "number"),
        ("2nd", "", False, "number"),
        (",", "x", False, "punctuation"),
        (" (", "x", False, "punctuation"),
        (" {", "x", False, "code"),
        ("_", "a", False, "code"),
        ("```", "", False, "code"),
        ("\n\n", "x", False, "white space"),
        ("", "x", False, "white space"),
        ("<|im_end|>", "x", False, "end of text"),
        ("\\xe2\\x80", "x", False, "inner piece"),
        (" the", "x", True, "code"),
        ("\n", "x", True, "white space"),
        (" é", "x", False, "word start"),
    ],
)
def test_tokens_are_classed_by_their_text(piece, before, code, kind):
    assert rejections.token_class(piece, before, code) == kind and kind in rejections.CLASSES


def test_every_judged_draft_is_a_row_and_nothing_else():
    """Two rounds: two accepted and one rejected of four; then one rejected at once."""
    data = rejections.judged({("A", "d"): made(verdict((0, 1, 2, 3), 2, 4), verdict((0,), 0, 5))})
    assert data.verdict.tolist() == ["accepted", "accepted", "rejected", "rejected"]
    assert data.position.tolist() == [1, 2, 3, 1] and data["round"].tolist() == [1, 1, 1, 2]
    assert data.written.tolist() == ["·the", "cat", "↵", "<|im_end|>"]
    assert data.token_class.tolist() == ["word start", "inner piece", "white space", "end of text"]
    assert data.before.tolist()[2:] == [" thecat", " thecat↵"]


def test_within_a_fenced_block_all_is_code():
    data = rejections.judged({("A", "d"): made(verdict((6,), 1, 0), verdict((1,), 1, 6), verdict((0,), 1, 1))})
    assert data.token_class.tolist() == ["code", "code", "word start"]


def test_rates_are_counted_with_their_interval():
    traces = {("A", "d"): made(verdict((0, 1, 2, 3), 2, 4), verdict((0,), 0, 5)), ("B", "d"): made(verdict((0,), 1, 1))}
    rates = rejections.rates(rejections.judged(traces), "position")
    assert rates[["position", "judged", "rejected"]].to_numpy().tolist() == [[1, 3, 1], [2, 1, 0], [3, 1, 1]]
    assert (rates.share_low <= rates.share).all() and (rates.share <= rates.share_high).all()
    assert rejections.rates(rejections.judged(traces), "prompt").prompt.tolist() == ["A", "B"]
    kinds = rejections.rates(rejections.judged(traces), "token_class").token_class.tolist()
    assert kinds == [c for c in rejections.CLASSES if c in kinds]


def test_an_entropy_that_was_recorded_is_exact_and_otherwise_a_lower_bound():
    assert rejections.entropy(position(0, "accepted", entropy=math.log(2))) == (pytest.approx(1.0), True)
    # 16 equally likely tokens, of which 12 are kept: the bound is tight, since no other may be likelier than these
    bits, exact = rejections.entropy(position(0, "accepted", tuple(range(12)), lse=math.log(16)))
    assert not exact and bits == pytest.approx(4.0)
    # two of four are kept: the rest could sit on two tokens as likely as the likeliest
    bits, _ = rejections.entropy(position(0, "accepted", (0, 1), lse=math.log(4)))
    assert bits <= 2.0 + 1e-9


def test_bands_of_entropy_have_their_edges_on_the_right_side():
    assert [rejections.entropy_band(b) for b in (0.0, 0.49, 0.5, 3.0, 14.0)] == [
        "0 to 0.5 bits",
        "0 to 0.5 bits",
        "0.5 to 1 bits",
        "over 3 bits",
        "over 3 bits",
    ]
    assert len(set(rejections.entropy_bands())) == 5


def test_what_a_serial_pass_mended_is_counted_where_the_target_judged():
    """Guesses: one changed and right, one kept and wrong; what was dropped counts only as changed."""
    first = verdict((0, 1, 2), 1, 3, guess=1)  # 0: changed, right (mended); 1: kept, wrong; 2: changed, dropped
    assert rejections.refinement({("A", "d"): made(first)}) == {
        "kept_right": 0,
        "kept_wrong": 1,
        "refined": 1,
        "worsened": 0,
        "changed_wrong": 0,
        "drafts": 3,
        "changed": 2,
    }
    worsened = verdict((0,), 0, 1, guess=1)
    assert rejections.refinement({("A", "d"): made(worsened)})["worsened"] == 1
