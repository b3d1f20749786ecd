"""The command `bench`: speed of plain and speculative decoding, interleaved with transformers, vLLM and llama.cpp."""

from __future__ import annotations

import argparse
import json

from specviz.cli.options import Subparsers, add_device, add_json, add_pair
from specviz.cli.progress import reporting
from specviz.cli.ranges import numbers
from specviz.drafters.names import check_drafter
from specviz.errors import SettingsError
from specviz.loader.pairs import find_pair
from specviz.trace.records import MAX_K


def add_parsers(subparsers: Subparsers) -> None:
    """Add the command; its parser sets `handler`, a function from the parsed arguments to an exit code."""
    parser = subparsers.add_parser(
        "bench",
        help="measure plain and speculative decoding, and the peers, in one interleaved run",
        description="K is picked per drafter on 3 prompts, then every system decodes 20 prompts of 128 tokens in turn: "
        "under 25 minutes. Ratios are medians over prompts, each with an interval of 95 % confidence.",
    )
    add_pair(parser)
    parser.add_argument(
        "--drafters",
        default="all",
        metavar="D,D",
        help="names, or all (default; the untrained stand-in only if there are no trained ones)",
    )
    parser.add_argument(
        "--k", default="1..8", type=numbers, metavar="RANGE", help="K to pick from (default: %(default)s)"
    )
    parser.add_argument("--batch", default=1, type=int, metavar="N", help="texts decoded at once (default: 1)")
    parser.add_argument(
        "--prompts",
        default="heldout",
        metavar="WHICH",
        help="heldout, presets, or a text file with one prompt a line (default: %(default)s)",
    )
    parser.add_argument(
        "--peers",
        action="store_true",
        help="measure transformers on the same weights too, and vLLM and llama.cpp where installed",
    )
    parser.add_argument("--quick", action="store_true", help="3 prompts of 48 tokens: under 4 minutes")
    add_device(parser, precision_note="; on a CPU fp32 is measured beside it")
    parser.add_argument(
        "--shape",
        metavar="NAME",
        help="instead of a pair: the steps and plain decoding of a built-in shape or a Hub id, with "
        "random weights, against transformers",
    )
    add_json(parser)
    parser.set_defaults(handler=bench_command)


def bench_command(arguments: argparse.Namespace) -> int:
    """Run the benchmark and print a table or one JSON object."""
    ks = arguments.k
    if not ks or not all(1 <= k <= MAX_K for k in ks):
        raise SettingsError(f"--k must name numbers from 1 to {MAX_K}, such as 1..8.")
    if arguments.shape:
        return _shape(arguments)
    drafters = None if arguments.drafters == "all" else tuple(d.strip() for d in arguments.drafters.split(","))
    for name in drafters or ():
        check_drafter(find_pair(arguments.pair), name)

    from specviz.bench import benchmark, systems

    with reporting() as job:
        found = benchmark.bench(
            arguments.pair,
            drafters,
            ks,
            arguments.precision,
            arguments.device,
            arguments.peers,
            systems.QUICK if arguments.quick else systems.FULL,
            arguments.batch,
            benchmark.prompts_from(arguments.prompts, arguments.pair),
            job=job,
        )
    print(json.dumps(found, allow_nan=False) if arguments.json else table(found))
    return 0


def _shape(arguments: argparse.Namespace) -> int:
    from specviz.bench import shape_benchmark, systems

    scale = systems.QUICK if arguments.quick else systems.FULL
    with reporting() as job:
        found = shape_benchmark.bench_shape(arguments.shape, arguments.precision, arguments.device, scale, job)
    if arguments.json:
        print(json.dumps(found, allow_nan=False))
        return 0
    print(
        "\n".join(
            [
                f"{found['shape']} with random weights on {found['machine']} ({found['device']}, {found['precision']}, "
                f"torch {found['torch']}), context {found['context']}, batch 1",
                f"plain {found['plain_tokens_per_second']:.1f} tokens/s, transformers "
                f"{found['transformers_tokens_per_second']:.1f}: "
                + _times(found["plain_vs_transformers_plain"], found["intervals"]["plain_vs_transformers_plain"]),
                _steps_line(found["precision"], found),
                f"a plain step reads at {100 * found['bandwidth_share']:.0f} % of the measured bandwidth",
                *found["notes"],
            ]
        )
    )
    return 0


def _steps_line(name: str, timed: dict) -> str:
    seconds = ", ".join(f"{n}: {1000 * s:.2f} ms" for n, s in timed["forward_seconds"].items())
    return (
        f"{name}: a verify pass of 6 is {timed['verify_over_decode']:.2f} of the fastest plain step; a plain "
        f"step takes {timed['limit_ratio']:.2f} times what the roofs allow, "
        f"{100 * timed['overhead_fraction']:.0f} % of it explained by neither roof; forward passes by positions "
        f"{seconds}"
    )


def table(found: dict) -> str:
    """The results as a table for the terminal."""
    versions = ", ".join(
        f"{name} {found[key]}"
        for name, key in (
            ("torch", "torch"),
            ("transformers", "transformers"),
            ("vLLM", "vllm"),
            ("llama.cpp", "llama_cpp"),
        )
        if found.get(key)
    )
    lines = [
        f"{found['pair']} on {found['machine']} ({found['device']}, {found['precision']}, {found['threads']} threads)",
        f"{versions}; {found['prompts']} prompts of {found['tokens']} tokens, greedy, batch {found['batch']}; medians, "
        f"in brackets {'an interval of 95 % confidence' if found['prompts'] >= 6 else 'the least and the greatest'}; "
        f"{found['seconds'] / 60:.1f} minutes",
        "",
        f"{'system':13} {'setting':46} {'K':>2} {'dtype':11} {'tokens/s':>8}  {'against plain':21} {'per pass':>8} "
        f"{'draft/verify/rest':>17}  same text",
    ]
    for row in found["rows"]:
        shares = [row[f"{part}_share"] for part in ("draft", "verify", "other")]
        lines.append(
            f"{row['system']:13} {row['setting']:46} {row['k'] or '-':>2} {row['precision']:11} "
            f"{_number(row['tokens_per_second']):>8}  "
            f"{_times(row['speedup_vs_plain'], row['speedup_vs_plain_interval']):21} "
            f"{_number(row['tokens_per_pass']):>8} "
            f"{'-' if None in shares else ' '.join(f'{100 * s:.0f} %' for s in shares):>17}  "
            f"{row['same_text']} of {row['texts']}{'' if row['same_task'] else ', another task'}"
        )
    lines += ["", f"winner: {found['winner']}", *_figures(found, f"In {found['precision']}")]
    equal = found["equal_precision"]
    if equal["precision"] != found["precision"]:
        lines += _figures(equal, f"In {equal['precision']} on both sides")
    for name, other in found["other_precisions"].items():
        lines += _figures(other, f"In {name}")
    lines += [_steps_line(name, timed) for name, timed in found["precisions"].items()]
    return "\n".join([*lines, *found["notes"]])


def _figures(found: dict, where: str) -> list[str]:
    best = found["best_speculative"]
    peer = f"transformers ({found['peer_precision']})"

    def figure(key: str) -> str:
        return _times(found[key], found["intervals"].get(key))

    lines = [
        f"{where}: plain {found['plain_tokens_per_second']:.1f} tokens/s, best speculative {best['drafter']} at "
        f"K = {best['k']} {best['tokens_per_second']:.1f} tokens/s: {figure('speedup_vs_plain')}",
    ]
    return (
        lines
        if found["peer_precision"] is None
        else [
            *lines,
            f"    plain against plain {peer}: {figure('plain_vs_transformers_plain')}; against vLLM's in "
            f"{found['peer_precision']}: {figure('plain_vs_vllm_plain')}",
            f"    best speculative against plain {peer}: {figure('speedup_vs_transformers_plain')}",
            f"    best speculative against assisted {peer}, its best settings: "
            f"{figure('speedup_vs_transformers_assisted')}; the same drafter, K and schedule: "
            f"{figure('speedup_vs_transformers_assisted_same_settings')}",
        ]
    )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _times(median: float | None, between: list[float] | None) -> str:
    return f"{median:.2f} x ({between[0]:.2f} to {between[1]:.2f})" if median and between else "not measured"
