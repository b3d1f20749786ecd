"""Seconds of a round by its token count: measured with the decoding loop's own rounds, or modelled by the roofline.

A measured table belongs to one device, torch version, number of threads, precision, pair, drafter and kind of sampling.
"""

from __future__ import annotations

import datetime
import math
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from specviz.hardware.costs import ModelShape, breakdown
from specviz.serving.scheduling import RoundCosts, StepCosts
from specviz.trace.records import Ceilings, Settings
from specviz.worker import Job

if TYPE_CHECKING:
    import torch

    from specviz.drafters.base import Drafter, Proposal
    from specviz.drafters.base import Request as DraftRequest
    from specviz.engine.model_store import LoadedModel
    from specviz.engine.sequence import Row

COUNTS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 20, 24, 32, 48, 64, 96)
"""Token counts that are measured."""
DRAFT_ROWS = (1, 2, 4, 8, 16, 32)
"""Numbers of rows at which drafting is measured."""
_LONG_DRAFT = 6
"""Draft length at which the time of a serial drafter's second and later slots is measured."""


@dataclass(frozen=True, kw_only=True)
class StepTable:
    """Median seconds, by the tokens of a verify pass (`tokens`) and of one pass of the drafter (`draft_tokens`)."""

    tokens: tuple[int, ...]
    seconds: tuple[float, ...]
    """Verify pass and judging."""
    draft_tokens: tuple[int, ...]
    """Empty: drafting is a lookup."""
    draft_seconds: tuple[float, ...]
    draft_more_seconds: tuple[float, ...]
    """Of a serial drafter's second and later tokens, by the same numbers of rows; empty for other drafters."""
    lookup_seconds: float
    serial: bool
    context: int
    """Tokens of context of every row."""
    measured_at: str
    """ISO time."""

    @property
    def costs(self) -> RoundCosts:
        """The costs of rounds for policies and clocks."""
        draft = StepCosts(self.draft_tokens, self.draft_seconds) if self.draft_tokens else None
        more = StepCosts(self.draft_tokens, self.draft_more_seconds) if self.draft_more_seconds else None
        return RoundCosts(
            StepCosts(self.tokens, self.seconds), draft, self.serial, draft_fixed=self.lookup_seconds, draft_more=more
        )


def tokens_by_row(tokens: int, most_rows: int = 32) -> list[int]:
    """Splits the tokens of a round over rows, about two verified tokens each."""
    rows = min(most_rows, (tokens + 1) // 2)
    return [tokens // rows + (row < tokens % rows) for row in range(rows)]


class _RandomDrafter:
    """A drafter that proposes random tokens of any requested number, to time rounds of any width."""

    name = label = "random"
    taps: tuple[int, ...] = ()
    max_k = 4096
    parallel = True

    def __init__(self, vocab_size: int, device: torch.device):
        self.vocab_size, self.device = vocab_size, device
        self._rng = random.Random(0)

    def propose(self, requests: Sequence[DraftRequest]) -> Proposal:
        import torch

        from specviz.drafters.base import Proposal
        from specviz.trace.records import Cost

        tokens: list[list[int]] = [[self._rng.randrange(self.vocab_size) for _ in range(r.k)] for r in requests]
        probs = [torch.zeros(len(t), self.vocab_size, dtype=torch.float64, device=self.device) for t in tokens]
        for found, q in zip(tokens, probs):
            q[range(len(found)), found] = 1.0
        return Proposal([*tokens], [*probs], [None] * len(tokens), 0, Cost(0, 0))

    def start(self, row: int, prompt: Sequence[int], taps: torch.Tensor | None, capacity: int) -> None:
        pass

    def commit(self, row: int, emitted: Sequence[int], taps: torch.Tensor | None) -> None:
        pass

    def drop(self, row: int) -> None:
        pass


def round_seconds(
    target: LoadedModel,
    settings: Settings,
    lengths: Sequence[int],
    context: int,
    repeats: int,
    job: Job | None = None,
) -> list[float]:
    """Verify and judge seconds of `repeats` rounds, after one warm-up round, of rows with random texts.

    lengths: tokens of each row (anchor and drafts). Raises Stopped.
    """
    from specviz.engine.loop import RoundContext, play_round
    from specviz.engine.sequence import Row
    from specviz.hardware.machine import clock

    model, rng = target.model, random.Random(1)
    drafter = _RandomDrafter(model.vocab_size, model.device)
    room = (repeats + 1) * max(lengths) + 1
    rows: list[Row] = [
        Row(i, i, tuple(rng.randrange(model.vocab_size) for _ in range(context + 1)), room + 1)
        for i in range(len(lengths))
    ]
    cache, timer = model.new_cache(), clock(str(model.device))
    for row in rows:
        cache.add(row.id, context + 2 * room)
    if context:
        model.forward(cache, [row.id for row in rows], [row.prompt[:-1] for row in rows], logits=False)
    rounds = RoundContext(
        target=model,
        drafter=drafter,
        cache=cache,
        settings=settings,
        eos_ids=frozenset(),
        timer=timer,
        record=False,
    )
    spent = []
    for _ in range(repeats + 1):
        if job is not None:
            job.check()
        played = play_round(rounds, rows, [n - 1 for n in lengths])
        spent.append(played.round.verify_seconds + played.round.other_seconds)
    return spent[1:]


def measure(
    target: LoadedModel,
    make: Callable[[], Drafter],
    settings: Settings,
    key: str,
    context: int = 64,
    repeats: int = 3,
    counts: Sequence[int] = COUNTS,
    draft_rows: Sequence[int] = DRAFT_ROWS,
    job: Job | None = None,
) -> StepTable:
    """Measure target and drafter of an opened pair and save the table under `key`. make: returns a fresh drafter.

    Raises Stopped.
    """
    from specviz.hardware import facts

    job = job or Job()
    most = target.model.max_positions or 2**30
    context = max(0, min(context, most // 2))
    boundary = 2 * len(counts) / (2 * len(counts) + len(draft_rows))
    seconds = _target_seconds(target, settings, counts, context, repeats, job.part(0.0, boundary))
    draft = _DraftTimes()
    for i, rows in enumerate(draft_rows):
        job.report(f"Timing drafts of {rows} rows", boundary + (1 - boundary) * i / len(draft_rows))
        if not _time_drafts(draft, target, make, rows, context, repeats, job):
            break
    table = StepTable(
        tokens=tuple(counts),
        seconds=tuple(seconds),
        draft_tokens=tuple(draft.tokens),
        draft_seconds=tuple(draft.seconds),
        draft_more_seconds=tuple(draft.more_seconds),
        lookup_seconds=draft.lookup,
        serial=not make().parallel,
        context=context,
        measured_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    )
    facts.write("steptable", key, asdict(table))
    job.report("Measured", 1.0)
    return table


def _target_seconds(
    target: LoadedModel, settings: Settings, counts: Sequence[int], context: int, repeats: int, job: Job
) -> list[float]:
    """Median seconds of rounds of each token count, measured in rising and in falling order against slow drifts."""
    spent: dict[int, list[float]] = {tokens: [] for tokens in counts}
    visits = [*counts, *reversed(counts)]
    for i, tokens in enumerate(visits):
        job.report(f"Timing rounds of {tokens} tokens", i / len(visits))
        spent[tokens] += round_seconds(target, settings, tokens_by_row(tokens), context, repeats, job)
    return [statistics.median(spent[tokens]) for tokens in counts]


@dataclass
class _DraftTimes:
    """Measured drafting, as in StepTable."""

    tokens: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    more_seconds: list[float] = field(default_factory=list)
    lookup: float = 0.0


def _time_drafts(
    times: _DraftTimes,
    target: LoadedModel,
    make: Callable[[], Drafter],
    rows: int,
    context: int,
    repeats: int,
    job: Job,
) -> bool:
    """Measure drafting for one number of rows into `times`. False for a lookup, whose time does not depend on it."""
    drafter = make()
    k = min(16, drafter.max_k) if drafter.parallel else 1
    seconds, forwarded = _draft_seconds(target, drafter, rows, k, context, repeats, job)
    if not forwarded:
        times.lookup = seconds
        return False
    times.tokens.append(forwarded if drafter.parallel else rows)
    times.seconds.append(seconds)
    if not drafter.parallel and (longest := min(_LONG_DRAFT, drafter.max_k)) > 1:
        whole, _ = _draft_seconds(target, make(), rows, longest, context, repeats, job)
        times.more_seconds.append(max(1e-6, (whole - seconds) / (longest - 1)))
    return True


def _draft_seconds(
    target: LoadedModel, drafter: Drafter, rows: int, k: int, context: int, repeats: int, job: Job | None
) -> tuple[float, int]:
    """Median seconds of a proposal of k tokens for each of `rows` rows, and the tokens that the drafter forwards."""
    import torch

    from specviz.drafters.base import Request
    from specviz.hardware.machine import clock

    model, rng = target.model, random.Random(2)
    width = len(drafter.taps) * model.hidden_size
    timer = clock(str(model.device))
    anchors = []
    for row in range(rows):
        prompt = [rng.randrange(model.vocab_size) for _ in range(context + 1)]
        taps = torch.randn(context, width, dtype=model.dtype, device=model.device) if width else None
        drafter.start(row, prompt, taps, context + 4 * (repeats + 2) + k)
        anchors.append(prompt[-1])
    spent, forwarded = [], 0
    for _ in range(repeats + 1):
        if job is not None:
            job.check()
        timer.reset()
        with timer.section("draft"):
            proposal = drafter.propose([Request(row, anchors[row], k, (0.5,) * k) for row in range(rows)])
        spent.append(timer.seconds("draft"))
        forwarded = proposal.draft_tokens
        for row in range(rows):
            anchors[row] = rng.randrange(model.vocab_size)
            taps = torch.randn(1, width, dtype=model.dtype, device=model.device) if width else None
            drafter.commit(row, [anchors[row]], taps)
    return statistics.median(spent[1:]), forwarded


def key(target: LoadedModel, pair: str, drafter: str, settings: Settings) -> str:
    """The key of a table: device, torch, threads, precision, pair, drafter and kind of sampling."""
    import torch

    from specviz.hardware.machine import device_name

    kind = "sampled" if settings.temperature else "greedy"
    return (
        f"{device_name(target.device)}, {target.device}, torch {torch.__version__}, {torch.get_num_threads()} "
        f"threads, {target.precision}, {pair}, {drafter}, {kind}"
    )


def cached(key: str) -> StepTable | None:
    """The saved table of a key; None if there is none or the file is damaged."""
    from specviz.hardware import facts

    fact = facts.read("steptable", key)
    if fact is None:
        return None
    values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in fact.items()}
    try:
        table = StepTable(**values)
        table.costs.round([1, 0])
    except Exception:  # any value in an edited file: it is measured again
        return None
    return table


# ---------------------------------------------------------------------------------------------- modelled


class ModelledPass:
    """Modelled seconds of a pass over (tokens, rows) by a device's roofs; every row has the same context."""

    def __init__(self, shape: ModelShape, ceilings: Ceilings, context: int, overhead: float = 0.0):
        self.shape, self.ceilings, self.context, self.overhead = shape, ceilings, context, overhead
        one = breakdown(shape, [1], [context], 0)
        self._row_bytes = one.bytes["cache read"]
        self._token_flops = one.flops["attention"]
        self._without_cache = lru_cache(maxsize=65536)(self._linear)

    def __call__(self, tokens: int, rows: int = 1) -> float:
        if tokens <= 0:
            return 0.0
        flops, moved = self._without_cache(tokens)
        flops, moved = flops + tokens * self._token_flops, moved + rows * self._row_bytes
        return max(flops / self.ceilings.flops, moved / self.ceilings.bandwidth) + self.overhead

    def _linear(self, tokens: int) -> tuple[int, int]:
        """FLOPs and bytes of everything but attention, which depend on the tokens alone."""
        parts = breakdown(self.shape, [tokens], [0], tokens)
        return sum(parts.flops.values()) - parts.flops["attention"], sum(parts.bytes.values())


class ScaledPass:
    """Seconds of a pass as a share of another's: a drafter of that fraction of the target's size."""

    def __init__(self, whole: Callable[[int, int], float], share: float):
        self.whole, self.share = whole, share

    def __call__(self, tokens: int, rows: int = 1) -> float:
        return self.share * self.whole(tokens, rows)


def modelled(
    shape: ModelShape, ceilings: Ceilings, context: int, draft_share: float, serial: bool, overhead: float = 0.0
) -> RoundCosts:
    """Modelled costs of rounds on a device. draft_share: seconds of a drafter's pass over those of the target's pass of
    the same width; 0 is a lookup. overhead: seconds added to every pass."""
    target = ModelledPass(shape, ceilings, context, overhead)
    return RoundCosts(target, ScaledPass(target, draft_share) if draft_share > 0 else None, serial)


def rows_that_fit(shape: ModelShape, memory: float, tokens: int) -> int:
    """How many requests of `tokens` cache positions fit a device's memory (bytes) beside the weights."""
    left = 0.9 * memory - shape.stored_bytes
    return max(0, math.floor(left / (tokens * shape.cache_bytes_per_token)))
