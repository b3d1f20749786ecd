"""A server with continuous batching: a queue, admission, chunked prefill, and rounds over all running requests.

Every round forwards, in one packed pass, the anchors and drafts of all running requests and chunks of the prompts of
new ones. The engine is real (a target and a drafter) or simulated (survival probabilities); the clock is real, or
simulated so that a run repeats exactly.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields

from specviz import worker
from specviz.engine.sequence import Row
from specviz.errors import SettingsError
from specviz.serving.clocks import Clock
from specviz.serving.engines import Engine, PromptChunk
from specviz.serving.policies import Policy
from specviz.serving.requests import Request, RequestRecord, ServerLimits
from specviz.trace.records import Round, Verdict

MAX_ROUND_STATS = 20_000
"""Beyond this many entries neighbours are added up in pairs, so that memory stays bounded in a long run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundStats:
    """Statistics of one round, or of several consecutive ones: every field but `at` is a sum over them."""

    at: float
    """When the last of them ended."""
    seconds: float
    rounds: int
    running: int
    """Requests decoding."""
    waiting: int
    """Requests in the queue or in prefill."""
    running_seconds: float
    """Requests decoding times seconds."""
    prompt_tokens: int
    """Prefilled tokens."""
    proposed: int
    verified: int
    accepted: int
    emitted: int

    def __add__(self, later: RoundStats) -> RoundStats:
        sums = {f.name: getattr(self, f.name) + getattr(later, f.name) for f in fields(self) if f.name != "at"}
        return RoundStats(at=later.at, **sums)


class Server:
    """Queue, rounds and records of requests. `serve` calls `submit`, `cancel` and `step` by the clock."""

    def __init__(self, engine: Engine, policy: Policy, limits: ServerLimits, clock: Clock):
        self.engine, self.policy, self.limits, self.clock = engine, policy, limits, clock
        self.records: dict[int, RequestRecord] = {}
        """By request id."""
        self.round_stats: list[RoundStats] = []
        self._queue: deque[Row] = deque()
        self._prefilling: dict[int, tuple[Row, int]] = {}
        """By request id: its row and the number of prefilled prompt tokens."""
        self._decoding: dict[int, Row] = {}

    @property
    def busy(self) -> bool:
        """Whether any request is waiting, in prefill or decoding."""
        return bool(self._queue or self._prefilling or self._decoding)

    def submit(self, request: Request) -> RequestRecord:
        """Queue a request, or refuse it; the record gives its state and the reason of a refusal."""
        if request.id in self.records:
            raise SettingsError(f"There is a request {request.id} already.")
        record = self.records[request.id] = RequestRecord(request=request)
        needed = len(request.prompt) + request.limit + self.engine.spare
        if not request.prompt or request.limit < 1:
            self._refuse(record, "A request needs a prompt of at least one token and room for at least one new one.")
        elif needed > self.limits.tokens:
            self._refuse(
                record,
                f"This request needs {needed} tokens of cache (prompt {len(request.prompt)}, new "
                f"{request.limit}, drafts {self.engine.spare}), and this server has {self.limits.tokens} "
                "for each: shorten the prompt or the length.",
            )
        elif len(self._queue) >= self.limits.waiting:
            self._refuse(record, f"The server is full: {self.limits.waiting} requests wait already. Try again later.")
        else:
            self._queue.append(Row(request.id, request.seed, request.prompt, request.limit))
        return record

    def cancel(self, id: int) -> bool:
        """End a request now and free its cache. False if there is none or it has already ended."""
        record = self.records.get(id)
        if record is None or record.state in ("finished", "cancelled", "refused"):
            return False
        if record.state == "waiting":
            self._queue = deque(row for row in self._queue if row.id != id)
        elif record.state == "prefill":
            self.engine.drop(self._prefilling.pop(id)[0], False)
        else:
            self.engine.drop(self._decoding.pop(id), True)
        self.policy.forget(id)
        record.state, record.ended = "cancelled", self.clock.now()
        return True

    def step(self) -> RoundStats | None:
        """Run one round: admit, draft, verify, judge, prefill. None if no request is decoding or in prefill."""
        began = self.clock.now()
        self._admit(began)
        chunks = self._next_chunks()
        rows = list(self._decoding.values())
        if not rows and not chunks:
            return None
        prompt_tokens = sum(len(tokens) for _, tokens in chunks)
        lengths = self.policy.draft_lengths([row.id for row in rows], prompt_tokens)
        round_ = self.engine.play(rows, lengths, self.policy, chunks)
        self.clock.spend(round_, prompt_tokens)
        now = self.clock.now()
        for verdict in round_.rows:
            self._update(verdict, now)
        for row, tokens in chunks:
            self._advance_prefill(row, len(tokens), now)
        return self._add_stats(round_, began, now, prompt_tokens)

    def _add_stats(self, round_: Round, began: float, now: float, prompt_tokens: int) -> RoundStats:
        verdicts, seconds = round_.rows, now - began
        stats = RoundStats(
            at=now,
            seconds=seconds,
            rounds=1,
            running=len(verdicts),
            waiting=len(self._queue) + len(self._prefilling),
            running_seconds=len(verdicts) * seconds,
            prompt_tokens=prompt_tokens,
            proposed=sum(v.proposed for v in verdicts),
            verified=sum(v.verified for v in verdicts),
            accepted=sum(v.accepted for v in verdicts),
            emitted=sum(len(v.emitted) for v in verdicts),
        )
        if len(self.round_stats) >= MAX_ROUND_STATS:
            self.round_stats = [first + second for first, second in zip(self.round_stats[::2], self.round_stats[1::2])]
        self.round_stats.append(stats)
        return stats

    def _refuse(self, record: RequestRecord, reason: str) -> None:
        record.state, record.reason, record.ended = "refused", reason, self.clock.now()

    def _admit(self, now: float) -> None:
        """Move requests from the queue into free slots, first come, first served."""
        while self._queue and len(self._prefilling) + len(self._decoding) < self.limits.rows:
            row = self._queue.popleft()
            record = self.records[row.id]
            # every slot has the same size, so the cache never exceeds rows x tokens
            self.engine.add(row, self.limits.tokens)
            record.admitted = now
            if len(row.prompt) == 1:
                self._begin_decoding(row, now)
            else:
                record.state = "prefill"
                self._prefilling[row.id] = (row, 0)

    def _begin_decoding(self, row: Row, now: float) -> None:
        record = self.records[row.id]
        record.state, record.started = "decoding", now
        self._decoding[row.id] = row

    def _next_chunks(self) -> list[PromptChunk]:
        """The next prompt tokens to prefill, first come, first served; a prompt's last token is its anchor."""
        left = self.limits.chunk
        chunks: list[PromptChunk] = []
        for row, done in self._prefilling.values():
            if not left:
                break
            tokens = row.prompt[done : min(done + left, len(row.prompt) - 1)]
            chunks.append((row, tokens))
            left -= len(tokens)
        return chunks

    def _advance_prefill(self, row: Row, tokens: int, now: float) -> None:
        done = self._prefilling[row.id][1] + tokens
        self._prefilling[row.id] = (row, done)
        if done == len(row.prompt) - 1:
            del self._prefilling[row.id]
            self._begin_decoding(row, now)

    def _update(self, verdict: Verdict, now: float) -> None:
        """Add a verdict to its request's record, and to the policy's statistics."""
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
    requests: Iterable[Request],
    *,
    cancels: Iterable[tuple[float, int]] = (),
    until: float | None = None,
    job: worker.Job | None = None,
    on_step: Callable[[Server], None] | None = None,
) -> Server:
    """Submit each request at its arrival and run rounds until all have ended, `until` seconds are over, or a stop.

    cancels: (time, request id). on_step: called after each step. Requests that have not ended by then are cancelled.
    """
    events: deque[tuple[float, Request | int]] = deque([(request.arrival, request) for request in requests])
    events.extend(cancels)
    events = deque(sorted(events, key=lambda event: (event[0], isinstance(event[1], int))))
    clock = server.clock
    while events or server.busy:
        if (job is not None and job.stopping()) or (until is not None and clock.now() >= until):
            break
        while events and events[0][0] <= clock.now():
            _, event = events.popleft()
            if isinstance(event, Request):
                server.submit(event)
            else:
                server.cancel(event)
        if server.step() is None and events:
            clock.wait(events[0][0] if until is None else min(until, events[0][0]))
        if on_step is not None:
            on_step(server)
    for id, record in server.records.items():
        if record.state in ("waiting", "prefill", "decoding"):
            server.cancel(id)
    return server
