"""Lanes: the same prompts decoded with several drafters, one target and one seed; each lane is a Trace.

The lane `plain` is plain decoding (K = 0) of the same prompt, measured in the same process like any other lane. Imports
no torch before decoding.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from specviz.drafters.names import LOOKUP_FIRST, drafter_names
from specviz.engine.prompts import PRESETS, TOY_PRESETS
from specviz.engine.request import RunRequest
from specviz.errors import PairError, SettingsError
from specviz.loader.pairs import EMBEDDED, find_pair
from specviz.paths import ASSETS
from specviz.trace import files as trace_files
from specviz.trace.records import Position, Round, Settings, Trace, Verdict
from specviz.worker import Stopped, Worker

if TYPE_CHECKING:
    from specviz.engine.model_store import ModelStore

PLAIN = "plain"
PLAIN_LABEL = "plain decoding: the target alone, one token per pass"
FOLDER = ASSETS / "traces" / "lanes"
"""The recorded lanes that ship."""
MAX_PROMPTS = 20
KEPT = 2
"""Number of the most probable tokens of p and of q that a recorded lane keeps at each judged position."""
PATIENCE_SECONDS = 15.0
"""Additional seconds without a poll before the work stops: the page has many charts and takes long to draw."""
Key = tuple[str, str]
"""(prompt's name, drafter)."""


@dataclass(frozen=True, kw_only=True)
class LanesRequest:
    """Parameters of lanes: every text with every drafter."""

    pair: str = EMBEDDED
    drafters: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()
    settings: Settings = field(default_factory=lambda: Settings(k=7, max_new_tokens=48))
    raw: bool = False
    device: str = "auto"
    precision: str = "auto"


_ORDER = ("ngram", "autoregressive", "parallel", LOOKUP_FIRST, "hybrid")


def default_drafters(pair_name: str) -> tuple[str, ...]:
    """The drafters of a pair in the order of their lanes, without first-layers if there are others."""
    names = drafter_names(find_pair(pair_name))
    order = [n for n in _ORDER if n in names]
    order += [n for n in names if n not in order]
    useful = [n for n in order if n != "first-layers"]
    return tuple(useful or order)


def prompt_name(text: str) -> str:
    """A prompt's name on screen: its preset's title, or its first words."""
    for known in PRESETS + TOY_PRESETS:
        if known.text == text:
            return known.title
    words = " ".join(text.split())
    return words if len(words) <= 32 else words[:31].rstrip() + "…"


def more_texts(pair_name: str, first: str, count: int) -> tuple[str, ...]:
    """`first` and then the pair's test prompts, at most `count` and without duplicates. Imports torch."""
    from specviz.checks.lossless import texts_for

    others = texts_for(pair_name)[0] if count > 1 else ()
    return tuple(dict.fromkeys((first, *others)))[:count]


class Lanes(Worker):
    """Runs an order, prompt by prompt, and keeps each finished lane; after a Stop those that are there stay usable."""

    patience = PATIENCE_SECONDS

    def __init__(self, order: LanesRequest, store: ModelStore | None = None):
        """Raises SettingsError or PairError with a sentence for an order that cannot be run."""
        super().__init__()
        pair = find_pair(order.pair)
        names = drafter_names(pair)
        if unknown := [d for d in order.drafters if d not in names]:
            raise PairError(f"{pair.title} has no drafter {unknown[0][:40]!r}: choose among {', '.join(names)}.")
        if not order.drafters:
            raise SettingsError("Choose at least one drafter for the lanes.")
        if not order.texts or not all(t.strip() for t in order.texts):
            raise SettingsError("A prompt is empty: type something, or choose a preset.")
        if len(order.texts) > MAX_PROMPTS:
            raise SettingsError(f"At most {MAX_PROMPTS} prompts are run at once, not {len(order.texts)}.")
        if order.settings.k < 1:
            raise SettingsError("K must be at least 1: with K = 0 nothing is drafted.")
        self.id = uuid.uuid4().hex[:12]
        self.order, self.pair = order, pair
        self.traces: dict[Key, Trace] = {}
        self._store = store

    def work(self) -> None:
        from specviz.engine.model_store import STORE

        order, store = self.order, self._store or STORE
        names = _names(order.texts)
        # plain decoding first, then the drafters, starting with another one at each prompt, so that none is favoured
        jobs = []
        for i, (name, text) in enumerate(zip(names, order.texts)):
            turn = i % len(order.drafters)
            jobs += [(name, text, d) for d in (PLAIN, *order.drafters[turn:], *order.drafters[:turn])]
        for d in (PLAIN, *order.drafters):  # loads weights and picks kernels; not recorded
            self.report(f"Warming up: {d}", 0.0)
            self._decode(order.texts[0], d, store, min(12, order.settings.max_new_tokens))
        for i, (name, text, drafter) in enumerate(jobs):
            self.check()
            self.report(f"{name}: {drafter} ({i + 1} of {len(jobs)})", i / len(jobs))
            found = self._decode(text, drafter, store, order.settings.max_new_tokens)
            if found.end == "complete":
                self.traces = self.traces | {(name, drafter): found}
        self.report("", 1.0)

    def _decode(self, text: str, drafter: str, store: ModelStore, tokens: int) -> Trace:
        from specviz.engine.run import Run

        outer, order = self, self.order

        class Lane(Run):
            def stopping(self) -> bool:
                return outer.stopping() or super().stopping()

            def report(
                self, stage: str, fraction: float | None = None, done_bytes: int = 0, total_bytes: int | None = None
            ) -> None:
                super().report(stage, fraction, done_bytes, total_bytes)
                if self.status == "loading" and (total_bytes or fraction):
                    outer.report(stage, None, done_bytes, total_bytes)

        plain = drafter == PLAIN
        named = _drafter_of_plain(self.pair, order.drafters) if plain else drafter
        settings = replace(order.settings, max_new_tokens=tokens, **({"k": 0} if plain else {}))
        run = Lane(
            RunRequest(
                order.pair, named, text, settings, raw=order.raw, device=order.device, precision=order.precision
            ),
            store,
        ).execute()
        if run.status == "failed":
            raise SettingsError(f"{drafter}: {run.error}")
        if run.trace is None:
            raise Stopped
        return replace(run.trace, drafter=PLAIN, drafter_label=PLAIN_LABEL) if plain else run.trace


def _drafter_of_plain(pair, chosen: Sequence[str]) -> str:
    """The unused drafter of plain decoding's run: a lookup if there is one, since it has no weights."""
    return "ngram" if "ngram" in drafter_names(pair) else chosen[0]


def _names(texts: Sequence[str]) -> list[str]:
    """A unique name for each text."""
    out: list[str] = []
    for text in texts:
        name, n = prompt_name(text), 2
        while name in out:
            name, n = f"{prompt_name(text)} ({n})", n + 1
        out.append(name)
    return out


# ------------------------------------------------------------------------------------------ sets of lanes


def prompts_of(lanes: Mapping[Key, Trace]) -> list[str]:
    """The prompts of a set, in the order in which they ran."""
    return list(dict.fromkeys(prompt for prompt, _ in lanes))


def drafters_of(lanes: Mapping[Key, Trace]) -> list[str]:
    """The drafters of a set without plain decoding, in the order of `default_drafters`."""
    found = dict.fromkeys(d for _, d in lanes if d != PLAIN)
    return sorted(found, key=lambda d: _ORDER.index(d) if d in _ORDER else len(_ORDER))


def of_drafter(lanes: Mapping[Key, Trace], drafter: str) -> list[Trace]:
    """A drafter's lanes, prompt by prompt."""
    return [trace for (_, d), trace in lanes.items() if d == drafter]


def same_text(lanes: Mapping[Key, Trace], drafter: str) -> tuple[int, int]:
    """(greedy lanes whose tokens equal plain decoding's, greedy lanes that can be compared)."""
    same = compared = 0
    for (prompt, d), trace in lanes.items():
        plain = lanes.get((prompt, PLAIN))
        if d == drafter and plain is not None and trace.settings.temperature == 0:
            compared += 1
            same += trace.token_ids() == plain.token_ids()
    return same, compared


# ------------------------------------------------------------------------------------------ recorded lanes


def save(lanes: Mapping[Key, Trace], folder: Path = FOLDER) -> list[Path]:
    """Write each lane, slimmed, as its own trace file, and remove the lanes that were there before."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("lane-*.json.gz"):
        old.unlink()
    prompts, written = prompts_of(lanes), []
    for (prompt, drafter), trace in lanes.items():
        slug = re.sub(r"[^a-z0-9]+", "-", prompt.lower()).strip("-")[:24]
        path = folder / f"lane-{prompts.index(prompt):02d}-{slug}-{drafter}.json.gz"
        written.append(trace_files.save(slim(trace), path))
    return written


def load(folder: Path = FOLDER) -> dict[Key, Trace]:
    """The recorded lanes of a folder; empty if there are none. Raises TraceError for a file that is no trace."""
    found = [trace_files.load(path) for path in sorted(folder.glob("lane-*.json.gz"))]
    texts = list(dict.fromkeys(t.prompts[0].text for t in found))
    name = dict(zip(texts, _names(texts)))
    return {(name[t.prompts[0].text], t.drafter): t for t in found}


def slim(trace: Trace, kept: int = KEPT) -> Trace:
    """A smaller trace of the same run: positions keep the `kept` most probable tokens of p and of q (dropped positions
    one each), the drafted and the drawn token. Removed tokens are added to the tails, so overlap and leftover stay
    exact up to rounding; numbers keep five digits."""
    rounds = tuple(
        replace(
            r,
            rows=tuple(_slim_verdict(v, kept) for v in r.rows),
            draft_seconds=round(r.draft_seconds, 7),
            verify_seconds=round(r.verify_seconds, 7),
            other_seconds=round(r.other_seconds, 7),
            recording_seconds=round(r.recording_seconds, 7),
        )
        for r in trace.rounds
    )
    used = _tokens(rounds)
    base = trace.baseline
    base = replace(
        base,
        seconds=tuple(round(s, 7) for s in base.seconds),
        forward_seconds=tuple(round(s, 7) for s in base.forward_seconds),
    )
    return replace(trace, rounds=rounds, baseline=base, pieces={t: s for t, s in trace.pieces.items() if t in used})


def _tokens(rounds: Sequence[Round]) -> set[int]:
    used: set[int] = set()
    for v in (v for r in rounds for v in r.rows):
        used.update((v.anchor, *v.emitted), *(x.support for x in v.positions))
        used.update(x.first_guess for x in v.positions if x.first_guess is not None)
    return used


def _slim_verdict(v: Verdict, kept: int) -> Verdict:
    positions = []
    for slot, x in enumerate(v.positions):
        drawn = v.bonus_token if slot == v.accepted else None
        # what was never looked at is kept for its place alone
        idle = x.verdict == "dropped" or (x.verdict == "bonus" and drawn is None)
        positions.append(_slim_position(x, 1 if idle else kept, drawn))
    return replace(v, positions=tuple(positions), bonus_uniform=_uniform(v.bonus_uniform))


def _uniform(u: float | None) -> float | None:
    """A uniform with eight decimals, still below 1."""
    return None if u is None else min(round(u, 8), 0.99999999)


def _slim_position(x: Position, kept: int, drawn: int | None) -> Position:
    everything = range(len(x.support))
    by_p = sorted(everything, key=lambda i: -x.target_logits[i])[:kept]
    weight: Sequence[float] = x.draft_probs
    if x.draft_logits is not None:
        weight = [-1e30 if z is None else z for z in x.draft_logits]
    by_q = [i for i in sorted(everything, key=lambda i: -weight[i])[:kept] if weight[i] > -1e30]
    if x.draft_token is None or x.draft_logits is None:
        by_q = [i for i in by_q if x.draft_probs[i] > 0]
    named = [i for i in everything if x.support[i] in (x.draft_token, drawn)]
    stay = list(dict.fromkeys([*by_p, *by_q, *named]))
    gone = [i for i in everything if i not in set(stay)]
    p, q = x.target_probs, x.draft_probs

    def tail(now: float, parts: Iterable[float]) -> float:
        return min(1.0, _digits(now + sum(parts)))

    return replace(
        x,
        support=tuple(x.support[i] for i in stay),
        target_logits=tuple(_digits(x.target_logits[i]) for i in stay),
        draft_logits=None if x.draft_logits is None else tuple(_optional_digits(x.draft_logits[i]) for i in stay),
        target_probs=tuple(_digits(p[i]) for i in stay),
        draft_probs=tuple(_digits(q[i]) for i in stay),
        target_logsumexp=_digits(x.target_logsumexp),
        draft_logsumexp=_optional_digits(x.draft_logsumexp),
        tail_target=tail(x.tail_target, (p[i] for i in gone)),
        tail_draft=tail(x.tail_draft, (q[i] for i in gone)),
        tail_min=tail(x.tail_min, (min(p[i], q[i]) for i in gone)),
        tail_leftover=tail(x.tail_leftover, (max(0.0, p[i] - q[i]) for i in gone)),
        accept_uniform=_uniform(x.accept_uniform),
        confidence=_optional_digits(x.confidence),
        target_entropy=_optional_digits(x.target_entropy),
    )


def _digits(value: float) -> float:
    """Rounded to five significant digits."""
    return float(f"{value:.5g}")


def _optional_digits(value: float | None) -> float | None:
    return None if value is None else _digits(value)
