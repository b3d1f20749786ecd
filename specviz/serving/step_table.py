"""What a round costs by its tokens: measured through the decoding loop's own round, and kept; or modelled on roofs.

A measured table is of one device, torch, number of threads, precision, pair, drafter and kind of sampling.
"""

from __future__ import annotations

import datetime
import math
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache

from specviz.hardware.costs import ModelShape, breakdown
from specviz.serving.scheduling import RoundCosts, StepCosts
from specviz.trace.records import Ceilings, Settings
from specviz.worker import Job

COUNTS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 20, 24, 32, 48, 64, 96)
"""Token counts that are measured."""
DRAFT_ROWS = (1, 2, 4, 8, 16, 32)
_MANY = 6
"""Drafts from which the time of a serial drafter's further ones is told."""


@dataclass(frozen=True)
class StepTable:
    """Medians, in seconds. `tokens` are those of a verify pass, `draft_tokens` those of one pass of the drafter."""

    tokens: tuple[int, ...]
    seconds: tuple[float, ...]
    """Verify pass and judging."""
    draft_tokens: tuple[int, ...]
    """Empty: drafting is a lookup."""
    draft_seconds: tuple[float, ...]
    draft_more_seconds: tuple[float, ...]
    """Of a serial drafter's every further token, by the same numbers of rows; empty for others."""
    lookup_seconds: float
    serial: bool
    context: int
    measured_at: str

    @property
    def costs(self) -> RoundCosts:
        """What policies and clocks reckon with."""
        draft = StepCosts(self.draft_tokens, self.draft_seconds) if self.draft_tokens else None
        more = StepCosts(self.draft_tokens, self.draft_more_seconds) if self.draft_more_seconds else None
        return RoundCosts(
            StepCosts(self.tokens, self.seconds), draft, self.serial, draft_fixed=self.lookup_seconds, draft_more=more
        )


def layout(tokens: int, most_rows: int = 32) -> list[int]:
    """Verified tokens per row of a round of so many tokens: as many rows as have about two each, unevenly."""
    rows = min(most_rows, (tokens + 1) // 2)
    return [tokens // rows + (row < tokens % rows) for row in range(rows)]


class _Scripted:
    """A drafter that proposes random tokens in given numbers, so that a round of any width can be timed."""

    name = label = "scripted"
    taps = ()
    max_k = 4096
    parallel = True

    def __init__(self, vocab_size: int, device):
        self.vocab_size, self.device = vocab_size, device
        self._chance = random.Random(0)

    def propose(self, requests):
        import torch

        from specviz.drafters.base import Proposal
        from specviz.trace.records import Cost

        tokens = [[self._chance.randrange(self.vocab_size) for _ in range(r.k)] for r in requests]
        probs = [torch.zeros(len(t), self.vocab_size, dtype=torch.float64, device=self.device) for t in tokens]
        for found, q in zip(tokens, probs):
            q[range(len(found)), found] = 1.0
        return Proposal(tokens, probs, [None] * len(tokens), 0, Cost(0, 0))

    def start(self, row, prompt, taps, capacity):
        pass

    def commit(self, row, emitted, taps):
        pass

    def drop(self, row):
        pass


def round_seconds(
    target,
    settings: Settings,
    lengths: Sequence[int],
    context: int,
    repeats: int,
    job: Job | None = None,
) -> list[float]:
    """Seconds of verify and judging of rounds with lengths[r] tokens (anchor and drafts) of each row, one warm-up
    round before them. The rows' texts are random."""
    from specviz.engine.loop import RoundContext, play_round
    from specviz.engine.sequence import Row
    from specviz.hardware.machine import clock

    model, chance = target.model, random.Random(1)
    drafter = _Scripted(model.vocab_size, model.device)
    room = (repeats + 1) * max(lengths) + 1
    rows = [
        Row(i, i, tuple(chance.randrange(model.vocab_size) for _ in range(context + 1)), room + 1)
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
    target,
    make: Callable,
    settings: Settings,
    key: str,
    context: int = 64,
    repeats: int = 3,
    counts: Sequence[int] = COUNTS,
    draft_rows: Sequence[int] = DRAFT_ROWS,
    job: Job | None = None,
) -> StepTable:
    """Measure target and drafter of an opened pair and keep the table under `key`. make(): a fresh drafter.

    Raises Stopped.
    """
    from specviz.hardware import facts

    job = job or Job()
    most = target.model.max_positions or 2**30
    context = max(0, min(context, most // 2))
    # there and back, so that a slow minute does not make one width dearer than its neighbours
    spent: dict[int, list[float]] = {tokens: [] for tokens in counts}
    visits = [*counts, *reversed(counts)]
    for i, tokens in enumerate(visits):
        job.report(f"Timing rounds of {tokens} tokens", i / (len(visits) + len(draft_rows)))
        spent[tokens] += round_seconds(target, settings, layout(tokens), context, repeats, job)
    seconds = [statistics.median(spent[tokens]) for tokens in counts]
    drafter = make()
    draft_tokens, draft_seconds, more_seconds, lookup = [], [], [], 0.0
    for i, rows in enumerate(draft_rows):
        job.report(f"Timing drafts of {rows} rows", (len(visits) + i) / (len(visits) + len(draft_rows)))
        k = min(16, drafter.max_k) if drafter.parallel else 1
        took, forwarded = _draft_seconds(target, make(), rows, k, context, repeats, job)
        if not forwarded:
            lookup = took
            break
        draft_tokens.append(rows if not drafter.parallel else forwarded)
        draft_seconds.append(took)
        if not drafter.parallel and (most := min(_MANY, drafter.max_k)) > 1:
            many, _ = _draft_seconds(target, make(), rows, most, context, repeats, job)
            more_seconds.append(max(1e-6, (many - took) / (most - 1)))
    table = StepTable(
        tuple(counts),
        tuple(seconds),
        tuple(draft_tokens),
        tuple(draft_seconds),
        tuple(more_seconds),
        lookup,
        not drafter.parallel,
        context,
        datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    )
    facts.write("steptable", key, asdict(table))
    job.report("Measured", 1.0)
    return table


def _draft_seconds(
    target, drafter, rows: int, k: int, context: int, repeats: int, job: Job | None
) -> tuple[float, int]:
    """Seconds in which the drafter proposes k tokens for each of so many rows, and the tokens that it forwards."""
    import torch

    from specviz.drafters.base import Request
    from specviz.hardware.machine import clock

    model, chance = target.model, random.Random(2)
    width = len(drafter.taps) * model.hidden_size
    timer = clock(str(model.device))
    anchors = []
    for row in range(rows):
        prompt = [chance.randrange(model.vocab_size) for _ in range(context + 1)]
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
            anchors[row] = chance.randrange(model.vocab_size)
            taps = torch.randn(1, width, dtype=model.dtype, device=model.device) if width else None
            drafter.commit(row, [anchors[row]], taps)
    return statistics.median(spent[1:]), forwarded


def key(target, pair: str, drafter: str, settings: Settings) -> str:
    """What a table belongs to."""
    import torch

    from specviz.hardware.machine import device_name

    kind = "sampled" if settings.temperature else "greedy"
    return (
        f"{device_name(target.device)}, {target.device}, torch {torch.__version__}, {torch.get_num_threads()} "
        f"threads, {target.precision}, {pair}, {drafter}, {kind}"
    )


def cached(key: str) -> StepTable | None:
    """The table that was kept under the key, or None."""
    from specviz.hardware import facts

    fact = facts.read("steptable", key)
    if fact is None:
        return None
    try:
        table = StepTable(**{k: tuple(v) if isinstance(v, list) else v for k, v in fact.items()})
        table.costs.round([1, 0])
    except (TypeError, ValueError, KeyError, AttributeError, ArithmeticError):
        return None
    except Exception:  # a file that was edited by hand: measured again
        return None
    return table


# ---------------------------------------------------------------------------------------------- modelled


class ModelledPass:
    """Seconds of one pass over (tokens, rows) of a model on a device's roofs, every row having the same context."""

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
        """FLOPs and bytes of all but attention: linear layers see tokens, not rows."""
        parts = breakdown(self.shape, [tokens], [0], tokens)
        return sum(parts.flops.values()) - parts.flops["attention"], sum(parts.bytes.values())


class Share:
    """A pass that takes a share of another's time: a drafter of that fraction of the target's size."""

    def __init__(self, whole: Callable[[int, int], float], share: float):
        self.whole, self.share = whole, share

    def __call__(self, tokens: int, rows: int = 1) -> float:
        return self.share * self.whole(tokens, rows)


def modelled(
    shape: ModelShape, ceilings: Ceilings, context: int, draft_share: float, serial: bool, overhead: float = 0.0
) -> RoundCosts:
    """The costs of rounds on a device of the catalogue. draft_share: one pass of the drafter in passes of the target
    of the same width; 0 is a lookup."""
    target = ModelledPass(shape, ceilings, context, overhead)
    return RoundCosts(target, Share(target, draft_share) if draft_share > 0 else None, serial)


def rows_that_fit(shape: ModelShape, memory: float, tokens: int) -> int:
    """How many requests of so many tokens a device's memory holds beside the weights."""
    left = 0.9 * memory - shape.stored_bytes
    return max(0, math.floor(left / (tokens * shape.cache_bytes_per_token)))
