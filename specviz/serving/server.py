"""A small server with continuous batching: requests arrive, are read, decoded together, and leave.

Every round forwards the anchors and drafts of all running requests and pieces of the prompts of new ones in one packed
pass. The engine behind it is real (a target and a drafter) or simulated (a cost table and chances of survival); the
clock is the wall's or counts modelled seconds, so that a run can be repeated to the last token. Knows no page.
"""

from __future__ import annotations

import random
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from specviz import worker
from specviz.engine.sequence import Row
from specviz.errors import MemoryBudgetError, SettingsError
from specviz.serving.policies import Policy
from specviz.serving.scheduling import RoundCosts
from specviz.trace.records import Cost, Round, Verdict

if TYPE_CHECKING:
    from specviz.drafters.base import Proposal

# -------------------------------------------------------------------------------------------- requests


@dataclass(frozen=True)
class Job:
    """What somebody asks of the server."""

    id: int
    arrival: float
    """Seconds after the start."""
    prompt: tuple[int, ...]
    limit: int
    """New tokens at most."""
    seed: int


@dataclass
class Record:
    """What became of a request."""

    job: Job
    state: str = "waiting"
    """waiting | reading | decoding | finished | cancelled | refused"""
    reason: str = ""
    admitted: float | None = None
    started: float | None = None
    """When its prompt had been read and decoding began."""
    first: float | None = None
    """When its first token was out."""
    ended: float | None = None
    tokens: list[int] = field(default_factory=list)
    rounds: int = 0
    verified: int = 0
    accepted: int = 0

    @property
    def decoding_seconds(self) -> float | None:
        """From the prompt read to the last token."""
        return None if self.ended is None or self.started is None else self.ended - self.started

    @property
    def seconds_per_token(self) -> float | None:
        """Decoding time per output token."""
        return self.decoding_seconds / len(self.tokens) if self.tokens and self.decoding_seconds is not None else None


MOST_TICKS = 20_000
"""Past so many, neighbouring ticks are added up two by two, so that a server may run for days."""


@dataclass(frozen=True, slots=True)
class Tick:
    """One round of the server, or several that follow each other: everything but `at` is a sum over them."""

    at: float
    """When the last of them ended."""
    seconds: float
    rounds: int
    running: int
    """Requests decoding."""
    waiting: int
    """Requests not yet decoding: in the queue or being read."""
    running_seconds: float
    """Requests decoding times seconds."""
    prompt_tokens: int
    proposed: int
    verified: int
    accepted: int
    emitted: int

    def __add__(self, later: Tick) -> Tick:
        names = [name for name in self.__slots__ if name != "at"]
        return Tick(later.at, *(getattr(self, name) + getattr(later, name) for name in names))


@dataclass(frozen=True)
class Limits:
    """What the server holds at once. Its cache has `rows` slots of `tokens` each, and never more."""

    rows: int = 32
    tokens: int = 1024
    """Prompt, new tokens and drafts of one request."""
    waiting: int = 10_000
    chunk: int = 64
    """Prompt tokens read per round at most, so that reading does not stop those who decode."""

    def __post_init__(self):
        for name, low in (("rows", 1), ("tokens", 2), ("waiting", 0), ("chunk", 1)):
            if (value := getattr(self, name)) < low:
                raise SettingsError(f"A server's {name} must be at least {low}, not {value}.")

    @classmethod
    def within(cls, memory: float, bytes_per_token: float, tokens: int, most_rows: int = 64, chunk: int = 64) -> Limits:
        """As many rows as the memory holds. Raises MemoryBudgetError if not even one fits."""
        rows = int(memory // (bytes_per_token * tokens))
        if rows < 1:
            raise MemoryBudgetError(
                f"Not even one request of {tokens} tokens fits a cache of {memory / 2**20:.0f} "
                "MiB: shorten prompts or lengths, or give more memory."
            )
        return cls(min(rows, most_rows), tokens, chunk=chunk)


# ---------------------------------------------------------------------------------------------- clocks


class WallClock:
    """The real time since it was made."""

    def __init__(self):
        self._start = time.perf_counter()

    def now(self) -> float:
        return time.perf_counter() - self._start

    def spend(self, round_: Round, prompt_tokens: int) -> None:
        """A real round has taken its time already."""

    def wait(self, until: float) -> None:
        time.sleep(max(0.0, min(0.05, until - self.now())))


class TableClock:
    """Modelled time: a round takes what the cost table says. Runs with it repeat exactly."""

    def __init__(self, costs: RoundCosts):
        self.costs = costs
        self._now = 0.0

    def now(self) -> float:
        return self._now

    def spend(self, round_: Round, prompt_tokens: int) -> None:
        self._now += self.costs.round(
            [v.verified for v in round_.rows], [v.proposed for v in round_.rows], prompt_tokens
        )

    def wait(self, until: float) -> None:
        self._now = max(self._now, until)


# --------------------------------------------------------------------------------------------- engines


class Engine(Protocol):
    """What decodes. It knows no queue and no clock."""

    spare: int
    """Cache positions that a request needs beside its prompt and its new tokens: room for drafts."""

    def add(self, row: Row, capacity: int) -> None:
        """Make room for a request."""

    def play(
        self, rows: Sequence[Row], wishes: Sequence[int], policy: Policy, chunks: Sequence[tuple[Row, Sequence[int]]]
    ) -> Round:
        """One round. Rows are changed in place; those that end are dropped."""

    def drop(self, row: Row, started: bool) -> None:
        """Free what an unfinished request holds."""


class RealEngine:
    """A target and a drafter. The round is the decoding loop's own."""

    def __init__(self, target, drafter, settings, eos_ids: frozenset[int] | None = None):
        from specviz.hardware.machine import clock

        self.target, self.drafter, self.settings = target, drafter, settings
        self.eos_ids = target.eos_ids() if eos_ids is None else eos_ids
        self.cache = target.new_cache()
        self.spare = (drafter.max_k if drafter else 0) + 1
        self._timer = clock(str(target.device))
        self._taps: dict[int, list] = {}
        self._capacity: dict[int, int] = {}
        self._index = 0

    def add(self, row: Row, capacity: int) -> None:
        self.cache.add(row.id, capacity)
        self._taps[row.id], self._capacity[row.id] = [], capacity
        if len(row.prompt) == 1:
            self._start(row)

    def play(self, rows, wishes, policy, chunks):
        from specviz.engine.loop import RoundContext, draft_length, play_round

        asked = [row.id for row, wish in zip(rows, wishes) if draft_length(self.drafter, row, wish) > 0]

        def cut(proposal: Proposal) -> list[int]:
            sure = policy.reads_confidence and proposal.confidence is not None
            return policy.cut(asked, [len(t) for t in proposal.tokens], proposal.on_host().confidence if sure else None)

        context = RoundContext(
            target=self.target,
            drafter=self.drafter,
            cache=self.cache,
            settings=self.settings,
            eos_ids=self.eos_ids,
            timer=self._timer,
            record=False,
        )
        played = play_round(
            context,
            rows,
            wishes,
            self._index,
            verify_lengths=cut,
            chunks=[(row.id, tokens) for row, tokens in chunks],
        )
        self._index += 1
        for (row, _), taps in zip(chunks, played.chunk_taps):
            if taps is not None:
                self._taps[row.id].append(taps)
            if self.cache.lengths[row.id] == len(row.prompt) - 1:
                self._start(row)
        for verdict in played.round.rows:
            if verdict.finished:
                self._capacity.pop(verdict.row)
        return played.round

    def _start(self, row: Row) -> None:
        import torch

        from specviz.engine.loop import start_drafter

        taps = self._taps.pop(row.id)
        start_drafter(self.target, self.drafter, row, torch.cat(taps) if taps else None, self._capacity[row.id])

    def drop(self, row: Row, started: bool) -> None:
        self.cache.drop(row.id)
        self._taps.pop(row.id, None)
        self._capacity.pop(row.id)
        if started and self.drafter:
            self.drafter.drop(row.id)


@dataclass(frozen=True)
class Chances:
    """How drafts fare in a simulation: the chance of each slot to survive, given that all before it did."""

    conditional: tuple[float, ...]
    spread: float = 0.2
    """How far a single draft's chance lies from that at most, either way, evenly."""
    confident: bool = True
    """The drafter knows each draft's chance, as a calibrated confidence head would; otherwise it says nothing."""

    def __post_init__(self):
        if not self.conditional or not all(0 <= c <= 1 for c in self.conditional) or not 0 <= self.spread <= 1:
            raise SettingsError("Chances of survival lie in 0..1, and at least one slot is needed.")


class SimulatedEngine:
    """No model: drafts survive by chance, tokens are zeros. For any device's cost table and thousands of requests."""

    spare = 0

    def __init__(self, chances: Chances):
        self.chances = chances

    def add(self, row: Row, capacity: int) -> None:
        pass

    def play(self, rows, wishes, policy, chunks):
        # one generator per request and round, so that a request's luck does not depend on its neighbours
        slots, spread = len(self.chances.conditional), self.chances.spread
        luck = [random.Random((row.seed << 20) + row.rounds) for row in rows]
        proposed = [max(0, min(wish, slots, row.remaining - 1)) for row, wish in zip(rows, wishes)]
        survive, judged = [], []
        for source, n in zip(luck, proposed):
            draws = [source.random() for _ in range(2 * slots)]
            survive.append(
                [min(1.0, max(0.0, c + spread * (2 * u - 1))) for c, u in zip(self.chances.conditional[:n], draws)]
            )
            judged.append(draws[slots:])
        asked = [i for i, n in enumerate(proposed) if n]
        verified = [0] * len(rows)
        if asked:
            lengths = policy.cut(
                [rows[i].id for i in asked],
                [proposed[i] for i in asked],
                [survive[i] for i in asked] if self.chances.confident else None,
            )
            for i, length in zip(asked, lengths):
                verified[i] = length
        verdicts = []
        for i, row in enumerate(rows):
            accepted = 0
            while accepted < verified[i] and judged[i][accepted] < survive[i][accepted]:
                accepted += 1
            emitted = [0] * (accepted + 1)
            row.emitted += emitted
            row.rounds += 1
            kind = "leftover" if accepted < verified[i] else "all_accepted"
            verdicts.append(
                Verdict(
                    row=row.id,
                    context=0,
                    anchor=0,
                    proposed=proposed[i],
                    verified=verified[i],
                    accepted=accepted,
                    positions=(),
                    emitted=tuple(emitted),
                    kind=kind,
                    bonus_token=0,
                    bonus_uniform=0.0,
                    finished=None if row.remaining else "length",
                )
            )
        read = sum(len(tokens) for _, tokens in chunks)
        return Round(
            index=0,
            rows=tuple(verdicts),
            draft_seconds=0.0,
            verify_seconds=0.0,
            other_seconds=0.0,
            recording_seconds=0.0,
            target_tokens=len(rows) + sum(verified) + read,
            draft_tokens=sum(proposed),
            target_cost=Cost(0, 0),
            draft_cost=Cost(0, 0),
        )

    def drop(self, row: Row, started: bool) -> None:
        pass


# ---------------------------------------------------------------------------------------------- server


class Server:
    """Queue, rounds and records. `submit`, `cancel` and `step` are all there is; `serve` drives them."""

    def __init__(self, engine: Engine, policy: Policy, limits: Limits, clock: WallClock | TableClock):
        self.engine, self.policy, self.limits, self.clock = engine, policy, limits, clock
        self.records: dict[int, Record] = {}
        self.ticks: list[Tick] = []
        self._queue: deque[Row] = deque()
        self._reading: dict[int, tuple[Row, int]] = {}
        """By request: its row and how many prompt tokens have been read."""
        self._decoding: dict[int, Row] = {}

    @property
    def busy(self) -> bool:
        return bool(self._queue or self._reading or self._decoding)

    def submit(self, job: Job) -> Record:
        """Take a request into the queue, or refuse it: the record says which and why."""
        if job.id in self.records:
            raise SettingsError(f"There is a request {job.id} already.")
        record = self.records[job.id] = Record(job)
        needed = len(job.prompt) + job.limit + self.engine.spare
        if not job.prompt or job.limit < 1:
            self._refuse(record, "A request needs a prompt of at least one token and room for at least one new one.")
        elif needed > self.limits.tokens:
            self._refuse(
                record,
                f"This request needs {needed} tokens of cache (prompt {len(job.prompt)}, new "
                f"{job.limit}, drafts {self.engine.spare}), and this server has {self.limits.tokens} "
                "for each: shorten the prompt or the length.",
            )
        elif len(self._queue) >= self.limits.waiting:
            self._refuse(record, f"The server is full: {self.limits.waiting} requests wait already. Try again later.")
        else:
            self._queue.append(Row(job.id, job.seed, job.prompt, job.limit))
        return record

    def cancel(self, id: int) -> bool:
        """End a request now and free what it holds. False if it had ended before."""
        record = self.records.get(id)
        if record is None or record.state in ("finished", "cancelled", "refused"):
            return False
        if record.state == "waiting":
            self._queue = deque(row for row in self._queue if row.id != id)
        elif record.state == "reading":
            self.engine.drop(self._reading.pop(id)[0], False)
        else:
            self.engine.drop(self._decoding.pop(id), True)
        self.policy.forget(id)
        record.state, record.ended = "cancelled", self.clock.now()
        return True

    def step(self) -> Tick | None:
        """One round: admit, read, draft, verify, judge. None if there is nothing to do."""
        began = self.clock.now()
        self._admit(began)
        chunks = self._chunks()
        rows = list(self._decoding.values())
        if not rows and not chunks:
            return None
        prompt_tokens = sum(len(tokens) for _, tokens in chunks)
        wishes = self.policy.wishes([row.id for row in rows], prompt_tokens)
        round_ = self.engine.play(rows, wishes, self.policy, chunks)
        self.clock.spend(round_, prompt_tokens)
        now = self.clock.now()
        for verdict in round_.rows:
            self._note(verdict, now)
        for row, tokens in chunks:
            read = self._reading[row.id][1] + len(tokens)
            self._reading[row.id] = (row, read)
            if read == len(row.prompt) - 1:
                del self._reading[row.id]
                self._begin(row, now)
        seconds = now - began
        tick = Tick(
            now,
            seconds,
            1,
            len(rows),
            len(self._queue) + len(self._reading),
            len(rows) * seconds,
            prompt_tokens,
            sum(v.proposed for v in round_.rows),
            sum(v.verified for v in round_.rows),
            sum(v.accepted for v in round_.rows),
            sum(len(v.emitted) for v in round_.rows),
        )
        if len(self.ticks) >= MOST_TICKS:
            self.ticks = [first + second for first, second in zip(self.ticks[::2], self.ticks[1::2])]
        self.ticks.append(tick)
        return tick

    def _refuse(self, record: Record, reason: str) -> None:
        record.state, record.reason, record.ended = "refused", reason, self.clock.now()

    def _admit(self, now: float) -> None:
        while self._queue and len(self._reading) + len(self._decoding) < self.limits.rows:
            row = self._queue.popleft()
            record = self.records[row.id]
            # every slot has the same size, so the cache never outgrows rows x tokens
            self.engine.add(row, self.limits.tokens)
            record.admitted = now
            if len(row.prompt) == 1:
                self._begin(row, now)
            else:
                record.state = "reading"
                self._reading[row.id] = (row, 0)

    def _begin(self, row: Row, now: float) -> None:
        record = self.records[row.id]
        record.state, record.started = "decoding", now
        self._decoding[row.id] = row

    def _chunks(self) -> list[tuple[Row, Sequence[int]]]:
        """The next pieces of prompts, first come first read, all but each prompt's last token: that is its anchor."""
        room, chunks = self.limits.chunk, []
        for row, read in self._reading.values():
            if not room:
                break
            piece = row.prompt[read : min(read + room, len(row.prompt) - 1)]
            chunks.append((row, piece))
            room -= len(piece)
        return chunks

    def _note(self, verdict: Verdict, now: float) -> None:
        record = self.records[verdict.row]
        record.tokens += verdict.emitted
        record.rounds += 1
        record.verified += verdict.verified
        record.accepted += verdict.accepted
        record.first = now if record.first is None else record.first
        self.policy.observe(verdict)
        if verdict.finished:
            record.state, record.ended = "finished", now
            self.policy.forget(verdict.row)
            del self._decoding[verdict.row]


def serve(
    server: Server,
    jobs: Iterable[Job],
    *,
    cancels: Iterable[tuple[float, int]] = (),
    until: float | None = None,
    watch: worker.Job | None = None,
    tell: Callable[[Server], None] | None = None,
) -> Server:
    """Submit each job at its arrival and go on until all have ended, `until` seconds are over, or `watch` is stopped.

    cancels: (when, request). Requests that have not ended by `until` are cancelled.
    """
    events = deque(
        sorted(
            [(job.arrival, 0, job) for job in jobs] + [(at, 1, id) for at, id in cancels], key=lambda event: event[:2]
        )
    )
    clock = server.clock
    while events or server.busy:
        if (watch is not None and watch.stopping()) or (until is not None and clock.now() >= until):
            break
        while events and events[0][0] <= clock.now():
            _, kind, what = events.popleft()
            if kind:
                server.cancel(what)
            else:
                server.submit(what)
        if server.step() is None and events:
            clock.wait(events[0][0] if until is None else min(until, events[0][0]))
        if tell is not None:
            tell(server)
    for id, record in server.records.items():
        if record.state in ("waiting", "reading", "decoding"):
            server.cancel(id)
    return server


# -------------------------------------------------------------------------------------------- arrivals


def arrivals(
    rate: float,
    seconds: float,
    prompts: Sequence[Sequence[int]],
    limits: tuple[int, int],
    seed: int = 0,
    burst: int = 1,
) -> list[Job]:
    """Requests of a Poisson process: `rate` a second on average, in groups of `burst` that come at once.

    Each takes one of the prompts and a number of new tokens from `limits` (both ends included), at random. The same
    arguments give the same jobs. Raises SettingsError for rates and times that are none.
    """
    if not (0 < rate <= 1e6 and 0 < seconds <= 1e5 and burst >= 1 and prompts and 1 <= limits[0] <= limits[1]):
        raise SettingsError("Arrivals need a rate, a time, a burst and lengths above 0, and at least one prompt.")
    chance, jobs, at = random.Random(seed), [], 0.0
    while True:
        at += chance.expovariate(rate / burst)
        if at >= seconds:
            return jobs
        for _ in range(burst):
            jobs.append(
                Job(len(jobs), at, tuple(chance.choice(prompts)), chance.randint(*limits), (seed << 20) + len(jobs))
            )


# --------------------------------------------------------------------------------------------- figures


@dataclass(frozen=True)
class Summary:
    """What a policy made of some load. Rates are None where there was nothing to divide by."""

    policy: str
    rate: float
    """Requests a second that arrived."""
    tokens_per_second: float | None
    """Of the whole server: all emitted tokens over the time from the first arrival to the last token."""
    tokens_per_second_per_user: float | None
    """Tokens of finished requests over the sum of their decoding times: what one reader sees, without queueing."""
    seconds_per_token: float | None
    """The median over finished requests of decoding time per token."""
    mean_verify_length: float | None
    """Drafts verified per request and round, the anchor not counted."""
    wasted_verify_fraction: float | None
    """Of the positions of verify passes (anchors and drafts), the share that gave no token."""
    acceptance_rate: float | None
    """Accepted of verified drafts."""
    mean_running: float | None
    """Requests decoding, averaged over rounds by their time."""
    requests: int
    finished: int
    cancelled: int
    refused: int
    waited: float | None
    """Mean seconds from arrival to the start of decoding."""
    identical: bool | None = None
    """Whether every text, as far as it came, equals its text alone; None where that was not to be told."""
    near_ties: int = 0
    """Texts that part from their text alone where its two likeliest tokens are so close that rounding may swap them."""
    differing: int = 0
    """Texts that part from it anywhere else: a defect."""
    widest_gap: float | None = None
    """The largest difference of the two likeliest logits among the near-ties."""


def summarise(server: Server, rate: float) -> Summary:
    """The figures of a served load; what `identical` and the fields after it tell is left open."""
    records, ticks = server.records.values(), server.ticks
    finished = [r for r in records if r.state == "finished"]
    emitted, verified = sum(t.emitted for t in ticks), sum(t.verified for t in ticks)
    accepted, row_rounds = sum(t.accepted for t in ticks), sum(t.running for t in ticks)
    spent = sum(r.decoding_seconds for r in finished)
    begin = min((r.job.arrival for r in records), default=0.0)
    span = ticks[-1].at - begin if ticks else 0.0
    busy = sum(t.seconds for t in ticks)
    waits = [r.started - r.job.arrival for r in records if r.started is not None]
    return Summary(
        policy=server.policy.name,
        rate=rate,
        tokens_per_second=_ratio(emitted, span),
        tokens_per_second_per_user=_ratio(sum(len(r.tokens) for r in finished), spent),
        seconds_per_token=statistics.median(r.seconds_per_token for r in finished) if finished else None,
        mean_verify_length=_ratio(verified, row_rounds),
        wasted_verify_fraction=_ratio(verified - accepted, verified + row_rounds),
        acceptance_rate=_ratio(accepted, verified),
        mean_running=_ratio(sum(t.running_seconds for t in ticks), busy),
        requests=len(server.records),
        finished=len(finished),
        cancelled=sum(r.state == "cancelled" for r in records),
        refused=sum(r.state == "refused" for r in records),
        waited=_ratio(sum(waits), len(waits)),
    )


def _ratio(above: float, below: float) -> float | None:
    return above / below if below else None
