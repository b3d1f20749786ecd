"""Sweep over K x batch x context: tokens per second of each cell against plain decoding of the same rows.

A cell decodes `rounds` rounds of `batch` copies of one prompt, each with its own seed, and times a plain step of the
same rows after every round. The first round and plain step are the warm-up. No row ends inside a cell, so the batch
size is constant. Measured cells are kept: a stopped sweep resumes with the missing ones.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from specviz.drafters.names import check_drafter
from specviz.engine.request import RunRequest
from specviz.errors import MemoryBudgetError, SettingsError
from specviz.hardware.costs import ModelShape
from specviz.hardware.roofline import Point, expected_tokens, modelled_seconds, point, step_cost
from specviz.loader.pairs import find_pair
from specviz.trace import metrics
from specviz.trace.metrics import flops_per_token, plain_flops_per_token
from specviz.trace.records import MAX_K, MAX_ROWS, Baseline, Ceilings, Cost, Settings
from specviz.worker import Worker

LONGEST_CONTEXT = 4096
NOTHING = Cost(0, 0)


@dataclass(frozen=True, kw_only=True)
class SweepRequest:
    """Parameters of a sweep. settings.k and settings.max_new_tokens are not used: each cell sets its own."""

    pair: str
    drafter: str
    text: str
    ks: tuple[int, ...] = (0, 1, 2, 3, 4, 5, 6, 7, 8)
    batches: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    contexts: tuple[int, ...] = (0,)
    """Prompt lengths in tokens, reached by filler text before the prompt; 0: no filler."""
    settings: Settings = field(default_factory=Settings)
    rounds: int = 10
    device: str = "auto"
    precision: str = "auto"

    def __post_init__(self):
        for name, low, high in (("ks", 0, MAX_K), ("batches", 1, MAX_ROWS), ("contexts", 0, LONGEST_CONTEXT)):
            values = getattr(self, name)
            if not values or any(isinstance(v, bool) or not isinstance(v, int) or not low <= v <= high for v in values):
                raise SettingsError(f"{name} must be whole numbers from {low} to {high}, at least one.")
        if not 3 <= self.rounds <= 200:
            raise SettingsError(f"A cell needs from 3 to 200 rounds, not {self.rounds}.")

    @property
    def keys(self) -> list[Key]:
        """Every cell in the order of measuring, the fastest first."""
        return [(k, b, c) for c in self.contexts for b in sorted(self.batches) for k in sorted(set(self.ks))]


Key = tuple[int, int, int]
"""K, batch, context"""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """Figures of one cell. Rates are None where nothing was drafted or the cell could not be measured (see `note`)."""

    k: int
    batch: int
    context: int
    """Tokens of the prompt as it was decoded."""
    tokens_per_second: float | None = None
    """Of all rows together: mean tokens of a round over `round_seconds`."""
    plain_tokens_per_second: float | None = None
    """Of all rows together: the batch over `plain_step_seconds`."""
    speedup: float | None = None
    acceptance_rate: float | None = None
    mean_acceptance_length: float | None = None
    flops_per_token: float | None = None
    plain_flops_per_token: float | None = None
    draft_seconds: float | None = None
    """Per round, like the next two and the costs."""
    verify_seconds: float | None = None
    """Of the verify pass alone."""
    plain_seconds: float | None = None
    """Of a plain step's forward pass alone."""
    draft_cost: Cost = NOTHING
    verify_cost: Cost = NOTHING
    plain_cost: Cost = NOTHING
    wasted_flops_per_token: float | None = None
    """Target FLOPs on positions that gave no token, per emitted token."""
    draft_flops_per_token: float | None = None
    text: str = ""
    """The prompt, with what was put before it."""
    note: str = ""
    round_seconds: float | None = None
    """The median whole round: drafting, verifying, judging and bookkeeping."""
    plain_step_seconds: float | None = None
    """The median whole plain step: forward pass, sampling and draw."""

    def points(self, ceilings: Ceilings) -> list[Point]:
        """Its plain, verify and draft step on the roofline, as far as they were timed."""
        steps = (
            ("plain", self.plain_cost, self.plain_seconds),
            ("verify", self.verify_cost, self.verify_seconds),
            ("draft", self.draft_cost, self.draft_seconds),
        )
        return [point(kind, cost, seconds, ceilings) for kind, cost, seconds in steps if seconds and cost.bytes]


class Sweep(Worker):
    """Measures the cells of a sweep; `start` after a stop resumes with the missing ones."""

    def __init__(self, order: SweepRequest, store=None):
        super().__init__()
        pair = find_pair(order.pair)
        check_drafter(pair, order.drafter)
        self.order, self.pair = order, pair
        self.cells: dict[Key, Cell] = {}
        self.ceilings: Ceilings | None = None
        self.device = self.precision = ""
        self.only: Key | None = None
        """A single cell to measure at the next start, of the order or not."""
        self._store = store

    @property
    def missing(self) -> list[Key]:
        return [key for key in self.order.keys if key not in self.cells]

    def run_order(self, cell: Cell) -> RunRequest:
        """The order of a run that decodes a cell's rows, to watch them."""
        order = self.order
        return RunRequest(
            order.pair,
            order.drafter,
            cell.text,
            replace(order.settings, k=cell.k, max_new_tokens=max(16, order.rounds * (cell.k + 1))),
            rows=cell.batch,
            device=order.device,
            precision=order.precision,
        )

    def work(self) -> None:
        from specviz.engine.model_store import STORE
        from specviz.hardware import ceilings

        store, order = self._store or STORE, self.order
        self.report("Opening the pair", 0.0)
        target = store.open(self.pair.target, order.device, order.precision, self.part(0.0, 0.0))
        self.device, self.precision = target.device, target.precision
        self.ceilings = ceilings.cached(target.device, target.precision)
        if self.ceilings is None:
            part = self.part(0.0, 0.0, "Measuring this machine's ceilings, once")
            self.ceilings = ceilings.measure(target.device, target.precision, quick=True, job=part)
        prompts: dict[int, tuple[str, list[int]]] = {}
        wanted, self.only = [self.only] if self.only else self.missing, None
        for i, (k, batch, context) in enumerate(wanted):
            if self.stopping():
                return
            words = f"K = {k}, batch {batch}" + (f", context {context}" if context else "")
            self.report(f"{words}: cell {i + 1} of {len(wanted)}", i / len(wanted))
            if context not in prompts:
                prompts[context] = bring_to(target.tokenizer, order.text, context, self.pair.name == "toy")
            text, ids = prompts[context]
            try:
                self.cells[k, batch, context] = self._measure(store, target, k, batch, text, ids)
            except MemoryBudgetError as error:
                self.cells[k, batch, context] = Cell(k=k, batch=batch, context=len(ids), text=text, note=str(error))
        self.report("", 1.0)

    def _measure(self, store, target, k: int, batch: int, text: str, ids: list[int]) -> Cell:
        from specviz.engine.drafter_factory import make_drafter
        from specviz.engine.loop import Measurements, decode

        order = self.order
        new = order.rounds * (k + 1) + 1  # so that no row ends inside the cell
        settings = replace(order.settings, k=k, max_new_tokens=min(4096, new))
        _check_room(target, batch, len(ids) + new, k)
        drafter = make_drafter(order.drafter, self.pair, target, settings, store, self.part(0.0, 0.0)) if k else None
        if drafter is not None and k > drafter.max_k:
            return Cell(
                k=k,
                batch=batch,
                context=len(ids),
                text=text,
                note=f"This drafter drafts at most {drafter.max_k} tokens.",
            )
        measured, rounds = Measurements(), []
        steps = decode(
            target.model,
            drafter,
            [ids] * batch,
            settings,
            eos_ids=frozenset(),
            baseline_every=1,
            record=False,
            measured=measured,
            seeds=[order.settings.seed + row for row in range(batch)],
        )
        try:
            for round_ in steps:
                rounds.append(round_)
                self.check()
                if len(rounds) == order.rounds:
                    break
        finally:
            steps.close()
        return _cell(k, batch, len(ids), text, rounds[1:], _without_first(measured.baseline))


def _without_first(baseline: Baseline) -> Baseline:
    return Baseline(baseline.seconds[1:], baseline.forward_seconds[1:], baseline.rows[1:], baseline.cost)


def _cell(k: int, batch: int, context: int, text: str, rounds: list, baseline: Baseline) -> Cell:
    n, emitted = len(rounds), metrics.counts(rounds).emitted
    target = sum(r.target_cost.flops for r in rounds)
    useful = sum(r.target_cost.flops * sum(len(v.emitted) for v in r.rows) / r.target_tokens for r in rounds)
    # the median round and the median plain step, alike on both sides: all rounds of a cell have the same width
    whole, plain_step = statistics.median(r.seconds for r in rounds), statistics.median(baseline.seconds)
    rate, plain = emitted / n / whole, batch / plain_step
    return Cell(
        k=k,
        batch=batch,
        context=context,
        tokens_per_second=rate,
        plain_tokens_per_second=plain,
        speedup=rate / plain,
        acceptance_rate=metrics.acceptance_rate(rounds),
        mean_acceptance_length=metrics.mean_acceptance_length(rounds),
        flops_per_token=flops_per_token(rounds),
        plain_flops_per_token=plain_flops_per_token(baseline),
        draft_seconds=statistics.median(r.draft_seconds for r in rounds),
        verify_seconds=statistics.median(r.verify_seconds for r in rounds),
        plain_seconds=statistics.median(baseline.forward_seconds),
        draft_cost=_mean([r.draft_cost for r in rounds]),
        verify_cost=_mean([r.target_cost for r in rounds]),
        plain_cost=baseline.cost,
        wasted_flops_per_token=(target - useful) / emitted,
        draft_flops_per_token=sum(r.draft_cost.flops for r in rounds) / emitted,
        text=text,
        round_seconds=whole,
        plain_step_seconds=plain_step,
    )


def _mean(costs: Sequence[Cost]) -> Cost:
    return Cost(sum(c.flops for c in costs) // len(costs), sum(c.bytes for c in costs) // len(costs))


def _check_room(target, rows: int, tokens: int, k: int) -> None:
    """Refuse a cell whose caches and logits would not fit, before anything is allocated."""
    from specviz.format import gigabytes
    from specviz.hardware.memory import free_memory_bytes

    model = target.model
    if model.max_positions is not None and tokens > model.max_positions:
        raise MemoryBudgetError(f"This cell needs {tokens} positions, and the target has {model.max_positions}.")
    wanted = rows * (2 * tokens * model.shape.cache_bytes_per_token + (k + 1) * model.vocab_size * 32)
    free = free_memory_bytes(target.device)
    if wanted > free:
        raise MemoryBudgetError(
            f"This cell needs about {gigabytes(wanted)}, and {gigabytes(free)} are free: lower the "
            "batch, K or the context."
        )


_FILLER = (
    "The harbour lay quiet in the early light. Boats came and went, a bell rang twice, and somebody on the quay "
    "counted crates into an old ledger while the tide turned and the gulls moved inland over the roofs. "
)


def bring_to(tokenizer, text: str, tokens: int, toy: bool = False) -> tuple[str, list[int]]:
    """The text after as much filler as gives a prompt of at most `tokens` tokens, and its ids; 0: no filler.

    The filler is one repeated paragraph, which only makes the cache long.
    """
    from specviz.engine.prompts import encode

    def filled(words: int) -> tuple[str, list[int]]:
        source = ("the cat sees the dog and " if toy else _FILLER).split()
        before = " ".join(source[i % len(source)] for i in range(words))
        whole = f"{before}{' ' if toy else chr(10) * 2}{text}" if words else text
        return whole, list(encode(tokenizer, whole).ids)

    low, best = 0, filled(0)
    if len(best[1]) >= tokens:
        return best
    high = tokens
    while high - low > 1:  # the most words that do not make it longer than asked
        middle = (low + high) // 2
        tried = filled(middle)
        if len(tried[1]) <= tokens:
            low, best = middle, tried
        else:
            high = middle
    return best


# ------------------------------------------------------------------------------- reading a finished map


def best_k(cells: Sequence[Cell], batch: int, context: int | None = None) -> Cell | None:
    """The measured cell of a batch with the most tokens per second against plain; None if none is above 1."""
    mine = [
        c
        for c in cells
        if c.batch == batch and c.speedup is not None and c.k and (context is None or c.context == context)
    ]
    best = max(mine, key=lambda c: (c.speedup or 0.0, -c.k), default=None)
    return best if best is not None and (best.speedup or 0.0) > 1 else None


def serving_settings(cells: Sequence[Cell], drafter: str) -> dict[str, str]:
    """Settings of vLLM and SGLang for the measured best K: text to copy, by program."""
    import json

    batches = sorted({c.batch for c in cells if c.speedup is not None})
    chosen = {b: (best.k if (best := best_k(cells, b)) else 0) for b in batches}
    if not chosen:
        return {}
    top = max(chosen.values())
    method = {"ngram": "ngram"}.get(drafter, "draft_model")
    config = {"method": method, "num_speculative_tokens": max(1, top)}
    if method == "ngram":
        config |= {"prompt_lookup_max": 4, "prompt_lookup_min": 1}
    else:
        config |= {"model": "<your drafter>"}
    table = ", ".join(f"{b}: {k}" for b, k in chosen.items())
    off = next((b for b in batches if not chosen[b]), None)
    vllm = f"vllm serve <your target> --speculative-config '{json.dumps(config)}'\n# K by batch, as measured: {table}"
    algorithm = "NGRAM" if method == "ngram" else "STANDALONE"
    sglang = (
        f"python -m sglang.launch_server --model-path <your target> --speculative-algorithm {algorithm} "
        f"--speculative-num-draft-tokens {top + 1}\n# SGLang counts the anchor: {top + 1} is K = {top}"
    )
    if off is not None:
        vllm += f"\n# from {off} requests at once on, do not speculate"
        sglang += f"\n# from {off} requests at once on, do not speculate"
    return {"vLLM": vllm, "SGLang": sglang}


# ---------------------------------------------------------------------------------------------- modelled


def modelled(
    shape: ModelShape,
    ceilings: Ceilings,
    ks: Sequence[int],
    batches: Sequence[int],
    context: int,
    survival: float,
    draft_ratio: float,
    serial: bool,
) -> list[Cell]:
    """Modelled cells of a device by its roofline. survival: probability of each draft, given those before it;
    draft_ratio: seconds of a drafter's pass over those of the target's pass of the same width."""
    cells = []
    for batch in batches:
        plain = step_cost(shape, batch, 0, context)
        plain_seconds = modelled_seconds(plain, ceilings)
        for k in ks:
            cost = step_cost(shape, batch, k, context)
            verify = modelled_seconds(cost, ceilings)
            draft = draft_ratio * (k * plain_seconds if serial else verify) if k else 0.0
            tokens = expected_tokens(survival, k)
            seconds = verify + draft
            drafted = Cost(round(draft_ratio * (k * plain.flops if serial else cost.flops)) if k else 0, 0)
            cells.append(
                Cell(
                    k=k,
                    batch=batch,
                    context=context,
                    tokens_per_second=batch * tokens / seconds,
                    plain_tokens_per_second=batch / plain_seconds,
                    speedup=tokens / seconds * plain_seconds,
                    acceptance_rate=(tokens - 1) / k if k else None,
                    mean_acceptance_length=tokens if k else None,
                    flops_per_token=(cost.flops + drafted.flops) / batch / tokens,
                    plain_flops_per_token=plain.flops / batch,
                    draft_seconds=draft,
                    verify_seconds=verify,
                    plain_seconds=plain_seconds,
                    draft_cost=drafted,
                    verify_cost=cost,
                    plain_cost=plain,
                    wasted_flops_per_token=cost.flops * (1 - tokens / (k + 1)) / batch / tokens,
                    draft_flops_per_token=drafted.flops / batch / tokens,
                )
            )
    return cells
