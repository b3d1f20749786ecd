"""What a drafter learns from: the target's tapped layers at every token, kept in shards beside the token ids.

A shard is two files: NAME.npz (a corpus) and NAME.taps.npy, float16 [tokens, taps, D], the outputs of the
layers in STORED and, last, of the last layer (before the final norm: p follows from it). They are a cache
that `compute` can always rebuild from the token ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional

from specviz.errors import SpecVizError
from specviz.models.causal import CausalModel
from specviz.paths import write_atomically
from specviz.training.corpus import Corpus
from specviz.worker import Job


def stored_layers(layers: int) -> tuple[int, ...]:
    """Five layers spread between the second and the third from the end, and the last."""
    spread = [round(1 + i * (layers - 4) / 4) for i in range(5)] if layers >= 8 else list(range(layers - 1))
    return (*sorted(set(spread)), layers - 1)


def compute(
    target: CausalModel,
    corpus: Corpus,
    path: Path,
    job: Job | None = None,
    batch_tokens: int = 512,
) -> None:
    """Write path.npz and path.taps.npy for a corpus. Interrupted work leaves no half file behind."""
    taps = stored_layers(target.layers)
    shape = (len(corpus.token_ids), len(taps), target.hidden_size)
    bounds = corpus.bounds

    def write(part: Path) -> None:
        store, i = np.lib.format.open_memmap(part, "w+", np.float16, shape), 0
        while i < len(corpus):
            j = i + 1
            while j < len(corpus) and bounds[j + 1] - bounds[i] <= batch_tokens:
                j += 1
            found = forward_taps(target, [corpus.conversation(n).tolist() for n in range(i, j)])
            store[bounds[i] : bounds[j]] = torch.cat(found).to(torch.float16).numpy()
            i = j
            if job is not None:
                job.report("Computing hidden states", bounds[i] / bounds[-1])
                job.check()
        store.flush()
        corpus.save(path.with_name(path.name + ".npz"))

    write_atomically(path.with_name(path.name + ".taps.npy"), write)


def forward_taps(target: CausalModel, texts: Sequence[Sequence[int]]) -> list[torch.Tensor]:
    """The target's outputs in `stored_layers` for whole texts: [tokens, layers, D] each, on the CPU."""
    cache, rows = target.new_cache(), list(range(len(texts)))
    for row, text in zip(rows, texts):
        cache.add(row, len(text))
    taps = stored_layers(target.layers)
    out = target.forward(cache, rows, texts, taps, logits=False)
    return [found.view(len(text), len(taps), -1).cpu() for found, text in zip(out.taps or (), texts)]


@dataclass(frozen=True)
class Batch:
    """Some conversations, padded on the right to T tokens."""

    tokens: torch.Tensor
    """[B, T] int64, 0 past the end"""
    lengths: torch.Tensor
    """[B]"""
    is_answer: torch.Tensor
    """[B, T] bool: tokens that the target wrote as answers"""
    taps: torch.Tensor
    """[B, T, layers, D], the last one being the target's last layer; zero past the end"""

    @property
    def before_answer(self) -> torch.Tensor:
        """[B, T] bool: positions whose next token is of an answer"""
        return functional.pad(self.is_answer[:, 1:], (0, 1))


class TapStore:
    """The shards of a folder: which conversations they have, and their tokens and taps on demand.

    Taps are read from the files that `compute` wrote; where there are none they are computed on demand: those of 10
    million tokens take 70 GB.
    """

    def __init__(self, folder: Path, target: CausalModel | None = None):
        """target: computes missing taps; None: shards without are left out. Raises SpecVizError if no shard is left."""
        self.folder, self._target = Path(folder), target
        self.shards: list[tuple[Corpus, np.ndarray | None]] = []
        self.index: list[tuple[int, int]] = []
        """(shard, conversation)"""
        self._known: set[str] = set()
        self.refresh()
        if not self.shards:
            raise SpecVizError(f"There are no shards in {folder}: run `python -m specviz train corpus` first.")

    def refresh(self) -> int:
        """Take in shards that were written since; returns how many."""
        new = sorted(p for p in self.folder.glob("*.npz") if p.stem not in self._known)
        files = {path: path.with_name(path.stem + ".taps.npy") for path in new}
        for path, file in files.items():
            if not file.exists() and self._target is None:
                continue
            self._known.add(path.stem)
            corpus = Corpus.load(path)
            self.index += [(len(self.shards), i) for i in range(len(corpus))]
            self.shards.append((corpus, np.load(file, mmap_mode="r") if file.exists() else None))
        return len(new)

    def split(self) -> tuple[list[int], list[int]]:
        """Indices for training and, by the hash of the prompt, about one in twenty held out."""
        train: list[int] = []
        held_out: list[int] = []
        for n, (shard, i) in enumerate(self.index):
            (held_out if self.shards[shard][0].held_out(i) else train).append(n)
        return train, held_out

    def length(self, n: int) -> int:
        """Tokens of a conversation."""
        corpus, i = self._at(n)
        return int(corpus.length[i])

    def temperature(self, n: int) -> float:
        corpus, i = self._at(n)
        return float(corpus.temperature[i])

    def answer_tokens(self, chosen: Sequence[int]) -> int:
        places = [self._at(n) for n in chosen]
        return sum(int(corpus.answers[corpus.bounds[i] : corpus.bounds[i + 1]].sum()) for corpus, i in places)

    def batch(self, chosen: Sequence[int]) -> Batch:
        """The conversations with these indices."""
        parts = [(corpus, slice(corpus.bounds[i], corpus.bounds[i + 1])) for corpus, i in map(self._at, chosen)]
        texts = [corpus.token_ids[at].astype(np.int64) for corpus, at in parts]
        shape = len(texts), max(map(len, texts))
        tokens, is_answer = torch.zeros(shape, dtype=torch.long), torch.zeros(shape, dtype=torch.bool)
        features = self._taps(chosen, texts)
        taps = torch.zeros(*shape, *features[0].shape[1:], dtype=features[0].dtype)
        for row, (text, found, (corpus, at)) in enumerate(zip(texts, features, parts)):
            tokens[row, : len(text)] = torch.from_numpy(text)
            is_answer[row, : len(text)] = torch.from_numpy(corpus.answers[at])
            taps[row, : len(text)] = found
        return Batch(tokens, torch.tensor([len(t) for t in texts]), is_answer, taps)

    def _at(self, n: int) -> tuple[Corpus, int]:
        shard, i = self.index[n]
        return self.shards[shard][0], i

    def _taps(self, chosen: Sequence[int], texts: Sequence[np.ndarray]) -> list[torch.Tensor]:
        """[tokens, layers, D] of each conversation."""
        stored: list[torch.Tensor | None] = []
        for n in chosen:
            shard, i = self.index[n]
            corpus, taps = self.shards[shard]
            at = slice(corpus.bounds[i], corpus.bounds[i + 1])
            stored.append(None if taps is None else torch.from_numpy(np.array(taps[at])))
        missing = [text.tolist() for text, taps in zip(texts, stored) if taps is None]
        computed = iter(forward_taps(self._target, missing) if missing and self._target else ())
        return [(next(computed) if taps is None else taps).half() for taps in stored]
