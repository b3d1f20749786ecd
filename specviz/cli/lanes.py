"""The command `lanes`: every drafter and plain decoding on the same prompts; writes the recording that ships."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from specviz.bench import draft_cost, lanes
from specviz.cli.options import Subparsers, add_json, add_pair, say
from specviz.cli.progress import finish
from specviz.engine.prompts import presets_for
from specviz.errors import SettingsError
from specviz.format import number, percent
from specviz.trace import metrics
from specviz.trace.records import MAX_K, Settings, Trace


def add_parsers(subparsers: Subparsers) -> None:
    """Add the command; its parser sets `handler`, a function from the parsed arguments to an exit code."""
    command = subparsers.add_parser(
        "lanes",
        help="run prompts through every drafter, beside plain decoding, under one seed",
        description="Every prompt through every drafter and through plain decoding, in one process, as on the Drafters "
        "page.",
        epilog="The recording that ships: python -m specviz lanes --out assets/traces/lanes --costs",
    )
    add_pair(command)
    command.add_argument("--drafter", action="append", metavar="D", help="only this one (may be given again)")
    command.add_argument(
        "--prompts",
        type=int,
        default=6,
        metavar="N",
        help=f"of the pair's test prompts, at most {lanes.MAX_PROMPTS} (default: %(default)s)",
    )
    command.add_argument("--k", type=int, default=7, metavar="K", help=f"1 to {MAX_K} (default: %(default)s)")
    command.add_argument("--temperature", type=float, default=0.0, metavar="X", help="0 is greedy (default)")
    command.add_argument("--seed", type=int, default=0, metavar="S", help="(default: %(default)s)")
    command.add_argument("--max-new-tokens", type=int, default=48, metavar="N", help="(default: %(default)s)")
    command.add_argument("--out", metavar="FOLDER", help="write each lane there, slimmed, as a trace")
    command.add_argument(
        "--costs",
        action="store_true",
        help="also measure what a draft of K = 1 to 16 costs (under 30 s); with --out it is kept too",
    )
    add_json(command)
    command.set_defaults(handler=lanes_command)


def lanes_command(arguments: argparse.Namespace) -> int:
    """Run the lanes, write the files of --out, and print a line for each drafter."""
    if not 1 <= arguments.prompts <= lanes.MAX_PROMPTS:
        raise SettingsError(f"--prompts must be from 1 to {lanes.MAX_PROMPTS}.")
    drafters = tuple(arguments.drafter or lanes.default_drafters(arguments.pair))
    texts = lanes.more_texts(arguments.pair, presets_for(arguments.pair)[0].text, arguments.prompts)
    settings = Settings(
        k=arguments.k, temperature=arguments.temperature, seed=arguments.seed, max_new_tokens=arguments.max_new_tokens
    )
    run = lanes.Lanes(lanes.LanesRequest(pair=arguments.pair, drafters=drafters, texts=texts, settings=settings))
    if finish(run):
        raise KeyboardInterrupt
    found = run.traces
    cost = _measured_cost(arguments.pair, drafters) if arguments.costs else None
    if arguments.out:
        _write(found, cost, Path(arguments.out))
    rows = [_row(found, d) for d in (lanes.PLAIN, *lanes.drafters_of(found))]
    if not arguments.json:
        _print(rows, cost)
        return 0
    out = {
        "pair": arguments.pair,
        "k": settings.k,
        "temperature": settings.temperature,
        "prompts": len(texts),
        "drafters": rows,
    }
    if cost is not None:
        out["draft_seconds_by_k"] = cost.seconds
        out["plain_forward_seconds"] = cost.plain_seconds
        out["plain_step_seconds"] = cost.plain_seconds  # its older name
    print(json.dumps(out, allow_nan=False))
    return 0


def _measured_cost(pair: str, drafters: tuple[str, ...]) -> draft_cost.DraftCost:
    costs = draft_cost.Costs(pair, drafters)
    if finish(costs) or costs.cost is None:
        raise KeyboardInterrupt
    return costs.cost


def _write(found: dict[lanes.Key, Trace], cost: draft_cost.DraftCost | None, folder: Path) -> None:
    written = lanes.save(found, folder)
    if cost is not None:
        draft_cost.save(cost, folder / draft_cost.FILE.name)
    size = sum(path.stat().st_size for path in folder.iterdir() if path.is_file())
    say(f"{len(written)} lanes in {folder}, {size / 1000:.0f} kB in all.")


def _print(rows: list[dict], cost: draft_cost.DraftCost | None) -> None:
    for row in rows:
        rate = "" if row["acceptance_rate"] is None else f", {percent(row['acceptance_rate'])} of drafts accepted"
        same = "" if row["same_text"] is None else f", {row['same_text']} of {row['compared']} texts equal to plain"
        print(
            f"{row['drafter']:>14}  {number(row['tokens_per_pass'])} tokens per pass, "
            f"{number(row['tokens_per_second'])} tokens/s{rate}{same}"
        )
    if cost is not None:
        for d, by_k in cost.seconds.items():
            print(f"{d:>14}  " + ", ".join(f"K {k}: {1e3 * s:.3g} ms" for k, s in by_k.items()))
        print(f"    plain step  {1e3 * cost.plain_seconds:.3g} ms")


def _row(found: dict[lanes.Key, Trace], drafter: str) -> dict:
    rounds = [r for t in lanes.of_drafter(found, drafter) for r in t.rounds]
    same, compared = lanes.same_text(found, drafter)
    counts = metrics.counts(rounds)
    return {
        "drafter": drafter,
        "tokens": counts.emitted,
        "passes": counts.passes,
        "tokens_per_pass": metrics.tokens_per_pass(rounds),
        "tokens_per_second": metrics.tokens_per_second(rounds),
        "acceptance_rate": metrics.acceptance_rate(rounds),
        "same_text": same if compared else None,
        "compared": compared,
    }
