"""The interface of a causal language model's torch module, as transformers names it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn


class CausalModule(nn.Module):
    """Base class of Llama, and the static type of transformers' own modules, which have the same members."""

    config: Any
    """LlamaConfig, or a config of transformers"""

    @property
    def base_model(self) -> nn.Module:
        """The decoder without its head."""
        raise NotImplementedError

    def get_input_embeddings(self) -> nn.Embedding:
        """The embedding, weight [V, D]."""
        raise NotImplementedError

    def get_output_embeddings(self) -> nn.Linear:
        """The head, weight [V, D]."""
        raise NotImplementedError

    def tie_weights(self) -> None:
        """Share the embedding's weight with the head, if the config says so."""
        raise NotImplementedError

    def save_pretrained(self, folder: Path) -> None:
        """transformers' modules only: write config and weights."""
        raise NotImplementedError

    def set_attn_implementation(self, name: str) -> None:
        """transformers' modules only: choose a registered attention function."""
        raise NotImplementedError
