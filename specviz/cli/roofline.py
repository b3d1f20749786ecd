"""The command `roofline`: timed plain, verify, draft and prefill passes of a pair against the ceilings."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from specviz import format
from specviz.cli.measuring import ceilings_of, device_and_precision, roofs_line
from specviz.cli.options import Subparsers, add_device, add_json, add_pair
from specviz.cli.progress import reporting
from specviz.cli.ranges import numbers
from specviz.errors import SettingsError
from specviz.loader.pairs import Pair, find_pair

if TYPE_CHECKING:
    from specviz.bench.step_times import Step


def add_parsers(subparsers: Subparsers) -> None:
    """Add the command; its parser sets `handler`, a function from the parsed arguments to an exit code."""
    parser = subparsers.add_parser("roofline", help="time plain, verify, draft and prefill steps against the ceilings")
    add_device(parser)
    add_json(parser)
    add_pair(parser)
    parser.add_argument("--k", default="1..8", type=numbers, help="draft lengths to verify: 4, 1..8 or 1,3,7")
    parser.add_argument("--batch", default="1", type=numbers, help="rows: 1, 1..4 or 1,2,4,8")
    parser.add_argument("--context", default=128, type=int, help="tokens in each row's cache (default 128)")
    parser.add_argument("--repeats", default=5, type=int, help="timed repetitions of each pass (default 5)")
    parser.set_defaults(handler=roofline_command)


def roofline_command(arguments: argparse.Namespace) -> int:
    """Time the passes of a pair and print their place in the roofline."""
    from specviz.bench import step_times
    from specviz.hardware import machine

    if not 1 <= arguments.repeats <= 100:
        raise SettingsError("The repetitions must be from 1 to 100.")
    pair = find_pair(arguments.pair)
    device, precision = device_and_precision(arguments)
    roofs = ceilings_of(device, precision)
    found = _timed(pair, device, precision, arguments)
    points = [step_times.as_json(step, roofs) for step in found]
    unsteady = step_times.spread_warning(found)
    if arguments.json:
        out = {
            "pair": pair.name,
            "device": device,
            "name": machine.device_name(device),
            "dtype": precision,
            "ceilings": step_times.ceilings_json(roofs),
            "points": points,
            "warning": unsteady,
        }
        print(json.dumps(out, allow_nan=False))
        return 0
    print(roofs_line(pair.name, device, precision, roofs))
    _print_table(points)
    if unsteady:
        print(unsteady)
    return 0


def _timed(pair: Pair, device: str, precision: str, arguments: argparse.Namespace) -> list[Step]:
    from specviz.bench import step_times
    from specviz.engine.model_store import STORE

    batch, context, repeats = arguments.batch, arguments.context, arguments.repeats
    with reporting() as job:
        target = STORE.open(pair.target, device, precision, job)
        found = step_times.measure(target.model, arguments.k, batch, context, repeats, job=job)
        if (draft := step_times.draft_model(pair, target, STORE)) is not None:
            found += step_times.measure(draft, [0], batch, context, repeats, kind="draft", prefill=False, job=job)
    return found


def _print_table(points: list[dict]) -> None:
    print(
        f"{'kind':8} {'K':>3} {'batch':>5} {'time':>9} {'FLOPs':>12} {'bytes':>9} {'FLOP/byte':>9} {'roof':8} "
        f"{'busy':>7} {'stream':>7} {'neither':>7}"
    )
    for p in points:
        print(
            f"{p['kind']:8} {p['k']:>3} {p['batch']:>5} {format.seconds(p['seconds']):>9} "
            f"{format.si(p['flops'], 'FLOP'):>12} {format.si(p['bytes'], 'B'):>9} {format.number(p['intensity']):>9} "
            f"{p['bound']:8} {format.percent(p['busy_fraction']):>7} {format.percent(p['stream_fraction']):>7} "
            f"{format.percent(p['overhead_fraction']):>7}{'  above its roof!' if p['flagged'] else ''}"
        )
