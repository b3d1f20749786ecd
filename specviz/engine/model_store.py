"""Models in memory: loaded once, shared between runs, evicted least recently used first when over a budget of bytes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch

from specviz.drafters import from_folder
from specviz.drafters.base import Drafter
from specviz.hardware import machine
from specviz.hardware.memory import free_memory_bytes
from specviz.loader import generation_config, load_model
from specviz.loader.pairs import Source
from specviz.loader.precision import resolve_precision
from specviz.models.causal import CausalModel
from specviz.models.weight_storage import Fp16Linear
from specviz.trace.records import Settings
from specviz.worker import Job


@dataclass(frozen=True)
class LoadedModel:
    """A model in memory, with its tokenizer."""

    model: CausalModel
    tokenizer: Any
    device: str
    precision: str
    note: str = ""
    """A sentence on the settings of its generation_config that a run does not apply; otherwise empty."""


class ModelStore:
    """Models by (source, device, precision), and the trained drafters of those targets. Safe to use from threads."""

    def __init__(self, budget_share: float = 0.5):
        """budget_share: of a device's memory that is free or used by the store's models."""
        self._models: OrderedDict[tuple, LoadedModel] = OrderedDict()
        self._lock = threading.Lock()
        self._loading: dict[tuple, threading.Lock] = {}
        self._trained: dict[tuple, tuple[CausalModel, int, Callable[[Settings], Drafter]]] = {}
        self._share = budget_share

    def open(self, source: Source, device: str, precision: str, job: Job | None = None) -> LoadedModel:
        """The model of a source; fetches and loads it if it is not in memory. Raises SpecVizError."""
        device = machine.resolve_device(device)
        precision = resolve_precision(precision, device, source)

        def make() -> LoadedModel:
            loaded = load_model.load_source(source, device, precision, job)
            model = CausalModel(loaded.module, int4=precision == "int4")
            note = generation_config.note(loaded.folder)
            return LoadedModel(model, loaded.tokenizer, device, precision, note)

        return self._get((source, device, precision), make, job)

    def first_layers(self, opened: LoadedModel, source: Source, layers: int) -> CausalModel:
        """A model of the first `layers` layers of a target, which shares the target's tensors."""
        key = (source, opened.device, opened.precision, "first", layers)
        return self._get(key, lambda: replace(opened, model=opened.model.first(layers))).model

    def trained_drafter(self, opened: LoadedModel, source: Source, kind: str) -> Callable[[Settings], Drafter]:
        """A constructor of drafters with the shipped weights of a kind, or the weights in a folder of that name.

        The weights are loaded once per target in memory, and again when the folder's files have changed."""
        key, stamp = (source, opened.device, opened.precision, kind), from_folder.stamp(kind)
        with self._lock:
            cached = self._trained.get(key)
            # stale if the target was loaded again or the files have changed
            if cached is None or cached[0] is not opened.model or cached[1] != stamp:
                cached = self._trained[key] = (opened.model, stamp, from_folder.opener(kind, opened.model))
        return cached[2]

    def _get(self, key: tuple, make: Callable[[], LoadedModel], job: Job | None = None) -> LoadedModel:
        """The model of a key; concurrent calls load it once."""
        with self._lock:
            loading = self._loading.setdefault(key, threading.Lock())
        while not loading.acquire(timeout=0.2):
            if job is not None:
                job.check()
        try:
            with self._lock:
                if key in self._models:
                    self._models.move_to_end(key)
                    return self._models[key]
            opened = make()
            with self._lock:
                self._models[key] = opened
                self._evict(opened.device)
            return opened
        finally:
            loading.release()

    def _evict(self, device: str) -> None:
        """Drop the least recently used models of a device until the others fit the budget; the newest stays."""
        sizes = {k: storage_bytes(v.model) for k, v in self._models.items() if v.device == device}
        budget = self._share * (free_memory_bytes(device) + _total(sizes.values()))
        for key in list(sizes)[:-1]:
            if _total(sizes.values()) <= budget:
                break
            del self._models[key], sizes[key]
            self._trained = {k: v for k, v in self._trained.items() if k[:3] != key[:3]}


def storage_bytes(model: CausalModel) -> dict[int, int]:
    """Bytes by storage address of everything that a model keeps in memory: parameters, buffers and packed weights.

    A storage that several tensors or models share has one entry.
    """
    storages: dict[int, int] = {}

    def add(tensor: torch.Tensor) -> None:
        if tensor.is_mkldnn:  # oneDNN's layout has no storage in torch
            storages[id(tensor)] = tensor.numel() * tensor.element_size()
        else:
            storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()

    for tensor in (*model.module.parameters(), *model.module.buffers()):
        add(tensor)
    for product, (outputs, inputs) in model.products:
        tensors = [value for value in vars(product).values() if isinstance(value, torch.Tensor)]
        for tensor in tensors:
            add(tensor)
        if isinstance(product, Fp16Linear):  # packed by FBGEMM: not a tensor
            storages[id(product)] = round(product.weight_bytes * outputs * inputs)
    return storages


def _total(models: Iterable[dict[int, int]]) -> int:
    """Bytes of several models; shared storages count once."""
    return sum({address: size for storages in models for address, size in storages.items()}.values())


STORE = ModelStore()
"""The store of this process."""
