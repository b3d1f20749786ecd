"""The hybrid's confidence: its head is fitted by logistic regression, its temperatures left to right on held-out texts.

The label of a slot is the chance that its draft is accepted, sum(min(p, q)), with p over the whole vocabulary: what p
has outside the draft vocabulary is lost. It is the chance at temperature 1; at temperature 0 it is nought or one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch.nn import functional

from specviz.drafters.block_net import BlockNet
from specviz.errors import SpecVizError
from specviz.training import block, losses
from specviz.training.compute_type import training_dtype
from specviz.training.recipes import BLOCK, Setting, columns, conversation_batches

ROWS = 64
"""Slots whose whole distributions are made at a time"""


@torch.no_grad()
def acceptance(
    states: torch.Tensor, targets: torch.Tensor, head: torch.Tensor, draft_ids: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The chance that a draft is accepted at temperature 1 and the log of the largest q, [N] each.

    states, targets [N, D]: of the drafter and of the target, whose products with head [V, D] are logits; q is over
    draft_ids [Vd] alone, p over all tokens.
    """
    dtype = training_dtype()
    whole, drafts = head.to(dtype), head[draft_ids].to(dtype)
    chances, peaks = [], []
    for rows in torch.arange(len(states)).split(ROWS):
        p = torch.softmax(functional.linear(targets[rows].to(dtype), whole).float(), -1)[:, draft_ids]
        log_q = torch.log_softmax(functional.linear(states[rows].to(dtype), drafts).float(), -1)
        peaks.append(log_q.amax(-1))
        chances.append(torch.minimum(p, log_q.exp()).sum(-1))
    return torch.cat(chances), torch.cat(peaks)


@torch.no_grad()
def examples(
    net: BlockNet, s: Setting, chosen: Sequence[int], slots: int, seed: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Teacher-forced, batch by batch: refined states [N, D], embeddings of the tokens before [N, D], log of the largest
    q [N], the chance that a draft is accepted [N], and which slots are valid [B, A, slots] (N of them)."""
    generator, where = torch.Generator().manual_seed(seed), columns(net, s)
    for batch in conversation_batches(s.store, chosen):
        blocks = block.draw_blocks(batch, 8, slots, generator)
        found = block.slots_of(net, s.parts, batch, blocks, where)
        if found.refined is None:
            raise SpecVizError("Only a drafter with a serial head has a confidence.")
        chance, log_peak = acceptance(found.refined, found.targets, s.parts.head, s.draft_ids)
        yield found.refined.float(), found.previous, log_peak, chance, blocks.valid


def fit(net: BlockNet, s: Setting, limit: int = 160, slots: int = 6, steps: int = 300, seed: int = 7) -> float:
    """Fit the confidence head alone, by logistic regression on training texts; returns its loss."""
    net.eval()
    parts = list(examples(net, s, s.train[:limit], slots, seed))
    refined, previous, peak, label = (torch.cat([part[i] for part in parts]) for i in range(4))
    head = net.serial.confidence
    optimizer = torch.optim.AdamW(head.parameters(), lr=3e-3, weight_decay=0.1)
    weights = torch.ones(len(label))
    with torch.enable_grad():
        for _ in range(steps):
            loss = losses.confidence_loss(net.serial.confidence_logits(refined, previous, peak), label, weights)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return round(float(loss.detach()), 4)


@torch.no_grad()
def calibrate(net: BlockNet, s: Setting, limit: int = 200, slots: int = BLOCK, seed: int = 6) -> list[float]:
    """Set the serial head's temperatures, left to right, from half of the held-out conversations (`limit` at most);
    returns them."""
    net.eval()
    logits: list[torch.Tensor] = []
    labels: list[torch.Tensor] = []
    for refined, previous, peak, chance, valid in examples(net, s, s.calibrating[:limit], slots, seed):
        whole = valid.all(-1)
        for values, out in ((net.serial.confidence_logits(refined, previous, peak), logits), (chance, labels)):
            grid = torch.zeros(valid.shape)
            grid[valid] = values
            out.append(grid[whole])
    found = losses.sequential_temperatures(torch.cat(logits), torch.cat(labels))
    net.serial.temperatures.copy_(found)
    return [round(x, 3) for x in found.tolist()]
