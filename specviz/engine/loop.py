"""The decoding loop: propose, verify, judge, commit; one Round at a time, for one row or many.

Reads beside Leviathan et al. 2023 (arXiv 2211.17192), algorithm 1. It knows a target and a drafter only
through their protocols. Rows never influence each other: each has its own length, its own stream of
uniforms and its own round count.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch

from specviz.drafters.base import Drafter, Proposal, Request
from specviz.engine import recorder
from specviz.engine.sequence import Row
from specviz.errors import NotFiniteError, SettingsError
from specviz.hardware.costs import pass_cost
from specviz.hardware.machine import Timer, clock
from specviz.models.cache import RaggedCache
from specviz.models.causal import CausalModel, Output
from specviz.models.finite import drafted_logits, drafter_fault, largest_logits, target_fault
from specviz.sampling.distributions import Rows, together, whole
from specviz.sampling.rejection import judge_rows, uniform, warped
from specviz.sampling.transfer import onto, read
from specviz.trace.records import MAX_ROWS, Baseline, Cost, Position, Round, Settings, Verdict


@dataclass
class Measurements:
    """What a run measures besides its rounds; filled in while it goes."""

    prefill_seconds: float = 0.0
    baseline: Baseline = field(default_factory=Baseline)


def check_prompts(target: CausalModel, prompts: Sequence[Sequence[int]], settings: Settings) -> None:
    """Refuse, with a sentence, prompts that the target cannot decode. Raises SettingsError."""
    if not 1 <= len(prompts) <= MAX_ROWS:
        raise SettingsError(f"The batch must be from 1 to {MAX_ROWS} rows, not {len(prompts)}.")
    for prompt in prompts:
        if not prompt:
            raise SettingsError("The prompt is empty: type at least one character.")
        if not all(0 <= t < target.vocab_size for t in prompt):
            raise SettingsError("The prompt has token ids that the target does not know.")
        room = (target.max_positions or 2**30) - settings.max_new_tokens
        if len(prompt) > room:
            raise SettingsError(
                f"The prompt has {len(prompt)} tokens; with {settings.max_new_tokens} new ones the target has room for "
                f"{max(room, 0)}. Shorten the prompt or the length. {target.position_note}".rstrip()
            )


def decode(
    target: CausalModel,
    drafter: Drafter | None,
    prompts: Sequence[Sequence[int]],
    settings: Settings,
    *,
    seeds: Sequence[int] | None = None,
    eos_ids: frozenset[int] | None = None,
    choose_k: Callable[[Row], int] | None = None,
    cut: Callable[[Proposal], list[int]] | None = None,
    baseline_every: int = 0,
    record: bool = True,
    measured: Measurements | None = None,
) -> Iterator[Round]:
    """Decode one row per prompt and yield each Round as it happens. Closing the generator frees the cache.

    prompts: token ids, at least one each. seeds: one per row, default settings.seed + row index; a row with
    the same seed gives the same output alone and in any batch. drafter None or K = 0: plain decoding.
    choose_k: K of a row's next round, default settings.k. cut: how many drafts of each row go to the verify
    pass, decided from the proposal. baseline_every: after every that many rounds (and the first) a plain
    step of the same rows is timed and undone, into measured.baseline. record False: Rounds carry no Positions' details.
    """
    check_prompts(target, prompts, settings)
    measured = measured if measured is not None else Measurements()
    seeds = seeds if seeds is not None else [settings.seed + i for i in range(len(prompts))]
    eos_ids = target.eos_ids() if eos_ids is None else eos_ids
    rows = [Row(i, seed, tuple(p), settings.max_new_tokens) for i, (seed, p) in enumerate(zip(seeds, prompts))]
    cache = target.new_cache()
    taps = drafter.taps if drafter else ()
    max_k = min(settings.k if choose_k is None else 16, drafter.max_k) if drafter else 0
    timer = clock(str(target.device))

    # 1. Each prompt is forwarded once, however many rows begin with it: all but its last token, the first anchor.
    with timer.section("prefill"):
        for row in rows:
            cache.add(row.id, len(row.prompt) + row.limit + max_k + 1)
        first = {row.prompt: row for row in reversed(rows)}
        long = [row for row in rows if len(row.prompt) > 1 and first[row.prompt] is row]
        tapped = {row.prompt: None for row in rows}
        if long:
            out = target.forward(cache, [r.id for r in long], [r.prompt[:-1] for r in long], taps, logits=False)
            if taps:
                tapped |= {row.prompt: t for row, t in zip(long, out.taps)}
        for row in rows:
            if first[row.prompt] is not row and len(row.prompt) > 1:
                cache.copy(first[row.prompt].id, row.id)
            start_drafter(target, drafter, row, tapped[row.prompt], len(row.prompt) + row.limit + max_k + 1)
    measured.prefill_seconds = timer.seconds("prefill")

    active = rows
    index = 0
    while active:
        ks = [min(choose_k(row) if choose_k else settings.k, max_k) for row in active]
        played = play_round(target, drafter, cache, active, ks, settings, eos_ids, timer, index, cut=cut, record=record)
        yield played.round
        active = played.going_on
        if baseline_every and active and index % baseline_every == 0:
            measured.baseline = _plain_step(target, cache, active, settings, measured.baseline, timer)
        index += 1


def drafts_wished(drafter: Drafter | None, row: Row, wish: int) -> int:
    """How many drafts a row asks for: what was wished, as far as the drafter goes, and no more than could still be
    emitted beside the bonus token."""
    return max(0, min(wish, drafter.max_k, row.remaining - 1)) if drafter else 0


def start_drafter(
    target: CausalModel, drafter: Drafter | None, row: Row, context: torch.Tensor | None, capacity: int
) -> None:
    """Tell the drafter of a row whose prompt the target has read. context: the taps [len(prompt) - 1, taps * D]."""
    if drafter is None:
        return
    if drafter.taps and context is None:
        context = torch.empty(0, len(drafter.taps) * target.hidden_size, dtype=target.dtype, device=target.device)
    drafter.start(row.id, row.prompt, context, capacity)


@dataclass(frozen=True)
class Played:
    """One round that was played."""

    round: Round
    going_on: list[Row]
    """The rows that have not ended, in the order given."""
    chunk_taps: list[torch.Tensor | None]
    """Of each chunk of a prompt that was forwarded along: [n, taps * D], or None if there are no taps."""


def play_round(
    target: CausalModel,
    drafter: Drafter | None,
    cache: RaggedCache,
    active: Sequence[Row],
    ks: Sequence[int],
    settings: Settings,
    eos_ids: frozenset[int],
    timer: Timer,
    index: int = 0,
    *,
    cut: Callable[[Proposal], list[int]] | None = None,
    record: bool = True,
    chunks: Sequence[tuple[int, Sequence[int]]] = (),
) -> Played:
    """Propose, verify, judge and commit once, for the rows given. Rows are changed in place; ended ones are dropped.

    ks: drafts wished for each row. chunks: (row, tokens) pieces of prompts of other rows, forwarded in the same pass
    without logits; they are in the round's target cost and tokens.
    """
    taps = drafter.taps if drafter else ()
    timer.reset()
    # 2. Propose: K drafts per row.
    with timer.section("draft"):
        requests = []
        for row, wish in zip(active, ks):
            if (k := drafts_wished(drafter, row, wish)) > 0:
                us = tuple(uniform(row.seed, row.rounds, slot, "draft") for slot in range(k))
                requests.append(Request(row.id, row.anchor, k, us))
        proposal = drafter.propose(requests) if requests else None
        drafts = {row.id: _Draft(None, 0, 0) for row in active}
        if proposal:
            lengths = cut(proposal) if cut else [len(t) for t in proposal.tokens]
            drafts |= {r.row: _Draft(proposal, i, lengths[i]) for i, r in enumerate(requests)}

    # 3. Verify: anchor and drafts of every row, K + 1 positions each, in one pass.
    with timer.section("verify"):
        ids = [row.id for row in active] + [row for row, _ in chunks]
        contexts = [cache.lengths[row] for row in ids]
        packed = [drafts[row.id].after(row.anchor) for row in active]
        positions = sum(map(len, packed))
        wanted = [*map(len, packed), *(0 for _ in chunks)] if chunks else True
        packed += [list(tokens) for _, tokens in chunks]
        out = target.forward(cache, ids, packed, taps, logits=wanted if active else False)

    # 4. Judge each row by itself, and read what came of it: nothing up to here waits for the device.
    with timer.section("judge"):
        if active:
            verdict = _judge(out, active, [drafts[row.id] for row in active], settings)
            accepted, bonuses, faults = _settle(verdict, proposal, record)
            if faults and (
                error := _fault(target, drafter, active, [drafts[row.id] for row in active], out.starts, *faults)
            ):
                raise error

    # 5. Keep what it earned, and roll the rest back.
    verdicts, going_on = [], []
    with timer.section("commit"):
        for i, row in enumerate(active):
            draft = drafts[row.id]
            k, bonus, kind = draft.length, bonuses[i], "leftover" if accepted[i] < draft.length else "all_accepted"
            emitted, finished = _emit(row, draft.tokens[: accepted[i]], bonus, eos_ids)
            on_draft = len(emitted) <= accepted[i]  # the text ended on an accepted draft
            kept = len(emitted) if on_draft else accepted[i]
            with timer.section("record"):
                recorded = _recorded(out, verdict, i, draft, kept, None if on_draft else bonus) if record else ()
            verdicts.append(
                Verdict(
                    row.id,
                    contexts[i],
                    row.anchor,
                    draft.proposed,
                    k,
                    kept,
                    recorded,
                    tuple(emitted),
                    None if on_draft else kind,
                    None if on_draft else bonus,
                    None if on_draft else verdict.bonus_uniforms[i],
                    finished,
                )
            )
            row.emitted += emitted
            row.rounds += 1
            if finished:
                cache.drop(row.id)
                if drafter:
                    drafter.drop(row.id)
            else:
                cache.truncate(row.id, contexts[i] + 1 + kept)
                if drafter:
                    drafter.commit(row.id, emitted, out.taps[i][: 1 + kept] if taps else None)
                going_on.append(row)

    recording_seconds = timer.seconds("record")
    round_ = Round(
        index,
        tuple(verdicts),
        timer.seconds("draft"),
        timer.seconds("verify"),
        timer.seconds("judge") + max(0.0, timer.seconds("commit") - recording_seconds),
        recording_seconds,
        sum(map(len, packed)),
        proposal.draft_tokens if proposal else 0,
        pass_cost(target.shape, [len(p) for p in packed], contexts, positions),
        proposal.cost if proposal else Cost(0, 0),
    )
    return Played(round_, going_on, out.taps[len(active) :] if taps else [None] * len(chunks))


@dataclass(frozen=True)
class _Draft:
    """One row's share of a Proposal, as far as it goes to the verify pass."""

    proposal: Proposal | None
    i: int
    """Which of the proposal's rows it is."""
    length: int

    def part(self, of: list | None):
        """Its share of one of the proposal's lists."""
        return None if of is None or of[self.i] is None else of[self.i][: self.length]

    @property
    def proposed(self) -> int:
        return len(self.proposal.tokens[self.i]) if self.proposal else 0

    @property
    def tokens(self) -> list[int] | torch.Tensor:
        return self.part(self.proposal.tokens) if self.proposal else []

    def after(self, anchor: int) -> list[int] | torch.Tensor:
        """Anchor and drafts."""
        if isinstance(tokens := self.tokens, torch.Tensor):
            return torch.cat([onto([anchor], tokens.device), tokens])
        return [anchor, *tokens]


@dataclass(frozen=True)
class _Verdict:
    """On all rows of a round: how many drafts were accepted, and the bonus tokens, still to be read; and by what."""

    accepted: torch.Tensor | list[int]
    bonus: torch.Tensor | list[int]
    target_probs: Rows
    accept_uniforms: list[list[float]]
    bonus_uniforms: list[float]
    largest: torch.Tensor
    """[M] of models.finite.largest_logits"""
    drafted: torch.Tensor | list
    """[N] of models.finite.drafted_logits, of the drafts that came with logits"""


def _judge(out: Output, active: Sequence[Row], drafts: Sequence[_Draft], settings: Settings) -> _Verdict:
    """The accept rule over all rows of a verify pass."""
    device = out.packed.device
    us = [
        [uniform(row.seed, row.rounds, slot, "accept") for slot in range(draft.length)]
        for row, draft in zip(active, drafts)
    ]
    bonus_us = [uniform(row.seed, row.rounds, 0, "bonus") for row in active]
    p = warped(out.packed, settings.temperature, settings.top_k, settings.top_p)
    given = [draft for draft in drafts if draft.length]
    q = together([draft.part(draft.proposal.draft_probs) for draft in given]) if given else None
    tokens = [t if isinstance(t := draft.tokens, torch.Tensor) else onto(t, device) for draft in given]
    accepted, bonus = judge_rows(
        p,
        out.starts[: len(active)],
        q,
        torch.cat(tokens) if given else None,
        [draft.length for draft in drafts],
        [u for of_row in us for u in of_row],
        bonus_us,
    )
    with_logits = [draft for draft in given if draft.part(draft.proposal.draft_logits) is not None]
    drafted = (
        drafted_logits(
            [draft.part(draft.proposal.draft_logits) for draft in with_logits],
            [draft.part(draft.proposal.draft_probs) for draft in with_logits],
        )
        if with_logits
        else []
    )
    return _Verdict(accepted, bonus, p, us, bonus_us, largest_logits(out.packed, p), drafted)


def _settle(
    verdict: _Verdict, proposal: Proposal | None, record: bool
) -> tuple[list[int], list[int], tuple[list[bool], list[bool]] | tuple[()]]:
    """How many drafts of each row were accepted, the bonus tokens, and, if there are any, which positions [M] of the
    target and which drafts [N] with logits are at fault; from now on the proposal is on the host."""
    parts = proposal.parts(details=record) if proposal else []
    accepted, bonus, largest, drafted, *lists = read(
        verdict.accepted, verdict.bonus, verdict.largest, verdict.drafted, *parts
    )
    if proposal:
        proposal.settle(lists)
    faults = tuple([not math.isfinite(x) for x in values] for values in (largest, drafted))
    return accepted, bonus, faults if any(map(any, faults)) else ()


def _fault(
    target: CausalModel,
    drafter: Drafter | None,
    active: Sequence[Row],
    drafts: Sequence[_Draft],
    starts: Sequence[int],
    target_faults: list[bool],
    draft_faults: list[bool],
) -> NotFiniteError | None:
    """The error of a settled round whose logits are no numbers: the target's first. None if only padding is."""
    for row, draft, start in zip(active, drafts, starts):
        for slot in range(draft.length + 1):
            if target_faults[start + slot]:
                return target_fault(target, [*row.prompt, *row.emitted, *draft.tokens[:slot]], row.id)
    drafted = [
        (row, draft, slot)
        for row, draft in zip(active, drafts)
        if draft.length and draft.part(draft.proposal.draft_logits) is not None
        for slot in range(draft.length)
    ]
    for (row, draft, slot), fault in zip(drafted, draft_faults):
        if fault:
            text = [*row.prompt, *row.emitted, *draft.tokens[:slot]]
            return drafter_fault(drafter.name, getattr(drafter, "model", None), target.precision, text, row.id)
    return None


def _recorded(
    out: Output, verdict: _Verdict, i: int, draft: _Draft, accepted: int, bonus: int | None
) -> tuple[Position, ...]:
    """The Positions of row i."""
    k, proposal = draft.length, draft.proposal
    at = slice(out.starts[i], out.starts[i] + k + 1)
    logits = draft.part(proposal.draft_logits) if k else None
    q = whole(draft.part(proposal.draft_probs)) if k else out.packed.new_empty(0, out.packed.shape[-1]).double()
    judged = accepted if bonus is None else min(accepted + 1, k)
    return recorder.positions(
        out.packed[at],
        whole(verdict.target_probs[at]),
        None if logits is None else whole(logits),
        q,
        draft.tokens,
        verdict.accept_uniforms[i],
        judged,
        accepted,
        bonus,
        draft.part(proposal.confidence) if k else None,
        draft.part(proposal.first_guess) if k else None,
    )


def _emit(row: Row, accepted: list[int], bonus: int, eos_ids: frozenset[int]) -> tuple[list[int], str | None]:
    """The tokens a row emits: accepted drafts and bonus, ending at an end-of-text token or at its limit."""
    emitted = [*accepted, bonus]
    for n, token in enumerate(emitted, 1):
        if token in eos_ids:
            return emitted[:n], "eos"
    return emitted, "length" if len(emitted) == row.remaining else None


def _plain_step(
    target: CausalModel, cache: RaggedCache, rows: list[Row], settings: Settings, baseline: Baseline, timer: Timer
) -> Baseline:
    """Time what plain decoding would do next for these rows, then undo it."""
    timer.reset()
    contexts = [cache.lengths[row.id] for row in rows]
    with timer.section("forward"):
        out = target.forward(cache, [row.id for row in rows], [[row.anchor] for row in rows])
    with timer.section("draw"):
        _settle(_judge(out, rows, [_Draft(None, 0, 0)] * len(rows), settings), None, record=False)
    for row, length in zip(rows, contexts):
        cache.truncate(row.id, length)
    forward = timer.seconds("forward")
    return Baseline(
        (*baseline.seconds, forward + timer.seconds("draw")),
        (*baseline.forward_seconds, forward),
        (*baseline.rows, len(rows)),
        pass_cost(target.shape, [1] * len(rows), contexts, len(rows)),
    )
