"""The command `drafters test`: checks of a custom drafter (protocol, rollback, rows, q, losslessness)."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from specviz.cli.options import Subparsers, add_device, add_json, add_pair
from specviz.cli.progress import reporting
from specviz.drafters.names import plugin_parts
from specviz.errors import SettingsError


def add_parser(commands: Subparsers) -> None:
    """Add `test` to the commands of `drafters`."""
    parser = commands.add_parser(
        "test",
        help="check a custom drafter: protocol, rollback, rows, q, losslessness",
        description="Load FILE.py:CLASS (this runs the code of that file) and check each rule of the protocol: shapes, "
        "K from 0 to 16, rows, rollback, that drafts follow q, that texts are the target's.",
        epilog="Exit code: 0 all passed, 1 something failed or could not be tested, 2 the drafter could not be loaded.",
    )
    parser.add_argument("name", metavar="FILE.py:CLASS")
    add_pair(parser, "toy")
    parser.add_argument(
        "--draws", type=int, default=2000, metavar="N", help="proposals drawn to test q (default: %(default)s)"
    )
    parser.add_argument(
        "--samples", type=int, default=600, metavar="N", help="sampled texts each way (default: %(default)s)"
    )
    add_device(parser)
    add_json(parser)
    parser.set_defaults(handler=test_command)


def test_command(arguments: argparse.Namespace) -> int:
    """Run the checks and print a line for each."""
    if plugin_parts(arguments.name) is None:
        raise SettingsError(f"{arguments.name[:200]} is not a custom drafter: write FILE.py:CLASS.")
    if not 200 <= arguments.draws <= 10**6 or not 200 <= arguments.samples <= 10**6:
        raise SettingsError("--draws and --samples must be from 200 to 1,000,000: fewer prove nothing.")
    from specviz.checks import conformance

    with reporting() as job:
        checks = conformance.run(
            arguments.name,
            arguments.pair,
            draws=arguments.draws,
            samples=arguments.samples,
            device=arguments.device,
            precision=arguments.precision,
            job=job,
        )
    passed = all(check.passed for check in checks)
    if arguments.json:
        print(
            json.dumps(
                {
                    "drafter": arguments.name,
                    "pair": arguments.pair,
                    "passed": passed,
                    "checks": [asdict(check) for check in checks],
                }
            )
        )
    else:
        for check in checks:
            print(f"{'passed' if check.passed else 'FAILED'}  {check.name}: {check.seen}")
        wrong = sum(not check.passed for check in checks)
        print(
            f"{arguments.name} on {arguments.pair}: "
            + (f"all {len(checks)} checks passed." if passed else f"{wrong} of {len(checks)} checks failed.")
        )
    return 0 if passed else 1
