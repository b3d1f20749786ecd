"""The command `check` of `python -m specviz`: proof that a pair and a drafter lose nothing."""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict

from specviz.drafters.names import drafter_names
from specviz.errors import SettingsError
from specviz.loader.pairs import EMBEDDED, find_pair
from specviz.trace.records import MAX_K, Settings

EXIT_CODES = {"lossless": 0, "differs": 1, "inconclusive": 3}
_QUIET_SECONDS = 5.0
"""How often progress is told."""


def add_parsers(subparsers) -> None:
    """Add the command; its parser sets `handler`, a function from the parsed arguments to an exit code."""
    parser = subparsers.add_parser(
        "check",
        help="prove that speculative decoding changes nothing",
        description="Decode with and without drafts and compare: greedy texts token by token, sampled texts by a "
        "chi-square test on their first tokens.",
        epilog="Exit code: 0 lossless, 1 differs, 3 inconclusive (nothing was drafted, or too few samples); 2 if the "
        "check could not be done.",
    )
    parser.add_argument(
        "--pair", default=EMBEDDED, metavar="P", help="a name from `pairs`, or TARGET+DRAFT (default: %(default)s)"
    )
    parser.add_argument("--drafter", metavar="D", help="which drafter (default: the first that the pair has)")
    parser.add_argument(
        "--k",
        type=int,
        default=Settings().k,
        metavar="K",
        help=f"draft tokens per round, 1 to {MAX_K} (default: %(default)s)",
    )
    parser.add_argument(
        "--temperature",
        type=float,
        default=1.0,
        metavar="X",
        help="of the sampled texts; 0 checks greedy decoding only (default: 1)",
    )
    parser.add_argument(
        "--samples",
        type=int,
        default=400,
        metavar="N",
        help="sampled texts each way; 0 checks greedy decoding only (default: %(default)s)",
    )
    parser.add_argument(
        "--prompts", type=int, default=20, metavar="N", help="greedy prompts, 1 to 20 (default: %(default)s)"
    )
    parser.add_argument("--device", default="auto", metavar="D", help="auto, cpu, cuda or mps (default: auto)")
    parser.add_argument("--precision", default="auto", metavar="P", help="auto, fp32, bf16, fp16, int4 (default: auto)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(handler=check_command)

    parser = subparsers.add_parser(
        "distance",
        help="how far a precision moves the embedded target from fp32",
        description="Total variation between the target's distributions in a precision and in fp32, on held-out texts "
        "that it wrote.",
    )
    parser.add_argument("--precision", default="auto", metavar="P", help="auto, bf16 or fp16 (default: auto)")
    parser.add_argument("--texts", type=int, default=20, metavar="N", help="held-out texts (default: %(default)s)")
    parser.add_argument("--record", action="store_true", help="make it the figure that runs show")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(handler=distance_command)


def check_command(arguments: argparse.Namespace) -> int:
    """Run the check, print what it found, and return the exit code of its verdict."""
    if not 1 <= arguments.prompts <= 20:
        raise SettingsError(f"--prompts must be from 1 to 20, not {arguments.prompts}.")
    Settings(k=arguments.k, temperature=arguments.temperature)  # refuses what cannot be before weights are fetched

    from specviz.checks import lossless

    drafter = arguments.drafter or drafter_names(find_pair(arguments.pair))[0]
    last = [0.0]

    def tell(stage: str, fraction: float) -> None:
        if time.monotonic() - last[0] > _QUIET_SECONDS:
            last[0] = time.monotonic()
            print(f"{stage} ({100 * fraction:.0f} %)", file=sys.stderr, flush=True)

    finding = lossless.check(
        arguments.pair,
        drafter,
        arguments.k,
        arguments.temperature,
        arguments.samples,
        prompts=arguments.prompts,
        device=arguments.device,
        precision=arguments.precision,
        tell=tell,
    )
    if arguments.json:
        print(json.dumps(finding.plain(), allow_nan=False))
    else:
        for half in (finding.greedy, finding.sampling):
            if half is not None:
                print(half.sentence)
        print(f"{arguments.pair}, {drafter}, K {arguments.k}: {finding.verdict}.")
    return EXIT_CODES[finding.verdict]


def distance_command(arguments: argparse.Namespace) -> int:
    """Measure and print the distance; with --record keep it where runs look it up."""
    if not 1 <= arguments.texts <= 1000:
        raise SettingsError(f"--texts must be from 1 to 1000, not {arguments.texts}.")
    from specviz.checks.precision_distance import measure
    from specviz.engine.run import STORE
    from specviz.models.precision import record

    source = find_pair(EMBEDDED).target
    reference, other = (STORE.open(source, "cpu", p) for p in ("fp32", arguments.precision))
    found = measure(
        reference,
        other,
        arguments.texts,
        lambda n: print(f"{n} of {arguments.texts} texts", file=sys.stderr, flush=True),
    )
    if arguments.record:
        record(found)
    if arguments.json:
        print(json.dumps(asdict(found)))
    else:
        print(
            f"{found.pair} in {found.precision} against fp32, {found.positions} positions: total variation "
            f"{found.total_variation:.4f} on average, {found.p90:.4f} at the 90th percentile, {found.worst:.4f} at "
            f"worst; the likeliest token is the same at {100 * found.same_likeliest:.1f} %"
        )
    return 0
