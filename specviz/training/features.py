"""What a drafter learns from: the target's tapped layers at every token, kept in shards beside the token ids.

A shard is two files: NAME.npz (a corpus) and NAME.taps.npy, float16 [tokens, taps, D], the outputs of the
layers in STORED and, last, of the last layer (before the final norm: p follows from it). They are a cache
that `compute` can always rebuild from the token ids.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from specviz.errors import SpecVizError
from specviz.models.causal import CausalModel
from specviz.paths import write_atomically
from specviz.training.corpus import Corpus


def stored_layers(layers: int) -> tuple[int, ...]:
    """Five layers spread between the second and the third from the end, and the last."""
    spread = [round(1 + i * (layers - 4) / 4) for i in range(5)] if layers >= 8 else list(range(layers - 1))
    return (*sorted(set(spread)), layers - 1)


def compute(
    target: CausalModel,
    corpus: Corpus,
    path: Path,
    progress: Callable[[float], None] | None = None,
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
            cache, rows = target.new_cache(), list(range(j - i))
            texts = [corpus.conversation(n).tolist() for n in range(i, j)]
            for row, text in zip(rows, texts):
                cache.add(row, len(text))
            out = target.forward(cache, rows, texts, taps, logits=False)
            store[bounds[i] : bounds[j]] = torch.cat(out.taps).view(-1, *shape[1:]).to(torch.float16).cpu().numpy()
            i = j
            if progress:
                progress(bounds[i] / bounds[-1])
        store.flush()
        corpus.save(path.with_name(path.name + ".npz"))

    write_atomically(path.with_name(path.name + ".taps.npy"), write)


@dataclass(frozen=True)
class Batch:
    """Some conversations, padded on the right to T tokens."""

    tokens: torch.Tensor
    """[B, T] int64, 0 past the end"""
    lengths: torch.Tensor
    """[B]"""
    answer_starts: torch.Tensor
    """[B]"""
    taps: torch.Tensor
    """[B, T, layers, D] float16, the last one being the target's last layer; meaningless at the last token"""


class TapStore:
    """The shards of a folder: which conversations they hold, and their tokens and taps on demand."""

    def __init__(self, folder: Path):
        """Raises SpecVizError if there is no shard in the folder."""
        self.folder = Path(folder)
        self.shards: list[tuple[Corpus, np.ndarray]] = []
        self.index: list[tuple[int, int]] = []
        """(shard, conversation)"""
        self._known: set[str] = set()
        self.refresh()
        if not self.shards:
            raise SpecVizError(f"There are no shards in {folder}: run `python -m specviz train corpus` first.")

    def refresh(self) -> int:
        """Take in shards that were written since; returns how many."""
        new = sorted(
            p
            for p in self.folder.glob("*.npz")
            if p.stem not in self._known and p.with_name(p.stem + ".taps.npy").exists()
        )
        for path in new:
            self._known.add(path.stem)
            corpus = Corpus.load(path)
            taps = np.load(path.with_name(path.stem + ".taps.npy"), mmap_mode="r")
            self.index += [(len(self.shards), i) for i in range(len(corpus))]
            self.shards.append((corpus, taps))
        return len(new)

    def split(self) -> tuple[list[int], list[int]]:
        """Indices for training and, by the hash of the prompt, about one in twenty held out."""
        train, held = [], []
        for n, (shard, i) in enumerate(self.index):
            (held if self.shards[shard][0].held_out(i) else train).append(n)
        return train, held

    def temperature(self, n: int) -> float:
        shard, i = self.index[n]
        return float(self.shards[shard][0].temperature[i])

    def answer_tokens(self, chosen: Sequence[int]) -> int:
        total = 0
        for n in chosen:
            corpus, i = self.shards[self.index[n][0]][0], self.index[n][1]
            total += int(corpus.length[i]) - int(corpus.answer_start[i])
        return total

    def batch(self, chosen: Sequence[int]) -> Batch:
        """The conversations with these indices."""
        parts = []
        for n in chosen:
            shard, i = self.index[n]
            corpus, taps = self.shards[shard]
            a, b = corpus.bounds[i], corpus.bounds[i + 1]
            parts.append((corpus.token_ids[a:b], taps[a:b], int(corpus.answer_start[i])))
        longest = max(len(t) for t, _, _ in parts)
        tokens = torch.zeros(len(parts), longest, dtype=torch.long)
        taps = torch.zeros(len(parts), longest, *parts[0][1].shape[1:], dtype=torch.float16)
        for row, (ids, features, _) in enumerate(parts):
            tokens[row, : len(ids)] = torch.from_numpy(ids.astype(np.int64))
            taps[row, : len(ids)] = torch.from_numpy(np.array(features))
        lengths = torch.tensor([len(t) for t, _, _ in parts])
        return Batch(tokens, lengths, torch.tensor([s for _, _, s in parts]), taps)
