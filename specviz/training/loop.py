"""The training loop: AdamW with a cosine learning rate, for a number of steps or seconds, resumable from one file.

Knows no drafter and no loss: both come in as a function of a batch.
"""

from __future__ import annotations

import math
import pickle
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from torch import nn

from specviz.errors import SpecVizError
from specviz.paths import write_atomically
from specviz.training.features import TapStore

LAST_LEARNING_RATE = 0.05
"""Share of the learning rate that is left at the end of the cosine."""
SORTED_BATCHES = 16
"""This many batches of a random order are sorted by length before they are cut."""
SMOOTHING = 0.98
"""Of the running means of the measures."""


@dataclass
class Progress:
    """Where a training run stands."""

    step: int = 0
    seconds: float = 0.0
    losses: list[float] = field(default_factory=list)
    alphas: dict[str, list[float]] = field(default_factory=dict)
    """Running mean of each measure by slot."""
    conversations: int = 0
    epoch: int = 0
    batch: int = 0
    """Of this epoch: the next one"""
    epoch_size: int = 0
    """Conversations known when this epoch began"""


def epoch_batches(lengths: Sequence[int], rows: int, epoch: int, seed: int) -> list[list[int]]:
    """The batches of an epoch, each with `rows` indices into lengths: a function of the arguments, so that a run can be
    resumed. Conversations of similar length share a batch, so that little of it is padding; those that do not fill a
    last batch are left out of this epoch."""
    generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
    order = torch.randperm(len(lengths), generator=generator).tolist()
    window, found = rows * SORTED_BATCHES, []
    for at in range(0, len(order), window):
        near = sorted(order[at : at + window], key=lambda i: lengths[i])
        found += [near[i : i + rows] for i in range(0, len(near), rows)]
    full = [batch for batch in found if len(batch) == rows] or found
    return [full[i] for i in torch.randperm(len(full), generator=generator).tolist()]


def batches(
    at: Progress, indices: Callable[[], Sequence[int]], length: Callable[[int], int], rows: int, seed: int
) -> Iterator[list[int]]:
    """Batches of `rows` conversations without end, from the position in `at`, which moves along.

    indices: the conversations known so far; called whenever an epoch begins, so that a growing corpus is used as it
    grows. It may only grow at its end. length: tokens of one. Raises SpecVizError if there is no conversation, or if
    there are fewer than when the run was interrupted.
    """
    while True:
        known = indices()
        if not at.batch:
            at.epoch_size = len(known)
        if not 0 < at.epoch_size <= len(known):
            raise SpecVizError(
                f"The checkpoint knows {at.epoch_size} conversations, the corpus has {len(known)}: "
                "continue on the corpus it was trained on, or start again in another folder."
            )
        epoch = epoch_batches([length(i) for i in known[: at.epoch_size]], rows, at.epoch, seed)
        while at.batch < len(epoch):
            at.batch += 1
            yield [known[i] for i in epoch[at.batch - 1]]
        at.epoch, at.batch = at.epoch + 1, 0


def train(
    net: nn.Module,
    store: TapStore,
    indices: Callable[[], Sequence[int]],
    step_loss: Callable,
    recipe,
    *,
    share_done: Callable[[Progress], float],
    checkpoint: Path | None = None,
    checkpoint_seconds: float = 120.0,
    report: Callable[[Progress], None] | None = None,
    report_seconds: float = 30.0,
) -> Progress:
    """Train until share_done reaches 1. step_loss(batch, step, generator) -> loss, measures.

    indices: as of `batches`. checkpoint: one file with weights, optimiser and position, written every
    checkpoint_seconds and at the end, and resumed from where it exists.
    """
    optimizer = torch.optim.AdamW(
        net.parameters(), lr=recipe.learning_rate, weight_decay=recipe.weight_decay, betas=(0.9, 0.95), fused=True
    )
    generator = torch.Generator().manual_seed(recipe.seed)
    at = _resume(checkpoint, net, optimizer, generator) if checkpoint and checkpoint.exists() else Progress()
    chosen = batches(at, indices, store.length, recipe.rows, recipe.seed)
    means = {name: torch.tensor(values) for name, values in at.alphas.items()}
    last_saved = last_reported = time.monotonic()
    begun = last_saved - at.seconds
    net.train()
    while (share := share_done(at)) < 1.0:
        batch = store.batch(next(chosen))
        loss, measures = step_loss(batch, at.step, generator)
        _update_weights(optimizer, net, loss, recipe, learning_rate_factor(share, recipe.warm_up))
        _update_means(means, measures)
        at.step += 1
        at.conversations += len(batch.lengths)
        at.alphas = {name: [round(x, 4) for x in values.tolist()] for name, values in means.items()}
        now = time.monotonic()
        at.seconds = now - begun
        if report and now - last_reported > report_seconds:
            last_reported = now
            at.losses.append(round(float(loss.detach()), 4))
            report(at)
        if checkpoint and now - last_saved > checkpoint_seconds:
            last_saved = now
            _save(checkpoint, net, optimizer, generator, at)
    if checkpoint:
        _save(checkpoint, net, optimizer, generator, at)
    net.eval()
    return at


def _update_weights(
    optimizer: torch.optim.Optimizer, net: nn.Module, loss: torch.Tensor, recipe, factor: float
) -> None:
    """One step of the optimiser at this factor of the recipe's learning rate, the gradient's norm clipped."""
    for group in optimizer.param_groups:
        group["lr"] = recipe.learning_rate * factor
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), recipe.clip)
    optimizer.step()


def learning_rate_factor(share: float, warm_up: float) -> float:
    """Linear over the first `warm_up` of the run, times a cosine that ends at LAST_LEARNING_RATE."""
    cosine = 0.5 * (1 + math.cos(math.pi * share))
    return max(1e-3, min(1.0, share / warm_up) * (LAST_LEARNING_RATE + (1 - LAST_LEARNING_RATE) * cosine))


def _update_means(means: dict[str, torch.Tensor], measures: dict[str, torch.Tensor]) -> None:
    """Exponential running means by slot; a slot that is seen first begins with its first value."""
    for name, values in measures.items():
        old = means.get(name, values)
        grown = torch.cat([old, values[len(old) :]])
        grown[: len(values)] = SMOOTHING * grown[: len(values)] + (1 - SMOOTHING) * values
        means[name] = grown


def _resume(path: Path, net: nn.Module, optimizer: torch.optim.Optimizer, generator: torch.Generator) -> Progress:
    try:
        saved = torch.load(path, weights_only=True)
        net.load_state_dict(saved["net"])
        optimizer.load_state_dict(saved["optimizer"])
        generator.set_state(saved["generator"])
        return Progress(**saved["progress"])
    except (OSError, RuntimeError, KeyError, TypeError, ValueError, EOFError, pickle.UnpicklingError) as error:
        raise SpecVizError(
            f"The checkpoint {path} cannot be continued ({str(error).splitlines()[0][:120]}): remove it to begin again."
        ) from None


def _save(path: Path, net: nn.Module, optimizer: torch.optim.Optimizer, generator: torch.Generator, at: Progress):
    state = {
        "net": net.state_dict(),
        "optimizer": optimizer.state_dict(),
        "generator": generator.get_state(),
        "progress": asdict(at),
    }
    write_atomically(path, lambda file: torch.save(state, file))
