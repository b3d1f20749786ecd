"""Rejected and accepted drafts as a table: by position, token class, entropy of p, and prompt.

The token class of a position is that of the emitted token (the accepted draft, or the token drawn after a rejection),
so accepted and rejected drafts are counted over the same classes.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping

import pandas as pd

from specviz.trace import metrics
from specviz.trace.calibration import wilson
from specviz.trace.records import Position, Trace
from specviz.trace.token_text import visible

CLASSES = ("word start", "inner piece", "number", "punctuation", "code", "white space", "end of text")
ENTROPY_EDGES = (0.0, 0.5, 1.0, 2.0, 3.0, math.inf)
"""Edges of the entropy bands, in bits."""
COLUMNS = [
    "prompt",
    "drafter",
    "round",
    "position",
    "verdict",
    "before",
    "drafted",
    "written",
    "token_class",
    "draft_class",
    "p",
    "q",
    "u",
    "sure_of_drafted",
    "sure_of_written",
    "entropy_bits",
    "entropy_exact",
    "overlap",
    "confidence",
    "first_guess",
]
_SPECIAL = re.compile(r"<\|.*\|>|</?s>|<eos>|<bos>|<pad>|<unk>")
_BYTES = re.compile(r"(\\x[0-9a-fA-F]{2})+")
_CODE_MARKS = set("{}[]<>=_\\/|&^%$#@~`+*;")
_TOP = 12
"""How many of p's likeliest tokens a position keeps when it is recorded (`engine.recorder.TOP`)."""
_FENCE = "```"
_CONTEXT = 36
"""Characters of the preceding text that are shown with a draft."""


def token_class(piece: str, before: str = "", in_code: bool = False) -> str:
    """The kind of a token by its text: one of CLASSES.

    before: the text just before it. in_code: inside a fenced block, where all but white space is code. Outside one a
    token without letters and digits is code if it has a character that is rare in prose (braces, =, _, back-ticks ...).
    """
    core = piece.strip()
    if _SPECIAL.fullmatch(core):
        return "end of text"
    if not core:
        return "white space"
    if _BYTES.fullmatch(core):
        return "inner piece"
    if in_code:
        return "code"
    if any(c.isdigit() for c in core):
        return "number"
    if not any(c.isalpha() for c in core):
        return "code" if set(core) & _CODE_MARKS else "punctuation"
    starts = piece[0].isspace() or not before or not before[-1].isalpha()
    return "word start" if starts else "inner piece"


def entropy(x: Position) -> tuple[float, bool]:
    """(bits, exact): the entropy of the target's softmax at temperature 1. A trace of version 1 lacks it; the result is
    then a lower bound from the recorded tokens, since no other is likelier than the last of p's TOP."""
    if x.target_entropy is not None:
        return x.target_entropy / math.log(2), True
    kept = [math.exp(min(0.0, z - x.target_logsumexp)) for z in x.target_logits]
    bits = -sum(p * math.log2(p) for p in kept if p > 0)
    rest = max(0.0, 1.0 - sum(kept))
    # a full record has p's TOP tokens, and none of the others is likelier than the last of those
    ranked = sorted(kept, reverse=True)
    largest = min(rest, ranked[_TOP - 1] if len(ranked) >= _TOP else ranked[0])
    return bits + (rest * -math.log2(largest) if largest > 0 else 0.0), False


def judged(lanes: Mapping[tuple[str, str], Trace]) -> pd.DataFrame:
    """One row per judged draft of every lane, in the order of COLUMNS. `round` counts the row's rounds from 1,
    `position` the drafts from 1. `written`: the emitted token. p and q are of the drafted token; the two `sure_of`
    columns are the target's softmax at temperature 1 (p may be one-hot)."""
    rows = []
    for (prompt, drafter), trace in lanes.items():
        for number, v, before in _rounds(trace):
            for slot, x in enumerate(v.positions[: v.verified]):
                if x.verdict not in ("accepted", "rejected"):
                    break
                written = v.emitted[slot]
                piece, guess = trace.pieces[written], trace.pieces[x.draft_token]
                in_code = before.count(_FENCE) % 2 == 1
                p, q = x.probs(x.draft_token)
                bits, exact = entropy(x)
                rows.append(
                    (
                        prompt,
                        drafter,
                        number,
                        slot + 1,
                        x.verdict,
                        _last(before),
                        visible(guess),
                        visible(piece),
                        token_class(piece, before, in_code),
                        token_class(guess, before, in_code),
                        p,
                        q,
                        x.accept_uniform,
                        _raw(x, x.draft_token),
                        _raw(x, written),
                        bits,
                        exact,
                        x.overlap,
                        x.confidence,
                        None if x.first_guess is None else visible(trace.pieces[x.first_guess]),
                    )
                )
                before += piece
    data = pd.DataFrame(rows, columns=COLUMNS)
    data["entropy"] = pd.Categorical([entropy_band(b) for b in data.entropy_bits], entropy_bands(), ordered=True)
    return data


def _raw(x: Position, token: int) -> float:
    """The target's softmax at temperature 1 of a token of the support."""
    return math.exp(min(0.0, x.target_logits[x.support.index(token)] - x.target_logsumexp))


def _rounds(trace: Trace):
    """(number from 1, verdict, text before) of the first row's rounds."""
    before = ""
    for number, (_, v) in enumerate(trace.row_rounds(0), 1):
        yield number, v, before
        before += "".join(trace.pieces[t] for t in v.emitted)


def _last(before: str) -> str:
    """The end of the text so far, on one line."""
    line = before.replace("\n", "↵")
    return line if len(line) <= _CONTEXT else "…" + line[-_CONTEXT:]


def entropy_bands() -> list[str]:
    """Names of the entropy bands, ascending."""
    return [
        f"{a:g} to {b:g} bits" if math.isfinite(b) else f"over {a:g} bits" for a, b in itertools.pairwise(ENTROPY_EDGES)
    ]


def entropy_band(bits: float) -> str:
    """The name of the band of an entropy in bits."""
    place = sum(bits >= edge for edge in ENTROPY_EDGES[1:-1])
    return entropy_bands()[place]


def rates(data: pd.DataFrame, by: str) -> pd.DataFrame:
    """Per group of `judged` rows: judged, rejected, the share rejected and its interval; classes, bands and
    positions in their own order, prompts by descending share."""
    rows = []
    for name, part in data.groupby(by, observed=True):
        bad, n = int((part.verdict == "rejected").sum()), len(part)
        rows.append((name, n, bad, bad / n, *wilson(bad, n)))
    out = pd.DataFrame(rows, columns=[by, "judged", "rejected", "share", "share_low", "share_high"])
    if by == "token_class":
        return out.sort_values(by, key=lambda s: s.map(CLASSES.index), ignore_index=True)
    return out.sort_values("share", ascending=False, ignore_index=True) if by == "prompt" else out


def refinement(lanes: Mapping[tuple[str, str], Trace]) -> dict[str, int]:
    """Counts of what a hybrid's serial pass changed at the judged positions; right: equal to the emitted token.

    kept_right, kept_wrong; changed: refined (wrong, then right), worsened (right, then wrong), changed_wrong; and of
    all verified drafts, judged or not: `drafts`, `changed`."""
    out = dict.fromkeys(("kept_right", "kept_wrong", "refined", "worsened", "changed_wrong", "drafts", "changed"), 0)
    for v in (v for t in lanes.values() for r in t.rounds for v in r.rows):
        for slot, x in enumerate(v.positions[: v.verified]):
            if x.first_guess is None:
                continue
            changed = x.first_guess != x.draft_token
            out["drafts"] += 1
            out["changed"] += changed
            if x.verdict not in ("accepted", "rejected"):
                continue
            now, before = x.draft_token == v.emitted[slot], x.first_guess == v.emitted[slot]
            if not changed:
                out["kept_right" if now else "kept_wrong"] += 1
            else:
                out["refined" if now else "worsened" if before else "changed_wrong"] += 1
    return out


def lengths(trace: Trace) -> tuple[int, int]:
    """(tokens emitted, target passes) of a trace."""
    counts = metrics.counts(trace.rounds)
    return counts.emitted, counts.passes
