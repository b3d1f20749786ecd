"""Synthesis of the drafters' corpus: the target answers prompts, many conversations in one batch.

Conversation number n is a function of the seed and n alone: its prompts (prompts.py) and every draw. Shards of
consecutive numbers can therefore be made again anywhere, and an interrupted run continues with the shards that are
missing. A conversation that ends is replaced at once, so the batch stays full.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from specviz.errors import SpecVizError
from specviz.models.causal import CausalModel
from specviz.training.corpus import Corpus, distinct4
from specviz.training.prompts import KINDS, Plan, plan

CAPACITY = 1024
"""Most tokens of a conversation"""
PER_SHARD = 128
"""Conversations of a shard, dropped ones included"""
SHORTEST_ANSWERS = 4
"""Conversations with fewer answer tokens are dropped."""
SHORTEST_TURN, LONGEST_TURN = 3, 96
"""Tokens of a user turn that the target writes; conversations with others are dropped."""
LOOP_WINDOW, LOOP_CHECK_EVERY, LOOP_DISTINCT4 = 96, 16, 0.5
"""An answer whose last 96 tokens have under 50 % distinct runs of four loops: it is cut where these tokens begin."""
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


def write_shards(
    synthesis: Synthesis,
    folder: Path,
    answer_tokens: int,
    per_shard: int = PER_SHARD,
    share: tuple[int, int] = (0, 1),
    progress: Callable[[int, Counts], None] | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> int:
    """Write shards until the folder has this many answer tokens; returns how many it has.

    Shard s is the file s00012.npz with the kept conversations number s * per_shard to (s + 1) * per_shard - 1. Those
    that exist are not written again, and an unfinished one is begun again by the next call. share (i, n): only shards
    with s % n = i, so that n processes can work on one folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    known: dict[str, int] = {}
    if (total := _answer_tokens(folder, known)) >= answer_tokens:
        return total
    missing = (shard for shard in itertools.count(share[0], share[1]) if _name(shard) not in known)
    numbers = (n for shard in missing for n in range(shard * per_shard, (shard + 1) * per_shard))
    unfinished: dict[int, list[Conversation]] = {}
    for made in synthesis.run(numbers, stop):
        shard = made.number // per_shard
        unfinished.setdefault(shard, []).append(made)
        if len(unfinished[shard]) < per_shard:
            continue
        corpus = _corpus(sorted(unfinished.pop(shard), key=lambda c: c.number), synthesis.dtype)
        if corpus is None:
            raise SpecVizError("No conversation of a whole shard could be used: is this target trained to chat?")
        _save(corpus, folder / _name(shard))
        total = _answer_tokens(folder, known)
        if progress:
            progress(total, synthesis.counts)
        if total >= answer_tokens:
            break
    return total


def _name(shard: int) -> str:
    return f"s{shard:05d}.npz"


def _answer_tokens(folder: Path, known: dict[str, int]) -> int:
    """Of all shards in a folder; those not yet in `known` are read and added to it."""
    for path in folder.glob("s[0-9]*.npz"):
        if path.name not in known:
            known[path.name] = Corpus.load(path).answer_tokens
    return sum(known.values())


def _corpus(conversations: Sequence[Conversation], dtype) -> Corpus | None:
    kept = [c for c in conversations if c.answers]
    if not kept:
        return None
    is_answer = []
    for made in kept:
        mask = np.zeros(len(made.tokens), bool)
        for start, end in made.answers:
            mask[start:end] = True
        is_answer.append(mask)
    names = list(KINDS)
    return Corpus(
        token_ids=np.concatenate([np.array(c.tokens, dtype) for c in kept]),
        length=np.array([len(c.tokens) for c in kept], np.uint16),
        answer_start=np.array([c.answers[0][0] for c in kept], np.uint16),
        temperature=np.array([c.plan.temperature for c in kept], np.float32),
        kind=np.array([names.index(c.plan.kind) for c in kept], np.int16),
        is_answer=np.concatenate(is_answer),
    )


def _save(corpus: Corpus, path: Path) -> None:
    part = path.with_name(f".{path.name}.part.npz")
    corpus.save(part)
    os.replace(part, path)
