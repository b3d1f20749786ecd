"""Configs of published block drafters: DFlash (z-lab), DSpark (DeepSpec), and both as packaged by speculators.

The packagings differ in where a field stands (top level, `dflash_config`, `transformer_layer_config`), in how target
layers are counted, and in which slot of the block predicts which token. Ambiguous configs are refused with a
sentence: a wrong guess would cost nearly all acceptance without an error.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from transformers import Qwen3Config

from specviz.errors import FetchError

_SIZES = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "vocab_size",
)
_BACKBONE = (
    *_SIZES,
    "head_dim",
    "rms_norm_eps",
    "attention_bias",
    "hidden_act",
    "max_position_embeddings",
    "layer_types",
    "sliding_window",
    "use_sliding_window",
    "max_window_layers",
    "rope_theta",
    "rope_scaling",
    "rope_parameters",
)
_ROPE_KINDS = ("default", "linear", "llama3", "yarn")
"""Rotary settings whose angles depend on the position alone."""
_MARKOV = ("vanilla", "gated", "rnn")


@dataclass(frozen=True)
class PublishedConfig:
    """A published block drafter, as its config describes it."""

    kind: Literal["parallel", "hybrid"]
    packaging: Literal["DFlash", "DeepSpec", "speculators"]
    backbone: Qwen3Config
    """Sizes, norms and rotary settings of the draft layers (Qwen3 layers in all packagings)."""
    block: int
    """Slots of its training blocks, the anchor's included."""
    first_slot: int
    """The slot that predicts the token after the anchor: 1 in DFlash (slot 0 is an input only), 0 in DSpark."""
    taps: tuple[int, ...]
    """Target layers, from 0, whose outputs it reads."""
    mask_token: int
    draft_vocab: int
    """Tokens it can propose; the target's whole vocabulary unless the file contains a table."""
    causal: tuple[bool, ...]
    """Per draft layer: whether a slot attends only to slots before it"""
    windows: tuple[int | None, ...]
    """Per draft layer: the sliding window, None for full attention."""
    target_layers: int | None = None
    embedding_scale: float = 1.0
    logit_scale: float = 1.0
    softcap: float | None = None
    markov_rank: int = 0
    markov_kind: str = "vanilla"
    confidence: bool = False
    confidence_with_markov: bool = False

    @property
    def max_k(self) -> int:
        """Drafts per block."""
        return self.block - self.first_slot

    @property
    def kv_heads(self) -> int:
        """Key-value heads of a draft layer."""
        return self.backbone.num_key_value_heads or self.backbone.num_attention_heads


def is_published(about: dict) -> bool:
    """Whether a config.json could be that of a published block drafter at all."""
    names = " ".join(map(str, about.get("architectures") or ())).lower()
    return "speculators_model_type" in about or "dflash_config" in about or "dflash" in names or "dspark" in names


def read(folder: Path) -> PublishedConfig:
    """The config of a folder. Raises FetchError with a sentence for anything unknown or ambiguous."""
    folder = Path(folder)
    try:
        about = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FetchError(f"{folder} holds no config.json: it is no drafter's folder.") from None
    except (OSError, ValueError, RecursionError) as error:
        raise FetchError(f"{folder / 'config.json'} cannot be read ({str(error)[:100]}): download it again.") from None
    if not isinstance(about, dict) or not is_published(about):
        raise FetchError(
            f"{folder} holds no drafter that is known here: its config.json names neither SpecViz, DFlash nor DSpark."
        )
    try:
        return _Reader(about).config()
    except _Unclear as error:
        raise FetchError(f"The drafter in {folder} cannot be used: {error}.") from None


class _Unclear(Exception):
    """Why a config is refused, without the folder's name."""


class _Reader:
    """Parser of one config.json."""

    def __init__(self, about: dict):
        nested = about.get("dflash_config") or {}
        self.packaging: Literal["DFlash", "DeepSpec", "speculators"] = (
            "speculators" if "speculators_model_type" in about else "DFlash"
        )
        names = [str(n) for n in about.get("architectures") or ()]
        if self.packaging == "speculators":
            self.algorithm = str(about["speculators_model_type"])
            if self.algorithm not in ("dflash", "dspark"):
                raise _Unclear(f"it is a speculators model of the kind {self.algorithm!r}; dflash and dspark are known")
            layers = about.get("transformer_layer_config")
            if not isinstance(layers, dict):
                raise _Unclear("its config.json lacks the field transformer_layer_config")
            self.layers = layers
        else:
            self.layers = about
            if any("2" in n and "dflash" in n.lower() for n in names) or "selector_rank" in {**about, **nested}:
                raise _Unclear("it is a DFlash 2 drafter, whose convolutions and candidate selector are not known here")
            if names == ["Qwen3DSparkModel"]:
                self.packaging, self.algorithm = "DeepSpec", "dspark"
            elif names in (["DFlashDraftModel"], []):
                self.algorithm = "dflash"
            else:
                raise _Unclear(
                    f"its architecture {', '.join(names)[:80]} is not known; known are DFlashDraftModel, "
                    "Qwen3DSparkModel and what speculators writes for dflash and dspark"
                )
        if not isinstance(nested, dict):
            raise _Unclear("its dflash_config is no object")
        self.about, self.nested = about, nested

    def get(self, name: str, default=None):
        """A field of the drafter itself; `dflash_config` has precedence over the top level."""
        return self.nested.get(name, self.about.get(name, default))

    def whole(self, name: str, low: int, high: int = 10**7, source: dict | None = None) -> int:
        found = self.get(name) if source is None else source.get(name)
        if found is None:
            raise _Unclear(f"its config.json lacks the field {name}")
        if isinstance(found, bool) or not isinstance(found, int) or not low <= found <= high:
            raise _Unclear(f"its {name} is {str(found)[:40]}, but must be a whole number from {low} to {high}")
        return found

    def number(self, name: str, default: float) -> float:
        found = self.get(name, default)
        if isinstance(found, bool) or not isinstance(found, int | float):
            raise _Unclear(f"its {name} is {str(found)[:40]}, but must be a number")
        return float(found)

    def config(self) -> PublishedConfig:
        backbone = self._backbone()
        markov = self.whole("markov_rank", 0) if self.get("markov_rank") is not None else 0
        if self.algorithm == "dflash" and markov:
            raise _Unclear(
                "it is labelled DFlash but brings a DSpark head, and which slot predicts which token is not said"
            )
        if self.get("rope_is_neox_style") is False:
            raise _Unclear("its rotary positions are interleaved, which is not known here")
        hybrid = self.algorithm == "dspark"
        if hybrid and not markov:
            raise _Unclear("it is labelled DSpark but its markov_rank is 0")
        kind = self.get("markov_head_type", "vanilla") if markov else "vanilla"
        if kind not in _MARKOV:
            raise _Unclear(f"its markov_head_type is {str(kind)[:40]}; known are {', '.join(_MARKOV)}")
        block = self.whole("block_size", 2, 1024)
        from_anchor = self.get("sample_from_anchor", hybrid)
        confident = bool(self.get("enable_confidence_head", self.packaging == "speculators")) and hybrid
        cap = self.get("final_logit_softcapping")
        target_layers = self.get("num_target_layers")
        return PublishedConfig(
            kind="hybrid" if hybrid else "parallel",
            packaging=self.packaging,
            backbone=backbone,
            block=block,
            first_slot=0 if from_anchor else 1,
            taps=self._taps(),
            mask_token=self.whole("mask_token_id", 0),
            draft_vocab=self._draft_vocab(backbone.vocab_size),
            causal=self._causal(backbone),
            windows=tuple(
                backbone.sliding_window if t == "sliding_attention" else None for t in backbone.layer_types or ()
            ),
            target_layers=target_layers if isinstance(target_layers, int) else None,
            embedding_scale=self.number("input_embedding_scale", 1.0),
            logit_scale=self.number("output_multiplier", 1.0),
            softcap=float(cap) if cap else None,
            markov_rank=markov,
            markov_kind=kind,
            confidence=confident,
            confidence_with_markov=confident and bool(self.get("confidence_head_with_markov", True)),
        )

    def _backbone(self) -> Qwen3Config:
        kind = self.layers.get("model_type", "qwen3")
        if self.packaging == "speculators" and kind != "qwen3":
            raise _Unclear(f"its layers are of the kind {str(kind)[:40]}; only qwen3 is known")
        rope = self.layers.get("rope_parameters") or self.layers.get("rope_scaling") or {}
        if not isinstance(rope, dict):
            raise _Unclear("its rotary settings are no object")
        # speculators leaves out what is transformers' own default; sizes are checked against the weights later
        for name in _SIZES:
            if self.packaging != "speculators" or name in self.layers:
                self.whole(name, 1, source=self.layers)
        if self.packaging != "speculators":
            for name, found in (
                ("rms_norm_eps", self.layers.get("rms_norm_eps")),
                ("rope_theta", rope.get("rope_theta", self.layers.get("rope_theta"))),
            ):
                if isinstance(found, bool) or not isinstance(found, int | float):
                    raise _Unclear(f"its config.json lacks the field {name}")
        rope_kind = rope.get("rope_type", rope.get("type", "default"))
        if rope_kind not in _ROPE_KINDS:
            raise _Unclear(
                f"its rotary positions are of the kind {str(rope_kind)[:40]}; known are {', '.join(_ROPE_KINDS)}"
            )
        try:
            found = Qwen3Config(**{name: self.layers[name] for name in _BACKBONE if name in self.layers})
        except Exception as error:  # whatever transformers' own validation says
            raise _Unclear(f"its sizes do not make a model ({' '.join(str(error).split())[:150]})") from None
        if found.num_attention_heads % (found.num_key_value_heads or found.num_attention_heads) or found.head_dim % 2:
            raise _Unclear(
                f"{found.num_attention_heads} heads of width {found.head_dim} do not divide among "
                f"{found.num_key_value_heads} key-value heads"
            )
        types = found.layer_types or []
        if len(types) != found.num_hidden_layers or set(types) - {"full_attention", "sliding_attention"}:
            raise _Unclear(f"its layer_types {str(found.layer_types)[:80]} are not known")
        return found

    def _taps(self) -> tuple[int, ...]:
        # speculators counts the embedding's output as 0, the others the first layer's
        name, shift = ("aux_hidden_state_layer_ids", 1) if self.packaging == "speculators" else ("target_layer_ids", 0)
        found = self.get(name)
        if found is None and self.packaging == "DFlash" and self.get("num_target_layers") is not None:
            return _spread(self.whole("num_target_layers", 4), self.whole("num_hidden_layers", 1, source=self.layers))
        if found is None:
            raise _Unclear(f"its config.json lacks the field {name}")
        if (
            not isinstance(found, list)
            or not found
            or not all(isinstance(i, int) and not isinstance(i, bool) for i in found)
        ):
            raise _Unclear(f"its {name} is {str(found)[:40]}, but must be a list of whole numbers")
        if min(found) - shift < 0:
            raise _Unclear(
                f"its {name} {found} names the target's embedding or a negative layer; only layers' outputs "
                "can be read here"
            )
        return tuple(i - shift for i in found)

    def _draft_vocab(self, vocab: int) -> int:
        if self.packaging != "speculators":
            return vocab
        return self.whole("draft_vocab_size", 1, vocab)

    def _causal(self, backbone: Qwen3Config) -> tuple[bool, ...]:
        sliding = [t == "sliding_attention" for t in backbone.layer_types or ()]
        if self.packaging == "speculators":
            return tuple(s and not self.get("sliding_window_non_causal", False) for s in sliding)
        if self.packaging == "DeepSpec":
            return (False,) * len(sliding)
        said = self.get("is_causal")
        return tuple(sliding) if said is None else (bool(said),) * len(sliding)


def _spread(target_layers: int, draft_layers: int) -> tuple[int, ...]:
    """DFlash's default target layers, where its config lists none: evenly from the second to the third from last."""
    if draft_layers == 1:
        return (target_layers // 2,)
    first, last = 1, target_layers - 3
    return tuple(round(first + i * (last - first) / (draft_layers - 1)) for i in range(draft_layers))
