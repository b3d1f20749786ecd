"""The command `check`: statistical proof that speculative decoding with a drafter is lossless."""

from __future__ import annotations

import argparse
import json

from specviz.cli.options import Subparsers, add_device, add_drafter, add_json, add_pair
from specviz.cli.progress import reporting
from specviz.drafters.names import drafter_names
from specviz.errors import SettingsError
from specviz.loader.pairs import find_pair
from specviz.trace.records import MAX_K, Settings

EXIT_CODES = {"lossless": 0, "differs": 1, "inconclusive": 3}


def add_parsers(subparsers: Subparsers) -> None:
    """Add the command; its parser sets `handler`, a function from the parsed arguments to an exit code."""
    parser = subparsers.add_parser(
        "check",
        help="prove that speculative decoding changes nothing",
        description="Decode with and without drafts and compare: greedy texts token by token, sampled texts by a "
        "chi-square test on their first tokens.",
        epilog="Exit code: 0 lossless, 1 differs, 3 inconclusive (nothing was drafted, too few samples, or weights or "
        "logits that are NaN or infinite); 2 if the check could not be done.",
    )
    add_pair(parser)
    add_drafter(parser)
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
    add_device(parser)
    add_json(parser)
    parser.set_defaults(handler=check_command)


def check_command(arguments: argparse.Namespace) -> int:
    """Run the check, print its finding, and return the exit code of its verdict."""
    if not 1 <= arguments.prompts <= 20:
        raise SettingsError(f"--prompts must be from 1 to 20, not {arguments.prompts}.")
    Settings(k=arguments.k, temperature=arguments.temperature)  # raises before weights are fetched

    from specviz.checks import lossless

    drafter = arguments.drafter or drafter_names(find_pair(arguments.pair))[0]
    with reporting() as job:
        finding = lossless.check(
            arguments.pair,
            drafter,
            arguments.k,
            arguments.temperature,
            arguments.samples,
            prompts=arguments.prompts,
            device=arguments.device,
            precision=arguments.precision,
            job=job,
        )
    if arguments.json:
        print(json.dumps(finding.plain(), allow_nan=False))
    else:
        for half in (finding.greedy, finding.sampling):
            if half is not None:
                print(half.sentence)
        if finding.fault:
            print(finding.fault)
        print(f"{arguments.pair}, {drafter}, K {arguments.k}: {finding.verdict}.")
    return EXIT_CODES[finding.verdict]
