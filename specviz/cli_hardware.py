"""The commands `ceilings` and `roofline` of `python -m specviz`."""

from __future__ import annotations

import argparse
import json
import sys

from specviz import format
from specviz.errors import SettingsError
from specviz.trace import Ceilings


def add_parsers(subparsers) -> None:
    """Add both commands; each parser sets `handler`, a function from the parsed arguments to an exit code."""
    parser = subparsers.add_parser("ceilings", help="measure how fast this device streams memory and multiplies")
    _common(parser)
    parser.add_argument("--quick", action="store_true", help="about 2 s instead of 6")
    parser.add_argument("--cached", action="store_true", help="take an earlier measurement if there is one")
    parser.set_defaults(handler=ceilings_command)

    parser = subparsers.add_parser("roofline", help="time plain, verify, draft and prefill steps against the ceilings")
    _common(parser)
    parser.add_argument("--pair", default="smollm2-135m", help="a name from `pairs`, or TARGET+DRAFT")
    parser.add_argument("--k", default="1..8", type=numbers, help="draft lengths to verify: 4, 1..8 or 1,3,7")
    parser.add_argument("--batch", default="1", type=numbers, help="rows: 1, 1..4 or 1,2,4,8")
    parser.add_argument("--context", default=128, type=int, help="tokens in each row's cache (default 128)")
    parser.add_argument("--repeats", default=5, type=int, help="timed repetitions of each pass (default 5)")
    parser.set_defaults(handler=roofline_command)


def _common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", default="auto", help="auto, cuda, mps or cpu")
    parser.add_argument("--precision", default="auto", help="auto, fp32, bf16 or fp16")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def numbers(text: str) -> list[int]:
    """Whole numbers from '7', '1..8' or '0,3,7' (and mixtures). Raises argparse.ArgumentTypeError."""
    found: list[int] = []
    try:
        for part in text.split(","):
            low, dots, high = part.partition("..")
            first, last = int(low), int(high if dots else low)
            if last < first or last - first > 10_000:
                raise ValueError
            found += range(first, last + 1)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of whole numbers: write 7, 1..8 or 0,3,7") from None
    return found


def ceilings_command(arguments: argparse.Namespace) -> int:
    """Measure and print the roofs."""
    from specviz.hardware import machine, steps
    from specviz.hardware.ceilings import steady_warning

    device, precision = _where(arguments)
    roofs = _roofs(device, precision, arguments.cached, arguments.quick)
    if arguments.json:
        print(json.dumps(steps.ceilings_json(roofs) | {"name": machine.device_name(device)}, allow_nan=False))
        return 0
    print(f"{machine.device_name(device)} ({device}, {precision}), measured {roofs.measured_at}")
    print(f"  streaming read   {_with_spread(roofs.bandwidth, roofs.bandwidth_spread, 'B/s')}")
    print(f"  matrix product   {_with_spread(roofs.flops, roofs.flops_spread, 'FLOP/s')}")
    print(f"  ridge            {format.number(roofs.ridge)} FLOP/byte")
    if warning := steady_warning(roofs):
        print(f"  {warning}")
    return 0


def roofline_command(arguments: argparse.Namespace) -> int:
    """Time real steps of a pair and print where they lie."""
    from specviz.hardware import machine, steps
    from specviz.models.pairs import find_pair
    from specviz.runs import STORE

    if not 1 <= arguments.repeats <= 100:
        raise SettingsError("The repetitions must be from 1 to 100.")
    pair = find_pair(arguments.pair)
    device, precision = _where(arguments)
    roofs = _roofs(device, precision, take_cached=True, quick=False)
    target = STORE.open(pair.target, device, precision)
    told = _progress(arguments)
    found = steps.measure(target.model, arguments.k, arguments.batch, arguments.context, arguments.repeats,
                          progress=told)
    if (draft := steps.draft_model(pair, target, STORE)) is not None:
        found += steps.measure(draft, [0], arguments.batch, arguments.context, arguments.repeats, kind="draft",
                               prefill=False, progress=told)
    points = [steps.as_json(step, roofs) for step in found]
    if arguments.json:
        print(json.dumps({"pair": pair.name, "device": device, "name": machine.device_name(device), "dtype": precision,
                          "ceilings": steps.ceilings_json(roofs), "points": points}, allow_nan=False))
        return 0
    print(f"{pair.name} on {machine.device_name(device)} ({precision}): memory {format.si(roofs.bandwidth, 'B/s')}, "
          f"compute {format.si(roofs.flops, 'FLOP/s')}, ridge {format.number(roofs.ridge)} FLOP/byte")
    print(f"{'kind':8} {'K':>3} {'batch':>5} {'time':>9} {'FLOPs':>12} {'bytes':>9} {'FLOP/byte':>9} {'roof':8} "
          f"{'busy':>7} {'stream':>7} {'neither':>7}")
    for p in points:
        print(f"{p['kind']:8} {p['k']:>3} {p['batch']:>5} {format.seconds(p['seconds']):>9} "
              f"{format.si(p['flops'], 'FLOP'):>12} {format.si(p['bytes'], 'B'):>9} {format.number(p['intensity']):>9} "
              f"{p['bound']:8} {format.percent(p['busy_fraction']):>7} {format.percent(p['stream_fraction']):>7} "
              f"{format.percent(p['overhead_fraction']):>7}{'  above its roof!' if p['flagged'] else ''}")
    return 0


def _where(arguments: argparse.Namespace) -> tuple[str, str]:
    from specviz.hardware import machine
    from specviz.models import load

    device = machine.resolve_device(arguments.device)
    return device, load.resolve_precision(arguments.precision, device)


def _roofs(device: str, precision: str, take_cached: bool, quick: bool) -> Ceilings:
    from specviz.hardware import ceilings

    known = ceilings.cached(device, precision) if take_cached else None
    return known or ceilings.measure(device, precision, quick=quick)


def _progress(arguments: argparse.Namespace):
    """Tells on stderr what is being timed, if a person is watching."""
    if arguments.json or not sys.stderr.isatty():
        return None
    def tell(fraction: float, sentence: str) -> None:
        print(f"\r{100 * fraction:3.0f} %  {sentence:40}", end="" if fraction < 1 else "\n", file=sys.stderr)

    return tell


def _with_spread(value: float, spread: tuple[float, float], unit: str) -> str:
    return f"{format.si(value, unit)}  (from {format.si(spread[0], unit)} to {format.si(spread[1], unit)})"
