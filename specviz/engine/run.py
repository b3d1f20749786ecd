"""From what a person asked for to a Trace: loads the pair, decodes in a worker thread, keeps every round.

A Run is what the app, the command line and the tests all use. Models are shared between runs and cached by
(source, device, precision) within a budget of bytes; caches of K and V belong to one run.
"""

from __future__ import annotations

import datetime
import logging
import threading
import uuid
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Self

import torch

from specviz.drafters import from_folder, plugin
from specviz.drafters.autoregressive import AutoregressiveDrafter, first_layers
from specviz.drafters.base import Drafter
from specviz.drafters.lookup_first import LookupFirst
from specviz.drafters.names import LOOKUP_FIRST, check_drafter, plugin_parts
from specviz.drafters.ngram import NgramDrafter
from specviz.engine import prompts as prompting
from specviz.engine.loop import Measurements, check_prompts, decode
from specviz.engine.request import Order
from specviz.errors import MemoryBudgetError, SettingsError, SpecVizError
from specviz.format import gigabytes
from specviz.hardware import ceilings, machine
from specviz.hardware.memory import free_memory_bytes
from specviz.loader import generation_config, load_model
from specviz.loader.pairs import Pair, Source, find_pair
from specviz.loader.precision import resolve_precision
from specviz.models.causal import CausalModel
from specviz.models.graphs import Recordings
from specviz.models.precision import sentence as precision_note
from specviz.trace.records import MAX_ROWS, Baseline, Machine, Prompt, Round, Settings, Trace
from specviz.trace.token_text import piece_table
from specviz.worker import Job, Watched

_LOG = logging.getLogger(__name__)
BASELINE_EVERY = 3
"""Rounds between two plain steps of the baseline."""
FIRST_LAYERS = 6
"""How many of the target's layers the stand-in drafter keeps (at most half of them)."""


@dataclass(frozen=True)
class Opened:
    """A model that is ready, with its tokenizer."""

    model: CausalModel
    tokenizer: object
    device: str
    precision: str
    note: str = ""
    """What its generation_config asks for and a run does not do by itself, in a sentence."""


class ModelStore:
    """Models in memory, least recently used first; the oldest leave when the budget is exceeded."""

    def __init__(self, budget_share: float = 0.5):
        self._models: OrderedDict[tuple, Opened] = OrderedDict()
        self._lock = threading.Lock()
        self._loading: dict[tuple, threading.Lock] = {}
        self._trained: dict[tuple, tuple[CausalModel, int, Callable[[Settings], Drafter]]] = {}
        self._share = budget_share

    def open(
        self,
        source: Source,
        device: str,
        precision: str,
        job: Job | None = None,
    ) -> Opened:
        """The model of a source, fetched and loaded if need be. Raises SpecVizError with a sentence."""
        device = machine.resolve_device(device)
        precision = resolve_precision(precision, device, source)

        def make() -> Opened:
            loaded = load_model.load_source(source, device, precision, job)
            model = CausalModel(loaded.module, int4=precision == "int4")
            note = generation_config.note(loaded.folder)
            return Opened(model, loaded.tokenizer, device, precision, note)

        return self._get((source, device, precision), make, job)

    def first_layers(self, opened: Opened, source: Source, layers: int) -> CausalModel:
        """The model of a target's first layers; its tensors are the target's own."""
        key = (source, opened.device, opened.precision, "first", layers)
        return self._get(key, lambda: replace(opened, model=opened.model.first(layers))).model

    def trained_drafter(self, opened: Opened, source: Source, kind: str) -> Callable[[Settings], Drafter]:
        """Makes drafters over the shipped weights of a kind, or those in a folder of that name; they are loaded once
        for each target in memory, and anew when the folder's files have changed."""
        key, stamp = (source, opened.device, opened.precision, kind), from_folder.stamp(kind)
        with self._lock:
            kept = self._trained.get(key)
            # the target has been loaded anew since, or the files were written anew
            if kept is None or kept[0] is not opened.model or kept[1] != stamp:
                kept = self._trained[key] = (opened.model, stamp, from_folder.opener(kind, opened.model))
        return kept[2]

    def _get(self, key: tuple, make: Callable[[], Opened], job: Job | None = None) -> Opened:
        """The model of a key, made once however many ask for it at the same time."""
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
        """Drop the least recently used models of a device until the rest fits the budget; the newest stays."""
        mine = [k for k, v in self._models.items() if v.device == device]
        held = {k: sum(p.nbytes for p in self._models[k].model.module.parameters()) for k in mine}
        budget = self._share * (free_memory_bytes(device) + sum(held.values()))
        for key in mine[:-1]:
            if sum(held.values()) <= budget:
                break
            del self._models[key], held[key]
            self._trained = {k: v for k, v in self._trained.items() if k[:3] != key[:3]}


STORE = ModelStore()


def make_drafter(
    name: str,
    pair: Pair,
    target: Opened,
    settings: Settings,
    store: ModelStore = STORE,
    job: Job | None = None,
) -> Drafter:
    """A fresh drafter for one run over shared weights, warped as `settings` say. Raises PairError for a name that the
    pair does not have, FetchError for a folder that holds no drafter, PluginError for faults of a plug-in."""
    check_drafter(pair, name)
    model = target.model
    if plugin_parts(name):
        return plugin.load(name)(model, settings)
    if name == "ngram":
        return NgramDrafter(model.vocab_size, model.device)
    if name == LOOKUP_FIRST:
        behind = store.trained_drafter(target, pair.target, "parallel")(settings)
        return LookupFirst(behind, model.vocab_size, model.device)
    if name == "first-layers":
        layers = max(1, min(FIRST_LAYERS, model.layers // 2))
        return first_layers(model, store.first_layers(target, pair.target, layers), settings)
    if name == "autoregressive" and pair.draft is not None:
        draft = store.open(pair.draft, target.device, target.precision, job)
        return AutoregressiveDrafter(
            draft.model,
            model.vocab_size,
            settings,
            label=f"autoregressive: {pair.draft.name} drafts one token at a time",
        )
    return store.trained_drafter(target, pair.target, name)(settings)


def _context_note(drafter: Drafter, tokens: int) -> str:
    """A note where a text of that many tokens is longer than the drafter can read."""
    most = getattr(drafter, "max_positions", None)
    if most is None or tokens <= most:
        return ""
    return f"The drafter reads at most {most:,} tokens: beyond them nothing is drafted, and decoding is plain."


class Run(Watched):
    """One run, from loading to the last round. Has a Trace's attributes while it goes, and the Trace at its end.

    status: loading | running | complete | stopped | failed. `error` is one sentence, set when it failed; the
    rounds up to then are kept.
    """

    def __init__(self, order: Order, store: ModelStore = STORE):
        if not isinstance(order.rows, int) or not 1 <= order.rows <= MAX_ROWS:
            raise SettingsError(f"The batch must be from 1 to {MAX_ROWS} rows, not {order.rows!r}.")
        super().__init__()
        if not order.text.strip() and not (order.raw and order.text):
            raise SettingsError("The prompt is empty: type something, or choose a preset.")
        self.order, self.store = order, store
        self.pair = find_pair(order.pair)
        check_drafter(self.pair, order.drafter)
        self.id = uuid.uuid4().hex[:12]
        self.status = "loading"
        self.error: str | None = None
        self.note = ""
        self.settings = order.settings
        self.rounds: list[Round] = []
        self.pieces: dict[int, str] = {}
        self.prompts: tuple[Prompt, ...] = ()
        self.machine: Machine | None = None
        self.draft_parallel = False
        self.drafter_label = ""
        self.started_at = datetime.datetime.now(datetime.UTC)
        self.trace: Trace | None = None
        self._measured = Measurements()
        self._emitted: list[list[int]] = []
        self._tokenizer = None
        self._graphs: list[tuple[str, Recordings | None]] = []
        self._vocab_size = 0

    # ---- watching

    @property
    def baseline(self) -> Baseline:
        return self._measured.baseline

    @property
    def alive(self) -> bool:
        return self.status in ("loading", "running")

    # ---- working

    def execute(self) -> Self:
        """Do all of it, here and now. Never raises: what goes wrong is in `status` and `error`."""
        try:
            self._work()
        except SpecVizError as error:
            self._fail("stopped" if self._halt.is_set() else "failed", str(error))
        except Exception as error:
            # torch reports a CPU's memory that ran out as a plain RuntimeError
            if isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error):
                self._fail(
                    "failed",
                    f"The memory of {self.order.device} did not suffice: choose a smaller pair, "
                    "batch, prompt or length, or close other programs.",
                )
            else:  # a defect: the person gets a sentence, the log gets the rest
                _LOG.exception("run %s failed", self.id)
                self._fail(
                    "failed",
                    f"Something unexpected went wrong ({type(error).__name__}): the rounds so far "
                    "are kept. The log says more.",
                )
        return self

    def _fail(self, status: str, error: str) -> None:
        self.error = None if status == "stopped" else error
        if self.rounds:
            self._finish("stopped")
        self.status = status

    def _work(self) -> None:
        order, settings = self.order, self.settings
        if order.drafter == "autoregressive" and self.pair.draft is not None:
            load_model.check(self.pair, self)  # before anything large is fetched
        target = self._open(self.pair.target)
        self._tokenizer = target.tokenizer
        drafter = make_drafter(order.drafter, self.pair, target, settings, self.store, self)
        self.draft_parallel, self.drafter_label = drafter.parallel, drafter.label
        self._graphs = [("Target", target.model.graphs), ("Drafter", getattr(drafter, "graphs", None))]
        room = target.model.prompt_room(settings.max_new_tokens)
        encoded = prompting.encode(
            target.tokenizer, order.text, order.system, order.raw, room, target.model.position_note
        )
        said = (
            *self.pair.notes,
            precision_note(self.pair.name, target.precision, target.device),
            target.note,
            encoded.note,
            _context_note(drafter, len(encoded.ids) + settings.max_new_tokens),
        )
        self.note = " ".join(filter(None, said))
        self.prompts = tuple(
            Prompt(order.text, order.system, encoded.raw, settings.seed + row, tuple(encoded.ids))
            for row in range(order.rows)
        )
        ids = [prompt.token_ids for prompt in self.prompts]
        check_prompts(target.model, ids, settings)
        self._check_room(target, len(encoded.ids))
        roofs = ceilings.cached(target.device, target.precision)
        if roofs is None:
            part = self.part(0.0, 1.0, "Measuring this machine's ceilings, once")
            roofs = ceilings.measure(target.device, target.precision, quick=True, job=part)
        self.machine = machine.describe(target.device, target.precision, roofs)
        self._emitted = [[] for _ in self.prompts]
        self._vocab_size = target.model.vocab_size
        self._add_pieces({ids[0][-1]})
        self.check()
        self.report("Reading the prompt", 0.0)
        self.status = "running"
        end, most = "complete", len(ids) * settings.max_new_tokens
        steps = decode(
            target.model,
            drafter,
            ids,
            settings,
            seeds=[p.seed for p in self.prompts],
            baseline_every=BASELINE_EVERY,
            measured=self._measured,
        )
        try:
            for round_ in steps:
                for verdict in round_.rows:
                    self._emitted[verdict.row] += verdict.emitted
                    self._add_pieces(t for x in verdict.positions for t in x.support)
                    self._add_pieces(x.first_guess for x in verdict.positions if x.first_guess is not None)
                self.rounds.append(round_)
                done = sum(map(len, self._emitted))
                self.report(f"Decoding: {done} of at most {most} tokens", done / most)
                if self.stopping():
                    end = "stopped"
                    break
        finally:
            steps.close()
        if all(v.finished for v in self.rounds[-1].rows):
            end = "complete"
        self._finish(end)
        self.status = end

    def _open(self, source: Source) -> Opened:
        return self.store.open(source, self.order.device, self.order.precision, self)

    def _check_room(self, target: Opened, prompt_tokens: int) -> None:
        """Refuse a run whose caches and logits would not fit, before anything is allocated."""
        settings, rows, shape = self.settings, self.order.rows, target.model.shape
        tokens = rows * (prompt_tokens + settings.max_new_tokens + settings.k + 1)
        caches = 2 * shape.layers * shape.kv_heads * shape.head_dim * tokens * shape.cache_bytes
        logits = rows * (settings.k + 1) * target.model.vocab_size * 8 * 4  # p and q in float64, and scratch
        free = free_memory_bytes(target.device)
        if (wanted := 2 * caches + logits) > free:
            raise MemoryBudgetError(
                f"This run needs about {gigabytes(wanted)} for its caches and logits, and {gigabytes(free)} are free "
                f"on {target.device}: lower the batch, K, the prompt or the length."
            )

    def _add_pieces(self, tokens) -> None:
        missing = {t for t in tokens if t not in self.pieces}
        if missing:
            # a new dictionary: a reader may be walking through the old one
            self.pieces = self.pieces | piece_table(self._tokenizer, missing)

    def text(self, row: int = 0) -> str:
        """The emitted text of a row so far."""
        return self._tokenizer.decode(self._emitted[row], skip_special_tokens=True) if self._tokenizer else ""

    def _finish(self, end: str) -> None:
        launched = (f"{whose}: {graphs.note}" for whose, graphs in self._graphs if graphs is not None)
        self.note = " ".join(filter(None, (self.note, *launched)))
        for verdict in (v for r in self.rounds for v in r.rows):
            self._add_pieces((verdict.anchor, *verdict.emitted))
        self.trace = Trace(
            pair=self.order.pair,
            target=self.pair.target.name,
            drafter=self.order.drafter,
            drafter_label=self.drafter_label,
            settings=self.settings,
            machine=self.machine,
            recorded_at=self.started_at.isoformat(timespec="seconds"),
            prompts=self.prompts,
            texts=tuple(self.text(row) for row in range(len(self.prompts))),
            pieces=self.pieces,
            rounds=tuple(self.rounds),
            prefill_seconds=self._measured.prefill_seconds,
            baseline=self.baseline,
            end=end,
            vocab_size=self._vocab_size,
            note=self.note,
            draft_parallel=self.draft_parallel,
        )
