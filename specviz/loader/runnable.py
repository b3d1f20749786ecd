"""Checks from config.json alone whether SpecViz can run a model."""

from __future__ import annotations

from specviz.errors import FetchError
from specviz.hardware.config_shapes import KNOWN

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


def check_before_download(config: dict, name: str) -> None:
    """As `check_runs`, and also refuses architectures whose passes SpecViz cannot count. Raises FetchError."""
    check_runs(config, name)
    text = config["text_config"] if isinstance(config.get("text_config"), dict) else config
    if (kind := str(text.get("model_type"))) not in KNOWN:
        raise FetchError(f"{name} is a {kind[:60]} model, which SpecViz cannot run. Known are: {', '.join(KNOWN)}.")
