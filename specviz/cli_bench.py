"""The command `bench` of `python -m specviz`."""

from __future__ import annotations

import argparse
import json
import sys

from specviz.cli_hardware import numbers
from specviz.errors import SettingsError
from specviz.models.pairs import EMBEDDED, find_pair
from specviz.orders import drafter_names
from specviz.trace import MAX_K


def add_parsers(subparsers) -> None:
    """Add the command; its parser sets `handler`, a function from the parsed arguments to an exit code."""
    parser = subparsers.add_parser(
        "bench", help="measure plain and speculative decoding, and the peers, in one interleaved run",
        description="K is picked per drafter on 3 prompts, then every system decodes 20 prompts of 128 tokens in turn. "
                    "Ratios are medians over prompts with their quartiles.")
    parser.add_argument("--pair", default=EMBEDDED, metavar="P", help="a name from `pairs`, or TARGET+DRAFT "
                                                                      "(default: %(default)s)")
    parser.add_argument("--drafters", default="all", metavar="D,D", help="names, or all (default: all)")
    parser.add_argument("--k", default="1..8", type=numbers, metavar="RANGE",
                        help="K to pick from (default: %(default)s)")
    parser.add_argument("--peers", action="store_true", help="measure transformers on the same weights too")
    parser.add_argument("--quick", action="store_true", help="3 prompts of 48 tokens: a few minutes")
    parser.add_argument("--device", default="auto", metavar="D", help="auto, cpu, cuda or mps (default: auto)")
    parser.add_argument("--precision", default="auto", metavar="P", help="auto, fp32, bf16 or fp16 (default: auto)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(handler=bench_command)


def bench_command(arguments: argparse.Namespace) -> int:
    """Run the benchmark and print a table or one JSON object."""
    ks = arguments.k
    if not ks or not all(1 <= k <= MAX_K for k in ks):
        raise SettingsError(f"--k must name numbers from 1 to {MAX_K}, such as 1..8.")
    drafters = None if arguments.drafters == "all" else tuple(d.strip() for d in arguments.drafters.split(","))
    known = drafter_names(find_pair(arguments.pair))
    if unknown := [d for d in drafters or () if d not in known]:
        raise SettingsError(f"There is no drafter {unknown[0][:40]!r} for this pair: choose among {', '.join(known)}.")

    from specviz import bench

    found = bench.bench(
        arguments.pair, drafters, ks, arguments.precision, arguments.device, arguments.peers,
        bench.QUICK if arguments.quick else bench.FULL,
        tell=lambda what: print(what, file=sys.stderr, flush=True),
    )
    print(json.dumps(found, allow_nan=False) if arguments.json else table(found))
    return 0


def table(found: dict) -> str:
    """The figures in words and columns."""
    def times(share: dict | None) -> str:
        return f"{share['median']:.2f} x ({share['low']:.2f} to {share['high']:.2f})" if share else "not measured"

    lines = [
        f"{found['pair']} on {found['machine']} ({found['device']}, {found['precision']}, {found['threads']} threads, "
        f"torch {found['torch']}); {found['prompts']} prompts of {found['tokens']} tokens, greedy, batch 1; medians",
        "",
        f"{'system':14} {'setting':28} {'K':>3} {'tokens/s':>9} {'quartiles':>15}  {'against plain':24} same text",
    ]
    for row in found["rows"]:
        lines.append(
            f"{row['system']:14} {row['setting']:28} {row['k'] or '-':>3} {row['tokens_per_second']:9.2f} "
            f"{row['low']:7.2f}-{row['high']:7.2f}  {times(row['speedup_vs_plain']):24} "
            f"{row['same_text']} of {row['texts']}")
    lines += [
        "",
        f"winner: {found['winner']}",
        f"best speculative against plain: {times(found['speedup_vs_plain'])}",
        f"plain against transformers plain: {times(found['plain_vs_transformers_plain'])}",
        f"best speculative against transformers plain: {times(found['speedup_vs_transformers_plain'])}",
        f"best speculative against transformers assisted: {times(found['speedup_vs_transformers_assisted'])}",
        f"verify of 6 positions over a plain step: {found['verify_over_decode']:.2f}",
        f"plain step over what the roofs allow: {found['limit_ratio']:.2f} "
        f"({100 * found['overhead_fraction']:.0f} % of it explained by neither roof)",
        *found["missing"],
    ]
    return "\n".join(lines)
