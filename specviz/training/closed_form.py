"""Closed-form starts: layers copied from the target, and linear maps fitted by ridge regression before any step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from torch.nn import functional

from specviz.drafters.block_net import BlockConfig, BlockLayer, BlockNet, rope_tables
from specviz.training.block import block_states, draw_blocks
from specviz.training.causal import CausalNet
from specviz.training.compute_type import autocast
from specviz.training.features import Batch
from specviz.training.target_parts import StockModel, TargetParts


def start_from_layers(net: BlockNet | CausalNet, module: StockModel, layers: Sequence[int]) -> None:
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
    layer above it see the same keys and values as in the target."""
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
        with autocast():
            states = net.fused(batch.taps[:, :, list(columns)].flatten(-2)).float()
        seen = batch.taps[..., layer_input, :]
        both = torch.cat([_normed(embedding[batch.tokens[:, 1:]]), states[:, :-1]], dim=-1)  # of anchors 1, 2, ...
        place = torch.arange(1, batch.tokens.shape[1])
        fine = batch.before_answer[:, 1:]
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
    net: BlockNet | CausalNet,
    examples: Iterator[tuple[Callable[[], object], torch.Tensor, torch.Tensor]],
    strength: float = 1e-2,
) -> tuple[float, float]:
    """Refit the output weights of a net's last feed-forward in closed form, towards the target's own final state.

    examples yields (run, chosen, goal): run() forwards the net; chosen picks the states that count (a bool mask
    over all but the last dimension); goal [N, D] is the target's last layer there. Returns the shares of variance
    explained, of the state before and after the layer's output weights were fitted (before: with the old ones).
    """
    layer, size = net.layers[-1], net.config.hidden_size
    captured: dict[str, torch.Tensor] = {}
    hooks = [
        layer.down_proj.register_forward_hook(lambda _, i, o: captured.update(inner=i[0].float(), outer=o.float())),
        net.norm.register_forward_pre_hook(lambda _, i: captured.update(state=i[0].float())),
    ]
    ridge = Ridge(layer.down_proj.in_features, size)
    goals, rest, total, scale = 0, 0.0, 0.0, None
    try:
        for run, chosen, goal in examples:
            with autocast():
                run()
            state, goal = captured["state"][chosen], _normed(goal)
            scale = state.pow(2).mean(-1).sqrt().median() if scale is None else scale
            rest += float((_normed(state) - goal).pow(2).sum())
            total += float((goal - goal.mean(0)).pow(2).sum())
            goals += len(goal)
            ridge.add(captured["inner"][chosen], scale * goal - (state - captured["outer"][chosen]))
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
            partial(block_states, net, embedding, batch, blocks, columns),
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
        yield partial(net, embedding[batch.tokens]), inside, batch.taps[:, :, -1][inside]


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
        with autocast():
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
