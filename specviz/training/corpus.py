"""The drafters' corpus: conversations as token ids, every answer written by the target itself. Knows no drafter.

On-policy: a drafter trains on texts that the target really writes, in the chat template that the app uses. synthesis.py
makes it; prompts.py says what the prompts are.
"""

from __future__ import annotations

import hashlib
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from specviz.errors import SpecVizError
from specviz.paths import ASSETS, write_atomically

FOLDER = ASSETS / "corpus"
"""The shipped token ids."""
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
    kind: np.ndarray
    """[N] index into prompts.KINDS; -1: not known"""
    is_answer: np.ndarray | None = None
    """[M] bool: which tokens the target wrote as answers; None: all from answer_start on"""

    def __len__(self) -> int:
        return len(self.length)

    @cached_property
    def bounds(self) -> np.ndarray:
        """[N + 1] where each conversation begins, and the end."""
        return np.concatenate([[0], np.cumsum(self.length.astype(np.int64))])

    @cached_property
    def answers(self) -> np.ndarray:
        """[M] bool: `is_answer`, whether given or not."""
        if self.is_answer is not None:
            return self.is_answer
        place = np.arange(len(self.token_ids)) - np.repeat(self.bounds[:-1], self.length)
        return place >= np.repeat(self.answer_start, self.length)

    @property
    def answer_tokens(self) -> int:
        return int(self.answers.sum())

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
                    kind=self.kind,
                    is_answer=np.packbits(self.answers),
                )

        write_atomically(path, write)

    @classmethod
    def load(cls, path: Path) -> Corpus:
        """Raises SpecVizError if the file is no corpus."""
        try:
            with np.load(path, allow_pickle=False) as stored:
                tokens, length = stored["token_ids"], stored["length"]
                kind = stored["kind"] if "kind" in stored.files else np.full(len(length), -1, np.int16)
                packed = stored["is_answer"] if "is_answer" in stored.files else None
                answers = None if packed is None else np.unpackbits(packed, count=len(tokens)).astype(bool)
                corpus = cls(tokens, length, stored["answer_start"], stored["temperature"], kind, answers)
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
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
        return cls.of(kept)

    @classmethod
    def of(cls, chosen: Sequence[tuple[Corpus, int]]) -> Corpus:
        """The chosen conversations: corpus and index of each."""

        def column(name: str) -> np.ndarray:
            return np.array([getattr(part, name)[i] for part, i in chosen])

        return cls(
            np.concatenate([part.conversation(i) for part, i in chosen]),
            column("length"),
            column("answer_start"),
            column("temperature"),
            column("kind"),
            np.concatenate([part.answers[part.bounds[i] : part.bounds[i + 1]] for part, i in chosen]),
        )


def judging() -> list[tuple[Corpus, int]]:
    """The shipped held-out conversations that nothing is fitted to, not even confidences: (corpus, index) of each."""
    parts = [Corpus.load(path) for path in sorted(FOLDER.glob("*.npz"))]
    return [(p, i) for p in parts for i in range(len(p)) if p.held_out(i) and not p.for_calibration(i)]


def distinct4(tokens: Sequence[int]) -> float:
    """The share of different ones among all runs of four tokens: 1.0 is a text that never repeats itself."""
    runs = [tuple(tokens[i : i + 4]) for i in range(len(tokens) - 3)]
    return len(set(runs)) / len(runs) if runs else 1.0
