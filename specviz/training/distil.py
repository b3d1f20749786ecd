"""Training of the three drafters against the target's own distributions. Knows no files but its checkpoint.

Both trainers draw batches of conversations from a TapStore, take p from the stored last layer (times the
target's final norm and head, over the draft vocabulary), and minimise `losses.distil`. They run for a
given number of steps or seconds with a cosine learning rate, and can be stopped and resumed.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

from specviz.drafters.parallel import BlockConfig, BlockLayer, BlockNet, Norm, rope_tables
from specviz.training.features import Batch, TapStore
from specviz.training.losses import confidence_loss, distil, position_weights


@dataclass(frozen=True)
class TargetParts:
    """What training needs of the target: three frozen tensors and a config."""

    embedding: torch.Tensor
    """[V, D]"""
    head: torch.Tensor
    """[V, D]"""
    final_norm: torch.Tensor
    """[D]"""
    eps: float

    @classmethod
    def of(cls, module: nn.Module) -> TargetParts:
        """Of a stock Llama-like causal LM module."""
        return cls(
            module.get_input_embeddings().weight.detach(),
            module.get_output_embeddings().weight.detach(),
            module.model.norm.weight.detach(),
            module.config.rms_norm_eps,
        )

    def states(self, last_layer: torch.Tensor) -> torch.Tensor:
        """Outputs of the last layer [..., D] -> what the head sees."""
        return functional.rms_norm(last_layer.float(), self.final_norm.shape, self.final_norm, self.eps)


# -------------------------------------------------------------------------------------- block drafters


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
    """[B, A, S] bool: the label lies inside the conversation"""


def draw_blocks(batch: Batch, anchors: int, slots: int, generator: torch.Generator) -> Blocks:
    """Random anchors from the answers (the last prompt token is the first possible one)."""
    first = batch.answer_starts - 1
    span = (batch.lengths - 1 - first).clamp(min=1)
    u = torch.rand(len(first), anchors, generator=generator)
    return blocks_at(batch, first[:, None] + (u * span[:, None]).long(), slots)


def blocks_at(batch: Batch, at: torch.Tensor, slots: int) -> Blocks:
    """The blocks of given anchors [B, A]."""
    where = at[..., None] + torch.arange(1, slots + 1)
    valid = where < batch.lengths[:, None, None]
    where = where.clamp(max=batch.tokens.shape[1] - 1)
    take = lambda index: torch.gather(batch.tokens, 1, index.flatten(1)).view(index.shape)  # noqa: E731
    return Blocks(at, take(where), take(where - 1), take((where - 2).clamp(min=0)), valid)


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


def block_targets(
    parts: TargetParts, head: torch.Tensor, batch: Batch, blocks: Blocks, valid: torch.Tensor
) -> torch.Tensor:
    """p over the draft vocabulary, renormalised on it, for the valid slots: [N, Vd]. The p of slot k is the
    target's after the token at anchor + k. head [Vd, D]."""
    slots = blocks.labels.shape[-1]
    where = (blocks.anchors[..., None] + torch.arange(slots)).clamp(max=batch.tokens.shape[1] - 1)
    row = torch.arange(len(batch.tokens))[:, None, None].expand_as(where)
    states = parts.states(batch.taps[row[valid], where[valid], -1])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = functional.linear(states, head)
    return torch.softmax(logits.float(), -1)


@dataclass(frozen=True)
class BlockRecipe:
    """How a block drafter is trained."""

    rows: int = 8
    anchors: int = 16
    slots: tuple[int, ...] = (8, 8, 8, 4, 16)
    """Block lengths, taken in turn, so that the drafter works at any K."""
    decay: float = 4.0
    learning_rate: float = 6e-4
    warm_up: float = 0.04
    clip: float = 1.0
    hybrid_share: float = 0.5
    """Share of the loss on the mended logits; the rest is on those of the parallel pass alone."""
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
    """The loss of one batch and its measures: overlap by slot of the parallel pass alone and mended."""
    slots = blocks.labels.shape[-1]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        states = block_states(net, parts.embedding, batch, blocks, columns)
        valid = blocks.valid
        hidden = states[valid]
        base = functional.linear(hidden, head)
    p = block_targets(parts, head, batch, blocks, valid)
    slot = torch.arange(slots).expand_as(valid)[valid]
    weights = position_weights(slots, recipe.decay)[slot]
    weights = weights / weights.sum()
    measures = {}
    hybrid = recipe.hybrid_share if net.config.serial else 0.0
    loss = torch.zeros(())
    if hybrid < 1.0:
        plain, overlap = distil(base, p, weights * (1 - hybrid))
        loss = loss + plain
        measures["parallel"] = _by_slot(overlap, slot, slots)
    if hybrid:
        previous = parts.embedding[blocks.previous[valid]]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            mended = net.serial(hidden, previous, parts.embedding[blocks.before[valid]])
            # the first slot knows its neighbour, the anchor, already
            mended = torch.where((slot == 0)[:, None], hidden, mended)
            logits = functional.linear(mended, head)
        mixed, overlap = distil(logits, p, weights * hybrid)
        loss = loss + mixed
        measures["hybrid"] = _by_slot(overlap, slot, slots)
        with torch.no_grad():
            log_peak = logits.float().amax(-1) - torch.logsumexp(logits.float(), -1)
        guess = net.serial.confidence_logits(mended.detach(), previous, log_peak)
        loss = loss + 0.1 * confidence_loss(guess, overlap, weights)
    return loss, measures


def _by_slot(values: torch.Tensor, slot: torch.Tensor, slots: int) -> torch.Tensor:
    """Means of values [N] by slot index: [slots]."""
    total = torch.zeros(slots).index_add_(0, slot, values)
    return total / torch.bincount(slot, minlength=slots).clamp(min=1)


# ------------------------------------------------------------------------------- autoregressive drafter


class CausalNet(nn.Module):
    """A small Llama-like causal LM without embedding and head (both are the target's). For training; decoding
    runs the same weights as a stock module."""

    def __init__(self, config: BlockConfig, draft_ids: torch.Tensor):
        """config.taps is empty; config.block is unused."""
        super().__init__()
        self.config = config
        self.layers = nn.ModuleList(BlockLayer(config) for _ in range(config.layers))
        self.norm = Norm(config.hidden_size, config.rms_eps)
        self.register_buffer("draft_ids", draft_ids.clone())

    def forward(self, embedded: torch.Tensor) -> torch.Tensor:
        """Embedded tokens [B, T, D] -> final-normed states [B, T, D]."""
        x = embedded
        rope = rope_tables(torch.arange(x.shape[1]), self.config.head_dim, self.config.rope_theta)
        group = self.config.heads // self.config.kv_heads
        for layer in self.layers:
            q = layer.queries(x, rope).transpose(1, 2)
            k, v = (t.transpose(1, 2).repeat_interleave(group, 1) for t in layer.keys_values(x, rope))
            o = functional.scaled_dot_product_attention(q, k.to(q.dtype), v.to(q.dtype), is_causal=True)
            x = layer.finish(x, o.transpose(1, 2))
        return self.norm(x)


@dataclass(frozen=True)
class CausalRecipe:
    """How the autoregressive drafter is trained."""

    rows: int = 6
    learning_rate: float = 6e-4
    warm_up: float = 0.04
    clip: float = 1.0
    weight_decay: float = 0.01
    prompt_weight: float = 0.5
    """Weight of positions before the answer (the user's turn, which the target wrote too)."""
    seed: int = 0


def causal_loss(
    net: CausalNet, parts: TargetParts, head: torch.Tensor, batch: Batch, recipe: CausalRecipe, skip: int = 22
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The loss over all positions but the template's first `skip`, and the answers' mean overlap."""
    place = torch.arange(batch.tokens.shape[1])
    inside = (place < batch.lengths[:, None] - 1) & (place >= skip)
    answer = place >= batch.answer_starts[:, None] - 1
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hidden = net(parts.embedding[batch.tokens])[inside]
        logits = functional.linear(hidden, head)
        target = functional.linear(parts.states(batch.taps[:, :, -1][inside]), head)
    p = torch.softmax(target.float(), -1)
    answer = answer[inside]
    weights = torch.where(answer, 1.0, recipe.prompt_weight)
    loss, overlap = distil(logits, p, weights / weights.sum())
    return loss, {"autoregressive": overlap[answer].mean()[None]}


# ---------------------------------------------------------------------------------------- the loop


@dataclass
class Progress:
    """Where a training run stands."""

    step: int = 0
    seconds: float = 0.0
    losses: list[float] = field(default_factory=list)
    alphas: dict[str, list[float]] = field(default_factory=dict)
    """Running mean of each measure by slot."""
    conversations: int = 0


def order(indices: Sequence[int], rows: int, generator: torch.Generator) -> Iterator[list[int]]:
    """Batches without end: each epoch goes once over all indices in a new order."""
    while True:
        shuffled = torch.randperm(len(indices), generator=generator).tolist()
        for at in range(0, len(shuffled) - rows + 1, rows):
            yield [indices[i] for i in shuffled[at : at + rows]]


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

    indices: called at the start and whenever an epoch of the conversations known so far is through, so that a
    corpus that is still growing is used as it grows. checkpoint: written now and then and resumed from.
    """
    optimizer = torch.optim.AdamW(
        net.parameters(), lr=recipe.learning_rate, weight_decay=recipe.weight_decay, betas=(0.9, 0.95), fused=True
    )
    generator = torch.Generator().manual_seed(recipe.seed)
    at = Progress()
    if checkpoint and checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        net.load_state_dict(saved["net"])
        optimizer.load_state_dict(saved["optimizer"])
        generator.set_state(saved["generator"])
        at = Progress(**saved["progress"])
    recent: dict[str, torch.Tensor] = {}
    last_saved = last_told = begun = time.monotonic()
    before = at.seconds
    batches, left = None, 0
    net.train()
    while (share := share_done(at)) < 1.0:
        if left == 0:
            known = indices()
            batches, left = order(known, recipe.rows, generator), max(1, len(known) // recipe.rows)
        left -= 1
        factor = min(1.0, share / recipe.warm_up) * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * share)))
        for group in optimizer.param_groups:
            group["lr"] = recipe.learning_rate * max(factor, 1e-3)
        batch = store.batch(next(batches))
        loss, measures = step_loss(batch, at.step, generator)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), recipe.clip)
        optimizer.step()
        for name, values in measures.items():
            old = recent.get(name)
            if old is None or len(old) < len(values):
                grown = values.clone()
                if old is not None:
                    grown[: len(old)] = old
                old = grown
            old[: len(values)] = 0.98 * old[: len(values)] + 0.02 * values
            recent[name] = old
        at.step += 1
        at.conversations += len(batch.lengths)
        now = time.monotonic()
        at.seconds = before + now - begun
        if report and now - last_told > report_seconds:
            last_told = now
            at.losses.append(round(float(loss.detach()), 4))
            at.alphas = {k: [round(x, 4) for x in v.tolist()] for k, v in recent.items()}
            report(at)
        if checkpoint and now - last_saved > checkpoint_seconds:
            last_saved = now
            _save(checkpoint, net, optimizer, generator, at)
    if checkpoint:
        _save(checkpoint, net, optimizer, generator, at)
    net.eval()
    return at


def _save(path: Path, net: nn.Module, optimizer: torch.optim.Optimizer, generator: torch.Generator, at: Progress):
    part = path.with_name(path.name + ".part")
    torch.save(
        {
            "net": net.state_dict(),
            "optimizer": optimizer.state_dict(),
            "generator": generator.get_state(),
            "progress": vars(at),
        },
        part,
    )
    os.replace(part, path)


# ---------------------------------------------------------------- starting from the target's own layers


def start_from_layers(net: nn.Module, module: nn.Module, layers: Sequence[int]) -> None:
    """Copy layers of a stock Llama-like target into a net's layers, and its final norm. Where the net's feed-forward
    is narrower, the neurons whose output weights are largest are kept."""
    for layer, index in zip(net.layers, layers, strict=True):
        source = module.model.layers[index]
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            getattr(layer, name).weight.data.copy_(getattr(source.self_attn, name).weight)
        width = layer.gate_proj.out_features
        size = source.mlp.down_proj.weight.norm(dim=0) * source.mlp.up_proj.weight.norm(dim=1)
        kept = size.topk(width).indices.sort().values
        layer.gate_proj.weight.data.copy_(source.mlp.gate_proj.weight[kept])
        layer.up_proj.weight.data.copy_(source.mlp.up_proj.weight[kept])
        layer.down_proj.weight.data.copy_(source.mlp.down_proj.weight[:, kept])
        layer.input_norm.weight.data.copy_(source.input_layernorm.weight)
        layer.post_norm.weight.data.copy_(source.post_attention_layernorm.weight)
    net.norm.weight.data.copy_(module.model.norm.weight)


def start_fusion(net: BlockNet, tap: int) -> None:
    """Let the fused state begin as the normed output of one tapped layer, so that draft layers copied from the
    layer above it find the very keys and values that they knew."""
    c = net.config
    at = c.taps.index(tap) * c.hidden_size
    with torch.no_grad():
        net.fuse.weight.mul_(0.1)
        net.fuse.weight[:, at : at + c.hidden_size] += torch.eye(c.hidden_size)


class Ridge:
    """Linear regression y ~ W x + b in closed form, from sums over any number of batches."""

    def __init__(self, inputs: int, outputs: int):
        self.count, self.x, self.y = 0, torch.zeros(inputs).double(), torch.zeros(outputs).double()
        self.xx, self.xy = torch.zeros(inputs, inputs).double(), torch.zeros(inputs, outputs).double()
        self.yy = 0.0

    def add(self, x: torch.Tensor, y: torch.Tensor) -> None:
        """x [N, inputs], y [N, outputs]"""
        self.count += len(x)
        self.x += x.sum(0).double()
        self.y += y.sum(0).double()
        self.xx += (x.T @ x).double()
        self.xy += (x.T @ y).double()
        self.yy += float(y.double().pow(2).sum())

    def solve(self, strength: float = 1e-2, bias: bool = True) -> tuple[torch.Tensor, torch.Tensor, float]:
        """W [outputs, inputs], b [outputs] (zeros without bias) and the share of variance explained (of the sum of
        squares without bias), on the data it was fitted to."""
        mean_x, mean_y = self.x / self.count * bias, self.y / self.count * bias
        gram = self.xx - self.count * torch.outer(mean_x, mean_x)
        cross = self.xy - self.count * torch.outer(mean_x, mean_y)
        damped = gram + strength * gram.diagonal().mean() * torch.eye(len(gram), dtype=gram.dtype)
        weight = torch.linalg.solve(damped, cross)
        total = self.yy - self.count * float(mean_y.pow(2).sum())
        rest = total - 2 * float((weight * cross).sum()) + float((weight * (gram @ weight)).sum())
        return weight.T.float(), (mean_y - mean_x @ weight).float(), 1 - rest / total


def _normed(x: torch.Tensor) -> torch.Tensor:
    return functional.rms_norm(x.float(), x.shape[-1:], eps=1e-5)


@torch.no_grad()
def start_inputs(
    net: BlockNet,
    embedding: torch.Tensor,
    batches: Iterator[Batch],
    columns: Sequence[int],
    layer_input: int,
    strength: float = 3e-2,
    generator: torch.Generator | None = None,
) -> float:
    """Fit the block's inputs in closed form, so that they begin as the best linear guess of what the first draft
    layer saw in the target: column `layer_input` of batch.taps at the slot's own position. Returns the share of
    variance explained at slot 0."""
    size = net.config.hidden_size
    generator = generator or torch.Generator().manual_seed(0)
    first, later = Ridge(2 * size, size), Ridge(2 * size, size)
    scales = []
    for batch in batches:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            states = net.fused(batch.taps[:, :, list(columns)].flatten(-2)).float()
        seen = batch.taps[..., layer_input, :]
        both = torch.cat([_normed(embedding[batch.tokens[:, 1:]]), states[:, :-1]], dim=-1)  # of anchors 1, 2, ...
        place = torch.arange(1, batch.tokens.shape[1])
        fine = (place >= batch.answer_starts[:, None] - 1) & (place < batch.lengths[:, None] - 1)
        goal = seen[:, 1:][fine].float()
        first.add(both[fine], _normed(goal))
        scales.append(goal.pow(2).mean(-1).sqrt())
        # Slots 1 to 3 share one map: it is fitted to the mean of what they should become.
        fine &= place < batch.lengths[:, None] - 4
        row, column = fine.nonzero(as_tuple=True)
        ahead = [_normed(seen[row, column + 1 + slot]) for slot in (1, 2, 3)]
        later.add(both[row, column], torch.stack(ahead).mean(0))
    scale = torch.cat(scales).median()
    weight, bias, explained = first.solve(strength)
    net.anchor_in.weight.copy_(scale * weight)
    net.masks[0] = scale * bias
    weight, bias, _ = later.solve(strength)
    net.mask_in.weight.copy_(scale * weight)
    # a little noise tells the slots apart; attention's positions do the rest
    net.masks[1:] = scale * (bias + 0.02 * torch.randn(net.masks[1:].shape, generator=generator))
    return explained


@torch.no_grad()
def refit_last_layer(
    net: nn.Module, examples: Iterator[tuple[Callable[[], object], torch.Tensor, torch.Tensor]], strength: float = 1e-2
) -> tuple[float, float]:
    """Refit the output weights of a net's last feed-forward in closed form, towards the target's own final state.

    examples yields (run, chosen, goal): run() forwards the net; chosen picks the states that count (a bool mask
    over all but the last dimension); goal [N, D] is the target's last layer there. Returns the shares of variance
    explained, of the state before and after the layer's output weights were fitted (before: with the old ones).
    """
    layer, size = net.layers[-1], net.config.hidden_size
    held: dict[str, torch.Tensor] = {}
    hooks = [
        layer.down_proj.register_forward_hook(lambda _, i, o: held.update(inner=i[0].float(), outer=o.float())),
        net.norm.register_forward_pre_hook(lambda _, i: held.update(state=i[0].float())),
    ]
    ridge = Ridge(layer.down_proj.in_features, size)
    goals, rest, total, scale = 0, 0.0, 0.0, None
    try:
        for run, chosen, goal in examples:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                run()
            state, goal = held["state"][chosen], _normed(goal)
            scale = state.pow(2).mean(-1).sqrt().median() if scale is None else scale
            rest += float((_normed(state) - goal).pow(2).sum())
            total += float((goal - goal.mean(0)).pow(2).sum())
            goals += len(goal)
            ridge.add(held["inner"][chosen], scale * goal - (state - held["outer"][chosen]))
    finally:
        for hook in hooks:
            hook.remove()
    weight, _, explained = ridge.solve(strength, bias=False)
    layer.down_proj.weight.copy_(weight)
    return 1 - rest / total, explained


def block_examples(
    net: BlockNet,
    embedding: torch.Tensor,
    batches: Iterator[Batch],
    columns: Sequence[int],
    slots: int = 3,
    anchors: int = 32,
    generator: torch.Generator | None = None,
) -> Iterator[tuple[Callable[[], object], torch.Tensor, torch.Tensor]]:
    """Examples for `refit_last_layer` of a block net."""
    generator = generator or torch.Generator().manual_seed(0)
    for batch in batches:
        blocks = draw_blocks(batch, anchors, slots, generator)
        where = (blocks.anchors[..., None] + torch.arange(slots)).clamp(max=batch.tokens.shape[1] - 1)
        row = torch.arange(len(batch.tokens))[:, None, None].expand_as(where)
        yield (
            lambda b=batch, k=blocks: block_states(net, embedding, b, k, columns),
            blocks.valid,
            batch.taps[row[blocks.valid], where[blocks.valid], -1],
        )


def causal_examples(
    net: CausalNet, embedding: torch.Tensor, batches: Iterator[Batch], skip: int = 22
) -> Iterator[tuple[Callable[[], object], torch.Tensor, torch.Tensor]]:
    """Examples for `refit_last_layer` of a causal net."""
    for batch in batches:
        place = torch.arange(batch.tokens.shape[1])
        inside = (place < batch.lengths[:, None] - 1) & (place >= skip)
        yield lambda b=batch: net(embedding[b.tokens]), inside, batch.taps[:, :, -1][inside]


@torch.no_grad()
def start_serial(
    net: BlockNet,
    parts: TargetParts,
    batches: Iterator[Batch],
    columns: Sequence[int],
    anchors: int = 16,
    generator: torch.Generator | None = None,
) -> float:
    """Fit the serial head's linear parts in closed form: towards the target's own final state at the slot, from the
    slot's state and the two tokens before it. Returns the share of the sum of squares explained."""
    size, slots = net.config.hidden_size, 5
    generator = generator or torch.Generator().manual_seed(0)
    ridge = Ridge(3 * size, size)
    for batch in batches:
        blocks = draw_blocks(batch, anchors, slots, generator)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            states = block_states(net, parts.embedding, batch, blocks, columns)
        valid = blocks.valid & (torch.arange(slots) > 0)
        where = (blocks.anchors[..., None] + torch.arange(slots)).clamp(max=batch.tokens.shape[1] - 1)
        row = torch.arange(len(batch.tokens))[:, None, None].expand_as(where)
        tokens = [_normed(parts.embedding[t[valid]]) for t in (blocks.previous, blocks.before)]
        ridge.add(torch.cat([*tokens, _normed(states[valid])], -1), _normed(batch.taps[row[valid], where[valid], -1]))
    weight, _, explained = ridge.solve(bias=False)
    net.serial.direct.weight.copy_(weight[:, : 2 * size])
    net.serial.state.weight.copy_(weight[:, 2 * size :])
    net.serial.norm.weight.copy_(parts.final_norm)
    return explained


@torch.no_grad()
def start_bridge(
    net: CausalNet, parts: TargetParts, batches: Callable[[], Iterator[Batch]], layer_input: int, skip: int = 22
) -> float:
    """Refit the first layer's feed-forward in closed form, so that its output is the best guess of what the second
    one saw in the target (column `layer_input` of batch.taps), over all the layers that were left out between them.

    Part of the neurons become a plain linear map: a gate along the direction in which normed states are nearly
    constant is nearly constant itself. The others keep their gates; the output weights of all are fitted.
    Returns the share of the sum of squares explained.
    """
    layer, size = net.layers[0], net.config.hidden_size

    def middles():
        for batch in batches():
            place = torch.arange(batch.tokens.shape[1])
            inside = (place < batch.lengths[:, None] - 1) & (place >= skip)
            x = parts.embedding[batch.tokens]
            rope = rope_tables(place, net.config.head_dim, net.config.rope_theta)
            yield _attended(layer, x, rope, net.config)[inside], batch.taps[..., layer_input, :][inside].float()

    constant, scales = Ridge(size, 1), []
    for x, goal in middles():
        constant.add(layer.post_norm(x), torch.ones(len(x), 1))
        scales.append(goal.pow(2).mean(-1).sqrt())
    direction, scale = constant.solve(1e-4, bias=False)[0][0], torch.cat(scales).median()
    width = layer.gate_proj.out_features
    weakest = (layer.down_proj.weight.norm(dim=0) * layer.up_proj.weight.norm(dim=1)).topk(size, largest=False).indices
    layer.gate_proj.weight[weakest] = 3.0 * direction
    layer.up_proj.weight[weakest] = torch.eye(size)
    ridge = Ridge(width, size)
    for x, goal in middles():
        normed = layer.post_norm(x)
        inner = functional.silu(layer.gate_proj(normed)) * layer.up_proj(normed)
        ridge.add(inner, scale * _normed(goal) - x)
    weight, _, explained = ridge.solve(1e-3, bias=False)
    layer.down_proj.weight.copy_(weight)
    return explained


def _attended(layer: BlockLayer, x: torch.Tensor, rope: tuple[torch.Tensor, torch.Tensor], config: BlockConfig):
    """x [B, T, D] after the layer's causal attention and its residual."""
    group = config.heads // config.kv_heads
    q = layer.queries(x, rope).transpose(1, 2)
    k, v = (t.transpose(1, 2).repeat_interleave(group, 1) for t in layer.keys_values(x, rope))
    o = functional.scaled_dot_product_attention(q, k.to(q.dtype), v.to(q.dtype), is_causal=True)
    return x + layer.o_proj(o.transpose(1, 2).flatten(-2))
