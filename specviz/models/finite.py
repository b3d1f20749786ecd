"""Numbers that are none: logits that are NaN or infinite, the layer where they began, and weights that are so already.

A position is at fault if one of its logits is NaN or +inf, or if all are -inf: then there is no distribution to draw
from. Single logits of -inf are masked tokens, which is nothing wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import torch

from specviz.errors import FetchError, NotFiniteError, SpecVizError
from specviz.sampling.distributions import OneHot, Rows, chosen, together

if TYPE_CHECKING:
    from specviz.models.causal import CausalModel

_PIECE = 64
"""Tokens that the diagnostic pass forwards at once."""
_ADVICE = {
    "fp16": "fp16 holds no number above 65,504: choose bf16 or fp32.",
    "bf16": "Choose fp32; if that does not help, the weights are damaged: fetch them again.",
    "int4": "Choose bf16 or fp32; if that does not help, the weights are damaged: fetch them again.",
    "fp32": "The weights are damaged or too large for any precision: fetch them again, or choose another model.",
}


def largest_logits(logits: torch.Tensor, p: Rows) -> torch.Tensor:
    """The largest logit [M] of each position of logits [M, V]: not finite exactly where a position is at fault.
    p: their distributions; at temperature 0 these say where it is. Never waits for the device."""
    if isinstance(p, OneHot):
        return logits.gather(1, p.tokens[:, None])[:, 0]
    return logits.amax(-1)


def drafted_logits(logits: Sequence[Rows], probs: Sequence[Rows], tokens: Sequence[torch.Tensor]) -> torch.Tensor:
    """What tells of each draft [N] whether its drafter's logits were at fault: not finite if so. Of each row logits and
    probs [K_r, V], and the tokens [K_r] drawn from them. Never waits for the device.

    A drawn token's probability is NaN where any logit is at fault; the likeliest token's logit is not finite then.
    """
    if tokens[0].device.type != "cpu":  # one launch for all rows
        logits, probs, tokens = [together(logits)], [together(probs)], [torch.cat(list(tokens))]
    found = [
        z if isinstance(q, OneHot) else z * chosen(q, t)
        for z, q, t in ((chosen(z, t), q, t) for z, q, t in zip(logits, probs, tokens))
    ]
    return torch.cat(found)


def first_faulty_layer(model: CausalModel, tokens: Sequence[int]) -> int | None:
    """The first layer, from 0, whose output is not finite somewhere in a text; None if all are. For diagnosis: a forward
    pass of its own. Raises SpecVizError if there is no memory for it."""
    cache = model.new_cache()
    cache.add(0, len(tokens))
    first = None
    for at in range(0, len(tokens), _PIECE):
        piece = list(tokens[at : at + _PIECE])
        taps = model.forward(cache, [0], [piece], tuple(range(model.layers)), logits=False).taps[0]
        finite = taps.view(len(piece), model.layers, -1).isfinite().all(-1).all(0).tolist()
        if not all(finite):
            first = min(finite.index(False), model.layers if first is None else first)
    return first


def target_fault(model: CausalModel, tokens: Sequence[int], row: int) -> NotFiniteError:
    """What to raise where the target's logits after these tokens of a row are at fault."""
    return _fault(f"The target {model.name} in {model.precision}", f"after token {len(tokens)} of text {row + 1}", model, tokens)


def drafter_fault(name: str, model: CausalModel | None, precision: str, tokens: Sequence[int], row: int) -> NotFiniteError:
    """What to raise where a drafter's logits are at fault. model: its own, where it is a causal language model."""
    precision = model.precision if model else precision
    whose = f"The drafter {name}" + (f" ({model.name})" if model else "") + f" in {precision}"
    return _fault(whose, f"after token {len(tokens)} of text {row + 1}", model, tokens, precision)


def _fault(whose: str, where: str, model: CausalModel | None, tokens: Sequence[int], precision: str = "") -> NotFiniteError:
    try:
        layer = first_faulty_layer(model, tokens) if model else None
        at = f"the output of layer {layer + 1} of {model.layers} is the first that is not" if layer is not None else ""
        if model and layer is None:
            at = f"the outputs of its {model.layers} layers are, so it is the head"
    except (SpecVizError, RuntimeError):  # no memory for the diagnosis: the fault is told all the same
        at = ""
    return NotFiniteError(
        f"{whose} gave logits that are not finite numbers (NaN or infinite) {where}{'; ' if at else ''}{at}. "
        + _ADVICE[precision or model.precision]
    )


def check_weights(
    tensors: Iterable[tuple[str, torch.Tensor]],
    whose: str,
    stored: Callable[[str], torch.Tensor | None] = lambda name: None,
    precision: str = "fp32",
) -> None:
    """Refuse weights that are NaN or infinite; waits for the device once. stored: a tensor as its file has it, to tell
    a damaged file from weights that do not fit the precision. Raises FetchError with the tensor's name."""
    named = [(name, t) for name, t in tensors if t.is_floating_point() and t.numel() and t.device.type != "meta"]
    if not named:
        return
    # NaN and infinity are seen in the least and the largest: a pass over the weights, and nothing to keep
    ends = torch.stack([end.float() for _, t in named for end in torch.aminmax(t)])
    for (name, _), finite in zip(named, ends.view(-1, 2).isfinite().all(1).tolist()):
        if not finite:
            before = stored(name)
            if before is not None and bool(before.isfinite().all()):
                raise FetchError(
                    f"The weights of {whose} do not fit {precision}: {name} has numbers beyond its range. "
                    "Choose bf16 or fp32."
                )
            raise FetchError(
                f"The weights of {whose} are damaged: {name} has numbers that are NaN or infinite. "
                "Download or copy them again."
            )
