"""Block drafters (parallel and hybrid): anchors drawn from conversations, teacher-forced states, and the loss.

p is the target's distribution over the draft vocabulary, taken from the stored outputs of its last layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from specviz.drafters.block_net import BlockNet
from specviz.training.compute_type import autocast
from specviz.training.features import Batch
from specviz.training.losses import confidence_loss, distil, position_weights
from specviz.training.target_parts import TargetParts


@dataclass(frozen=True)
class Blocks:
    """Anchors of a batch and what the slots after them should predict. A anchors per row, S slots each."""

    anchors: torch.Tensor
    """[B, A] positions"""
    labels: torch.Tensor
    """[B, A, S] token ids; slot k: the token at anchor + 1 + k"""
    previous: torch.Tensor
    """[B, A, S] token ids just before the labels"""
    before: torch.Tensor
    """[B, A, S] token ids just before those"""
    valid: torch.Tensor
    """[B, A, S] bool: the label and all before it belong to the answer in which the anchor's next token is"""


def draw_blocks(batch: Batch, anchors: int, slots: int, generator: torch.Generator) -> Blocks:
    """Random anchors just before answer tokens (the last prompt token is the first possible one)."""
    running = batch.before_answer.long().cumsum(1)
    u = torch.rand(len(running), anchors, generator=generator)
    place = (u * running[:, -1:]).long()
    return blocks_at(batch, torch.searchsorted(running, place + 1), slots)


def blocks_at(batch: Batch, at: torch.Tensor, slots: int) -> Blocks:
    """The blocks of given anchors [B, A]."""
    where = at[..., None] + torch.arange(1, slots + 1)
    inside = where < batch.lengths[:, None, None]
    where = where.clamp(max=batch.tokens.shape[1] - 1)

    def take(values: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return torch.gather(values, 1, index.flatten(1)).view(index.shape)

    valid = (inside & take(batch.is_answer, where)).cumprod(-1).bool()
    labels, previous, before = (take(batch.tokens, (where - back).clamp(min=0)) for back in range(3))
    return Blocks(at, labels, previous, before, valid)


def block_states(
    net: BlockNet, embedding: torch.Tensor, batch: Batch, blocks: Blocks, columns: Sequence[int]
) -> torch.Tensor:
    """The final-normed states [B, A, S, D] of all blocks, teacher-forced.

    A block sees the context states of positions strictly before its anchor, and itself; never another block.
    columns: where the net's taps lie in batch.taps.
    """
    c = net.config
    slots = blocks.labels.shape[-1]
    longest = int(blocks.anchors.max())
    taps = batch.taps[:, : max(longest, 1)][:, :, list(columns)].flatten(-2)
    states = net.fused(taps)  # [B, T, D]
    context_rope = net.rope(torch.arange(states.shape[1]))
    last = torch.gather(states, 1, (blocks.anchors - 1).clamp(min=0)[..., None].expand(-1, -1, c.hidden_size))
    last = last * (blocks.anchors > 0)[..., None]
    anchor_tokens = torch.gather(batch.tokens, 1, blocks.anchors)
    x = net.block_inputs(embedding[anchor_tokens], last, slots)  # [B, A, S, D]
    rope = net.rope(blocks.anchors[..., None] + torch.arange(slots))
    seen = torch.arange(states.shape[1]) < blocks.anchors[..., None]  # [B, A, T]
    for layer in net.layers:
        keys, values = layer.keys_values(states, context_rope)  # [B, T, kv, d]
        q = layer.queries(x, rope)  # [B, A, S, heads, d]
        k, v = layer.keys_values(x, rope)  # [B, A, S, kv, d]
        x = layer.finish(x, _block_attention(q, keys, values, k, v, seen))
    return net.norm(x)


def _block_attention(q, keys, values, own_keys, own_values, seen):
    """q [B, A, S, heads, d]; context keys, values [B, T, kv, d]; the blocks' own [B, A, S, kv, d];
    seen [B, A, T] -> [B, A, S, heads, d]."""
    b, a, s, heads, d = q.shape
    kv = keys.shape[2]
    group = heads // kv
    q = q.view(b, a, s, kv, group, d).permute(0, 3, 1, 4, 2, 5)  # [B, kv, A, group, S, d]
    across = torch.matmul(q.reshape(b, kv, a * group * s, d), keys.permute(0, 2, 3, 1))
    across = across.view(b, kv, a, group * s, -1).float() * d**-0.5
    across = across.masked_fill(~seen[:, None, :, None, :], -torch.inf)
    own = torch.matmul(q.reshape(b, kv, a, group * s, d), own_keys.permute(0, 3, 1, 4, 2)).float() * d**-0.5
    weights = torch.softmax(torch.cat([across, own], dim=-1), dim=-1).to(values.dtype)
    context, inside = weights.split([across.shape[-1], own.shape[-1]], dim=-1)
    out = torch.matmul(context.reshape(b, kv, a * group * s, -1), values.permute(0, 2, 1, 3))
    out = out.view(b, kv, a, group * s, d) + torch.matmul(inside, own_values.permute(0, 3, 1, 2, 4))
    return out.view(b, kv, a, group, s, d).permute(0, 2, 4, 1, 3, 5).reshape(b, a, s, heads, d)


def block_targets(parts: TargetParts, batch: Batch, blocks: Blocks) -> torch.Tensor:
    """The states [N, D] whose product with the head is p, for the valid slots. The p of slot k is the target's after
    the token at anchor + k."""
    slots = blocks.labels.shape[-1]
    where = (blocks.anchors[..., None] + torch.arange(slots)).clamp(max=batch.tokens.shape[1] - 1)
    row = torch.arange(len(batch.tokens))[:, None, None].expand_as(where)
    return parts.states(batch.taps[row[blocks.valid], where[blocks.valid], -1])


@dataclass(frozen=True)
class Slots:
    """The valid slots of a batch's blocks, teacher-forced. N slots."""

    states: torch.Tensor
    """[N, D] of the parallel pass"""
    refined: torch.Tensor | None
    """[N, D] after the serial head; None if the net has none"""
    previous: torch.Tensor
    """[N, D] embeddings of the tokens before the slots"""
    targets: torch.Tensor
    """[N, D] of `block_targets`"""
    index: torch.Tensor
    """[N] which slot of its block each is"""


def slots_of(net: BlockNet, parts: TargetParts, batch: Batch, blocks: Blocks, columns: Sequence[int]) -> Slots:
    """Run a net on blocks. columns: as of `block_states`."""
    valid, refined = blocks.valid, None
    index = torch.arange(valid.shape[-1]).expand_as(valid)[valid]
    previous = parts.embedding[blocks.previous[valid]]
    with autocast():
        states = block_states(net, parts.embedding, batch, blocks, columns)[valid]
        if net.config.serial:
            refined = net.serial(states, previous, parts.embedding[blocks.before[valid]])
            # the first slot is beside the anchor, which the parallel pass has seen
            refined = torch.where((index == 0)[:, None], states, refined)
    return Slots(states, refined, previous, block_targets(parts, batch, blocks), index)


@dataclass(frozen=True)
class BlockRecipe:
    """How a block drafter is trained."""

    rows: int = 8
    """Conversations in a batch"""
    slots_per_row: int = 256
    """Slots in all blocks of a conversation"""
    block_lengths: tuple[int, ...] = (8, 8, 8, 4, 16)
    """Taken in turn, so that the drafter works at any K."""
    decay: float = 4.0
    learning_rate: float = 6e-4
    warm_up: float = 0.04
    clip: float = 1.0
    hybrid_share: float = 0.5
    """Share of the loss on the logits refined by the serial head; the rest is on those of the parallel pass."""
    confidence_weight: float = 0.1
    """Of the confidence head's loss"""
    weight_decay: float = 0.01
    seed: int = 0


def block_loss(
    net: BlockNet,
    parts: TargetParts,
    head: torch.Tensor,
    batch: Batch,
    blocks: Blocks,
    columns: Sequence[int],
    recipe: BlockRecipe,
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The loss of one batch and its measures: overlap by slot of the parallel pass and after the serial head."""
    count = blocks.labels.shape[-1]
    found = slots_of(net, parts, batch, blocks, columns)
    weights = position_weights(count, recipe.decay)[found.index]
    weights = weights / weights.sum()
    if found.refined is None:
        loss, overlap, _ = distil([found.states], found.targets, head, weights[None])
        return loss, {"parallel": _by_slot(overlap[0], found.index, count)}
    shares = torch.tensor([1 - recipe.hybrid_share, recipe.hybrid_share])[:, None]
    loss, overlap, log_peak = distil([found.states, found.refined], found.targets, head, weights * shares)
    guess = net.serial.confidence_logits(found.refined.detach(), found.previous, log_peak[1])
    loss = loss + recipe.confidence_weight * confidence_loss(guess, overlap[1], weights)
    return loss, {name: _by_slot(o, found.index, count) for name, o in zip(("parallel", "hybrid"), overlap)}


def _by_slot(values: torch.Tensor, slot: torch.Tensor, slots: int) -> torch.Tensor:
    """Means of values [N] by slot index: [slots]."""
    total = torch.zeros(slots).index_add_(0, slot, values)
    return total / torch.bincount(slot, minlength=slots).clamp(min=1)
