"""What training needs of the target: embedding, head and final norm, frozen. Knows no drafter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch.nn import functional

StockModel: TypeAlias = Any
"""A Llama-like causal language model, of transformers or of models.llama: its attributes are known at run time only."""


@dataclass(frozen=True)
class TargetParts:
    """What training needs of the target: three frozen tensors and a config."""

    embedding: torch.Tensor
    """[V, D]"""
    head: torch.Tensor
    """[V, D]"""
    final_norm: torch.Tensor
    """[D]"""
    eps: float

    @classmethod
    def of(cls, module: StockModel) -> TargetParts:
        """Of a stock Llama-like causal LM module."""
        return cls(
            module.get_input_embeddings().weight.detach(),
            module.get_output_embeddings().weight.detach(),
            module.model.norm.weight.detach(),
            module.config.rms_norm_eps,
        )

    def states(self, last_layer: torch.Tensor) -> torch.Tensor:
        """Outputs of the last layer [..., D] -> what the head sees."""
        return functional.rms_norm(last_layer.float(), self.final_norm.shape, self.final_norm, self.eps)
