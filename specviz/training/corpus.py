"""The drafters' corpus: conversations that the target itself wrote, as token ids. Knows no drafter.

Magpie (arXiv 2406.08464): given only its chat template up to the user's turn, the model writes the user's
turn, then answers it. Some user turns begin with one of TOPICS, some are whole requests of the kind that people
write (turns.py). Every answer is on-policy: the drafter trains on texts that the target really writes, in the
template that the app really uses.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from specviz.errors import SpecVizError
from specviz.paths import ASSETS, write_atomically

FOLDER = ASSETS / "corpus"
"""The shipped token ids."""
COMPOSED = -2
"""The `topic` of a conversation whose whole user turn was composed (turns.py)."""
HELD_OUT = 20
"""One prompt in this many is held out of training."""


@dataclass(frozen=True)
class Corpus:
    """Conversations end to end. N conversations, M tokens."""

    token_ids: np.ndarray
    """[M] uint16 (uint32 where a vocabulary needs it)"""
    length: np.ndarray
    """[N] tokens of each conversation, template tokens included"""
    answer_start: np.ndarray
    """[N] index in the conversation of the answer's first token"""
    temperature: np.ndarray
    """[N] at which the answer was sampled; 0 is greedy"""
    topic: np.ndarray
    """[N] index into TOPICS of the user turn's given beginning; -1: none; COMPOSED: the whole turn was given"""

    def __len__(self) -> int:
        return len(self.length)

    @cached_property
    def bounds(self) -> np.ndarray:
        """[N + 1] where each conversation begins, and the end."""
        return np.concatenate([[0], np.cumsum(self.length.astype(np.int64))])

    @property
    def answer_tokens(self) -> int:
        return int(self.length.astype(np.int64).sum() - self.answer_start.astype(np.int64).sum())

    def conversation(self, i: int) -> np.ndarray:
        return self.token_ids[self.bounds[i] : self.bounds[i + 1]]

    def prompt(self, i: int) -> np.ndarray:
        """The conversation up to the answer's first token."""
        return self.conversation(i)[: int(self.answer_start[i])]

    def held_out(self, i: int) -> bool:
        """Whether the prompt belongs to the held-out part: a function of its tokens alone."""
        return self._hash(i) % HELD_OUT == 0

    def for_calibration(self, i: int) -> bool:
        """Whether a held-out prompt is one of the half that confidences are calibrated on; the rest judges."""
        return self._hash(i) // HELD_OUT % 2 == 0

    def _hash(self, i: int) -> int:
        digest = hashlib.blake2b(self.prompt(i).astype(np.uint32).tobytes(), digest_size=4).digest()
        return int.from_bytes(digest, "little")

    def save(self, path: Path) -> None:
        """Write it as one compressed .npz file."""

        def write(part: Path) -> None:
            with part.open("wb") as file:
                np.savez_compressed(
                    file,
                    token_ids=self.token_ids,
                    length=self.length,
                    answer_start=self.answer_start,
                    temperature=self.temperature,
                    topic=self.topic,
                )

        write_atomically(path, write)

    @classmethod
    def load(cls, path: Path) -> Corpus:
        """Raises SpecVizError if the file is no corpus."""
        try:
            with np.load(path, allow_pickle=False) as stored:
                length = stored["length"]
                topic = stored["topic"] if "topic" in stored.files else np.full(len(length), -1, np.int16)
                corpus = cls(stored["token_ids"], length, stored["answer_start"], stored["temperature"], topic)
        except (OSError, ValueError, KeyError) as error:
            raise SpecVizError(f"{Path(path).name} is no corpus that SpecViz wrote: {error}.") from None
        if int(length.astype(np.int64).sum()) != len(corpus.token_ids) or len(corpus.answer_start) != len(length):
            raise SpecVizError(f"{Path(path).name} is damaged: its lengths do not add up to its tokens.")
        return corpus

    @classmethod
    def join(cls, parts: Sequence[Corpus]) -> Corpus:
        """All conversations of several corpora; a prompt that occurred before is left out."""
        seen, kept = set(), []
        for part in parts:
            for i in range(len(part)):
                key = part.prompt(i).astype(np.uint32).tobytes()
                if key not in seen:
                    seen.add(key)
                    kept.append((part, i))

        def column(name: str) -> np.ndarray:
            return np.array([getattr(p, name)[i] for p, i in kept])

        return cls(
            np.concatenate([p.conversation(i) for p, i in kept]),
            column("length"),
            column("answer_start"),
            column("temperature"),
            column("topic"),
        )


def judging() -> list[tuple[Corpus, int]]:
    """The shipped held-out conversations that nothing is fitted to, not even confidences: (corpus, index) of each."""
    parts = [Corpus.load(path) for path in sorted(FOLDER.glob("*.npz"))]
    return [(p, i) for p in parts for i in range(len(p)) if p.held_out(i) and not p.for_calibration(i)]


def distinct4(tokens: Sequence[int]) -> float:
    """The share of different ones among all runs of four tokens: 1.0 is a text that never repeats itself."""
    runs = [tuple(tokens[i : i + 4]) for i in range(len(tokens) - 3)]
    return len(set(runs)) / len(runs) if runs else 1.0
