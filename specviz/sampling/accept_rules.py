"""The accept rule of speculative sampling and known wrong variants of it, each a pure function over one position.

The correct rule calls `rejection.judge`, the decoding loop's own code. Each variant says whether its output
still follows the target's distribution (`lossless`), how it differs, and where it was reported. The uniforms are passed
in.

p: target_probs [V], q: draft_probs [V], both after temperature, top-k and top-p, float64.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from specviz.sampling.rejection import accepts, draw, judge, leftover, uniform, warp


@dataclass(frozen=True)
class Chance:
    """The uniforms in [0, 1) for one position: draft, accept test and bonus token."""

    draft: float
    accept: float
    bonus: float

    @classmethod
    def of(cls, seed: int, i: int) -> Chance:
        """The i-th trial of a seed, by the engine's own counter-based uniforms."""
        return cls(*(uniform(seed, i, 0, stream) for stream in ("draft", "accept", "bonus")))


@dataclass(frozen=True)
class Emission:
    """The result of one trial."""

    token: int
    accepted: bool
    """True: the drafted token was kept. False: the target drew this one."""


@dataclass(frozen=True)
class Rule:
    """One way to draft, judge and correct a single position."""

    name: str
    title: str
    lossless: bool
    """True: the emitted token follows the requested distribution, p, exactly."""
    sentence: str
    """What it does, and why that is right or wrong."""
    source: str
    """Where it comes from: a paper, or public bugs (GitHub owner/name#number)."""
    apply: Callable[[torch.Tensor, torch.Tensor, Chance], Emission]
    asked: Callable[[torch.Tensor], torch.Tensor] = lambda p: p
    """The requested distribution as a function of p: p itself, or its top k for the rules about top-k."""


# ------------------------------------------------------------------------------------------- the rules


def right(p: torch.Tensor, q: torch.Tensor, chance: Chance) -> Emission:
    """Draft from q, judge by min(1, p/q), draw from the leftover after a rejection: the engine's own code."""
    token = draw(q, chance.draft)
    # the second row of p is the position after the draft, which is not used here
    verdict = judge(torch.stack((p, p)), q[None], [token], [chance.accept], chance.bonus)
    return Emission(token, True) if verdict.accepted else Emission(verdict.bonus_token, False)


def _judged(p: torch.Tensor, q: torch.Tensor, token: int, chance: Chance, correction: torch.Tensor) -> Emission:
    """The right test of a drafted token, with another correction."""
    if accepts(float(p[token]), float(q[token]), chance.accept):
        return Emission(token, True)
    return Emission(draw(correction, chance.bonus), False)


def correct_from_p(p: torch.Tensor, q: torch.Tensor, chance: Chance) -> Emission:
    """After a rejection draw from p."""
    return _judged(p, q, draw(q, chance.draft), chance, p)


def correct_from_softmax(p: torch.Tensor, q: torch.Tensor, chance: Chance) -> Emission:
    """After a rejection draw from softmax(max(0, p - q))."""
    return _judged(p, q, draw(q, chance.draft), chance, (p - q).clamp(min=0).softmax(-1))


def argmax_draft(p: torch.Tensor, q: torch.Tensor, chance: Chance) -> Emission:
    """Draft q's likeliest token, judge it by q."""
    return _judged(p, q, int(q.argmax()), chance, leftover(p, q))


def subtract_at_draft_only(p: torch.Tensor, q: torch.Tensor, chance: Chance) -> Emission:
    """After a rejection take q off p at the drafted token alone."""
    token = draw(q, chance.draft)
    only = torch.zeros_like(q)
    only[token] = q[token]
    return _judged(p, q, token, chance, leftover(p, only))


def target_agrees(p: torch.Tensor, q: torch.Tensor, chance: Chance) -> Emission:
    """Emit the target's own draw; the draft counts as accepted if it is the same token."""
    token = draw(q, chance.draft)
    own = draw(p, chance.bonus)
    return Emission(own, own == token)


TOP = 2
"""The top-k of the rules that apply it to one side only: small, so that it shows."""


def top_k(probs: torch.Tensor) -> torch.Tensor:
    """probs [V] cut to the TOP likeliest, by the engine's own `warp`."""
    return warp(probs.log(), 1.0, top_k=TOP)


def top_k_target_only(p: torch.Tensor, q: torch.Tensor, chance: Chance) -> Emission:
    """The right rule with p cut and q whole."""
    return right(top_k(p), q, chance)


def top_k_draft_only(p: torch.Tensor, q: torch.Tensor, chance: Chance) -> Emission:
    """The right rule with p whole and q cut, though p was to be cut too."""
    return right(p, top_k(q), chance)


def other_q(p: torch.Tensor, q: torch.Tensor, chance: Chance) -> Emission:
    """Draft from q cut, judge by q whole."""
    return _judged(p, q, draw(top_k(q), chance.draft), chance, leftover(p, q))


def look_ahead(p: torch.Tensor, q: torch.Tensor, chance: Chance) -> Emission:
    """Judge the draft only if it is q's likeliest token, else let the target draw from p."""
    token = draw(q, chance.draft)
    if token != int(q.argmax()):
        return Emission(draw(p, chance.bonus), False)
    return _judged(p, q, token, chance, leftover(p, q))


RIGHT = Rule(
    "right",
    "The accept rule",
    True,
    "Draft from q; keep the draft with probability min(1, p/q); after a rejection draw from the leftover max(0, p - "
    "q), normalised. The two parts add up to p, whatever q is.",
    "Leviathan et al. 2023 (arXiv 2211.17192), Chen et al. 2023 (arXiv 2302.01318)",
    right,
)

RULES: tuple[Rule, ...] = (
    RIGHT,
    Rule(
        "correct-from-p",
        "Correction drawn from p",
        False,
        "After a rejection the new token is drawn from p instead of the leftover. Tokens that the draft already "
        "supplies in plenty are then supplied once more.",
        "the questions eth-sri/language-model-arithmetic#14, ShopeeLLM/Spec-RL#14, NJUNLP/MCSD#5",
        correct_from_p,
    ),
    Rule(
        "softmax-leftover",
        "Softmax over the leftover",
        False,
        "The leftover goes through a softmax instead of being divided by its sum. That lifts every token, also those "
        "where nothing is left.",
        "huggingface/transformers#28508",
        correct_from_softmax,
    ),
    Rule(
        "argmax-draft",
        "Argmax draft, judged by softmax q",
        False,
        "The draft is always q's likeliest token, yet it is judged as if it had been drawn from q. The q of the test "
        "must be the q of the draw: here 1 for that token.",
        "jaymody/speculative-sampling#3 and #9",
        argmax_draft,
    ),
    Rule(
        "subtract-at-draft",
        "q subtracted at the drafted token only",
        False,
        "After a rejection only the drafted token's q is taken off p. That is right for a draft without chance; a "
        "drawn draft needs all of q taken off.",
        "xLLM-AI/xllm#2175",
        subtract_at_draft_only,
    ),
    Rule(
        "target-agrees",
        "Accept if the target's own draw agrees",
        True,
        "The target draws its own token and the draft counts as accepted if it is the same. What is emitted is always "
        "the target's draw, so nothing is lost, but a draft survives with probability sum of p times q, never more "
        "than the sum of min(p, q).",
        "ml-explore/mlx-swift-lm#459, antonellof/ferrox#313; z-lab/dflash#74 reports it as lossy",
        target_agrees,
    ),
    Rule(
        "top-k-target",
        f"Top-{TOP} on the target only",
        True,
        f"p is cut to its {TOP} likeliest tokens, q is not. Drafts outside are drawn in vain and always rejected: "
        "nothing is lost but speed.",
        "vllm-project/vllm#56724 measures the loss of length",
        top_k_target_only,
        top_k,
    ),
    Rule(
        "top-k-draft",
        f"Top-{TOP} on the draft only",
        False,
        f"Top-{TOP} was asked for and only the drafter heard of it. The test restores the whole of p, with all the "
        "tokens that should have been cut.",
        "huggingface/transformers#28166: both sides need the same processors",
        top_k_draft_only,
        top_k,
    ),
    Rule(
        "other-q",
        "Judged by a q that was not drawn from",
        False,
        f"The draft is drawn from q cut to its {TOP} likeliest tokens and judged by q before the cut, which is smaller "
        "there: too many drafts are kept.",
        "huggingface/transformers#47932, deepseek-ai/DeepSpec#31",
        other_q,
    ),
    Rule(
        "look-ahead",
        "Look-ahead scheduling with drawn drafts",
        False,
        "Whether a draft is sent to the target at all is decided by how safe the next guess looks, and that depends "
        "on the draft itself: here only q's likeliest token is followed by a safe guess. Other drafts are left "
        "unjudged and the target draws from p. Harmless when drafts are no matter of chance.",
        "the counterexample of the DSpark paper's appendix: 0.85 comes out where p is 0.70",
        look_ahead,
    ),
)


def rule(name: str) -> Rule:
    """A rule by name. Raises KeyError."""
    return {r.name: r for r in RULES}[name]


PAPER_P, PAPER_Q = (0.7, 0.3), (0.5, 0.5)
"""The look-ahead counterexample: with `look_ahead` the first token comes out with probability 0.85."""


# ----------------------------------------------------------------------------------------- many trials


@dataclass(frozen=True)
class Tally:
    """Counts of emitted tokens [V] over many trials: accepted drafts, and tokens drawn by the target."""

    accepted: tuple[int, ...]
    drawn: tuple[int, ...]

    @classmethod
    def empty(cls, size: int) -> Tally:
        """No trials, for a vocabulary of this size."""
        return cls((0,) * size, (0,) * size)

    @property
    def counts(self) -> tuple[int, ...]:
        """Emitted tokens [V]."""
        return tuple(a + b for a, b in zip(self.accepted, self.drawn))

    @property
    def trials(self) -> int:
        """The number of trials."""
        return sum(self.accepted) + sum(self.drawn)


def tally(
    rule: Rule,
    p: torch.Tensor,
    q: torch.Tensor,
    trials: int,
    seed: int = 0,
    before: Tally | None = None,
) -> Tally:
    """Apply a rule to one position `trials` more times. Trial i of a seed always has the same uniforms."""
    before = before or Tally.empty(len(p))
    accepted, drawn = list(before.accepted), list(before.drawn)
    for i in range(before.trials, before.trials + trials):
        emission = rule.apply(p, q, Chance.of(seed, i))
        (accepted if emission.accepted else drawn)[emission.token] += 1
    return Tally(tuple(accepted), tuple(drawn))
