"""The benchmark: plain decoding, the drafters and the peers, interleaved prompt by prompt.

A ratio compares two systems on the same prompt, at most a minute apart; the figure is the median over prompts with a
95 % confidence interval (`paired_ratios`). Only decoding is timed, without loading and prefill. Every system decodes
greedily, so the texts of one precision should be equal, and are compared.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

import torch

from specviz.bench import peers
from specviz.bench.model_steps import time_steps
from specviz.bench.paired_ratios import plan, spread
from specviz.bench.peer_systems import Peers, transformers_plain
from specviz.bench.report import LEAST_FOR_A_WINNER, headline, load_notes, system_row, winner
from specviz.bench.same_task import departure
from specviz.bench.systems import FULL, Scale, System, pick_k, plain_system
from specviz.checks.lossless import texts_for
from specviz.drafters.names import drafter_names, trained
from specviz.engine.model_store import STORE, LoadedModel, ModelStore
from specviz.engine.prompts import encode, lines_of, presets_for
from specviz.errors import SettingsError
from specviz.hardware import ceilings, machine
from specviz.loader.pairs import EMBEDDED, Pair, find_pair
from specviz.loader.precision import usable as usable_precisions
from specviz.trace.records import MAX_ROWS
from specviz.worker import Job

PICKING = (
    "Describe a harbour at dawn in four sentences.",
    "Write a Python class for a stack with push and pop.",
    "List five uses for an empty jar.",
)
"""Prompts on which K is picked; they are not measured afterwards."""


def bench(
    pair_name: str,
    drafters: Sequence[str] | None = None,
    ks: Sequence[int] = range(1, 9),
    precision: str = "auto",
    device: str = "auto",
    with_peers: bool = False,
    scale: Scale = FULL,
    batch: int = 1,
    prompts: Sequence[str] | None = None,
    store: ModelStore = STORE,
    job: Job | None = None,
) -> dict:
    """Run the benchmark and return one JSON-ready object. prompts: texts; None: the twenty held-out prompts.

    Raises SpecVizError if the pair, a drafter or the prompts are not available.
    """
    if not 1 <= batch <= MAX_ROWS:
        raise SettingsError(f"The batch must be from 1 to {MAX_ROWS} rows, not {batch}.")
    run = _Benchmark(find_pair(pair_name), scale, batch, store, job or Job())
    run.open(device, precision, prompts)
    run.pick(tuple(drafters or _default_drafters(run.pair)), ks)
    run.measure(with_peers)
    return run.report()


class _Benchmark:
    """One run of the benchmark: open, pick K, measure, report."""

    def __init__(self, pair: Pair, scale: Scale, batch: int, store: ModelStore, job: Job):
        self.began = time.perf_counter()
        self.pair, self.scale, self.batch, self.store, self.job = pair, scale, batch, store, job
        self.opened: dict[str, LoadedModel] = {}
        """By precision; the first is the one that was requested."""
        self.step_times: dict[str, dict] = {}
        """By precision: pass times and ceilings."""
        self.plain: dict[str, System] = {}
        """By precision: plain decoding."""
        self.chosen: dict[str, list[System]] = {}
        """By precision: drafters at their best K; in the other precisions the fastest drafter only."""
        self.systems: list[System] = []
        self.notes: list[str] = []

    def open(self, device: str, precision: str, prompts: Sequence[str] | None) -> None:
        """Load the target in every measured precision, encode the prompts, and measure pass times."""
        target = self.target = self.store.open(self.pair.target, device, precision, self.job.part(0.0, 0.0))
        self.others, self.child_seconds = ceilings.load_of_others(target.device), _child_seconds()
        # no peer rounds as int4 or mixed bf16 does on CPUs: they run in fp32 there, and so do systems of ours beside
        self.equal = "fp32" if target.device == "cpu" else target.precision
        """The precision that the peers run in."""
        usable = usable_precisions(self.pair.target) if target.device == "cpu" else ()
        self.groups, self.picking = _groups(self.pair, target, prompts, self.scale, self.batch)
        self.opened[target.precision] = target
        for name in dict.fromkeys((self.equal, *usable)):
            if name != target.precision:
                self.job.report(f"Loading the target in {name} beside it")
                self.opened[name] = self.store.open(self.pair.target, target.device, name)
        for name, opened in self.opened.items():
            self.job.report(f"Ceilings and steps in {name}")
            self.step_times[name] = time_steps(opened, self.scale.steps)

    def pick(self, drafters: Sequence[str], ks: Sequence[int]) -> None:
        """Pick the best K of each drafter, and of the fastest drafter in the other precisions."""
        self.job.report("Picking K")
        self.drafters = drafters
        for name, opened in self.opened.items():
            plain = self.plain[name] = plain_system(opened)
            plain.measure(-1, self.picking[0], 16)
            tokens = self.scale.picking_tokens
            self.chosen[name] = [
                pick_k(self.pair, opened, d, ks, self.picking, tokens, self.store, self.job) for d in drafters
            ]
            drafters = [max(self.chosen[self.target.precision], key=lambda s: s.rate).drafter]
            self.systems += [plain, *self.chosen[name]]

    def measure(self, with_peers: bool) -> None:
        """Decode the prompts with all systems in turn, and compare their texts with plain decoding."""
        target = self.target
        longest = max(len(ids) for group in self.groups for ids in group) + self.scale.tokens
        found = Peers(self.pair, self.opened[self.equal], self.scale, self.batch, longest, self.job)
        try:
            if with_peers:
                found.start(self.chosen[self.equal], self.picking, self.store)
                if self.equal != target.precision:
                    found.systems.append(transformers_plain(self.pair, target))
                for system in found.systems:
                    self.job.report(f"Warming up {system.label}")
                    system.measure(-1, self.picking[0], 16)
                self.systems += found.systems
            stopped = _measure(self.systems, self.groups, self.scale, self.began, self.job)
        finally:
            found.close()
        self.versions = found.versions
        busy = self.others()
        if busy is not None:  # peers in child processes are not other programs
            used = _child_seconds() - self.child_seconds
            busy -= used / (time.perf_counter() - self.began) / (os.cpu_count() or 1)
        self.notes += found.notes + stopped + load_notes(busy, [t["ceilings"] for t in self.step_times.values()])
        if graphs := getattr(target.model, "graphs", None):
            self.notes.append(graphs.note)
        for system in self.systems:
            same = self.plain.get(system.precision, self.plain[self.equal])
            model = self.opened[same.precision].model
            system.departs = departure(model, self.groups, same.texts, system.texts, system.precision)
        self.notes += [f"{s.label} decoded another task: {s.departs}." for s in self.systems if s.departs]
        self.notes.append(target.note)

    def report(self) -> dict:
        """The JSON-ready object."""
        target, same_task = self.target, [s for s in self.systems if not s.departs]
        headlines = {
            name: headline(self.plain[name], self.chosen[name], same_task, self.step_times[name])
            for name in self.opened
        }
        others = [name for name in self.opened if name not in (target.precision, self.equal)]
        return {
            "pair": self.pair.name,
            "drafters": list(self.drafters),
            "machine": machine.device_name(target.device),
            "device": target.device,
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
            "transformers": machine.describe(target.device, self.equal).transformers,
            **self.versions,
            "batch": self.batch,
            "prompts": len(self.groups),
            "tokens": self.scale.tokens,
            "seconds": time.perf_counter() - self.began,
            **headlines[target.precision],
            "equal_precision": headlines[self.equal],
            "other_precisions": {name: headlines[name] for name in others},
            "precisions": self.step_times,
            "winner": winner(self.systems),
            "rows": [system_row(s, self.plain[target.precision], self.plain, self.equal) for s in self.systems],
            "notes": [n for n in self.notes if n],
        }


def _child_seconds() -> float:
    """Processor seconds of ended child processes."""
    return sum(os.times()[2:4])


# ---------------------------------------------------------------------------------------- prompts


def _default_drafters(pair: Pair) -> tuple[str, ...]:
    """Every drafter of a pair, without first-layers where there are trained ones."""
    names = drafter_names(pair)
    return tuple(n for n in names if n != "first-layers") if pair.name == EMBEDDED and trained() else names


def _groups(
    pair: Pair, target: LoadedModel, prompts: Sequence[str] | None, scale: Scale, batch: int
) -> tuple[list[peers.Group], list[peers.Group]]:
    """Groups of `batch` prompts to measure on, one beginning with each prompt, and groups to pick K on."""
    held_out, _, raw = texts_for(pair.name)
    texts = held_out if prompts is None else [t for t in prompts if t.strip()]
    if not texts:
        raise SettingsError("There are no prompts to decode: name a file with one prompt a line.")
    # the toy pair's vocabulary does not cover PICKING: its last prompts are used instead
    picking = held_out[-scale.picking :] if pair.name == "toy" else PICKING[: scale.picking]
    ids, picked = (
        [encode(target.tokenizer, text, raw=raw).ids for text in some] for some in (texts[: scale.prompts], picking)
    )
    return (
        [[ids[(i + j) % len(ids)] for j in range(batch)] for i in range(len(ids))],
        [[picked[(i + j) % len(picked)] for j in range(batch)] for i in range(len(picked))],
    )


def prompts_from(wish: str, pair: str) -> list[str] | None:
    """heldout (None), presets, or a text file with one prompt a line. Raises SettingsError."""
    if wish == "heldout":
        return None
    if wish == "presets":
        return [p.text for p in presets_for(pair)]
    return lines_of(wish)


# ------------------------------------------------------------------------------------------- our systems


# ------------------------------------------------------------------------------------------------- steps


# ------------------------------------------------------------------------------------------------- peers


# -------------------------------------------------------------------------------------------- the measure


def _measure(
    systems: Sequence[System], groups: Sequence[peers.Group], scale: Scale, began: float, job: Job
) -> list[str]:
    """Every system on its share of the prompts, prompt by prompt, starting with another system each time.

    Returns sentences about the prompts that were left out to limit the time.
    """
    warm = [_guess(s, scale.tokens * len(groups[0])) for s in systems]
    for system in systems:
        system.rates.clear()
        system.texts.clear()
        system.spent.clear()
    counts = plan(warm, len(groups), scale.seconds - (time.perf_counter() - began), scale.least)
    shares = [set(spread(count, len(groups))) for count in counts]
    for index, group in enumerate(groups):
        enough = min(len(s.texts) for s in systems) >= min(LEAST_FOR_A_WINNER, scale.least, len(groups))
        if enough and time.perf_counter() - began > 1.08 * scale.seconds:
            return [f"Stopped after {index} of {len(groups)} prompts: the run had taken its time."]
        job.report(f"Prompt {index + 1} of {len(groups)}")
        turn = index % len(systems)
        for which in [*range(turn, len(systems)), *range(turn)]:
            if index in shares[which]:
                systems[which].measure(index, group, scale.tokens)
    short = [
        f"{n} by {', '.join(s.label for s, m in zip(systems, counts) if m == n)}"
        for n in sorted(set(counts))
        if n < len(groups)
    ]
    return (
        [
            f"To keep the run in its time, not all of the {len(groups)} prompts were decoded by all systems: "
            f"{'; '.join(short)}."
        ]
        if short
        else []
    )


def _guess(system: System, tokens: int) -> float:
    """Estimated seconds for this number of tokens, from the warm-up, with prefill."""
    rate = system.rate
    return tokens / rate + 0.3 if rate else 5 * system.seconds


# --------------------------------------------------------------------------------------------- the figures
