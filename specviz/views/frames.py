"""Frames of the player: the rounds of one row as JSON values, each with its steps in their real order.

The component draws these values; every number, sentence and order of steps comes from here or from
specviz.views.captions. Imports no torch. p is the target's distribution and q the drafter's, both after temperature,
top-k and top-p.

A *frame* is one step of a round:

    draft      a token is proposed (all of them at once by a parallel pass)
    correct    hybrid drafters: the serial pass replaced the parallel pass's first guess, or kept them all
    verify     one pass of the target scores all K + 1 positions at once
    judge      one drafted token meets the accept rule
    dropped    the drafts after the first rejection (or after the end of the text)
    leftover   max(0, p - q) forms and is normalised
    bonus      the target's own draw, from the leftover or from p
    end        the row is finished
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Protocol

from specviz.format import equals, number
from specviz.hardware import roofline
from specviz.trace.records import Baseline, Machine, Position, Prompt, Round, Settings, Verdict
from specviz.trace.token_text import visible
from specviz.views import captions

BARS = 9
"""Maximum number of tokens with a bar of their own at a position; all others are one bar."""
_DIGITS = 6
"""Significant digits sent to the browser: more than a screen can show, few enough to keep a run small."""


class RunView(Protocol):
    """A Trace, or a run in progress with the same attributes."""

    @property
    def rounds(self) -> Sequence[Round]: ...
    @property
    def pieces(self) -> Mapping[int, str]: ...
    @property
    def prompts(self) -> Sequence[Prompt]: ...
    @property
    def baseline(self) -> Baseline | None: ...
    @property
    def machine(self) -> Machine | None: ...
    @property
    def settings(self) -> Settings: ...
    @property
    def draft_parallel(self) -> bool | None: ...


def row_rounds(run: RunView, row: int = 0, start: int = 0) -> list[dict]:
    """The rounds of one row from its `start`-th on, as JSON values for the player.

    Counters are cumulative from the row's first round; seconds and FLOPs are those of the whole batch, since its rows
    share each pass.
    """
    out = []
    totals = _Totals()
    for round_ in tuple(run.rounds):
        totals.add_round(round_)
        verdict = next((v for v in round_.rows if v.row == row), None)
        if verdict is None:
            continue
        totals.add_row(verdict)
        if totals.rounds > start:
            out.append(_round(run, round_, verdict, totals, number_=totals.rounds))
    return out


def plain_facts(run: RunView) -> dict:
    """Plain decoding in the same run: tokens per second and seconds of a step's forward pass (measured), FLOPs
    per token (counted). None where nothing was measured."""
    baseline = run.baseline
    if baseline is None or not baseline.seconds:
        return {"tokens_per_second": None, "flops_per_token": None, "step_seconds": None}
    return {
        "tokens_per_second": _short(baseline.tokens_per_second),
        "flops_per_token": _short(baseline.cost.flops / baseline.rows[-1]) if baseline.cost.flops else None,
        "step_seconds": _short(roofline.plain_seconds(baseline)),
    }


class _Totals:
    """Sums over the rounds so far."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.flops = self.batch_tokens = 0
        self.rounds = self.tokens = self.proposed = self.accepted = 0

    def add_round(self, round_: Round) -> None:
        self.seconds += round_.seconds
        self.flops += round_.target_cost.flops + round_.draft_cost.flops
        self.batch_tokens += sum(len(v.emitted) for v in round_.rows)

    def add_row(self, verdict: Verdict) -> None:
        self.rounds += 1
        self.tokens += len(verdict.emitted)
        self.proposed += verdict.proposed
        self.accepted += verdict.accepted


def _round(run: RunView, round_: Round, v: Verdict, totals: _Totals, number_: int) -> dict:
    greedy = run.settings.temperature == 0
    text = _Texts(run.pieces)
    slots = [_slot(v, i, text, greedy) for i in range(v.verified)]
    bonus = _bonus(v, text, greedy)
    plain = plain_facts(run)
    ceilings = run.machine.ceilings if run.machine else None
    points = roofline.round_points(round_, run.baseline or Baseline(), ceilings)
    data = {
        "index": round_.index,
        "number": number_,
        "context": v.context,
        "k": v.proposed,
        "verified": v.verified,
        "accepted": v.accepted,
        "kind": v.kind,
        "greedy": greedy,
        "anchor": {"id": v.anchor, "text": text(v.anchor)},
        "slots": slots,
        "past": _past(v, text, greedy),
        "bonus": bonus,
        "emitted": _emitted(run.pieces, v),
        "finished": v.finished,
        "seconds": {
            "draft": _short(round_.draft_seconds),
            "verify": _short(round_.verify_seconds),
            "other": _short(round_.other_seconds),
            "plain": plain["step_seconds"],
        },
        "tokens": {"draft": round_.draft_tokens, "verify": round_.target_tokens, "rows": len(round_.rows)},
        "points": {kind: point_data(points.get(kind)) for kind in ("draft", "verify", "plain")},
        "counters": {
            "rounds": totals.rounds,
            "tokens": totals.tokens,
            "tokens_per_pass": _short(totals.tokens / totals.rounds),
            "proposed": totals.proposed,
            "accepted": totals.accepted,
            "acceptance_rate": _short(totals.accepted / totals.proposed) if totals.proposed else None,
            "tokens_per_second": _short(totals.batch_tokens / totals.seconds) if totals.seconds > 0 else None,
            "plain_tokens_per_second": plain["tokens_per_second"],
            "flops_per_token": _short(totals.flops / totals.batch_tokens) if totals.batch_tokens else None,
            "plain_flops_per_token": plain["flops_per_token"],
        },
        "frames": _frames(v, slots, bonus, greedy, bool(run.draft_parallel)),
    }
    return captions.add_texts(data, rows=len(run.prompts), ceilings=ceilings is not None)


class _Texts:
    """Legible text of token ids; empty for None."""

    def __init__(self, pieces: Mapping[int, str]):
        self.pieces = pieces

    def __call__(self, token: int | None) -> str:
        return "" if token is None else visible(self.pieces.get(token, f"<{token}>"))


def _emitted(pieces: Mapping[int, str], v: Verdict) -> list[dict]:
    text = _Texts(pieces)
    drawn = {"leftover": "leftover", "all_accepted": "all_accepted", None: "draft"}[v.kind]
    origins = ["draft"] * v.accepted + [drawn] * (v.bonus_token is not None)
    return [{"id": t, "text": text(t), "raw": pieces.get(t, f"<{t}>"), "origin": o} for t, o in zip(v.emitted, origins)]


# ------------------------------------------------------------------------------------------- positions


def _slot(v: Verdict, i: int, text: _Texts, greedy: bool) -> dict:
    x = v.positions[i]
    p, q = _draft_probs(x)
    ratio = p / q if q > 0 else None
    drawn = v.bonus_token if v.kind is not None and i == v.accepted else None
    return {
        "slot": i,
        "id": x.draft_token,
        "text": text(x.draft_token),
        "p": _short(p),
        "q": _short(q),
        "ratio": _short(ratio),
        "threshold": _short(x.threshold),
        "u": _short(x.accept_uniform),
        "verdict": x.verdict,
        "confidence": _short(x.confidence),
        "first_guess": None if x.first_guess is None else {"id": x.first_guess, "text": text(x.first_guess)},
        "first_choice": _first_choice(x, text),
        **_bars(x, x.draft_token, drawn, text, greedy),
        "words": _judged(x, text, greedy),
    }


def _draft_probs(x: Position) -> tuple[float, float]:
    """p and q of the drafted token; zeros where nothing was drafted."""
    return (0.0, 0.0) if x.draft_token is None else x.probs(x.draft_token)


def _past(v: Verdict, text: _Texts, greedy: bool) -> dict:
    """The position past the last draft: p alone."""
    x = v.positions[-1]
    drawn = v.bonus_token if v.kind == "all_accepted" else None
    return {"slot": len(v.positions) - 1, "first_choice": _first_choice(x, text), **_bars(x, None, drawn, text, greedy)}


def _first_choice(x: Position, text: _Texts) -> dict:
    best = max(range(len(x.support)), key=lambda i: (x.target_probs[i], x.target_logits[i]))
    return {"id": x.support[best], "text": text(x.support[best])}


def _bars(x: Position, drafted: int | None, drawn: int | None, text: _Texts, greedy: bool) -> dict:
    """The most probable tokens, one bar each, and the sums over all other tokens.

    raw_p and raw_q are the softmax of the raw logits, at temperature 1 without top-k and top-p: under greedy decoding p
    and q are one-hot, and only these show how confident the models were.
    """
    raw_p = [_softmax(z, x.target_logsumexp) for z in x.target_logits]
    raw_q: Sequence[float | None] = (
        [_softmax(z, x.draft_logsumexp) for z in x.draft_logits]
        if x.draft_logits is not None
        else [None] * len(x.support)
    )

    def weight(i: int) -> tuple[bool, float, float]:
        shown = max(raw_p[i], raw_q[i] or 0.0) if greedy else max(x.target_probs[i], x.draft_probs[i])
        return x.support[i] in (drafted, drawn), shown, raw_p[i]

    order = sorted(range(len(x.support)), key=weight, reverse=True)[:BARS]
    order.sort(key=lambda i: weight(i)[1:], reverse=True)
    rest = [i for i in range(len(x.support)) if i not in set(order)]
    bars = []
    for i in order:
        p, q = x.target_probs[i], x.draft_probs[i]
        bars.append(
            {
                "id": x.support[i],
                "text": text(x.support[i]),
                "p": _short(p),
                "q": _short(q),
                "min": _short(min(p, q)),
                "left": _short(max(0.0, p - q)),
                "raw_p": _short(raw_p[i]),
                "raw_q": _short(raw_q[i]),
                "drafted": x.support[i] == drafted,
                "drawn": x.support[i] == drawn,
            }
        )
    pairs = [(x.target_probs[i], x.draft_probs[i]) for i in rest]
    no_raw_q = x.draft_logits is None
    tail = {
        "p": _short(x.tail_target + sum(p for p, _ in pairs)),
        "q": _short(x.tail_draft + sum(q for _, q in pairs)),
        "min": _short(x.tail_min + sum(map(min, *zip(*pairs)) if pairs else ())),
        "left": _short(x.tail_leftover + sum(max(0.0, p - q) for p, q in pairs)),
        "raw_p": _short(max(0.0, 1.0 - sum(raw_p[i] for i in order))),
        "raw_q": None if no_raw_q else _short(max(0.0, 1.0 - sum(raw_q[i] or 0.0 for i in order))),
    }
    return {"bars": bars, "tail": tail, "overlap": _short(x.overlap), "leftover": _short(_leftover_sum(x))}


def _softmax(logit: float | None, logsumexp: float | None) -> float:
    if logit is None or logsumexp is None:
        return 0.0
    return math.exp(min(0.0, logit - logsumexp))


def _leftover_sum(x: Position) -> float:
    """The sum of max(0, p - q) over all tokens."""
    return sum(max(0.0, p - q) for p, q in zip(x.target_probs, x.draft_probs)) + x.tail_leftover


def _bonus(v: Verdict, text: _Texts, greedy: bool) -> dict | None:
    """The draw of the bonus token: the line 0..1 divided into one interval per token, and the uniform u in one of them.

    Tokens are in the order of their ids, as in the draw itself (inverse CDF). Tokens that the trace keeps only as a sum
    are drawn as 'others' left and right of the drawn token, in the proportion that puts u into its interval (the middle
    one if several do). `exact`: there are none.
    """
    if v.kind is None or v.bonus_token is None:
        return None
    x = v.positions[v.accepted]
    if v.kind == "leftover" and _leftover_sum(x) > 0:
        weights, tail = [max(0.0, p - q) for p, q in zip(x.target_probs, x.draft_probs)], x.tail_leftover
    else:
        weights, tail = list(x.target_probs), x.tail_target
    total = sum(weights) + tail
    share = {t: w / total for t, w in zip(x.support, weights)}
    tail = tail / total
    return {
        "id": v.bonus_token,
        "text": text(v.bonus_token),
        "slot": v.accepted,
        "u": _short(v.bonus_uniform),
        "kind": v.kind,
        "sum": _short(total),
        "exact": tail < 1e-9,
        "intervals": _intervals(share, tail, v.bonus_token, v.bonus_uniform, text),
        "words": _drawn(v, text, greedy),
    }


def _intervals(share: dict[int, float], tail: float, drawn: int, u: float | None, text: _Texts) -> list[dict]:
    """The intervals of `_bonus`. share: probability by token id; tail: of all tokens without an id in the trace."""
    below = sum(w for t, w in share.items() if t < drawn)
    left = tail / 2  # the part of the tail left of the drawn token
    if u is not None:
        low, high = max(0.0, u - share[drawn] - below), min(tail, u - below)
        left = min(max((low + high) / 2, 0.0), tail)
    ranked = sorted((t for t in share if share[t] > 0 and t != drawn), key=lambda t: share[t], reverse=True)
    shown = {drawn, *ranked[: BARS - 1]}
    parts: list[tuple[int | None, float]] = [
        (None, left + sum(w for t, w in share.items() if t < drawn and t not in shown)),
        *((t, share[t]) for t in sorted(shown)),
        (None, tail - left + sum(w for t, w in share.items() if t > drawn and t not in shown)),
    ]
    intervals, start = [], 0.0
    for token, weight in parts:
        if weight > 1e-12 or token == drawn:
            end = start + weight
            intervals.append(
                {
                    "id": token,
                    "text": "others" if token is None else text(token),
                    "weight": _short(weight),
                    "lo": _short(start),
                    "hi": _short(min(1.0, end)),
                    "drawn": token == drawn,
                }
            )
            start = end
    return intervals


# ------------------------------------------------------------------------------------------- sentences


def _quote(text: str) -> str:
    return f"“{text}”"


def _plural(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def _judged(x: Position, text: _Texts, greedy: bool) -> str:
    """The sentence of a verdict."""
    draft = _quote(text(x.draft_token))
    if x.verdict == "dropped":
        return f"{draft} was dropped: the chain had ended before it, so it was never judged."
    if greedy:
        first = _quote(_first_choice(x, text)["text"])
        if x.verdict == "accepted":
            return f"The target's first choice is {first}, and so is the draft: accepted."
        return f"The target's first choice is {first}; the draft {draft} differs: rejected."
    p, q = _draft_probs(x)
    ratio, u = (p / q if q > 0 else math.inf), x.accept_uniform
    if u is None:
        return f"p {equals(p)}, q {equals(q)}: {x.verdict}."
    if x.verdict == "accepted":
        return f"u {equals(u)} < min(1, p/q) {equals(min(1.0, ratio))}: {draft} is accepted."
    return f"u {equals(u)} {'>' if u > ratio else '≥'} p/q {equals(ratio)}: {draft} is rejected."


def _drawn(v: Verdict, text: _Texts, greedy: bool) -> str:
    """The sentence of the bonus token's draw."""
    token = _quote(text(v.bonus_token))
    if v.verified == 0:
        if greedy:
            return f"The target's first choice is {token}."
        return f"u {equals(v.bonus_uniform)} draws {token} from p."
    everyone = "The draft was accepted" if v.accepted == 1 else f"All {v.accepted} drafts were accepted"
    if greedy:
        if v.kind == "leftover":
            return f"The bonus token is the target's first choice here: {token}."
        return f"{everyone}: the bonus token is the target's first choice at the next position, {token}."
    u = f"u {equals(v.bonus_uniform)}"
    if v.kind == "leftover":
        return f"{u} falls on {token}: the bonus token, drawn from the leftover."
    return f"{everyone}. {u} falls on {token}: the bonus token, drawn from p itself."


def _frames(v: Verdict, slots: list[dict], bonus: dict | None, greedy: bool, parallel: bool) -> list[dict]:
    """The steps of a round in order: draft, verify, judge, bonus token, end."""
    frames = [*_draft_frames(v, slots, parallel), _verify_frame(v, len(slots)), *_judge_frames(v, slots)]
    if bonus:
        if v.kind == "leftover":
            words = _leftover_words(slots[v.accepted]["leftover"], greedy)
            frames.append(_frame("leftover", [v.accepted], "Leftover", words))
        frames.append(_frame("bonus", [bonus["slot"]], "Bonus token" if slots else "Draw", bonus["words"]))
    if v.finished:
        words = {
            "eos": "The end-of-text token was emitted: this row is finished.",
            "length": "The length limit is reached: this row is finished.",
        }[v.finished]
        frames.append(_frame("end", [], "End", words))
    return frames


def _frame(kind: str, slots: list[int], title: str, words: str) -> dict:
    return {"kind": kind, "slots": slots, "title": title, "words": words}


def _draft_frames(v: Verdict, slots: list[dict], parallel: bool) -> list[dict]:
    if not slots:
        return []
    everything = [s["slot"] for s in slots]
    count = "1 token" if len(slots) == 1 else f"all {len(slots)} tokens"
    if all(s["first_guess"] for s in slots):
        words = f"One parallel pass makes a rough guess of {count} at once: no token has seen its new neighbours yet."
        return [
            _frame("draft", everything, "First guess", words),
            *(
                _frame("correct", everything, "Correct", words)
                if slot is None
                else _frame("correct", [slot], f"Correct draft {slot + 1}", words)
                for slot, words in _refined(slots)
            ),
        ]
    if parallel:
        return [_frame("draft", everything, "Draft", f"The drafter proposes {count} in one pass.")]
    frames = []
    for s in slots:
        only = ", its only choice" if v.positions[s["slot"]].probs(s["id"])[1] == 1 else ""
        words = f"The drafter proposes {_quote(s['text'])} with q {equals(s['q'])}{only}."
        frames.append(_frame("draft", [s["slot"]], f"Draft {s['slot'] + 1} of {len(slots)}", words))
    return frames


def _verify_frame(v: Verdict, count: int) -> dict:
    if not count:
        unsent = f" None of the {_plural(v.proposed, 'draft')} is sent." if v.proposed else ""
        words = f"A plain step: nothing to check, the target scores the next token alone.{unsent}"
        return _frame("verify", [0], "Plain step", words)
    unsent = f" Of {v.proposed} drafts only the first {v.verified} are sent." if v.verified < v.proposed else ""
    words = f"One pass of the target scores all {count + 1} positions at once: its weights are read once.{unsent}"
    return _frame("verify", list(range(count + 1)), "Verify", words)


def _judge_frames(v: Verdict, slots: list[dict]) -> list[dict]:
    frames = [
        _frame("judge", [s["slot"]], f"Judge {s['slot'] + 1} of {len(slots)}", s["words"])
        for s in slots
        if s["verdict"] in ("accepted", "rejected")
    ]
    dropped = [s["slot"] for s in slots if s["verdict"] == "dropped"]
    if dropped:
        why = "The first rejection stops the chain" if v.kind == "leftover" else "The text has ended"
        verb = "is" if len(dropped) == 1 else "are"
        words = f"{why}: {_plural(len(dropped), 'later draft')} {verb} dropped without being judged."
        frames.append(_frame("dropped", dropped, "Drop", words))
    return frames


def _leftover_words(total: float, greedy: bool) -> str:
    if greedy:
        return "The leftover max(0, p − q) is the target's first choice alone, since p and q are one-hot."
    if total > 0:
        return (
            f"The excess of p over q, max(0, p − q), sums to {number(total)}. Divided by that sum it is the "
            "leftover distribution."
        )
    return "p and q agree up to rounding, so nothing is left over: p itself is used."


def _refined(slots: list[dict]) -> list[tuple[int | None, str]]:
    """Changes of the first guesses by the serial pass, from left to right: (slot, sentence) for each replaced guess, or
    (None, sentence) if it kept them all."""
    out: list[tuple[int | None, str]] = []
    kept = 0
    for s in slots:
        if s["first_guess"]["id"] == s["id"]:
            kept += 1
            continue
        before = f"After keeping {_plural(kept, 'guess') if kept == 1 else f'{kept} guesses'}, the" if kept else "The"
        sight = "knows the two tokens before it" if s["slot"] else "samples from its q"
        out.append(
            (
                s["slot"],
                f"{before} serial pass, which {sight}, replaces {_quote(s['first_guess']['text'])} by "
                f"{_quote(s['text'])} (q {equals(s['q'])}).",
            )
        )
        kept = 0
    if not out:
        out.append((None, "The serial pass goes over the guesses from left to right and keeps them all."))
    return out


# ------------------------------------------------------------------------------------------- numbers


def _short(value: float | None) -> float | None:
    """A number for the browser: six significant digits, and null for what JSON cannot hold."""
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.{_DIGITS}g}")


def point_data(point: roofline.Point | None) -> dict | None:
    """A roofline point as JSON values, with its `rate` in FLOP/s (None without a time); None stays None."""
    if point is None:
        return None
    data = {k: _short(v) if isinstance(v, float) else v for k, v in dataclasses.asdict(point).items()}
    return data | {"rate": _short(point.flops / point.seconds) if point.seconds else None}
