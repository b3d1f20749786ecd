"""The command `ceilings`: measured memory bandwidth and matrix-product rate of a device."""

from __future__ import annotations

import argparse
import json

from specviz import format
from specviz.cli.measuring import ceilings_of, device_and_precision
from specviz.cli.options import Subparsers, add_device, add_json


def add_parsers(subparsers: Subparsers) -> None:
    """Add the command; its parser sets `handler`, a function from the parsed arguments to an exit code."""
    parser = subparsers.add_parser("ceilings", help="measure how fast this device streams memory and multiplies")
    add_device(parser)
    add_json(parser)
    parser.add_argument("--quick", action="store_true", help="about 2 s instead of 6")
    parser.add_argument("--cached", action="store_true", help="take an earlier measurement if there is one")
    parser.set_defaults(handler=ceilings_command)


def ceilings_command(arguments: argparse.Namespace) -> int:
    """Measure and print the ceilings."""
    from specviz.bench import step_times
    from specviz.hardware import machine
    from specviz.hardware.ceilings import other_load, steady_warning

    device, precision = device_and_precision(arguments)
    roofs = ceilings_of(device, precision, arguments.cached, arguments.quick)
    if arguments.json:
        more = {"name": machine.device_name(device), "others": other_load(roofs)}
        print(json.dumps(step_times.ceilings_json(roofs) | more, allow_nan=False))
        return 0
    print(f"{machine.device_name(device)} ({device}, {precision}), measured {roofs.measured_at}")
    print(f"  streaming read   {_with_spread(roofs.bandwidth, roofs.bandwidth_spread, 'B/s')}")
    print(f"  matrix product   {_with_spread(roofs.flops, roofs.flops_spread, 'FLOP/s')}")
    print(f"  ridge            {format.number(roofs.ridge)} FLOP/byte")
    if warning := steady_warning(roofs):
        print(f"  {warning}")
    return 0


def _with_spread(value: float, spread: tuple[float, float], unit: str) -> str:
    return f"{format.si(value, unit)}  (from {format.si(spread[0], unit)} to {format.si(spread[1], unit)})"
