"""FLOPs and bytes of one forward pass, counted from a model's shape and the lengths of its rows.

Needs no weights, no device and no torch. What is counted (a minimum that good kernels approach):

FLOPs   a multiply-add counts as two. Linear layers: 2 x weights x new tokens (only the active experts of a
        mixture). Attention: QK^T and PV over the keys that a position may see: causal, and within the
        sliding window. The head: only for positions whose logits are computed. An embedding lookup counts
        no FLOPs; norms, activations and softmax are left out (well under 1 %).
bytes   every layer's weights once per pass, however many tokens share it; of a mixture's experts those that
        are expected to be picked by at least one token (even, independent routing); the head once if any
        logits are computed; one embedding row per token; the cached keys and values of each row once (as
        many heads as the cache has, so grouped-query attention reads less), the new ones written once; the
        input and output of every linear layer once. Not counted: traffic of operators that a good kernel
        fuses, and reads that hit a processor cache.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from specviz.errors import SettingsError, SpecVizError
from specviz.trace.records import Cost


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """The sizes of a model that the cost of a pass depends on. Sizes in elements; `*_bytes` are bytes per element."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    """Inner width of a dense feed-forward layer (0 if every layer is a mixture)."""
    vocab: int
    gated: bool = True
    """True: three matrices (SwiGLU, GeGLU); False: two (a plain MLP)."""
    tied: bool = False
    """True: the head is the embedding table; it is one parameter but still read by each pass."""
    weight_bytes: float = 4.0
    """Per weight; fractional for quantized ones (scales included)."""
    head_bytes: float | None = None
    """Bytes per weight of the head where it is stored differently; None: as the rest."""
    cache_bytes: float = 4.0
    activation_bytes: float = 4.0
    windows: tuple[int | None, ...] | None = None
    """The sliding window of each layer (None: full attention); None alone: all layers are full."""
    learned_positions: int = 0
    """Rows of a learned position table (looked up, like the embedding); 0 for rotary."""
    experts: int = 0
    active_experts: int = 0
    expert_ffn: int = 0
    shared_ffn: int = 0
    """Total inner width of the experts that every token uses."""
    dense_layers: int = 0
    """How many layers of a mixture keep a dense feed-forward of width `ffn`."""
    expert_weight_bytes: float | None = None
    """Bytes per weight of the experts where they are stored differently; None: as the rest."""
    query_rank: int = 0
    latent_rank: int = 0
    """Multi-head latent attention: ranks of the query's and of the keys' and values' compression (0: none)."""
    rotary_dim: int = 0
    value_dim: int = 0
    """Latent attention: the shared rotary part of a key, and the width of a value head; `head_dim` is then
    the part of a key without rotation."""
    small_weights: int = 0
    """Norm gains, biases and the like, of the whole model: read once a pass, no counted FLOPs."""

    def __post_init__(self):
        whole = {n: getattr(self, n) for n in ("layers", "hidden", "heads", "kv_heads", "head_dim", "vocab")}
        if bad := [n for n, v in whole.items() if not isinstance(v, int) or v < 1]:
            raise SpecVizError(
                f"The shape of {self.name} cannot be counted: {bad[0]} is {whole[bad[0]]!r}, "
                "but must be a whole number above 0."
            )
        if self.heads % self.kv_heads:
            raise SpecVizError(
                f"The shape of {self.name} cannot be counted: {self.heads} attention heads do not "
                f"divide among {self.kv_heads} key-value heads."
            )
        if self.windows is not None and len(self.windows) != self.layers:
            raise SpecVizError(
                f"The shape of {self.name} cannot be counted: {len(self.windows)} windows for {self.layers} layers."
            )
        if self.experts and not 1 <= self.active_experts <= self.experts:
            raise SpecVizError(
                f"The shape of {self.name} cannot be counted: {self.active_experts} active experts of {self.experts}."
            )

    # ---- counts of weights

    @property
    def attention_weights(self) -> int:
        """Weights of one layer's attention projections."""
        return sum(i * o for i, o in self._attention_linears())

    @property
    def ffn_weights(self) -> int:
        """Weights of one dense feed-forward layer."""
        return sum(i * o for i, o in self._ffn_linears(self.ffn))

    @property
    def expert_weights(self) -> int:
        """Weights of one expert."""
        return sum(i * o for i, o in self._ffn_linears(self.expert_ffn))

    @property
    def mixture_layers(self) -> int:
        return self.layers - self.dense_layers if self.experts else 0

    @property
    def parameters(self) -> int:
        """All parameters, a tied head once."""
        shared = self.hidden * self.experts + sum(i * o for i, o in self._ffn_linears(self.shared_ffn))
        return (
            self.layers * self.attention_weights
            + (self.layers - self.mixture_layers) * self.ffn_weights
            + self.mixture_layers * (self.experts * self.expert_weights + shared)
            + self.vocab * self.hidden * (1 if self.tied else 2)
            + self.learned_positions * self.hidden
            + self.small_weights
        )

    @property
    def stored_bytes(self) -> int:
        """Bytes that the weights take in memory."""
        experts = self.mixture_layers * self.experts * self.expert_weights
        tables = self.vocab * self.hidden * (1 if self.tied else 2) if self.head_bytes is not None else 0
        return round(
            experts * self._expert_bytes
            + tables * (self.head_bytes or 0)
            + (self.parameters - experts - tables) * self.weight_bytes
        )

    @property
    def cache_bytes_per_token(self) -> float:
        """Bytes that one more token of one row adds to the cache (all layers, windows not considered)."""
        return self.layers * self._cache_width * self.cache_bytes

    @property
    def _expert_bytes(self) -> float:
        return self.weight_bytes if self.expert_weight_bytes is None else self.expert_weight_bytes

    @property
    def _cache_width(self) -> int:
        """Elements that a layer's cache keeps per token."""
        if self.latent_rank:
            return self.latent_rank + self.rotary_dim
        return 2 * self.kv_heads * self.head_dim

    @property
    def _flops_per_key(self) -> int:
        """FLOPs per query position and key, all heads of a layer: QK^T and PV."""
        if self.latent_rank:
            # Absorbed form, as served: queries are mapped into the latent space, where keys and values live.
            return 2 * self.heads * (self.latent_rank + self.rotary_dim + self.latent_rank)
        return 4 * self.heads * self.head_dim

    def _attention_linears(self) -> list[tuple[int, int]]:
        """(inputs, outputs) of each linear layer of one attention."""
        if self.latent_rank:
            query = self.heads * (self.head_dim + self.rotary_dim)
            queries = (
                [(self.hidden, self.query_rank), (self.query_rank, query)]
                if self.query_rank
                else [(self.hidden, query)]
            )
            return [
                *queries,
                (self.hidden, self.latent_rank + self.rotary_dim),
                (self.latent_rank, self.heads * (self.head_dim + self.value_dim)),
                (self.heads * self.value_dim, self.hidden),
            ]
        width, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return [(self.hidden, width), (self.hidden, kv), (self.hidden, kv), (width, self.hidden)]

    def _ffn_linears(self, width: int) -> list[tuple[int, int]]:
        up = [(self.hidden, width)] * (2 if self.gated else 1)
        return [*up, (width, self.hidden)] if width else []


@dataclass(frozen=True)
class Breakdown:
    """FLOPs and bytes of a pass by part."""

    flops: dict[str, int]
    """attention projections, attention, feed-forward, head"""
    bytes: dict[str, int]
    """weights, head, embedding, cache read, cache write, activations"""

    @property
    def cost(self) -> Cost:
        return Cost(flops=sum(self.flops.values()), bytes=sum(self.bytes.values()))


def pass_cost(shape: ModelShape, new_tokens: Sequence[int], contexts: Sequence[int], logit_rows: int) -> Cost:
    """The cost of one packed pass: new_tokens[i] positions of row i on top of contexts[i] cached ones.

    `logit_rows`: positions, of all rows together, that go through the head. Raises SettingsError if the
    lengths do not fit together.
    """
    return breakdown(shape, new_tokens, contexts, logit_rows).cost


def breakdown(shape: ModelShape, new_tokens: Sequence[int], contexts: Sequence[int], logit_rows: int) -> Breakdown:
    """`pass_cost` by part. A pass of no tokens costs nothing."""
    if len(new_tokens) != len(contexts) or min([*new_tokens, *contexts, logit_rows], default=0) < 0:
        raise SettingsError("A pass needs one context length per row, and no negative lengths.")
    tokens = sum(new_tokens)
    if logit_rows > tokens:
        raise SettingsError(f"A pass over {tokens} positions cannot give {logit_rows} rows of logits.")
    if not tokens:
        return Breakdown({}, {})

    through, plain, attended, fed, kinds = _constants(shape)
    alike = Counter(zip(new_tokens, contexts))  # rows of equal lengths cost the same: count each kind once
    attended_keys = sum(
        n * rows * _attended_keys(new, context, window) for window, n in kinds for (new, context), rows in alike.items()
    )
    keys_read = sum(
        n * rows * (context if window is None else min(context, window - 1))
        for window, n in kinds
        for (new, context), rows in alike.items()
        if new
    )

    flops = {
        "attention projections": 2 * tokens * attended,
        "attention": shape._flops_per_key * attended_keys,
        "feed-forward": 2 * tokens * fed,
        "head": 2 * logit_rows * shape.hidden * shape.vocab,
    }
    picked = shape.mixture_layers * _experts_picked(shape, tokens) * shape.expert_weights
    tables = 2 if shape.learned_positions else 1
    moved = {
        "weights": plain * shape.weight_bytes + picked * shape._expert_bytes,
        "head": shape.hidden * shape.vocab * (shape.head_bytes or shape.weight_bytes) if logit_rows else 0,
        "embedding": tokens * tables * shape.hidden * shape.weight_bytes,
        "cache read": keys_read * shape._cache_width * shape.cache_bytes,
        "cache write": tokens * shape.layers * shape._cache_width * shape.cache_bytes,
        "activations": (tokens * through + logit_rows * (shape.hidden + shape.vocab)) * shape.activation_bytes,
    }
    return Breakdown(flops, {k: round(v) for k, v in moved.items()})


@lru_cache(maxsize=64)
def _constants(shape: ModelShape) -> tuple[int, int, int, int, tuple[tuple[int | None, int], ...]]:
    """The part of a pass's cost that does not depend on its lengths: activations that a token moves between products,
    weights that every pass reads, attention weights and feed-forward weights per token, and the number of layers with
    each window."""
    mixture, dense = shape.mixture_layers, shape.layers - shape.mixture_layers
    shared = shape._ffn_linears(shape.shared_ffn)
    attended = shape.layers * shape.attention_weights
    active = shape.active_experts * shape.expert_weights + shape.hidden * shape.experts + _weights(shared)
    plain = (
        attended
        + dense * shape.ffn_weights
        + mixture * (shape.hidden * shape.experts + _weights(shared))
        + shape.small_weights
    )
    through = (
        shape.layers * _widths(shape._attention_linears())
        + dense * _widths(shape._ffn_linears(shape.ffn))
        + mixture
        * (
            _widths(shared)
            + shape.hidden
            + shape.experts
            + shape.active_experts * _widths(shape._ffn_linears(shape.expert_ffn))
        )
    )
    windows = Counter(shape.windows or (None,) * shape.layers)
    return through, plain, attended, dense * shape.ffn_weights + mixture * active, tuple(windows.items())


def _attended_keys(new: int, context: int, window: int | None) -> int:
    """Sum over `new` causal positions after `context` of the keys that each attends to, itself included."""
    if window is None:
        return new * context + new * (new + 1) // 2
    free = min(new, max(0, window - context))  # positions that still see everything before them
    return free * context + free * (free + 1) // 2 + (new - free) * window


def _experts_picked(shape: ModelShape, tokens: int) -> float:
    """The expected number of distinct experts of a layer that `tokens` tokens use."""
    if not shape.experts:
        return 0.0
    return shape.experts * (1 - (1 - shape.active_experts / shape.experts) ** tokens)


def _weights(linears: list[tuple[int, int]]) -> int:
    return sum(i * o for i, o in linears)


def _widths(linears: list[tuple[int, int]]) -> int:
    return sum(i + o for i, o in linears)
