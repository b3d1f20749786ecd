"""A conversation that is being written: the chat template between its turns, its state, and how tokens are drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from specviz.errors import SpecVizError
from specviz.training.prompts import Plan

TURN_TOP_P, TURN_CANDIDATES = 0.95, 256
"""A user turn is sampled at temperature 1 from this much probability, among at most this many tokens."""


class Template:
    """The chat template, cut into the tokens between the turns."""

    def __init__(self, tokenizer):
        """Raises SpecVizError if there is no template, or if it does not treat all turns alike."""
        if not getattr(tokenizer, "chat_template", None):
            raise SpecVizError("This target has no chat template: conversations cannot be written for it.")
        self._tokenizer = tokenizer
        turns = [("user", "USER1"), ("assistant", "ANSWER1"), ("user", "USER2")]
        text = self._render([{"role": role, "content": content} for role, content in turns])
        _, text = text.split("USER1")
        after, text = text.split("ANSWER1")
        between, closing = text.split("USER2")
        if after != closing:
            raise SpecVizError("This target's chat template treats the first user turn differently from later ones.")
        self.after_user, self.between = self.encode(after), self.encode(between)
        self.end = self.between[0]
        """The token that ends a turn"""

    def before_user(self, system: str | None) -> list[int]:
        """The tokens before the first user turn. system: None leaves the template's own."""
        messages = [] if system is None else [{"role": "system", "content": system}]
        return self.encode(self._render([*messages, {"role": "user", "content": "USER1"}]).split("USER1")[0])

    def encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def _render(self, messages: list[dict[str, str]]) -> str:
        return self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)


@dataclass
class Conversation:
    """A conversation that is being written."""

    number: int
    plan: Plan
    random: np.random.Generator
    tokens: list[int]
    answering: bool = False
    """False while the target writes a user turn"""
    written_from: int = 0
    """Where in tokens the turn begins that the target is writing"""
    turn: int = 0
    """Index of the user turn"""
    answers: list[tuple[int, int]] = field(default_factory=list)
    """First and last token, exclusive, of each finished answer"""
    looped: bool = False
    fed: int = 0
    """Tokens that the target has read"""

    @property
    def answer_tokens(self) -> int:
        return sum(end - start for start, end in self.answers)


def draw(logits: torch.Tensor, conversations: Sequence[Conversation]) -> list[int]:
    """The next token of each conversation from its row of logits [R, V]: an answer at the plan's temperature from the
    whole distribution, a user turn at temperature 1 with top-p. One uniform number per drawn token."""
    drawn = logits.argmax(-1).tolist()
    sampled = [i for i, c in enumerate(conversations) if c.answering and c.plan.temperature > 0]
    if sampled:
        temperature = torch.tensor([conversations[i].plan.temperature for i in sampled])
        running = torch.softmax(logits[sampled] / temperature[:, None], -1).cumsum(-1)
        for i, place in zip(sampled, _places(running, [conversations[i] for i in sampled])):
            drawn[i] = place
    users = [i for i, c in enumerate(conversations) if not c.answering]
    if users:
        ids = logits[users].topk(min(TURN_CANDIDATES, logits.shape[-1]), -1).indices
        probs = torch.softmax(logits[users], -1).gather(1, ids)
        running = torch.where(probs.cumsum(-1) - probs < TURN_TOP_P, probs, 0.0).cumsum(-1)
        for row, (i, place) in enumerate(zip(users, _places(running, [conversations[i] for i in users]))):
            drawn[i] = int(ids[row, place])
    return drawn


def _places(running: torch.Tensor, conversations: Sequence[Conversation]) -> list[int]:
    """Inverse CDF: where each row of running sums [R, N] exceeds a uniform number of its conversation."""
    uniform = torch.tensor([c.random.random() for c in conversations], dtype=running.dtype)[:, None]
    places = torch.searchsorted(running, uniform * running[:, -1:], right=True)[:, 0]
    return places.clamp(max=running.shape[1] - 1).tolist()
