"""End-of-text tokens: the union of those in config, generation config, tokenizer and chat template."""

from __future__ import annotations

import dataclasses

from specviz.loader.causal_module import CausalModule
from specviz.loader.llama import LlamaConfig

_PROBE = "specviz"


def set_end_tokens(module: CausalModule, tokenizer) -> None:
    """Set eos_token_id of the module's config to all tokens that end a text, wherever its folder names them."""
    config = module.config.get_text_config()
    found = set(tokenizer_ends(tokenizer))
    for holder in (getattr(module, "generation_config", None), module.config, config):
        value = getattr(holder, "eos_token_id", None)
        found.update([value] if isinstance(value, int) else value or [])
    value = next(iter(found)) if len(found) == 1 else sorted(found) or None
    if isinstance(config, LlamaConfig):
        module.config = dataclasses.replace(config, eos_token_id=value)
    else:
        config.eos_token_id = value


def tokenizer_ends(tokenizer) -> set[int]:
    """The tokenizer's end token, and the special token that its chat template writes after an answer."""
    ends = {tokenizer.eos_token_id} - {None}
    if not getattr(tokenizer, "chat_template", None):
        return ends
    turns = [{"role": "user", "content": "-"}, {"role": "assistant", "content": _PROBE}]
    try:
        after = tokenizer.apply_chat_template(turns, tokenize=False).rpartition(_PROBE)[2].lstrip()
    except Exception:  # a template that does not take these turns gives no end token
        return ends
    special = {token.content: i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
    return ends | {special[text] for text in sorted(special, key=len)[::-1] if after.startswith(text)}
