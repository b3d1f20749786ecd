"""What a config says of a model's layers, of its positions, and of whether SpecViz can run it."""

from __future__ import annotations

from specviz.errors import FetchError

_LAYER_INDICES = ("mlp_only_layers", "full_attn_idxs", "attn_layer_indices")
"""Lists of layer numbers rather than of one entry per layer."""
_LATENT = "its attention keeps one latent vector for all heads (MLA) instead of K and V"
_LEARNED = "it has learned positions of a layout that SpecViz does not know"
_CANNOT_RUN = {
    "deepseek_v2": _LATENT,
    "deepseek_v3": _LATENT,
    "opt": _LEARNED,
    "biogpt": _LEARNED,
    "xglm": _LEARNED,
    "bloom": "its attention adds ALiBi biases",
    "mpt": "its attention adds ALiBi biases",
    "mamba": "it has no attention",
    "mamba2": "it has no attention",
    "rwkv": "it has no attention",
    "gpt_oss": "its attention uses sinks",
}


def first_layers_of(config: dict, layers: int) -> dict:
    """The config (as `to_dict` gives it, nested ones included) of a model's first layers: every list or tuple with one
    entry per layer is cut, lists of layer numbers lose those that are gone. `config` stays as it is."""
    whole = config.get("num_hidden_layers", config.get("n_layer"))
    cut: dict = {}
    for key, value in config.items():
        if isinstance(value, dict):
            value = first_layers_of(value, layers)
        elif key in _LAYER_INDICES and isinstance(value, list | tuple):
            value = [i for i in value if i < layers]
        elif isinstance(value, list | tuple) and whole is not None and len(value) == whole:
            value = value[:layers]
        cut[key] = value
    if "max_window_layers" in cut and isinstance(cut["max_window_layers"], int):
        cut["max_window_layers"] = min(cut["max_window_layers"], layers)
    return cut | {key: layers for key in ("num_hidden_layers", "n_layer") if key in config}


def longest_text(config: dict) -> int | None:
    """Positions of the longest text that a model can hold with the same rotary frequencies throughout; None if its
    config gives no limit. longrope changes its frequencies past `original_max_position_embeddings`, and dynamic NTK
    scaling past `max_position_embeddings`, by the longest position of a pass: K of a token would then depend on how the
    text was divided into passes and on the other rows, so no text goes past that border."""
    limits = [config.get("max_position_embeddings") or config.get("n_positions")]
    for rope in _ropes(config):
        if rope.get("rope_type", rope.get("type")) in ("longrope", "su"):
            limits += [rope.get("original_max_position_embeddings"), config.get("original_max_position_embeddings")]
    return min((limit for limit in limits if isinstance(limit, int)), default=None)


def check_runs(config: dict, name: str) -> None:
    """Raises FetchError if config.json alone tells that SpecViz cannot run the model `name`."""
    config = config["text_config"] if isinstance(config.get("text_config"), dict) else config
    kind = str(config.get("model_type"))
    why = _CANNOT_RUN.get(kind)
    if why is None and isinstance(config.get("kv_lora_rank"), int):
        why = _LATENT
    if why is None and config.get("attn_logit_softcapping"):
        why = "its attention uses soft-capping"
    if why is None and config.get("alibi"):
        why = "its attention adds ALiBi biases"
    if why is not None:
        raise FetchError(
            f"{name} is a {kind[:60]} model, which SpecViz cannot run: {why}. Choose another, such as a "
            "Llama, Mistral, Qwen or GPT-2 model."
        )


def _ropes(config: dict) -> list[dict]:
    """The rotary parameters of a config: one set, or one for each kind of layer."""
    found = [rope for rope in (config.get("rope_parameters"), config.get("rope_scaling")) if isinstance(rope, dict)]
    return found + [inner for rope in found for inner in rope.values() if isinstance(inner, dict)]
