"""Report of the benchmark: headline speed-ups with intervals, the winner, and one row per system."""

from __future__ import annotations

from collections.abc import Sequence

from specviz.bench.paired_ratios import NOISE, Ratio, interval, ratio
from specviz.bench.systems import System

BUSY = 0.05
"""Share of the processor that other programs may use before the figures come with a warning."""


LEAST_FOR_A_WINNER = 3
"""Prompts from which on a winner is named."""


def load_notes(others: float | None, roofs: Sequence[dict]) -> list[str]:
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


def headline(plain: System, chosen: Sequence[System], systems: Sequence[System], timed: dict) -> dict:
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


def system_row(system: System, plain: System, plains: dict[str, System], equal: str) -> dict:
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
