"""User-supplied drafters: FILE.py:CLASS, a class with the methods of `base.Drafter`, built as CLASS(target, settings).

Loading one runs the code of its file; only within `names.code_permitted`. All that it returns is checked before the
loop uses it, because a q other than the distribution that was drawn from, or a token that does not exist, would change
the output distribution without an error. Every fault is reported in one sentence with file, class and reason.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import NoReturn

import torch

from specviz.drafters.base import Drafter, Proposal, Request
from specviz.drafters.names import plugin_parts
from specviz.errors import PluginError, SpecVizError
from specviz.models.causal import CausalModel
from specviz.sampling.distributions import dense
from specviz.trace.records import MAX_K, Cost, Settings

SUM_TOLERANCE = 1e-6
"""How far from 1 the sum of a q may be, due to rounding."""
METHODS = ("start", "propose", "commit", "drop")
ATTRIBUTES = {"name": str, "label": str, "taps": tuple, "max_k": int, "parallel": bool}


def load(name: str) -> Callable[[CausalModel, Settings], CheckedDrafter]:
    """A function that builds drafters of FILE.py:CLASS; the file is read at every call. Raises PluginError.

    The caller must have checked that code may be loaded.
    """
    if (parts := plugin_parts(name)) is None:
        raise PluginError(f"{name[:200]} does not have the form FILE.py:CLASS.")
    file, class_name = parts
    where = f"{file}:{class_name}"
    if not class_name.isidentifier():
        raise PluginError(f"{where} names no class: write FILE.py:CLASS, such as my_drafter.py:Mine.")
    made = getattr(_module(file), class_name, None)
    if not isinstance(made, type):
        raise PluginError(f"{file} defines no class {class_name}.")
    if missing := [m for m in METHODS if not callable(getattr(made, m, None))]:
        raise PluginError(f"{where} lacks the method{'s' if len(missing) > 1 else ''} {', '.join(missing)}.")
    return lambda target, settings: CheckedDrafter(where, made, target, settings)


def _module(file: Path) -> ModuleType:
    """The file as a module with a unique name, so that another file of the same name does not replace it."""
    name = f"specviz_plugin_{abs(hash(str(file.resolve()))):x}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise PluginError(f"{file} cannot be imported: it is no Python file.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise PluginError(f"{file} cannot be imported: {_first_line(error)}.") from error
    except SystemExit:
        raise PluginError(f"{file} cannot be imported: it ends the program.") from None
    return module


def proposal(
    tokens: list[list[int]],
    draft_probs: list[torch.Tensor],
    draft_logits: list[torch.Tensor | None] | None = None,
    draft_tokens: int | None = None,
    cost: Cost | None = None,
) -> Proposal:
    """A Proposal for drafters that do not count their cost: one position forwarded per draft, no FLOPs and no bytes."""
    return Proposal(
        tokens,
        draft_probs,
        draft_logits or [None] * len(tokens),
        sum(map(len, tokens)) if draft_tokens is None else draft_tokens,
        cost or Cost(0, 0),
    )


class CheckedDrafter:
    """A user-supplied drafter with checks of all that it returns. Raises PluginError if it breaks the protocol."""

    name: str
    label: str
    taps: tuple[int, ...]
    max_k: int
    parallel: bool

    def __init__(self, where: str, made: type, target: CausalModel, settings: Settings):
        self.where, self._vocab, self._device = where, target.vocab_size, target.device
        self._inner: Drafter = self._call("being made as CLASS(target, settings)", made, target, settings)
        for name, kind in ATTRIBUTES.items():
            found = getattr(self._inner, name, None)
            if name == "taps" and isinstance(found, list):
                found = tuple(found)
            if not isinstance(found, kind) or (kind is int and isinstance(found, bool)):
                self._wrong(f"its attribute {name} is {found!r:.60}, but must be of the type {kind.__name__}")
            setattr(self, name, found)
        if self.max_k < 1:
            self._wrong(f"its max_k is {self.max_k}, but must be at least 1")
        if bad := [t for t in self.taps if isinstance(t, bool) or not isinstance(t, int) or not 0 <= t < target.layers]:
            self._wrong(f"it taps layer {bad[0]!r:.20}, but the target's layers go from 0 to {target.layers - 1}")
        self.max_k = min(self.max_k, MAX_K)

    def start(self, row: int, prompt: Sequence[int], taps: torch.Tensor | None, capacity: int) -> None:
        self._call("start", self._inner.start, row, list(prompt), taps, capacity)

    def commit(self, row: int, emitted: Sequence[int], taps: torch.Tensor | None) -> None:
        self._call("commit", self._inner.commit, row, list(emitted), taps)

    def drop(self, row: int) -> None:
        self._call("drop", self._inner.drop, row)

    def propose(self, requests: Sequence[Request]) -> Proposal:
        found = self._call("propose", self._inner.propose, list(requests))
        if not isinstance(found, Proposal):
            self._wrong(f"propose returned {type(found).__name__}, but must return a Proposal")
        return self._checked(found, requests)

    def _call(self, what: str, function: Callable, *arguments):
        try:
            with torch.inference_mode():
                return function(*arguments)
        except SpecVizError:
            raise
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            raise PluginError(f"{self.where} failed in {what}: {_first_line(error)}.") from error

    def _wrong(self, why: str) -> NoReturn:
        raise PluginError(f"{self.where} breaks the protocol: {why}.")

    def _checked(self, found: Proposal, requests: Sequence[Request]) -> Proposal:
        n = len(requests)
        for name in ("tokens", "draft_probs", "draft_logits", "confidence", "first_guess"):
            entries = getattr(found, name)
            if entries is None and name in ("confidence", "first_guess"):
                continue
            if not isinstance(entries, list | tuple) or len(entries) != n:
                size = f"{len(entries)} entries" if isinstance(entries, list | tuple) else type(entries).__name__
                self._wrong(f"{name} has {size} where {n} rows asked")
        if isinstance(found.draft_tokens, bool) or not isinstance(found.draft_tokens, int) or found.draft_tokens < 0:
            self._wrong(f"draft_tokens is {found.draft_tokens!r:.40}, but must be a whole number")
        if not isinstance(found.cost, Cost):
            self._wrong(f"cost is {type(found.cost).__name__}, but must be a trace.Cost; Cost(0, 0) if not counted")
        probs = [self._row(found, i, request) for i, request in enumerate(requests)]
        return Proposal(
            [list(map(int, t)) for t in found.tokens],
            probs,
            list(found.draft_logits),
            found.draft_tokens,
            found.cost,
            found.confidence and [list(map(float, c)) for c in found.confidence],
            found.first_guess and [list(map(int, g)) for g in found.first_guess],
        )

    def _row(self, found: Proposal, i: int, request: Request) -> torch.Tensor:
        """The checked q [K_r, V] of one row."""
        tokens, k = list(found.tokens[i]), request.k
        if len(tokens) > k:
            self._wrong(f"{len(tokens)} tokens were drafted for row {request.row}, which requested {k} at most")
        for token in tokens:
            if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < self._vocab:
                self._wrong(f"it drafted the token {token!r:.40}, but the target knows 0 to {self._vocab - 1}")
        shape = (len(tokens), self._vocab)
        try:
            q = dense(found.draft_probs[i])
            logits = None if (raw := found.draft_logits[i]) is None else dense(raw)
        except AttributeError:
            self._wrong("draft_probs and draft_logits must hold tensors")
        if tuple(q.shape) != shape or (logits is not None and tuple(logits.shape) != shape):
            bad, found_shape = (
                ("draft_probs", q.shape)
                if tuple(q.shape) != shape or logits is None
                else ("draft_logits", logits.shape)
            )
            self._wrong(
                f"{bad} of row {request.row} has the shape "
                f"{list(found_shape)}, but {len(tokens)} drafts over {self._vocab} tokens need {list(shape)}"
            )
        if q.dtype != torch.float64:
            self._wrong(
                f"draft_probs is {str(q.dtype).removeprefix('torch.')}, but must be float64: in less, q is not "
                "exactly what was drawn from"
            )
        if q.device != self._device:
            self._wrong(f"draft_probs lies on {q.device}, but the target is on {self._device}")
        if not bool(torch.isfinite(q).all()) or bool((q < 0).any()):
            self._wrong("a q has a negative probability or one that is no number")
        for slot, total in enumerate(q.sum(-1).tolist()):
            if abs(total - 1) > SUM_TOLERANCE:
                self._wrong(f"the q of slot {slot + 1} sums to {total:.6g}, but must sum to 1")
            if not float(q[slot, tokens[slot]]) > 0:
                self._wrong(f"slot {slot + 1} drafted the token {tokens[slot]}, to which its own q gives no chance")
        if logits is not None and bool((logits.isnan() | (logits == torch.inf)).any()):
            self._wrong("draft_logits has entries that are NaN or +inf")
        for slot, token in enumerate(tokens):
            if logits is not None and not bool(logits[slot, token].isfinite()):
                self._wrong(f"slot {slot + 1} drafted the token {token}, whose own logit is -inf")
        if found.confidence is not None and not all(0 <= float(c) <= 1 for c in found.confidence[i]):
            self._wrong("a confidence is no probability from 0 to 1")
        for name in ("confidence", "first_guess"):
            if (entries := getattr(found, name)) is not None and len(entries[i]) != len(tokens):
                self._wrong(f"{name} has {len(entries[i])} entries for {len(tokens)} drafts")
        return q


def _first_line(error: BaseException) -> str:
    """The kind and the first line of an error."""
    text = " ".join(str(error).split())[:200].rstrip(".")
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
