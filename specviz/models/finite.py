"""Non-finite logits: detection in a round, the first faulty layer, and the error message.

A position is at fault if one of its logits is NaN or +inf, or if all are -inf: then there is no distribution to draw
from. Single logits of -inf are masked tokens and allowed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from specviz.errors import NotFiniteError, SpecVizError
from specviz.sampling.distributions import Distributions, OneHotRows, SparseRows, concat, dense

if TYPE_CHECKING:
    from specviz.models.causal import CausalModel

_PIECE = 64
"""Tokens that the diagnostic pass forwards at once."""
_ADVICE = {
    "fp16": "fp16 has no number above 65,504: choose bf16 or fp32.",
    "bf16": "Choose fp32; if that does not help, the weights are damaged: fetch them again.",
    "int4": "Choose bf16 or fp32; if that does not help, the weights are damaged: fetch them again.",
    "fp32": "The weights are damaged or too large for any precision: fetch them again, or choose another model.",
}


def largest_logits(logits: Distributions, p: Distributions) -> torch.Tensor:
    """The largest logit [M] of each position of logits [M, V]: not finite exactly where a position is at fault.
    p: their distributions; at temperature 0 their one-hot tokens locate it. Does not synchronize."""
    if isinstance(logits, SparseRows):
        return logits.values.amax(-1)
    if isinstance(p, OneHotRows) and isinstance(logits, torch.Tensor):
        return logits.gather(1, p.tokens[:, None])[:, 0]
    return dense(logits).amax(-1)


def drafted_logits(logits: Sequence[Distributions], probs: Sequence[Distributions]) -> torch.Tensor:
    """`largest_logits` [N] of several rows, logits and probs [K_r, V] of each."""
    if len(logits) > 1 and logits[0].device.type != "cpu":  # one launch for all rows
        logits, probs = [concat(logits)], [concat(probs)]
    return torch.cat([largest_logits(z, q) for z, q in zip(logits, probs)])


def first_faulty_layer(model: CausalModel, tokens: Sequence[int]) -> int | None:
    """The first layer, from 0, whose output is not finite somewhere in a text; None if all are.

    A forward pass of its own, for diagnosis. Raises SpecVizError if there is no memory for it.
    """
    cache = model.new_cache()
    cache.add(0, len(tokens))
    first = None
    for at in range(0, len(tokens), _PIECE):
        piece = list(tokens[at : at + _PIECE])
        out = model.forward(cache, [0], [piece], tuple(range(model.layers)), logits=False)
        if out.taps is None:
            continue
        taps = out.taps[0]
        finite = taps.view(len(piece), model.layers, -1).isfinite().all(-1).all(0).tolist()
        if not all(finite):
            first = min(finite.index(False), model.layers if first is None else first)
    return first


def target_fault(model: CausalModel, tokens: Sequence[int], row: int) -> NotFiniteError:
    """What to raise where the target's logits after these tokens of a row are at fault."""
    return _fault(f"The target {model.name}", model.precision, tokens, row, model)


def drafter_fault(
    name: str, model: CausalModel | None, precision: str, tokens: Sequence[int], row: int
) -> NotFiniteError:
    """What to raise where a drafter's logits are at fault. model: its own, if it is a causal language model; else its
    layers are not known, and the precision is the run's."""
    whose = f"The drafter {name} ({model.name})" if model else f"The drafter {name}"
    return _fault(whose, model.precision if model else precision, tokens, row, model)


def _fault(whose: str, precision: str, tokens: Sequence[int], row: int, model: CausalModel | None) -> NotFiniteError:
    where = ""
    with contextlib.suppress(SpecVizError, RuntimeError):  # without memory for the diagnosis the layer is not named
        if model:
            layer = first_faulty_layer(model, tokens)
            found = (
                "none has such an output" if layer is None else f"layer {layer + 1} is the first with such an output"
            )
            where = f"; of its {model.layers} layers, {found}"
    return NotFiniteError(
        f"{whose} in {precision} gave logits that are NaN or infinite after token {len(tokens)} of text {row + 1}"
        f"{where}. " + _ADVICE.get(precision, _ADVICE["bf16"])
    )
