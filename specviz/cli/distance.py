"""The command `distance`: total variation between the target in a reduced precision and in fp32."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from specviz.cli.options import Subparsers, add_json, add_precision
from specviz.cli.progress import reporting
from specviz.errors import SettingsError
from specviz.loader.pairs import EMBEDDED, find_pair


def add_parsers(subparsers: Subparsers) -> None:
    """Add the command; its parser sets `handler`, a function from the parsed arguments to an exit code."""
    parser = subparsers.add_parser(
        "distance",
        help="how far a precision moves the embedded target from fp32",
        description="Total variation between the target's distributions in a precision and in fp32, on held-out texts "
        "that it wrote.",
    )
    add_precision(parser)
    parser.add_argument("--texts", type=int, default=20, metavar="N", help="held-out texts (default: %(default)s)")
    parser.add_argument("--record", action="store_true", help="keep it as the figure that runs show")
    add_json(parser)
    parser.set_defaults(handler=distance_command)


def distance_command(arguments: argparse.Namespace) -> int:
    """Measure and print the distance; with --record keep it for the note of runs."""
    if not 1 <= arguments.texts <= 1000:
        raise SettingsError(f"--texts must be from 1 to 1000, not {arguments.texts}.")
    from specviz.checks.precision_distance import measure
    from specviz.engine.model_store import STORE
    from specviz.models.precision import record

    source = find_pair(EMBEDDED).target
    with reporting() as job:
        reference, other = (STORE.open(source, "cpu", p, job) for p in ("fp32", arguments.precision))
        found = measure(reference, other, arguments.texts, job)
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
