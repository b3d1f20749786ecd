"""The decoding loop of speculative decoding: propose, verify, judge, commit; one Round at a time, one row or many.

`play_round` follows Leviathan et al. 2023 (arXiv 2211.17192), algorithm 1. The target and the drafter are used only
through their protocols. Rows are independent: each has its own length, stream of uniforms and round count.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field

import torch

from specviz.drafters.base import Drafter, Proposal, Request
from specviz.engine import recorder
from specviz.engine.judging import DeviceVerdict, HostVerdict, RowDraft, find_fault, judge, synchronize
from specviz.engine.sequence import Row
from specviz.errors import SettingsError
from specviz.hardware.costs import pass_cost
from specviz.hardware.machine import Timer, clock
from specviz.models.cache import RaggedCache
from specviz.models.causal import CausalModel, Output
from specviz.sampling.distributions import dense
from specviz.sampling.rejection import uniform
from specviz.trace.records import MAX_K, MAX_ROWS, Baseline, Cost, EndReason, Position, Round, Settings, Verdict

VerifyLengths = Callable[[Proposal], list[int]]
"""How many of each row's drafts are sent to the verify pass, one entry per row of the proposal."""


@dataclass
class Measurements:
    """What a run measures besides its rounds; filled in during decoding."""

    prefill_seconds: float = 0.0
    baseline: Baseline = field(default_factory=Baseline)


@dataclass(frozen=True, kw_only=True)
class RoundContext:
    """What stays the same in all rounds of a run."""

    target: CausalModel
    drafter: Drafter | None
    cache: RaggedCache
    settings: Settings
    eos_ids: frozenset[int]
    timer: Timer
    record: bool = True
    """False: Rounds have no Positions."""

    @property
    def taps(self) -> tuple[int, ...]:
        """The target layers whose outputs the drafter reads."""
        return self.drafter.taps if self.drafter else ()


@dataclass(frozen=True)
class RoundResult:
    """One finished round."""

    round: Round
    going_on: list[Row]
    """The rows that have not ended, in the order given."""
    chunk_taps: Sequence[torch.Tensor | None]
    """The taps [n, taps * D] of each prompt chunk of the pass; None without taps."""


def check_prompts(target: CausalModel, prompts: Sequence[Sequence[int]], settings: Settings) -> None:
    """Raise SettingsError for prompts that the target cannot decode."""
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
    verify_lengths: VerifyLengths | None = None,
    baseline_every: int = 0,
    record: bool = True,
    measured: Measurements | None = None,
) -> Generator[Round, None, None]:
    """Decode one row per prompt and yield each Round when it is finished. Closing the generator frees the cache.

    prompts: token ids, at least one each. seeds: one per row, by default settings.seed + row index; a row with a given
    seed has the same output alone and in any batch. drafter None or K = 0: plain decoding. choose_k: K of a row's next
    round (at most MAX_K), by default settings.k. verify_lengths: shortens the drafts before the verify pass.
    baseline_every: every that many rounds (and after the first) a plain step of the same rows is timed and undone; it
    is added to measured.baseline. record False: Rounds have no Positions. Raises SettingsError, NotFiniteError.
    """
    check_prompts(target, prompts, settings)
    measured = measured if measured is not None else Measurements()
    seeds = seeds if seeds is not None else [settings.seed + i for i in range(len(prompts))]
    rows = [Row(i, seed, tuple(p), settings.max_new_tokens) for i, (seed, p) in enumerate(zip(seeds, prompts))]
    context = RoundContext(
        target=target,
        drafter=drafter,
        cache=target.new_cache(),
        settings=settings,
        eos_ids=target.eos_ids() if eos_ids is None else eos_ids,
        timer=clock(str(target.device)),
        record=record,
    )
    max_k = min(settings.k if choose_k is None else MAX_K, drafter.max_k) if drafter else 0
    with context.timer.section("prefill"):
        _prefill(context, rows, max_k + 1)
    measured.prefill_seconds = context.timer.seconds("prefill")

    index = 0
    while rows:
        ks = [min(choose_k(row) if choose_k else settings.k, max_k) for row in rows]
        result = play_round(context, rows, ks, index, verify_lengths=verify_lengths)
        yield result.round
        rows = result.going_on
        if baseline_every and rows and index % baseline_every == 0:
            measured.baseline = _plain_step(context, rows, measured.baseline)
        index += 1


def _prefill(context: RoundContext, rows: Sequence[Row], spare: int) -> None:
    """Forward each distinct prompt once, except its last token (the first anchor), and start the drafter of each row.

    spare: cache positions beyond prompt and limit that a round may need."""
    target, cache = context.target, context.cache
    for row in rows:
        cache.add(row.id, len(row.prompt) + row.limit + spare)
    first = {row.prompt: row for row in reversed(rows)}
    long = [row for row in rows if len(row.prompt) > 1 and first[row.prompt] is row]
    tapped: dict[tuple[int, ...], torch.Tensor] = {}
    if long:
        out = target.forward(cache, [r.id for r in long], [r.prompt[:-1] for r in long], context.taps, logits=False)
        tapped = {row.prompt: taps for row, taps in zip(long, out.taps or [])}
    for row in rows:
        if first[row.prompt] is not row and len(row.prompt) > 1:
            cache.copy(first[row.prompt].id, row.id)
        start_drafter(target, context.drafter, row, tapped.get(row.prompt), len(row.prompt) + row.limit + spare)


def start_drafter(
    target: CausalModel, drafter: Drafter | None, row: Row, taps: torch.Tensor | None, capacity: int
) -> None:
    """Start the drafter on a row whose prompt was prefilled. taps [len(prompt) - 1, taps * D]: of the prompt."""
    if drafter is None:
        return
    if drafter.taps and taps is None:
        taps = torch.empty(0, len(drafter.taps) * target.hidden_size, dtype=target.dtype, device=target.device)
    drafter.start(row.id, row.prompt, taps, capacity)


def draft_length(drafter: Drafter | None, row: Row, requested: int) -> int:
    """Requested drafts, capped by the drafter's maximum and by the tokens left beside the bonus token."""
    return max(0, min(requested, drafter.max_k, row.remaining - 1)) if drafter else 0


# ---------------------------------------------------------------------------------------------- one round


def play_round(
    context: RoundContext,
    rows: Sequence[Row],
    draft_lengths: Sequence[int],
    index: int = 0,
    *,
    verify_lengths: VerifyLengths | None = None,
    chunks: Sequence[tuple[int, Sequence[int]]] = (),
) -> RoundResult:
    """One round of speculative decoding for the rows given (Leviathan et al., algorithm 1); rows are changed in place.

    draft_lengths: requested drafts of each row. chunks: (row id, tokens) prompt chunks of other rows, forwarded in the
    same pass without logits; they count in the round's target cost and tokens. Raises NotFiniteError.
    """
    timer = context.timer
    timer.reset()
    with timer.section("draft"):  # sample x_1 .. x_K from q_1 .. q_K
        proposal, drafts = _propose(context, rows, draft_lengths, verify_lengths)
    with timer.section("verify"):  # compute p_1 .. p_K+1 in one pass
        passed = _verify(context, rows, drafts, chunks)
    verdicts: list[Verdict] = []
    if rows:
        with timer.section("judge"):  # n accepted drafts: the first with u > p/q ends the chain; draw the bonus token
            verdict = judge(passed.out, rows, drafts, context.settings)
            result = _checked(context, rows, drafts, passed, synchronize(verdict, proposal, context.record))
        with timer.section("commit"):  # emit the accepted drafts and the bonus token; roll back the caches
            for i, row in enumerate(rows):
                verdicts.append(_verdict(context, i, row, drafts[i], passed, verdict, result))
                _commit(context, row, verdicts[-1], passed.out.taps[i] if passed.out.taps else None)
    going_on = [row for row, v in zip(rows, verdicts) if not v.finished]
    chunk_taps = passed.out.taps[len(rows) :] if passed.out.taps and context.taps else [None] * len(chunks)
    return RoundResult(_round(context, index, verdicts, passed, proposal), going_on, chunk_taps)


@dataclass(frozen=True)
class _VerifyPass:
    """The target's forward pass over anchors and drafts of all rows, and over the prompt chunks after them."""

    out: Output
    lengths: list[int]
    """Tokens that were forwarded for each row and chunk."""
    contexts: list[int]
    """Cached tokens of each row and chunk before the pass."""
    positions: int
    """Positions of the rows, chunks not counted."""


def _propose(
    context: RoundContext, rows: Sequence[Row], draft_lengths: Sequence[int], verify_lengths: VerifyLengths | None
) -> tuple[Proposal | None, list[RowDraft]]:
    """Draft K_r tokens for each row, and choose how many of them are verified."""
    drafter = context.drafter
    requests = []
    for row, requested in zip(rows, draft_lengths):
        if (k := draft_length(drafter, row, requested)) > 0:
            us = tuple(uniform(row.seed, row.rounds, slot, "draft") for slot in range(k))
            requests.append(Request(row.id, row.anchor, k, us))
    if drafter is None or not requests:
        return None, [RowDraft()] * len(rows)
    proposal = drafter.propose(requests)
    lengths = verify_lengths(proposal) if verify_lengths else [len(t) for t in proposal.tokens]
    drafts = {request.row: RowDraft(proposal, i, lengths[i]) for i, request in enumerate(requests)}
    return proposal, [drafts.get(row.id, RowDraft()) for row in rows]


def _verify(
    context: RoundContext,
    rows: Sequence[Row],
    drafts: Sequence[RowDraft],
    chunks: Sequence[tuple[int, Sequence[int]]],
) -> _VerifyPass:
    """One target pass over the anchor and drafts of every row (K_r + 1 positions each) and over the prompt chunks."""
    ids = [row.id for row in rows] + [row for row, _ in chunks]
    contexts = [context.cache.lengths[row] for row in ids]
    packed = [draft.after(row.anchor) for row, draft in zip(rows, drafts)]
    positions = sum(map(len, packed))
    wanted = [*map(len, packed), *(0 for _ in chunks)] if chunks else True
    packed += [list(tokens) for _, tokens in chunks]
    out = context.target.forward(context.cache, ids, packed, context.taps, logits=wanted if rows else False)
    return _VerifyPass(out, [len(tokens) for tokens in packed], contexts, positions)


def _checked(
    context: RoundContext, rows: Sequence[Row], drafts: Sequence[RowDraft], passed: _VerifyPass, result: HostVerdict
) -> HostVerdict:
    """The same verdict. Raises NotFiniteError if logits that it depends on are NaN or infinite."""
    if any(result.target_faults) or any(result.draft_faults):
        error = find_fault(context.target, context.drafter, rows, drafts, passed.out.starts, result)
        if error:
            raise error
    return result


def _verdict(
    context: RoundContext,
    i: int,
    row: Row,
    draft: RowDraft,
    passed: _VerifyPass,
    verdict: DeviceVerdict,
    result: HostVerdict,
) -> Verdict:
    """The record of row i: accepted drafts and bonus token, cut at an end-of-text token or at the row's limit."""
    accepted, bonus = result.accepted[i], result.bonus[i]
    emitted, finished = _emit(row, draft.host_tokens[:accepted], bonus, context.eos_ids)
    ended_on_draft = len(emitted) <= accepted  # the bonus token is not emitted
    kept = len(emitted) if ended_on_draft else accepted
    bonus_token = None if ended_on_draft else bonus
    positions: tuple[Position, ...] = ()
    if context.record:
        with context.timer.section("record"):
            positions = _positions(passed.out, verdict, i, draft, kept, bonus_token)
    return Verdict(
        row=row.id,
        context=passed.contexts[i],
        anchor=row.anchor,
        proposed=draft.proposed,
        verified=draft.length,
        accepted=kept,
        positions=positions,
        emitted=tuple(emitted),
        kind=None if ended_on_draft else "leftover" if accepted < draft.length else "all_accepted",
        bonus_token=bonus_token,
        bonus_uniform=None if ended_on_draft else verdict.bonus_uniforms[i],
        finished=finished,
    )


def _commit(context: RoundContext, row: Row, verdict: Verdict, taps: torch.Tensor | None) -> None:
    """Append the emitted tokens to the row; roll back the rejected drafts in the caches, or free a finished row."""
    row.emitted += verdict.emitted
    row.rounds += 1
    drafter = context.drafter
    if verdict.finished:
        context.cache.drop(row.id)
        if drafter:
            drafter.drop(row.id)
    else:
        context.cache.truncate(row.id, verdict.context + 1 + verdict.accepted)
        if drafter:
            committed = taps[: 1 + verdict.accepted] if taps is not None and drafter.taps else None
            drafter.commit(row.id, list(verdict.emitted), committed)


def _round(
    context: RoundContext, index: int, verdicts: list[Verdict], passed: _VerifyPass, proposal: Proposal | None
) -> Round:
    """The record of a round, with its times and costs."""
    timer = context.timer
    recording = timer.seconds("record")
    return Round(
        index=index,
        rows=tuple(verdicts),
        draft_seconds=timer.seconds("draft"),
        verify_seconds=timer.seconds("verify"),
        other_seconds=timer.seconds("judge") + max(0.0, timer.seconds("commit") - recording),
        recording_seconds=recording,
        target_tokens=sum(passed.lengths),
        draft_tokens=proposal.draft_tokens if proposal else 0,
        target_cost=pass_cost(context.target.shape, passed.lengths, passed.contexts, passed.positions),
        draft_cost=proposal.cost if proposal else Cost(0, 0),
    )


def _positions(
    out: Output, verdict: DeviceVerdict, i: int, draft: RowDraft, accepted: int, bonus: int | None
) -> tuple[Position, ...]:
    """The Positions of row i. bonus None: the text ended on an accepted draft."""
    at = slice(out.starts[i], out.starts[i] + draft.length + 1)
    q, logits = draft.probs, draft.logits
    return recorder.positions(
        recorder.JudgedRow(
            target_logits=out.packed[at],
            target_probs=dense(verdict.target_probs[at]),
            draft_logits=None if logits is None else dense(logits),
            draft_probs=out.packed.new_empty(0, out.packed.shape[-1]).double() if q is None else dense(q),
            draft_tokens=draft.host_tokens,
            accept_uniforms=verdict.accept_uniforms[i],
            judged=accepted if bonus is None else min(accepted + 1, draft.length),
            accepted=accepted,
            bonus_token=bonus,
            confidence=draft.confidence,
            first_guess=draft.first_guess,
        )
    )


def _emit(row: Row, accepted: list[int], bonus: int, eos_ids: frozenset[int]) -> tuple[list[int], EndReason | None]:
    """The tokens that a row emits (accepted drafts and bonus, up to an end-of-text token), and why it ends, if so."""
    emitted = [*accepted, bonus]
    for n, token in enumerate(emitted, 1):
        if token in eos_ids:
            return emitted[:n], "eos"
    return emitted, "length" if len(emitted) == row.remaining else None


def _plain_step(context: RoundContext, rows: list[Row], baseline: Baseline) -> Baseline:
    """Time one step of plain decoding of these rows, undo it, and add it to the baseline."""
    timer, cache, target = context.timer, context.cache, context.target
    timer.reset()
    contexts = [cache.lengths[row.id] for row in rows]
    with timer.section("forward"):
        out = target.forward(cache, [row.id for row in rows], [[row.anchor] for row in rows])
    with timer.section("draw"):
        synchronize(judge(out, rows, [RowDraft()] * len(rows), context.settings), None, record=False)
    for row, length in zip(rows, contexts):
        cache.truncate(row.id, length)
    forward = timer.seconds("forward")
    return Baseline(
        (*baseline.seconds, forward + timer.seconds("draw")),
        (*baseline.forward_seconds, forward),
        (*baseline.rows, len(rows)),
        pass_cost(target.shape, [1] * len(rows), contexts, len(rows)),
    )
