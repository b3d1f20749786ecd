"""The network of a published DFlash or DSpark drafter, and its loading from safetensors.

The block's inputs are the target's embeddings of the anchor and of mask tokens. Taps of several target layers are fused
once, `H = norm(W [tap; tap; ...])`, and every draft layer makes keys and values of them with the same matrices as of
its own input. Layers, norms and rotary positions are transformers' Qwen3 parts.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import cast

import torch
from safetensors import SafetensorError, safe_open
from torch import nn
from torch.nn import functional
from transformers.models.qwen3.modeling_qwen3 import Qwen3MLP, Qwen3RMSNorm, Qwen3RotaryEmbedding

from specviz.drafters.published_config import PublishedConfig, read
from specviz.errors import FetchError, PairError
from specviz.loader.finite_weights import check_weights
from specviz.loader.model_folder import read_header, weight_files
from specviz.models.causal import CausalModel
from specviz.sampling.transfer import to_device

_IGNORED = ("t2d", "verifier_norm.weight", "verifier_lm_head.weight")
"""Parts of a file that are the target's own or follow from others."""


class _Attention(nn.Module):
    """The projections and norms of attention."""

    def __init__(self, config: PublishedConfig):
        super().__init__()
        c, heads, kv_heads = config.backbone, config.backbone.num_attention_heads, config.kv_heads
        self.q_proj = nn.Linear(c.hidden_size, heads * c.head_dim, bias=c.attention_bias)
        self.k_proj = nn.Linear(c.hidden_size, kv_heads * c.head_dim, bias=c.attention_bias)
        self.v_proj = nn.Linear(c.hidden_size, kv_heads * c.head_dim, bias=c.attention_bias)
        self.o_proj = nn.Linear(heads * c.head_dim, c.hidden_size, bias=c.attention_bias)
        self.q_norm = Qwen3RMSNorm(c.head_dim, c.rms_norm_eps)
        self.k_norm = Qwen3RMSNorm(c.head_dim, c.rms_norm_eps)


class _ConfidenceHead(nn.Module):
    """A linear layer to one confidence logit."""

    def __init__(self, width: int):
        super().__init__()
        self.proj = nn.Linear(width, 1)


class PublishedLayer(nn.Module):
    """One draft layer: a block attends to context and block, then a gated feed-forward."""

    def __init__(self, config: PublishedConfig):
        super().__init__()
        c = config.backbone
        self.heads, self.kv_heads, self.head_dim = c.num_attention_heads, config.kv_heads, c.head_dim
        self.self_attn = _Attention(config)
        self.mlp = Qwen3MLP(c)
        self.input_layernorm = Qwen3RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.post_attention_layernorm = Qwen3RMSNorm(c.hidden_size, c.rms_norm_eps)

    def keys_values(
        self, x: torch.Tensor, rope: tuple[torch.Tensor, torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """x [T, D], fused context states or normed block states, -> K, V [T, kv_heads, d]."""
        k = self.self_attn.k_norm(self.self_attn.k_proj(x).unflatten(-1, (self.kv_heads, self.head_dim)))
        return rotated(k, *rope), self.self_attn.v_proj(x).unflatten(-1, (self.kv_heads, self.head_dim))

    def queries(self, x: torch.Tensor, rope: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """Normed block states [T, D] -> [T, heads, d]."""
        q = self.self_attn.q_norm(self.self_attn.q_proj(x).unflatten(-1, (self.heads, self.head_dim)))
        return rotated(q, *rope)

    def finish(self, x: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        """Output projection, residuals and feed-forward. x [T, D], attended [T, heads, d]."""
        x = x + self.self_attn.o_proj(attended.flatten(-2))
        return x + self.mlp(self.post_attention_layernorm(x))


def rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary positions, halves layout: x [T, heads, d], cos and sin [T, d]."""
    a, b = x.chunk(2, dim=-1)
    return x * cos.unsqueeze(-2) + torch.cat([-b, a], dim=-1) * sin.unsqueeze(-2)


class MarkovHead(nn.Module):
    """DSpark's serial head: an addition to a slot's logits that depends on the token before the slot."""

    def __init__(self, config: PublishedConfig):
        super().__init__()
        c, rank = config.backbone, config.markov_rank
        self.kind, self.rank = config.markov_kind, rank
        self.markov_w1 = nn.Embedding(c.vocab_size, rank)
        self.markov_w2 = nn.Linear(rank, config.draft_vocab, bias=False)
        if self.kind == "gated":
            self.gate_proj = nn.Linear(c.hidden_size + rank, rank)
        elif self.kind == "rnn":
            self.joint_proj = nn.Linear(2 * rank + c.hidden_size, 3 * rank)

    def forward(
        self, hidden: torch.Tensor, before: torch.Tensor, state: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """hidden [n, D] of one slot of n rows, before [n, rank] its left neighbours' vectors (`markov_w1`), state
        [n, rank] -> (added logits [n, Vd], the next slot's state)."""
        if self.kind == "gated":
            return self.markov_w2(torch.sigmoid(self.gate_proj(torch.cat([hidden, before], -1))) * before), state
        if self.kind == "rnn":
            gate, candidate, out = self.joint_proj(torch.cat([state, before, hidden], -1)).chunk(3, -1)
            gate = torch.sigmoid(gate)
            return self.markov_w2(torch.tanh(out)), gate * state + (1 - gate) * torch.tanh(candidate)
        return self.markov_w2(before), state


class PublishedNet(nn.Module):
    """The weights of a published drafter. Embedding and head may be the file's or the target's."""

    embedding: torch.Tensor
    """[V, D]; like `head` and `rotary` set by `load_net`"""
    head: torch.Tensor
    """[Vd, D]"""
    rotary: Qwen3RotaryEmbedding

    def __init__(self, config: PublishedConfig):
        super().__init__()
        self.config = config
        c = config.backbone
        self.fc = nn.Linear(len(config.taps) * c.hidden_size, c.hidden_size, bias=False)
        self.hidden_norm = Qwen3RMSNorm(c.hidden_size, c.rms_norm_eps)
        # a ModuleList is no typed container: its entries are PublishedLayers
        self.layers = cast(
            list[PublishedLayer], nn.ModuleList(PublishedLayer(config) for _ in range(c.num_hidden_layers))
        )
        self.norm = Qwen3RMSNorm(c.hidden_size, c.rms_norm_eps)
        if config.kind == "hybrid":
            self.markov_head = MarkovHead(config)
        if config.confidence:
            width = c.hidden_size + (config.markov_rank if config.confidence_with_markov else 0)
            self.confidence_head = _ConfidenceHead(width)
        self.draft_ids: torch.Tensor | None = None
        """[Vd] the target's ids of the tokens that can be proposed; None: all"""

    def fused(self, taps: torch.Tensor) -> torch.Tensor:
        """taps [n, taps * D] -> context states [n, D]."""
        return self.hidden_norm(self.fc(taps.to(self.fc.weight.dtype)))

    def rope(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """cos and sin [T, d] of positions [T]."""
        cos, sin = self.rotary(self.fc.weight, positions[None])
        return cos[0], sin[0]

    def block_inputs(self, anchors: list[int]) -> torch.Tensor:
        """[R, block, D]: the anchor's embedding, then mask tokens."""
        ids = torch.full((len(anchors), self.config.block), self.config.mask_token, device=self.embedding.device)
        ids[:, 0] = to_device(anchors, ids.device)
        return self.embedding[ids].to(self.fc.weight.dtype) * self.config.embedding_scale

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[n, D] -> [n, Vd] float32."""
        found = functional.linear(hidden, self.head).float() * self.config.logit_scale
        if self.config.softcap:
            found = torch.tanh(found / self.config.softcap) * self.config.softcap
        return found

    def spread(self, logits: torch.Tensor) -> torch.Tensor:
        """Logits [n, Vd] -> over the target's vocabulary [n, V], -inf for what it cannot propose."""
        if self.draft_ids is None:
            return logits
        full = torch.full((len(logits), len(self.embedding)), -torch.inf, device=logits.device)
        full[:, self.draft_ids] = logits
        return full


def load_net(folder: Path, target: CausalModel) -> PublishedNet:
    """The net in a folder, on the target's device and in its precision, fitted to the target.

    Raises FetchError for a file that is damaged, lacks weights or has unknown ones, PairError for another target's.
    """
    folder = Path(folder)
    config = read(folder)
    _check_target(folder, config, target)
    with torch.device("meta"):
        net = PublishedNet(config)
    stored = _stored(folder)
    _check_names(folder, net, config, {name: tuple(entry["shape"]) for name, (_, entry) in stored.items()})
    weights = _read_tensors({name: file for name, (file, _) in stored.items() if name not in _IGNORED})

    def placed(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(target.device, target.dtype)

    embedding = weights.pop("embed_tokens.weight", None)
    head = weights.pop("lm_head.weight", None)
    shifts = weights.pop("d2t", None)
    net.load_state_dict({name: placed(tensor) for name, tensor in weights.items()}, assign=True)
    net.rotary = Qwen3RotaryEmbedding(config.backbone).to(target.device)
    net.embedding = _own_or_targets(embedding, target.embedding, placed)
    if shifts is not None:
        net.draft_ids = _draft_ids(folder, shifts, config).to(target.device)
    targets_head = target.head if net.draft_ids is None else target.head[net.draft_ids]
    net.head = _own_or_targets(head, targets_head, placed)
    return net.eval().requires_grad_(False)


def _own_or_targets(own: torch.Tensor | None, targets: torch.Tensor, placed) -> torch.Tensor:
    """The file's tensor; the target's if it is missing or equal to it."""
    if own is None:
        return targets.detach()
    own = placed(own)
    return targets.detach() if torch.equal(own, targets) else own


def _check_target(folder: Path, config: PublishedConfig, target: CausalModel) -> None:
    c = config.backbone
    wrong = None
    if (c.hidden_size, c.vocab_size) != (target.hidden_size, target.vocab_size):
        wrong = (
            f"was made for a target of width {c.hidden_size:,} and {c.vocab_size:,} tokens; this target has "
            f"{target.hidden_size:,} and {target.vocab_size:,}"
        )
    elif config.target_layers not in (None, target.layers):
        wrong = f"was made for a target of {config.target_layers} layers; this target has {target.layers}"
    elif max(config.taps) >= target.layers - 1:
        wrong = (
            f"reads target layer {max(config.taps)} (counted from 0), but of this target only 0 to "
            f"{target.layers - 2} can be read: the last one's output counts as the final state"
        )
    elif config.mask_token >= len(target.embedding):
        wrong = (
            f"uses token {config.mask_token:,} as its mask, but the target's embedding has "
            f"{len(target.embedding):,} rows"
        )
    if wrong:
        raise PairError(f"The drafter in {folder} {wrong}. Choose the drafter of this target.")


def _stored(folder: Path) -> dict[str, tuple[Path, dict]]:
    """name -> (file, header entry) of all tensors of a folder."""
    return {
        name.removeprefix("model."): (file, entry | {"name": name})
        for file in weight_files(folder)
        for name, entry in read_header(file).items()
    }


def _check_names(
    folder: Path, net: PublishedNet, config: PublishedConfig, stored: Mapping[str, tuple[int, ...]]
) -> None:
    """Raises FetchError with the names of weights that are missing, unknown or of the wrong shape."""
    c = config.backbone
    wanted = {name: tuple(tensor.shape) for name, tensor in net.state_dict().items()}
    allowed = {
        "embed_tokens.weight": (c.vocab_size, c.hidden_size),
        "lm_head.weight": (config.draft_vocab, c.hidden_size),
        "d2t": (config.draft_vocab,),
    }
    if config.draft_vocab < c.vocab_size:
        wanted["d2t"] = allowed["d2t"]
    missing = sorted(wanted.keys() - stored.keys())
    unknown = sorted(
        n
        for n in stored.keys() - wanted.keys() - allowed.keys() - set(_IGNORED)
        if not n.endswith("rotary_emb.inv_freq")
    )
    faults = []
    if missing:
        faults.append(f"lacks {_listed(missing)}")
    if unknown:
        faults.append(f"has weights whose use is not known: {_listed(unknown)}")
    if faults:
        raise FetchError(f"The drafter in {folder} {' and '.join(faults)}.")
    for name, shape in (allowed | wanted).items():
        if name in stored and stored[name] != shape:
            raise FetchError(
                f"The drafter in {folder} does not fit its own config.json: {name} has the shape "
                f"{_times(stored[name])} where {_times(shape)} follows from it."
            )


def _read_tensors(files: Mapping[str, Path]) -> dict[str, torch.Tensor]:
    """name -> tensor as stored, each file opened once."""
    out = {}
    for file in sorted(set(files.values())):
        try:
            with safe_open(file, "pt") as opened:
                for stored in opened.keys():  # noqa: SIM118 (no mapping)
                    if files.get(name := stored.removeprefix("model.")) == file:
                        out[name] = opened.get_tensor(stored)
        except (OSError, SafetensorError, ValueError) as error:
            raise FetchError(f"{file} cannot be read ({str(error)[:120]}): copy or download it again.") from None
    for name, tensor in out.items():
        if name != "d2t" and not tensor.is_floating_point():
            raise FetchError(
                f"{files[name]} stores {name} as {str(tensor.dtype).removeprefix('torch.')}: quantised "
                "drafters are not known here."
            )
    check_weights(out.items(), f"the drafter in {next(iter(files.values())).parent}")
    return out


def _draft_ids(folder: Path, shifts: torch.Tensor, config: PublishedConfig) -> torch.Tensor:
    """d2t [Vd], offsets from a draft id to the target's, -> the target's ids."""
    ids = torch.arange(len(shifts)) + shifts.long()
    if ids.min() < 0 or ids.max() >= config.backbone.vocab_size or len(ids.unique()) < len(ids):
        raise FetchError(
            f"The drafter in {folder} maps its vocabulary (d2t) outside the target's, or twice to one token."
        )
    return ids


def _listed(names: list[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def _times(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))
