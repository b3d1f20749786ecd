"""A run: loads the pair, decodes a prompt in a thread, and keeps every round for the Trace.

The app, the command line and the tests all use Run. The models come from a ModelStore, shared between runs; the KV
caches belong to one run.
"""

from __future__ import annotations

import datetime
import logging
import uuid
from collections.abc import Iterable, Sequence
from typing import Any, Self

import torch

from specviz.drafters.base import Drafter
from specviz.drafters.names import check_drafter
from specviz.engine import prompts as prompting
from specviz.engine.drafter_factory import make_drafter
from specviz.engine.loop import Measurements, check_prompts, decode
from specviz.engine.model_store import STORE, LoadedModel, ModelStore
from specviz.engine.request import RunRequest
from specviz.errors import MemoryBudgetError, SettingsError, SpecVizError
from specviz.format import gigabytes
from specviz.hardware import ceilings, machine
from specviz.hardware.memory import free_memory_bytes
from specviz.loader import load_model
from specviz.loader.pairs import Source, find_pair
from specviz.models.graphs import Recordings
from specviz.models.precision import sentence as precision_note
from specviz.trace.records import MAX_ROWS, Baseline, Machine, Prompt, Round, RunEnd, Trace
from specviz.trace.token_text import piece_table
from specviz.worker import Watched

_LOG = logging.getLogger(__name__)
BASELINE_EVERY = 3
"""A plain step is measured after every third round."""


def _context_note(drafter: Drafter, tokens: int) -> str:
    """A sentence if a text of that many tokens exceeds the drafter's context; otherwise empty."""
    most = getattr(drafter, "max_positions", None)
    if most is None or tokens <= most:
        return ""
    return f"The drafter reads at most {most:,} tokens: beyond them nothing is drafted, and decoding is plain."


class Run(Watched):
    """One run, from loading to the last round. It has a Trace's attributes while it decodes, and a Trace at its end.

    status: loading | running | complete | stopped | failed. `error` is one sentence, set on failure; the rounds
    before the failure are kept.
    """

    def __init__(self, order: RunRequest, store: ModelStore = STORE):
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
        self._tokenizer: Any = None
        self._graphs: list[tuple[str, Recordings | None]] = []
        self._vocab_size = 0

    @property
    def baseline(self) -> Baseline:
        """The plain decode steps measured so far."""
        return self._measured.baseline

    @property
    def alive(self) -> bool:
        """Whether the run is loading or decoding."""
        return self.status in ("loading", "running")

    def execute(self) -> Self:
        """Run to the end in this thread. Never raises: failures are in `status` and `error`."""
        try:
            self._work()
        except SpecVizError as error:
            self._fail("stopped" if self._halt.is_set() else "failed", str(error))
        except Exception as error:
            # on a CPU torch raises a plain RuntimeError when memory runs out
            if isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error):
                self._fail(
                    "failed",
                    f"The memory of {self.order.device} did not suffice: choose a smaller pair, "
                    "batch, prompt or length, or close other programs.",
                )
            else:  # a defect: a sentence for the user, the traceback for the log
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
        order = self.order
        if order.drafter == "autoregressive" and self.pair.draft is not None:
            load_model.check(self.pair, self)  # before anything large is downloaded
        target = self._open(self.pair.target)
        self._tokenizer = target.tokenizer
        drafter = make_drafter(order.drafter, self.pair, target, self.settings, self.store, self)
        self.draft_parallel, self.drafter_label = drafter.parallel, drafter.label
        self._graphs = [("Target", target.model.graphs), ("Drafter", getattr(drafter, "graphs", None))]
        ids = self._encode(target, drafter)
        self._describe_machine(target)
        self._emitted = [[] for _ in self.prompts]
        self._vocab_size = target.model.vocab_size
        self._add_pieces({ids[-1]})
        self.check()
        self.report("Reading the prompt", 0.0)
        self.status = "running"
        end = self._decode(target, drafter)
        self._finish(end)
        self.status = end

    def _encode(self, target: LoadedModel, drafter: Drafter) -> Sequence[int]:
        """Tokenize the prompt, set `prompts` and `note`, and check that the run fits model and memory."""
        order, settings = self.order, self.settings
        encoded = prompting.encode(
            target.tokenizer,
            order.text,
            order.system,
            order.raw,
            target.model.prompt_room(settings.max_new_tokens),
            target.model.position_note,
        )
        notes = (
            *self.pair.notes,
            precision_note(self.pair.name, target.precision, target.device),
            target.note,
            encoded.note,
            _context_note(drafter, len(encoded.ids) + settings.max_new_tokens),
        )
        self.note = " ".join(filter(None, notes))
        self.prompts = tuple(
            Prompt(order.text, order.system, encoded.raw, settings.seed + row, encoded.ids) for row in range(order.rows)
        )
        check_prompts(target.model, [prompt.token_ids for prompt in self.prompts], settings)
        self._check_memory(target, len(encoded.ids))
        return encoded.ids

    def _describe_machine(self, target: LoadedModel) -> None:
        """Set `machine`; measures the device's ceilings if they are not cached."""
        roofs = ceilings.cached(target.device, target.precision)
        if roofs is None:
            part = self.part(0.0, 1.0, "Measuring this machine's ceilings, once")
            roofs = ceilings.measure(target.device, target.precision, quick=True, job=part)
        self.machine = machine.describe(target.device, target.precision, roofs)

    def _decode(self, target: LoadedModel, drafter: Drafter) -> RunEnd:
        """Decode until all rows have ended, or until the run is stopped."""
        end: RunEnd = "complete"
        most = len(self.prompts) * self.settings.max_new_tokens
        steps = decode(
            target.model,
            drafter,
            [p.token_ids for p in self.prompts],
            self.settings,
            seeds=[p.seed for p in self.prompts],
            baseline_every=BASELINE_EVERY,
            measured=self._measured,
        )
        try:
            for round_ in steps:
                self._keep(round_)
                done = sum(map(len, self._emitted))
                self.report(f"Decoding: {done} of at most {most} tokens", done / most)
                if self.stopping():
                    end = "stopped"
                    break
        finally:
            steps.close()
        return "complete" if all(v.finished for v in self.rounds[-1].rows) else end

    def _keep(self, round_: Round) -> None:
        """Append a round, its tokens and their texts."""
        for verdict in round_.rows:
            self._emitted[verdict.row] += verdict.emitted
            self._add_pieces(t for x in verdict.positions for t in x.support)
            self._add_pieces(x.first_guess for x in verdict.positions if x.first_guess is not None)
        self.rounds.append(round_)

    def _open(self, source: Source) -> LoadedModel:
        return self.store.open(source, self.order.device, self.order.precision, self)

    def _check_memory(self, target: LoadedModel, prompt_tokens: int) -> None:
        """Raise MemoryBudgetError if the run's KV caches and logits would not fit, before they are allocated."""
        settings, rows, shape = self.settings, self.order.rows, target.model.shape
        tokens = rows * (prompt_tokens + settings.max_new_tokens + settings.k + 1)
        caches = 2 * shape.layers * shape.kv_heads * shape.head_dim * tokens * shape.cache_bytes
        logits = rows * (settings.k + 1) * target.model.vocab_size * 8 * 4  # p and q in float64, and temporaries
        free = free_memory_bytes(target.device)
        if (wanted := 2 * caches + logits) > free:
            raise MemoryBudgetError(
                f"This run needs about {gigabytes(wanted)} for its caches and logits, and {gigabytes(free)} are free "
                f"on {target.device}: lower the batch, K, the prompt or the length."
            )

    def _add_pieces(self, tokens: Iterable[int]) -> None:
        """Add the texts of these tokens to `pieces`."""
        missing = {t for t in tokens if t not in self.pieces}
        if missing:
            # a new dictionary, because another thread may be iterating over the old one
            self.pieces = self.pieces | piece_table(self._tokenizer, missing)

    def text(self, row: int = 0) -> str:
        """The emitted text of a row so far."""
        return self._tokenizer.decode(self._emitted[row], skip_special_tokens=True) if self._tokenizer else ""

    def _finish(self, end: RunEnd) -> None:
        """Build the Trace of the rounds so far."""
        if self.machine is None:  # nothing was decoded
            return
        graph_notes = (f"{whose}: {graphs.note}" for whose, graphs in self._graphs if graphs is not None)
        self.note = " ".join(filter(None, (self.note, *graph_notes)))
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
