"""Seconds of a draft of K tokens, K = 1 to 16, by drafter, measured beside a plain step of the same target.

Imports no torch before measuring.
"""

from __future__ import annotations

import datetime
import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from specviz.bench.lanes import FOLDER, PATIENCE_SECONDS
from specviz.drafters.names import LOOKUP_FIRST, drafter_names
from specviz.engine.prompts import PRESETS, TOY_PRESETS
from specviz.errors import SettingsError, SpecVizError
from specviz.loader.pairs import EMBEDDED, find_pair
from specviz.paths import write_atomically
from specviz.trace.records import MAX_K
from specviz.worker import Worker

if TYPE_CHECKING:
    from specviz.engine.model_store import ModelStore

FILE = FOLDER / "draft-cost.json"
"""The recorded measurement that ships."""
REPEATS, PLAIN_REPEATS = 5, 15
BUDGET_SECONDS = 28.0
"""No further K is begun after this long; loading is not counted."""


@dataclass(frozen=True, kw_only=True)
class DraftCost:
    """Median seconds of one proposal of K tokens for one row, by drafter and K, and of one plain step."""

    pair: str
    machine: str
    device: str
    precision: str
    threads: int
    measured_at: str
    context: int
    """Tokens of the prompt that was read."""
    plain_seconds: float
    seconds: dict[str, dict[int, float]] = field(default_factory=dict)

    def ratio(self, drafter: str) -> float | None:
        """Seconds at the largest K against those at K = 1; None if one of them is missing or there is only K = 1."""
        found = self.seconds.get(drafter, {})
        return found[max(found)] / found[1] if 1 in found and len(found) > 1 else None


def save(cost: DraftCost, path: Path = FILE) -> None:
    """Write a measurement as JSON."""
    text = json.dumps(asdict(cost), indent=1) + "\n"
    write_atomically(path, lambda file: file.write_text(text, encoding="utf-8"))


def load(path: Path = FILE) -> DraftCost | None:
    """The recorded measurement, or None if there is none. Raises SpecVizError if the file is something else."""
    if not path.is_file():
        return None
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        data["seconds"] = {d: {int(k): float(s) for k, s in by_k.items()} for d, by_k in data["seconds"].items()}
        return DraftCost(**data)
    except (ValueError, TypeError, KeyError, AttributeError, OSError):
        raise SpecVizError(f"{path.name} is no measurement of draft costs: measure again.") from None


class Costs(Worker):
    """Measures; `cost` grows while it goes and stays after a Stop. Each K is timed for all drafters in turn, so that a
    disturbance of the machine does not fall on one of them alone."""

    patience = PATIENCE_SECONDS

    def __init__(
        self,
        pair: str = EMBEDDED,
        drafters: Sequence[str] = (),
        ks: Sequence[int] = range(1, MAX_K + 1),
        store: ModelStore | None = None,
    ):
        """drafters: all of the pair if none are named; the one whose cost depends on the text is left out. Raises
        SettingsError for a drafter that the pair does not have."""
        super().__init__()
        self.pair = find_pair(pair)
        self.drafters = tuple(d for d in tuple(drafters) or drafter_names(self.pair) if d != LOOKUP_FIRST)
        if unknown := [d for d in self.drafters if d not in drafter_names(self.pair)]:
            raise SettingsError(f"{self.pair.title} has no drafter {unknown[0][:40]!r}.")
        self.ks = tuple(ks)
        self.cost: DraftCost | None = None
        self._store = store

    def work(self) -> None:
        import torch

        from specviz.engine.drafter_factory import make_drafter
        from specviz.engine.model_store import STORE
        from specviz.engine.prompts import encode
        from specviz.hardware import machine
        from specviz.trace.records import Settings
        from specviz.training.evaluate import draft_seconds

        store, toy = self._store or STORE, self.pair.name == "toy"
        self.report("Opening the pair", 0.0)
        target = store.open(self.pair.target, "auto", "auto", self.part(0.0, 0.0))
        text = TOY_PRESETS[0].text if toy else PRESETS[0].text
        ids = list(encode(target.tokenizer, text, raw=toy).ids)
        makers = {}
        for d in self.drafters:
            self.report(f"Warming up: {d}")

            def make(settings: Settings, d: str = d):
                return make_drafter(d, self.pair, target, settings, store, self.part(0.0, 0.0))

            makers[d] = make
            draft_seconds(target.model, make, ids, [1], 1)
            draft_seconds(target.model, make, ids, [min(self.ks[-1], make(Settings()).max_k)], 1)
        told = machine.describe(target.device, target.precision, None)
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        plain = _plain_seconds(target.model, ids)
        found: dict[str, dict[int, float]] = {d: {} for d in self.drafters}
        begun = time.monotonic()
        # the ends first and then what lies between, so that a stopped measurement already shows the slope
        order = sorted(self.ks, key=lambda k: (k not in (min(self.ks), max(self.ks)), k % 4 != 0, k % 2 != 0, k))
        for i, k in enumerate(order):
            for j, d in enumerate(self.drafters):
                self.check()
                self.report(f"{d}, K = {k}", (i + j / len(self.drafters)) / len(order))
                found[d] |= draft_seconds(target.model, makers[d], ids, [k], REPEATS)
            self.cost = DraftCost(
                pair=self.pair.name,
                machine=told.name,
                device=told.device,
                precision=told.precision,
                threads=torch.get_num_threads(),
                measured_at=now,
                context=len(ids),
                plain_seconds=plain,
                seconds={d: dict(sorted(by_k.items())) for d, by_k in found.items()},
            )
            if time.monotonic() - begun > BUDGET_SECONDS:
                break
        self.report("", 1.0)


def _plain_seconds(model, ids: Sequence[int]) -> float:
    """Median seconds of the forward pass of a plain step after the prompt."""
    cache = model.new_cache()
    cache.add(0, len(ids) + 1)
    model.forward(cache, [0], [list(ids[:-1])], logits=False)
    context, times = len(ids) - 1, []
    for _ in range(PLAIN_REPEATS + 3):
        begun = time.perf_counter()
        model.forward(cache, [0], [[ids[-1]]])
        times.append(time.perf_counter() - begun)
        cache.truncate(0, context)
    return statistics.median(times[3:])
