"""A causal language model: one forward over packed tokens of many rows, against a RaggedCache.

One forward serves one row and many: the new tokens of all rows are packed into one sequence [1, N], so the
linear layers see exactly N tokens, and attention is done per group of rows against each row's own cache.
Plain Llamas run without transformers, other stock modules through transformers' AttentionInterface.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any, Self, cast

import torch

from specviz.errors import PairError, SettingsError
from specviz.hardware.config_shapes import model_shape
from specviz.loader.causal_module import CausalModule
from specviz.loader.llama import Llama
from specviz.models.attention import PackedAttention, attend
from specviz.models.cache import Pass, RaggedCache
from specviz.models.config_limits import first_layers_config, position_limit
from specviz.models.fused import FusedLlama, is_plain_llama
from specviz.models.graphs import graphs_of
from specviz.models.weight_storage import Product
from specviz.sampling.transfer import offsets, to_device

ATTENTION = "specviz_ragged"
_PRECISIONS = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
_current = threading.local()


def _ragged_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: object,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **_: object,
) -> tuple[torch.Tensor, None]:
    """transformers' attention function: query [1, heads, N, d], key and value [1, kv_heads, N, d] of a
    pass -> [1, N, heads, d]."""
    if softcap is not None or s_aux is not None:
        raise PairError("This model's attention uses soft-capping or sinks, which SpecViz cannot do. Choose another.")
    window = sliding_window or getattr(module, "sliding_window", None)
    q, k, v = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
    return attend(_current.plan, module.layer_idx, q, k, v, scaling, window)[None], None


def _use_ragged_attention(module: CausalModule) -> None:
    """Make a stock module compute attention by `attend`."""
    from transformers import (  # takes seconds, and plain Llamas do not need it
        AttentionInterface,
        AttentionMaskInterface,
    )

    AttentionInterface.register(ATTENTION, _ragged_attention)
    AttentionMaskInterface.register(ATTENTION, lambda *_, **__: None)  # the cache makes masks
    module.set_attn_implementation(ATTENTION)


@dataclass(frozen=True)
class Output:
    """Results of one packed pass."""

    packed: torch.Tensor
    """[M, V] float32: the logits of all rows, with padding between the rows where the pass was padded."""
    starts: list[int]
    """Index in `packed` of each row's first logits."""
    counts: list[int]
    """Rows of logits that each row has, as requested."""
    taps: list[torch.Tensor] | None
    """[n_r, len(taps) * D] each: outputs of the tapped layers side by side."""

    @property
    def logits(self) -> list[torch.Tensor]:
        """[n_r, V] each; empty tensors if none were requested."""
        return [self.packed[start : start + n] for start, n in zip(self.starts, self.counts)]


class CausalModel:
    """A model's weights and forward pass, shared between runs; each run has its own caches. Passes take turns."""

    def __init__(
        self, module: CausalModule, quantize: bool = False, int4: bool = False, fused: FusedLlama | None = None
    ):
        """quantize: matrices of a float32 model may be stored in fewer bits where that is faster. For drafters only:
        their q is computed with the quantized weights, so output stays lossless. int4: the layers' matrices keep the 4
        bits in which they were published; raises SettingsError if they were not. fused: its fused forward, if there is
        one already."""
        self.module: CausalModule = module.eval().requires_grad_(False)
        self.config = module.config.get_text_config()
        self.lock = threading.Lock()
        self.forwards = 0
        self.tokens_forwarded = 0
        parameter = next(module.parameters())
        self.device = parameter.device
        self.name = model_name(self.config)
        self.precision = "int4" if int4 else _PRECISIONS.get(parameter.dtype, str(parameter.dtype))
        """Of its weights: fp32, bf16, fp16 or int4."""
        self.dtype = parameter.dtype
        """Of activations, K and V, and taps."""
        self.embedding: torch.Tensor = module.get_input_embeddings().weight
        """[V, D]"""
        self.head: torch.Tensor = module.get_output_embeddings().weight
        """[V, D]"""
        self.vocab_size = self.head.shape[0]
        self.hidden_size: int = self.config.hidden_size
        self.blocks = _decoder_blocks(module)
        self.layers = len(self.blocks)
        self.max_positions, self.position_note = position_limit(self.config)
        """Most tokens of a text, and the reason where that is fewer than the config allows."""
        if not isinstance(module, Llama):
            _use_ragged_attention(module)
        self._fused = fused or _fused(module, quantize, int4)
        self.native_bits = None if self._fused is None else self._fused.bits
        """Bits per weight of its layers where kernels.c runs them, else None."""
        weight_bytes: float = self.dtype.itemsize
        if self._fused is not None:
            weight_bytes, self.dtype = self._fused.weight_bytes, self._fused.stream
        self.graphs = graphs_of(self, self._fused)
        """CUDA graphs of its passes, on a CUDA GPU only."""
        shape = model_shape(self.config, weight_bytes, self.dtype.itemsize)
        self.shape = shape if self._fused is None else replace(shape, head_bytes=self._fused.head.weight_bytes)

    def first(self, layers: int) -> Self:
        """The model of the first `layers` layers, then the same norm and head; weights are shared."""
        config = type(self.module.config).from_dict(first_layers_config(self.module.config.to_dict(), layers))
        module = cast(CausalModule, cast(Any, type(self.module))(config))
        own = self.module.state_dict()
        try:
            module.load_state_dict({k: own[k] for k in module.state_dict()}, assign=True)
        except (KeyError, RuntimeError):
            raise PairError(
                f"{type(self.module).__name__} cannot be cut to its first {layers} layers: its layers share weights. "
                "Choose another drafter, such as ngram."
            ) from None
        module.tie_weights()
        if self._fused is None:
            return type(self)(module.to(self.device))
        return type(self)(module, fused=self._fused.first(layers))

    def prompt_room(self, new_tokens: int) -> int | None:
        """The longest prompt, in tokens, that leaves positions for `new_tokens`; None if no limit is known."""
        return None if self.max_positions is None else max(0, self.max_positions - new_tokens)

    @property
    def products(self) -> list[tuple[Product | torch.nn.Linear, tuple[int, ...]]]:
        """Every linear layer of a pass, with its weight's shape [out, in]; the head last."""
        if self._fused is not None:
            return [(product, product.shape) for product in self._fused.products]
        return [(m, tuple(m.weight.shape)) for m in self.module.modules() if isinstance(m, torch.nn.Linear)]

    def eos_ids(self) -> frozenset[int]:
        """Token ids that end a text, from the generation config and the config."""
        found: set[int] = set()
        for holder in (getattr(self.module, "generation_config", None), self.config):
            value = getattr(holder, "eos_token_id", None)
            found.update([value] if isinstance(value, int) else value or [])
        return frozenset(found)

    def new_cache(self) -> RaggedCache:
        """An empty cache for one run."""
        return RaggedCache(self.layers, self.device, self.dtype) if self.graphs is None else self.graphs.new_cache()

    @torch.inference_mode()
    def forward(
        self,
        cache: RaggedCache,
        rows: Sequence[int],
        tokens: Sequence[Sequence[int] | torch.Tensor],
        taps: Sequence[int] = (),
        logits: bool | Sequence[int] = True,
    ) -> Output:
        """Forward tokens[i] (one or more) at the end of rows[i], in one packed pass.

        tokens[i]: a list, or an int64 tensor of values that are on the device only. logits: True for every position,
        False for none (prefill: the head is not run), or for how many of each row's last positions. taps: layers whose
        outputs are returned.
        """
        counts = [len(t) for t in tokens]
        with self.lock:
            replayed = None if self.graphs is None else self.graphs.forward(cache, rows, tokens, taps, logits)
            if replayed is not None:
                self.forwards, self.tokens_forwarded = self.forwards + 1, self.tokens_forwarded + sum(counts)
                return Output(*replayed)
            plan = cache.plan(list(rows), counts)
            wanted = _logit_counts(logits, counts)
            keep = None
            if wanted != counts:
                keep = to_device(
                    [i for end, n in zip(accumulate(counts), wanted) for i in range(end - n, end)], self.device
                )
            flat = _flat(tokens, self.device)
            if self._fused is None:
                kept, by_layer = self._stock(plan, flat, taps, keep)
            else:
                kept, by_layer = self._fused(flat, plan.position_of, PackedAttention(plan), taps, keep, plan.longest)
            packed = torch.empty(0, self.vocab_size, device=self.device) if kept is None else kept.float()
            self.forwards += 1
            self.tokens_forwarded += sum(counts)
        tapped = list(torch.cat([by_layer[i] for i in taps], dim=-1).split(counts)) if taps else None
        return Output(packed, offsets(wanted), wanted, tapped)

    def _stock(
        self, plan: Pass, flat: torch.Tensor, taps: Sequence[int], keep: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, dict[int, torch.Tensor]]:
        """The module's own forward: logits [kept, V] or None, and the outputs [N, D] of the tapped layers."""
        tapped: dict[int, torch.Tensor] = {}

        def tap(layer: int) -> Callable[[torch.nn.Module, object, Any], None]:
            return lambda _, __, out: tapped.update({layer: (out[0] if isinstance(out, tuple) else out)[0]})

        hooks = [self.blocks[i].register_forward_hook(tap(i)) for i in taps]
        _current.plan = plan
        try:
            arguments: dict[str, Any] = {
                "input_ids": flat[None],
                "position_ids": plan.position_of[None],
                "use_cache": False,
            }
            if keep is not None and len(keep) == 0:
                self.module.base_model(**arguments)
                return None, tapped
            return self.module(**arguments, logits_to_keep=0 if keep is None else keep).logits[0], tapped
        finally:
            _current.plan = None
            for hook in hooks:
                hook.remove()


def model_name(config: Any) -> str:
    """The name of a model for a person, from the folder or Hub id in its config."""
    parts = Path(str(getattr(config, "name_or_path", "") or getattr(config, "_name_or_path", ""))).parts
    # the Hub's cache keeps a model in models--OWNER--NAME/snapshots/COMMIT
    cached = next((part for part in parts if part.startswith("models--")), None)
    return cached.removeprefix("models--").replace("--", "/") if cached else parts[-1] if parts else config.model_type


def _logit_counts(logits: bool | Sequence[int], counts: list[int]) -> list[int]:
    """The number of last positions of each row whose logits are returned; see CausalModel.forward."""
    if isinstance(logits, bool):
        return counts if logits else [0] * len(counts)
    return [min(n, w) for n, w in zip(counts, logits)]


def _flat(tokens: Sequence[Sequence[int] | torch.Tensor], device: torch.device) -> torch.Tensor:
    """All rows' tokens [N], one row after the other."""
    if any(isinstance(of_row, torch.Tensor) for of_row in tokens):
        return torch.cat([t if isinstance(t, torch.Tensor) else to_device(t, device) for t in tokens])
    return to_device([t for of_row in tokens for t in of_row], device)


def _fused(module: CausalModule, quantize: bool, int4: bool) -> FusedLlama | None:
    if is_plain_llama(module):
        try:
            return FusedLlama(module, quantize, int4)
        except ValueError as error:
            raise SettingsError(f"This model cannot run in int4: {error} Choose fp32 or bf16.") from None
    if int4:
        raise SettingsError("Only plain Llamas run in int4: choose fp32 or bf16.")
    return None


def _decoder_blocks(module: CausalModule) -> torch.nn.ModuleList:
    base = module.base_model
    for name in ("layers", "h"):
        if isinstance(found := getattr(base, name, None), torch.nn.ModuleList):
            return found
    raise PairError(
        f"{type(module).__name__} is not a decoder that SpecViz knows how to run: its layers were not found. "
        "Llama, Mistral, Qwen, Gemma, GPT-2 and GPT-NeoX models work."
    )
