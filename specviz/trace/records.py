"""The record of a run: Settings, Position, Verdict, Round, Trace, and their JSON form.

Everything that SpecViz shows, measures or exports is computed from these immutable records. This module
knows no model, no device and no torch; a trace replays without any of them.

Glossary (docs/glossary in the README): each verify pass forwards an *anchor* (the last emitted token)
and K draft tokens, K + 1 *positions*, and ends with exactly one token drawn by the target, the *bonus
token*: from the leftover norm(max(0, p - q)) after a rejection, from p itself when all K were accepted.
"""

from __future__ import annotations

import dataclasses
import gzip
import io
import json
import math
import os
import statistics
import types
import typing
import zlib
from dataclasses import dataclass
from pathlib import Path

from specviz.errors import SettingsError, TraceError
from specviz.paths import write_atomically

VERSION = 2
"""2 (with `Position.target_entropy`); files of version 1, which lack it, are read too."""
FORMAT = "specviz-trace"
MAX_K = 16
MAX_ROWS = 64
MAX_BYTES = 256 * 2**20
"""Largest trace, decompressed, that is read: guards against gzip bombs and foreign files."""
GZIP_FROM_BYTES = 2**20


@dataclass(frozen=True)
class Settings:
    """How to decode. `k` draft tokens per round (0: plain decoding); temperature 0 is greedy; top_k 0 and
    top_p 1.0 are off. Temperature, top_k and top_p act alike on the target's and the drafter's logits."""

    k: int = 5
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    max_new_tokens: int = 64

    def __post_init__(self):
        def whole(name, low, high):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
                raise SettingsError(f"{name} must be a whole number from {low} to {high}, not {value!r}.")

        whole("k", 0, MAX_K)
        whole("top_k", 0, 10**6)
        whole("seed", 0, 2**53)
        whole("max_new_tokens", 1, 4096)
        for name, low, high in (("temperature", 0.0, 10.0), ("top_p", 0.0, 1.0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
                raise SettingsError(f"{name} must be a number from {low:g} to {high:g}, not {value!r}.")
        if self.top_p == 0.0:
            raise SettingsError("top_p must be above 0: at 0 no token would be left. Use temperature 0 for greedy.")


@dataclass(frozen=True)
class Position:
    """One position of a verify pass: what the target (p) and the drafter (q) thought of the next token.

    Arrays run over `support`: the union of p's top 12, q's top 12, the drafted and the drawn token.
    Probabilities are those after temperature, top-k and top-p; logits are raw. The four tails are the
    sums of p, q, min(p, q) and max(0, p - q) over all tokens outside the support, so that the overlap
    and the leftover can be drawn exactly.
    """

    draft_token: int | None
    """The token judged here; None at the last position, where the target draws without a draft."""
    verdict: typing.Literal["accepted", "rejected", "dropped", "bonus"]
    """dropped: drafted after the first rejection (or after the end of the text), so never judged.
    bonus: the position past the last draft; it is drawn from only when all drafts were accepted."""
    accept_uniform: float | None
    """The uniform u in [0, 1) that decided: accepted if u * q < p. None where nothing was judged."""
    support: tuple[int, ...]
    target_logits: tuple[float, ...]
    """The lowest float32 stands for -inf: a token that the target has masked."""
    draft_logits: tuple[float | None, ...] | None
    """None: the drafter has no logits here (a lookup); an entry None: outside its vocabulary."""
    target_logsumexp: float
    draft_logsumexp: float | None
    target_probs: tuple[float, ...]
    draft_probs: tuple[float, ...]
    tail_target: float
    tail_draft: float
    tail_min: float
    tail_leftover: float
    confidence: float | None = None
    """The drafter's own estimate that this draft survives, given that all before it did."""
    first_guess: int | None = None
    """Hybrid drafters: the token that the parallel pass alone would have proposed."""
    target_entropy: float | None = None
    """Entropy, in nats, of the softmax of the target's raw logits over the whole vocabulary: how undecided it was,
    at temperature 1 whatever the run's (greedy p is one-hot, so its own entropy is always 0)."""

    def probs(self, token: int) -> tuple[float, float]:
        """(p, q) of a token of the support."""
        i = self.support.index(token)
        return self.target_probs[i], self.draft_probs[i]

    @property
    def threshold(self) -> float | None:
        """min(1, p/q) of the drafted token; None where nothing was drafted."""
        if self.draft_token is None:
            return None
        p, q = self.probs(self.draft_token)
        return min(1.0, p / q) if q > 0 else 1.0

    @property
    def overlap(self) -> float:
        """beta = sum of min(p, q) over the whole vocabulary: the chance that a draft is accepted here."""
        return sum(map(min, self.target_probs, self.draft_probs)) + self.tail_min


@dataclass(frozen=True)
class Verdict:
    """One row's part of a Round. `proposed >= verified >= accepted`; none of them counts the bonus token."""

    row: int
    context: int
    """Tokens in the row's cache before this pass (the anchor not counted)."""
    anchor: int
    proposed: int
    verified: int
    accepted: int
    positions: tuple[Position, ...]
    """verified + 1 of them."""
    emitted: tuple[int, ...]
    """The accepted drafts, then the bonus token, cut after an end-of-text token."""
    kind: typing.Literal["leftover", "all_accepted"] | None
    """Where the bonus token was drawn from; None if the text ended on an accepted draft."""
    bonus_token: int | None
    bonus_uniform: float | None
    finished: typing.Literal["eos", "length"] | None = None


@dataclass(frozen=True)
class Cost:
    """Counted floating-point operations and bytes moved by one or more passes (a modelled minimum)."""

    flops: int
    bytes: int


@dataclass(frozen=True)
class Round:
    """One proposal, one verify pass, one verdict per active row."""

    index: int
    rows: tuple[Verdict, ...]
    draft_seconds: float
    verify_seconds: float
    other_seconds: float
    """Sampling arithmetic and bookkeeping: what decoding does besides drafting and verifying."""
    recording_seconds: float
    """Spent on writing down the Positions. It is no part of decoding and not in `seconds`."""
    target_tokens: int
    """Positions that the target forwarded: the sum over rows of 1 + verified."""
    draft_tokens: int
    """Positions that the drafter forwarded (0 for a lookup)."""
    target_cost: Cost
    draft_cost: Cost

    @property
    def seconds(self) -> float:
        return self.draft_seconds + self.verify_seconds + self.other_seconds


@dataclass(frozen=True)
class Baseline:
    """Plain decode steps of the same rows at the same contexts, interleaved in the same run."""

    seconds: tuple[float, ...] = ()
    """Of each plain step: forward, sampling and draw."""
    forward_seconds: tuple[float, ...] = ()
    """Of each plain step's forward pass alone."""
    rows: tuple[int, ...] = ()
    cost: Cost = Cost(0, 0)
    """Of the last plain step."""

    @property
    def median(self) -> float | None:
        return statistics.median(self.seconds) if self.seconds else None

    @property
    def tokens_per_second(self) -> float | None:
        """Plain tokens a second: the median over steps of rows / seconds."""
        return statistics.median(r / s for r, s in zip(self.rows, self.seconds)) if self.seconds else None


@dataclass(frozen=True)
class Ceilings:
    """Measured roofs of one device in one precision: medians, with their spread (low, high)."""

    device: str
    precision: str
    bandwidth: float
    """bytes per second, streaming read"""
    flops: float
    """floating-point operations per second, large matrix product"""
    bandwidth_spread: tuple[float, float]
    flops_spread: tuple[float, float]
    measured_at: str
    """ISO date and time"""

    @property
    def ridge(self) -> float:
        """FLOP per byte above which compute binds."""
        return self.flops / self.bandwidth


@dataclass(frozen=True)
class Machine:
    """Where and with what a run was measured."""

    device: str
    name: str
    precision: str
    torch: str
    transformers: str
    threads: int
    ceilings: Ceilings | None = None


@dataclass(frozen=True)
class Prompt:
    """One row's input: what was typed, and the token ids that the target saw."""

    text: str
    system: str | None
    """The system message; None: the chat template's own default. Not used when raw."""
    raw: bool
    """True: the text went in as it is, with no chat template."""
    seed: int
    token_ids: tuple[int, ...]


@dataclass(frozen=True)
class Trace:
    """One finished (or stopped) run, complete enough to be replayed with neither torch nor a model."""

    pair: str
    target: str
    drafter: str
    drafter_label: str
    """What the drafter is, in a sentence fit for the screen."""
    settings: Settings
    machine: Machine
    recorded_at: str
    prompts: tuple[Prompt, ...]
    texts: tuple[str, ...]
    """The emitted text of each row."""
    pieces: dict[int, str]
    """The text of every token id in the trace; bytes that are no UTF-8 by themselves are written \\xNN."""
    rounds: tuple[Round, ...]
    prefill_seconds: float
    baseline: Baseline
    end: typing.Literal["complete", "stopped"]
    vocab_size: int = 0
    note: str = ""
    """Anything a person should know of the weights, e.g. that they are dequantised."""
    draft_parallel: bool = False
    """True: the drafter proposes all K tokens in one pass, so they appear together."""

    def token_ids(self, row: int = 0) -> list[int]:
        return [t for r in self.rounds for v in r.rows if v.row == row for t in v.emitted]

    def row_rounds(self, row: int = 0) -> list[tuple[Round, Verdict]]:
        """The rounds in which a row took part, each with the row's verdict."""
        return [(r, v) for r in self.rounds for v in r.rows if v.row == row]

    @property
    def seconds(self) -> float:
        """Decoding time: prefill and baseline steps are not in it."""
        return sum(r.seconds for r in self.rounds)


# ---------------------------------------------------------------------------------------------- JSON


def to_json(trace: Trace) -> dict:
    """The trace as plain JSON values; exact (floats by their shortest round-trip form)."""
    return {"format": FORMAT, "version": VERSION, **_plain(trace)}


def from_json(data: object) -> Trace:
    """The Trace in `data` (parsed JSON). Raises TraceError with one sentence for anything else."""
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise TraceError(
            "This is not a SpecViz trace: it does not say format = specviz-trace. Choose a file that SpecViz exported."
        )
    version = data.get("version")
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        raise TraceError("This trace does not say which version it has, so it cannot be read.")
    if version > VERSION:
        raise TraceError(f"This trace is of version {version} and this SpecViz reads up to {VERSION}: update SpecViz.")
    body = {k: v for k, v in data.items() if k not in ("format", "version")}
    try:
        trace = _build(Trace, body, "trace")
    except SettingsError as error:
        raise TraceError(f"This trace holds a setting that SpecViz cannot have written: {error}") from None
    except RecursionError:
        raise TraceError("This trace is nested too deeply to be a SpecViz trace.") from None
    _check(trace)
    return trace


def save(trace: Trace, path: str | os.PathLike) -> Path:
    """Write the trace atomically (gzip if large or if the name ends in .gz). Returns the path written."""
    path = Path(path)
    text = json.dumps(to_json(trace), allow_nan=False, separators=(",", ":"), ensure_ascii=False).encode()
    if path.suffix == ".gz" or len(text) > GZIP_FROM_BYTES:
        text = gzip.compress(text, 6, mtime=0)
        path = path if path.suffix == ".gz" else path.with_name(path.name + ".gz")
    write_atomically(path, lambda file: file.write_bytes(text))
    return path


def dumps(trace: Trace) -> bytes:
    """The bytes that `save` would write for a small trace: one line of JSON."""
    return json.dumps(to_json(trace), allow_nan=False, separators=(",", ":"), ensure_ascii=False).encode()


def load(path: str | os.PathLike) -> Trace:
    """Read a trace file, gzipped or not. Raises TraceError with one sentence if it cannot be one."""
    path = Path(path)
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise TraceError(f"The trace {path.name} cannot be opened: {error.strerror or error}.") from None
    return loads(raw, path.name)


def loads(raw: bytes, name: str = "file") -> Trace:
    """A Trace from the bytes of a file. Raises TraceError as `load` does."""
    if raw[:2] == b"\x1f\x8b":
        try:
            with gzip.GzipFile(fileobj=io.BytesIO(raw)) as file:
                raw = file.read(MAX_BYTES + 1)
        except (OSError, EOFError, ValueError, zlib.error) as error:
            raise TraceError(f"The trace {name} is cut short or damaged ({error}): export or copy it again.") from None
    if len(raw) > MAX_BYTES:
        raise TraceError(f"The trace {name} is larger than {MAX_BYTES // 2**20} MiB and was not read.")
    try:
        data = json.loads(raw, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise TraceError(f"{name} is not a complete JSON file: it is cut short, damaged or of another kind.") from None
    return from_json(data)


def schema() -> dict:
    """JSON Schema of the file, derived from the dataclasses above (docs/trace.schema.json is this)."""
    definitions: dict[str, dict] = {}
    _schema(Trace, definitions)
    root = definitions.pop("Trace")
    versions = {"enum": list(range(1, VERSION + 1))}
    root["properties"] = {"format": {"const": FORMAT}, "version": versions} | root["properties"]
    root["required"] = ["format", "version", *root["required"]]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "SpecViz trace",
        **root,
        "$defs": dict(sorted(definitions.items())),
    }


def _no_constant(name: str):
    raise ValueError(f"{name} is not allowed")


def _plain(value):
    if dataclasses.is_dataclass(value):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, tuple):
        return [_plain(v) for v in value]
    if isinstance(value, dict):
        return {str(k): v for k, v in value.items()}
    return value


_HINTS: dict[type, dict[str, object]] = {}


def _hints(cls) -> dict[str, object]:
    if cls not in _HINTS:
        _HINTS[cls] = typing.get_type_hints(cls)
    return _HINTS[cls]


def _build(hint, value, where: str):
    """`value` (parsed JSON) as an instance of the type `hint`; TraceError names the place that is wrong."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        if value is None:
            return None
        return _build(next(a for a in args if a is not type(None)), value, where)
    if origin is typing.Literal:
        if value not in args or not isinstance(value, str):
            raise TraceError(f"This trace is damaged: {where} is none of {', '.join(args)}.")
        return value
    if origin is tuple:
        if not isinstance(value, list) or (args[-1] is not Ellipsis and len(value) != len(args)):
            raise TraceError(f"This trace is damaged: {where} is not a list of the right length.")
        return tuple(_build(args[0], v, where) for v in value)
    if origin is dict:
        if not isinstance(value, dict) or not all(
            k.isdecimal() and len(k) < 10 and isinstance(v, str) for k, v in value.items()
        ):
            raise TraceError(f"This trace is damaged: {where} does not map token ids to text.")
        return {int(k): v for k, v in value.items()}
    if dataclasses.is_dataclass(hint):
        if not isinstance(value, dict):
            raise TraceError(f"This trace is damaged: {where} is not an object.")
        fields = {f.name: f for f in dataclasses.fields(hint)}
        if unknown := set(value) - set(fields):
            raise TraceError(f"This trace is damaged: {where} has an unknown entry {min(unknown)[:40]!r}.")
        missing = [
            n
            for n, f in fields.items()
            if n not in value and f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
        ]
        if missing:
            raise TraceError(f"This trace is damaged: {where} lacks {missing[0]!r}.")
        hints = _hints(hint)
        return hint(**{n: _build(hints[n], v, f"{where}.{n}") for n, v in value.items()})
    if hint is float and isinstance(value, int | float) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if math.isfinite(number):
            return number
    elif hint is int and isinstance(value, int) and not isinstance(value, bool):
        if abs(value) < 2**63:
            return value
    elif hint in (bool, str) and isinstance(value, hint):
        return value
    raise TraceError(f"This trace is damaged: {where} is not of type {getattr(hint, '__name__', hint)}.")


def _check(trace: Trace) -> None:
    """What types alone do not say: counts that agree, arrays of one length, every token with its text."""

    def demand(true: bool, what: str):
        if not true:
            raise TraceError(f"This trace is damaged: {what}.")

    def cost(value: Cost):
        demand(value.flops >= 0 and value.bytes >= 0, "a cost is negative")

    demand(1 <= len(trace.prompts) <= MAX_ROWS, f"it must have 1 to {MAX_ROWS} rows")
    demand(len(trace.texts) == len(trace.prompts), "texts and prompts differ in number")
    demand(all(p.token_ids for p in trace.prompts), "a prompt has no tokens")
    if roofs := trace.machine.ceilings:
        numbers = (roofs.bandwidth, roofs.flops, *roofs.bandwidth_spread, *roofs.flops_spread)
        demand(min(numbers) >= 1 and max(numbers) <= 1e30, "a ceiling cannot have been measured")
    base = trace.baseline
    demand(len(base.seconds) == len(base.forward_seconds) == len(base.rows), "its plain steps do not add up")
    demand(all(_duration(s) and s > 0 for s in (*base.seconds, *base.forward_seconds)), "a plain step took no time")
    demand(all(1 <= r <= len(trace.prompts) for r in base.rows), "a plain step has rows that do not exist")
    cost(base.cost)
    demand(_duration(trace.prefill_seconds), "the prefill took an impossible time")
    seen: set[int] = set()
    finished: set[int] = set()
    for number, round_ in enumerate(trace.rounds):
        demand(round_.index == number, "its rounds are out of order")
        times = (round_.draft_seconds, round_.verify_seconds, round_.other_seconds, round_.recording_seconds)
        demand(all(map(_duration, times)), "a round took an impossible time")
        demand(min(round_.target_tokens, round_.draft_tokens) >= 0, "a round forwarded less than nothing")
        cost(round_.target_cost)
        cost(round_.draft_cost)
        rows = [v.row for v in round_.rows]
        demand(rows and len(set(rows)) == len(rows), "a round has no rows, or one of them twice")
        demand(not finished & set(rows), "a row goes on after its end")
        finished |= {v.row for v in round_.rows if v.finished}
        for v in round_.rows:
            demand(0 <= v.row < len(trace.prompts) and v.context >= 0, "a round names a row that does not exist")
            _check_verdict(v, demand)
            seen.update((v.anchor, *v.emitted), *(x.support for x in v.positions))
            seen.update(x.first_guess for x in v.positions if x.first_guess is not None)
    demand(seen <= trace.pieces.keys(), "a token lacks its text")


def _duration(seconds: float) -> bool:
    return 0 <= seconds < 1e9


def _check_verdict(v: Verdict, demand) -> None:
    """One row's round: counts, positions and tokens tell one story."""
    demand(MAX_K >= v.proposed >= v.verified >= v.accepted >= 0, "a round's counts do not add up")
    demand(len(v.positions) == v.verified + 1, "a round lacks positions")
    drafts = [x.draft_token for x in v.positions]
    demand(None not in drafts[:-1] and drafts[-1] is None, "a round's drafts do not fit its positions")
    drawn = () if v.bonus_token is None else (v.bonus_token,)
    demand(v.emitted == (*drafts[: v.accepted], *drawn), "a round's emitted tokens do not add up")
    demand((v.kind is None) == (v.bonus_token is None) == (v.bonus_uniform is None), "a bonus token is only half there")
    demand(v.kind != "leftover" or v.accepted < v.verified, "a leftover was drawn from without a rejection")
    demand(v.kind != "all_accepted" or v.accepted == v.verified, "not all drafts were accepted where it says so")
    demand(v.kind is not None or v.accepted > 0, "a round emitted nothing")
    told = ["accepted"] * v.accepted + ["rejected"] * (v.kind == "leftover")
    told += ["dropped"] * (v.verified - len(told)) + ["bonus"]
    demand([x.verdict for x in v.positions] == told, "a round's verdicts contradict its counts")
    uniforms = [x.accept_uniform for x in v.positions]
    for x, u in zip(v.positions, uniforms):
        judged = x.verdict in ("accepted", "rejected")
        demand((u is not None) == judged and (u is None or 0 <= u < 1), "a uniform is not where it must be")
    demand(v.bonus_uniform is None or 0 <= v.bonus_uniform < 1, "a uniform is not in 0..1")
    for x in v.positions:
        demand(
            len(x.support) == len(x.target_logits) == len(x.target_probs) == len(x.draft_probs)
            and (x.draft_logits is None or len(x.draft_logits) == len(x.support)),
            "a position's arrays differ in length",
        )
        demand(len(set(x.support)) == len(x.support) and min(x.support, default=0) >= 0, "a support is impossible")
        tails = (x.tail_target, x.tail_draft, x.tail_min, x.tail_leftover)
        shares = (*x.target_probs, *x.draft_probs, *tails)
        demand(all(0 <= y <= 1 + 1e-9 for y in shares), "a probability is not in 0..1")
        demand(x.confidence is None or 0 <= x.confidence <= 1, "a confidence is not in 0..1")
        demand(x.target_entropy is None or 0 <= x.target_entropy < 100, "an entropy is impossible")
        demand(x.draft_token is None or x.draft_token in x.support, "a drafted token is not in its support")
    if v.kind is not None:
        demand(v.bonus_token in v.positions[v.accepted].support, "a drawn token is not in its support")


def _schema(hint, definitions: dict) -> dict:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [_schema(a, definitions) for a in args]}
    if origin is typing.Literal:
        return {"enum": list(args)}
    if origin is tuple:
        fixed = {} if args[-1] is Ellipsis else {"minItems": len(args), "maxItems": len(args)}
        return {"type": "array", "items": _schema(args[0], definitions), **fixed}
    if origin is dict:
        return {"type": "object", "propertyNames": {"pattern": "^[0-9]+$"}, "additionalProperties": {"type": "string"}}
    if dataclasses.is_dataclass(hint):
        if hint.__name__ not in definitions:
            definitions[hint.__name__] = {}
            fields = dataclasses.fields(hint)
            hints = _hints(hint)
            definitions[hint.__name__] = {
                "type": "object",
                "properties": {f.name: _schema(hints[f.name], definitions) for f in fields},
                "required": [f.name for f in fields if f.default is dataclasses.MISSING],
                "additionalProperties": False,
            }
        return {"$ref": f"#/$defs/{hint.__name__}"}
    return {"type": {int: "integer", float: "number", str: "string", bool: "boolean", type(None): "null"}[hint]}
