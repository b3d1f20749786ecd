"""Derived from a model's config: the config of its first layers, and the largest number of positions of a text."""

from __future__ import annotations

from typing import Any

_NOT_PER_LAYER = ("token_id", "architectures", "auto_map", "quantization", "label", "dtype")
"""Parts of names of lists that are never one entry per layer, however long they are."""


def first_layers_config(raw: dict[str, Any], layers: int) -> dict[str, Any]:
    """A config of `layers` layers from the dict of a whole one: every per-layer list is cut, whatever its name.

    A list with as many entries as there are layers has one per layer; a list of layer numbers keeps those below
    `layers`. Configs inside it (text_config) are cut likewise.
    """
    count_key = next((k for k in ("num_hidden_layers", "n_layer", "num_layers") if isinstance(raw.get(k), int)), None)
    if count_key is None:
        return {k: first_layers_config(v, layers) if k == "text_config" else v for k, v in raw.items()}
    cut = {name: _cut(name, value, raw[count_key], layers) for name, value in raw.items()}
    if isinstance(types := raw.get("attention_types"), list):  # GPT-Neo: [[kinds, repeats], ...]
        kinds = [kind for group, repeats in types for kind in group * repeats]
        cut["attention_types"] = [[kinds[:layers], 1]]
    if isinstance(raw.get("max_window_layers"), int):
        cut["max_window_layers"] = min(raw["max_window_layers"], layers)
    return cut | {count_key: layers}


def _cut(name: str, value: Any, total: int, layers: int) -> Any:
    if name == "text_config" and isinstance(value, dict):
        return first_layers_config(value, layers)
    if not isinstance(value, list | tuple) or any(part in name for part in _NOT_PER_LAYER):
        return value
    if len(value) == total:
        return value[:layers]
    if "layer" in name and all(isinstance(n, int) and not isinstance(n, bool) for n in value):
        return [n for n in value if n < layers]
    return value


def position_limit(config: Any) -> tuple[int | None, str]:
    """How many tokens a text may have (None: not known), and why, where its rotary positions set that limit.

    config: of a transformers model, or LlamaConfig. Some rotary embeddings (longrope, dynamic NTK) take other
    frequencies for *all* positions of a pass once the longest exceeds a limit. What a token means then depends on how
    the text was cut into passes, so a verify pass would not compute what single steps do. Up to that limit they are
    plain.
    """
    most = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None)
    limits = {kind: limit for rope in _ropes(config) for kind, limit in _switch(rope, most).items()}
    if not limits:
        return most, ""
    limit = min(limits.values())
    return limit, (
        f"Beyond {limit} tokens this model ({' and '.join(sorted(limits))} rotary positions) changes the meaning of "
        "all positions, and speculative and plain decoding would differ."
    )


def _ropes(config: Any) -> list[dict]:
    """The rotary parameters of a config: one dict, or one for each type of layer."""
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None)
    if not isinstance(rope, dict):
        return []
    return [rope] if "rope_type" in rope or "type" in rope else [r for r in rope.values() if isinstance(r, dict)]


def _switch(rope: dict, most: int | None) -> dict[str, int]:
    """The kind of these rotary parameters and up to how many tokens they stay the same; empty: always."""
    kind = str(rope.get("rope_type", rope.get("type")))
    limit = None
    if "dynamic" in kind:
        limit = most
    elif kind in ("longrope", "su") and rope.get("short_factor") != rope.get("long_factor"):
        limit = rope.get("original_max_position_embeddings")
    return {} if limit is None else {kind: limit}
