"""Which tokens end a text: those of config, generation config, tokenizer and chat template together."""

from __future__ import annotations

import dataclasses

import torch

_PROBE = "specviz"


def unite(module: torch.nn.Module, tokenizer) -> None:
    """Let the module's config name every token that ends a text, wherever its folder says so."""
    config = module.config.get_text_config()
    found = set(tokenizer_ends(tokenizer))
    for holder in (getattr(module, "generation_config", None), module.config, config):
        value = getattr(holder, "eos_token_id", None)
        found.update([value] if isinstance(value, int) else value or [])
    value = next(iter(found)) if len(found) == 1 else sorted(found) or None
    if dataclasses.is_dataclass(config):
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
    except Exception:  # templates are programs: one that does not take these turns says nothing of its ends
        return ends
    special = {token.content: i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
    return ends | {special[text] for text in sorted(special, key=len)[::-1] if after.startswith(text)}
