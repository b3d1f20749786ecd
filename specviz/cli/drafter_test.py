"""The command `drafters test` of `python -m specviz`: does a drafter of one's own keep its promises?"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict

from specviz.drafters.names import plugin_parts
from specviz.errors import SettingsError


def add_parser(commands) -> None:
    """Add `test` to the commands of `drafters`."""
    parser = commands.add_parser(
        "test",
        help="check a drafter of one's own: protocol, rollback, rows, q, losslessness",
        description="Load FILE.py:CLASS (this runs the code of that file) and check it demand by demand: shapes, K "
        "from 0 to 16, rows, rollback, that q is the law of the drafts, that texts are the target's.",
        epilog="Exit code: 0 all passed, 1 something failed or could not be tested, 2 the drafter could not be had.",
    )
    parser.add_argument("name", metavar="FILE.py:CLASS")
    parser.add_argument("--pair", default="toy", metavar="P", help="whose target it drafts for (default: %(default)s)")
    parser.add_argument(
        "--draws", type=int, default=2000, metavar="N", help="proposals drawn to test q (default: %(default)s)"
    )
    parser.add_argument(
        "--samples", type=int, default=600, metavar="N", help="sampled texts each way (default: %(default)s)"
    )
    parser.add_argument("--device", default="auto", metavar="D", help="auto, cpu, cuda or mps (default: auto)")
    parser.add_argument("--precision", default="auto", metavar="P", help="auto, fp32, bf16, fp16, int4 (default: auto)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(handler=test_command)


def test_command(arguments: argparse.Namespace) -> int:
    """Run the checks and print a line for each."""
    if plugin_parts(arguments.name) is None:
        raise SettingsError(f"{arguments.name[:200]} is no drafter of your own: write FILE.py:CLASS.")
    if not 200 <= arguments.draws <= 10**6 or not 200 <= arguments.samples <= 10**6:
        raise SettingsError("--draws and --samples must be from 200 to 1,000,000: fewer prove nothing.")
    from specviz.checks import conformance

    checks = conformance.run(
        arguments.name,
        arguments.pair,
        draws=arguments.draws,
        samples=arguments.samples,
        device=arguments.device,
        precision=arguments.precision,
        tell=lambda title: print(f"... {title}", file=sys.stderr, flush=True),
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
