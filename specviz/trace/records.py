"""The record of a run as immutable dataclasses: Trace, Round, Verdict, Position, Settings.

All pages, metrics and exports are computed from these. Needs neither torch nor a model, and no trace does to be
replayed. The file format is in docs/trace.md.

Terms: each verify pass forwards an *anchor* (the last emitted token) and K draft tokens, K + 1 *positions*, and ends
with exactly one token drawn by the target, the *bonus token*: from the leftover norm(max(0, p - q)) after a rejection,
from p itself when all K were accepted.
"""

from __future__ import annotations

import statistics
import typing
from dataclasses import dataclass

from specviz.errors import SettingsError

MAX_K = 16
"""The largest number of draft tokens per round."""
MAX_ROWS = 64

PositionVerdict = typing.Literal["accepted", "rejected", "dropped", "bonus"]
BonusKind = typing.Literal["leftover", "all_accepted"]
EndReason = typing.Literal["eos", "length"]
RunEnd = typing.Literal["complete", "stopped"]


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

    def __post_init__(self) -> None:
        def whole(name: str, low: int, high: int) -> None:
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


@dataclass(frozen=True, kw_only=True)
class Position:
    """One position of a verify pass: the distributions p of the target and q of the drafter over the next token.

    Arrays run over `support`: the union of p's top 12, q's top 12, the drafted and the drawn token.
    Probabilities are those after temperature, top-k and top-p; logits are raw. The four tails are the
    sums of p, q, min(p, q) and max(0, p - q) over all tokens outside the support, so that the overlap
    and the leftover can be drawn exactly.
    """

    draft_token: int | None
    """The token judged here; None at the last position, where the target draws without a draft."""
    verdict: PositionVerdict
    """dropped: drafted after the first rejection (or after the end of the text), so never judged.
    bonus: the position past the last draft; it is drawn from only when all drafts were accepted."""
    accept_uniform: float | None
    """The uniform u in [0, 1): accepted if u * q < p. None where nothing was judged."""
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
    """Entropy, in nats, of the softmax of the target's raw logits over the whole vocabulary, always at
    temperature 1 (a greedy p is one-hot, so its own entropy is always 0)."""

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


@dataclass(frozen=True, kw_only=True)
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
    kind: BonusKind | None
    """Where the bonus token was drawn from; None if the text ended on an accepted draft."""
    bonus_token: int | None
    bonus_uniform: float | None
    finished: EndReason | None = None


@dataclass(frozen=True)
class Cost:
    """Counted floating-point operations and bytes moved by one or more passes (a modelled minimum)."""

    flops: int
    bytes: int


@dataclass(frozen=True, kw_only=True)
class Round:
    """One proposal, one verify pass, one verdict per active row."""

    index: int
    rows: tuple[Verdict, ...]
    draft_seconds: float
    verify_seconds: float
    other_seconds: float
    """Judging (warping, the accept rule, draws) and committing."""
    recording_seconds: float
    """Time to record the Positions. Not part of decoding, so not in `seconds`."""
    target_tokens: int
    """Positions that the target forwarded: the sum over rows of 1 + verified."""
    draft_tokens: int
    """Positions that the drafter forwarded (0 for a lookup)."""
    target_cost: Cost
    draft_cost: Cost

    @property
    def seconds(self) -> float:
        """Decoding time of the round, without recording."""
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
        """Median seconds of a plain step; None without steps."""
        return statistics.median(self.seconds) if self.seconds else None

    @property
    def tokens_per_second(self) -> float | None:
        """Plain tokens a second: the median over steps of rows / seconds."""
        return statistics.median(r / s for r, s in zip(self.rows, self.seconds)) if self.seconds else None


@dataclass(frozen=True, kw_only=True)
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


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The hardware and library versions of a run."""

    device: str
    name: str
    precision: str
    torch: str
    transformers: str
    threads: int
    ceilings: Ceilings | None = None


@dataclass(frozen=True)
class Prompt:
    """One row's prompt: the text, and the token ids given to the target."""

    text: str
    system: str | None
    """The system message; None: the chat template's own default. Not used when raw."""
    raw: bool
    """True: the text was tokenized as it is, without a chat template."""
    seed: int
    token_ids: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Trace:
    """One finished (or stopped) run, complete enough to be replayed without torch or a model."""

    pair: str
    target: str
    drafter: str
    drafter_label: str
    """A description of the drafter, shown on screen."""
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
    end: RunEnd
    vocab_size: int = 0
    note: str = ""
    """Remarks on the weights and the run, e.g. that the weights are dequantised."""
    draft_parallel: bool = False
    """True: the drafter proposes all K tokens in one pass, so they appear together."""

    def token_ids(self, row: int = 0) -> list[int]:
        """The emitted tokens of a row."""
        return [t for r in self.rounds for v in r.rows if v.row == row for t in v.emitted]

    def row_rounds(self, row: int = 0) -> list[tuple[Round, Verdict]]:
        """The rounds in which a row took part, each with the row's verdict."""
        return [(r, v) for r in self.rounds for v in r.rows if v.row == row]

    @property
    def seconds(self) -> float:
        """Decoding time: prefill and baseline steps are not in it."""
        return sum(r.seconds for r in self.rounds)


# ---------------------------------------------------------------------------------------------- JSON
