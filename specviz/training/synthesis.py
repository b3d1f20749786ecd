"""Synthesis of the drafters' corpus: the target answers prompts, many conversations in one batch.

Conversation number n is a function of the seed and n alone: its prompts (prompts.py) and every draw. Shards of
consecutive numbers can therefore be made again anywhere, and an interrupted run continues with the shards that are
missing. A conversation that ends is replaced at once, so the batch stays full.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from specviz.errors import SpecVizError
from specviz.models.causal import CausalModel
from specviz.training.conversation import Conversation, Template, draw
from specviz.training.corpus import distinct4
from specviz.training.prompts import plan

CAPACITY = 1024
"""Most tokens of a conversation"""
SHORTEST_ANSWERS = 4
"""Conversations with fewer answer tokens are dropped."""
SHORTEST_TURN, LONGEST_TURN = 3, 96
"""Tokens of a user turn that the target writes; conversations with others are dropped."""
LOOP_WINDOW, LOOP_CHECK_EVERY, LOOP_DISTINCT4 = 96, 16, 0.5
"""An answer whose last 96 tokens have under 50 % distinct runs of four loops: it is cut where these tokens begin."""


@dataclass
class Counts:
    """Conversations that were kept, and those dropped by reason."""

    kept: int = 0
    answer_tokens: int = 0
    looped: int = 0
    """Kept, with an answer that was cut before a loop"""
    short: int = 0
    bad_turn: int = 0
    """The target wrote a user turn that was too short or too long."""
    seconds: float = 0.0


class Synthesis:
    """Writes conversations in one batch; `run` yields each as it ends."""

    def __init__(self, model: CausalModel, tokenizer, rows: int = 64, seed: int = 0, capacity: int = CAPACITY):
        """rows: conversations in the batch. Raises SpecVizError for a template without turns or a capacity that is
        too small for any conversation."""
        self.model, self.template, self.rows, self.seed = model, Template(tokenizer), rows, seed
        self.capacity = min(capacity, model.max_positions or capacity)
        self.counts = Counts()

    @property
    def dtype(self) -> type[np.unsignedinteger]:
        """The smallest type of token ids."""
        return np.uint16 if self.model.vocab_size <= 65536 else np.uint32

    def run(self, numbers: Iterator[int], stop: Callable[[], bool] = lambda: False) -> Iterator[Conversation]:
        """Write the conversations with these numbers; yields every one, dropped ones with no answers. Ends when all
        are written or stop() is true."""
        cache, active = self.model.new_cache(), {}
        free = list(range(self.rows))
        while not stop():
            begun = time.monotonic()
            while free and (number := next(numbers, None)) is not None:
                row = free.pop()
                active[row] = self._begin(number)
                cache.add(row, self.capacity)
            if not active:
                return
            rows = list(active)
            drawn = self._pass(cache, rows, [active[row] for row in rows])
            ended = [row for row, token in zip(rows, drawn) if self._take(active[row], token)]
            self.counts.seconds += time.monotonic() - begun
            for row in ended:
                cache.drop(row)
                free.append(row)
                yield self._judged(active.pop(row))

    def _begin(self, number: int) -> Conversation:
        """A new conversation. Plans that leave no room for an answer are drawn again."""
        random = np.random.default_rng([self.seed, number])
        for _ in range(100):
            made = Conversation(number, drawn := plan(random), random, self.template.before_user(drawn.system))
            if self._user_turn(made):
                return made
        raise SpecVizError(f"{self.capacity} tokens leave no room for a prompt and an answer: allow more.")

    def _user_turn(self, made: Conversation) -> bool:
        """Add the next user turn, or what is given of it; False, and nothing is added, if no room is left."""
        turn = made.plan.turns[made.turn]
        given = self.template.encode(turn.text) if turn.text else []
        needed = len(given) + len(self.template.after_user) + SHORTEST_ANSWERS + LONGEST_TURN * turn.by_target
        if len(made.tokens) + needed > self.capacity:
            return False
        made.written_from = len(made.tokens)
        made.tokens += given
        made.answering = not turn.by_target
        if made.answering:
            made.tokens += self.template.after_user
            made.written_from = len(made.tokens)
        return True

    def _pass(self, cache, rows: Sequence[int], conversations: Sequence[Conversation]) -> list[int]:
        """Feed every conversation what the target has not read yet, and draw its next token."""
        pending = [c.tokens[c.fed :] for c in conversations]
        out = self.model.forward(cache, rows, pending, logits=[1] * len(rows))
        for conversation in conversations:
            conversation.fed = len(conversation.tokens)
        return draw(out.packed[torch.tensor(out.starts)], conversations)

    def _take(self, made: Conversation, token: int) -> bool:
        """Add a drawn token. True when the conversation has ended."""
        made.tokens.append(token)
        written, full = len(made.tokens) - made.written_from, len(made.tokens) >= self.capacity
        if not made.answering:
            return self._take_of_user(made, token, written)
        if written % LOOP_CHECK_EVERY == 0 and written >= LOOP_WINDOW and self._loops(made):
            return True
        if token != self.template.end and written < made.plan.answer_tokens and not full:
            return False
        made.answers.append((made.written_from, len(made.tokens)))
        made.turn += 1
        if token != self.template.end or made.turn == len(made.plan.turns):
            return True
        before = len(made.tokens)
        made.tokens += self.template.between[1:]
        if not self._user_turn(made):
            del made.tokens[before:]
            return True
        return False

    def _take_of_user(self, made: Conversation, token: int, written: int) -> bool:
        """As `_take`, of a user turn that the target writes; a bad one ends the conversation before it."""
        ends = token == self.template.end
        if not ends and written < LONGEST_TURN:
            return False
        if not ends or written <= SHORTEST_TURN:
            self.counts.bad_turn += 1
            made.tokens = made.tokens[: made.answers[-1][1]] if made.answers else []
            return True
        made.tokens = made.tokens[:-1] + self.template.after_user
        made.answering, made.written_from = True, len(made.tokens)
        return False

    def _loops(self, made: Conversation) -> bool:
        """Whether the answer loops; what is before the loop is then kept as an answer."""
        if distinct4(made.tokens[-LOOP_WINDOW:]) >= LOOP_DISTINCT4:
            return False
        del made.tokens[-LOOP_WINDOW:]
        if len(made.tokens) > made.written_from:
            made.answers.append((made.written_from, len(made.tokens)))
        made.looped = True
        return True

    def _judged(self, made: Conversation) -> Conversation:
        """Count a conversation that has ended; a dropped one loses its answers."""
        if made.answer_tokens < SHORTEST_ANSWERS:
            self.counts.short += bool(made.answers)
            made.answers = []
        self.counts.kept += bool(made.answers)
        self.counts.looped += bool(made.answers) and made.looped
        self.counts.answer_tokens += made.answer_tokens
        return made
