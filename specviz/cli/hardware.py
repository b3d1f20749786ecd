"""The commands `ceilings` and `roofline` of `python -m specviz`."""

from __future__ import annotations

import argparse
import json
import sys

from specviz import format
from specviz.cli.ranges import numbers
from specviz.errors import SettingsError
from specviz.trace.records import Ceilings


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

    parser = subparsers.add_parser(
        "bottleneck", help="modelled against measured time by width, the batch that is 12 %% busy, what watching costs"
    )
    _common(parser)
    parser.add_argument("--pair", default="smollm2-135m", help="a name from `pairs`; its target is timed")
    parser.add_argument("--shape", help="instead of a pair: a built-in shape or a Hub id, timed with random weights")
    parser.add_argument("--widths", default="1..32", type=numbers, help="positions of a pass (default 1..32)")
    parser.add_argument("--context", default=128, type=int, help="tokens in each row's cache (default 128)")
    parser.add_argument("--repeats", default=3, type=int, help="timed repetitions of each pass (default 3)")
    parser.add_argument("--largest", default=64, type=int, help="largest batch tried for the 12 %% (default 64)")
    parser.add_argument("--watch", default=10.0, type=float, help="seconds spent on the monitor's cost (default 10)")
    parser.set_defaults(handler=bottleneck_command)


def _common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", default="auto", help="auto, cuda, mps or cpu")
    parser.add_argument("--precision", default="auto", help="auto, fp32, bf16, fp16, int4")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def ceilings_command(arguments: argparse.Namespace) -> int:
    """Measure and print the roofs."""
    from specviz.bench import step_times
    from specviz.hardware import machine
    from specviz.hardware.ceilings import other_load, steady_warning

    device, precision = _where(arguments)
    roofs = _roofs(device, precision, arguments.cached, arguments.quick)
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


def roofline_command(arguments: argparse.Namespace) -> int:
    """Time real steps of a pair and print where they lie."""
    from specviz.bench import step_times
    from specviz.engine.run import STORE
    from specviz.hardware import machine
    from specviz.loader.pairs import find_pair

    if not 1 <= arguments.repeats <= 100:
        raise SettingsError("The repetitions must be from 1 to 100.")
    pair = find_pair(arguments.pair)
    device, precision = _where(arguments)
    roofs = _roofs(device, precision, take_cached=True, quick=False)
    target = STORE.open(pair.target, device, precision)
    told = _progress(arguments)
    found = step_times.measure(
        target.model, arguments.k, arguments.batch, arguments.context, arguments.repeats, progress=told
    )
    if (draft := step_times.draft_model(pair, target, STORE)) is not None:
        found += step_times.measure(
            draft,
            [0],
            arguments.batch,
            arguments.context,
            arguments.repeats,
            kind="draft",
            prefill=False,
            progress=told,
        )
    points = [step_times.as_json(step, roofs) for step in found]
    unsteady = step_times.spread_warning(found)
    if arguments.json:
        print(
            json.dumps(
                {
                    "pair": pair.name,
                    "device": device,
                    "name": machine.device_name(device),
                    "dtype": precision,
                    "ceilings": step_times.ceilings_json(roofs),
                    "points": points,
                    "warning": unsteady,
                },
                allow_nan=False,
            )
        )
        return 0
    print(
        f"{pair.name} on {machine.device_name(device)} ({precision}): memory {format.si(roofs.bandwidth, 'B/s')}, "
        f"compute {format.si(roofs.flops, 'FLOP/s')}, ridge {format.number(roofs.ridge)} FLOP/byte"
    )
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
    if unsteady:
        print(unsteady)
    return 0


def bottleneck_command(arguments: argparse.Namespace) -> int:
    """Time and print what the Bottleneck page shows, for one model on this device."""
    from specviz.bench import monitor_overhead, step_times
    from specviz.hardware import ceilings, machine

    if not (
        1 <= arguments.repeats <= 100
        and 1 <= arguments.largest <= step_times.LARGEST_BATCH
        and 0 < arguments.watch <= 600
    ):
        raise SettingsError(f"Repetitions go from 1 to 100, batches to {step_times.LARGEST_BATCH}, watching to 600 s.")
    device, precision = _where(arguments)
    told = _progress(arguments)
    roofs = _roofs(device, precision, take_cached=True, quick=False)
    model, name = _model(arguments, device, precision, told)
    widths = step_times.by_width(model, arguments.widths, arguments.context, arguments.repeats, progress=told)
    busy = step_times.find_busy(
        model, roofs, context=arguments.context, repeats=arguments.repeats, largest=arguments.largest, progress=told
    )
    cost = monitor_overhead.measure(model, arguments.watch, arguments.context, progress=told)
    rows = [step_times.width_json(w, roofs) for w in widths]
    pair = {
        "reached": busy.reached,
        "plain": step_times.as_json(busy.plain, roofs),
        "verify": step_times.as_json(busy.verify, roofs),
    }
    watching = {
        "share": cost.share,
        "samples": cost.samples,
        "watched_seconds": cost.watched_seconds,
        "sampling_seconds": cost.sampling_seconds,
        "step_watched": cost.step_watched,
        "step_alone": cost.step_alone,
    }
    if arguments.json:
        print(
            json.dumps(
                {
                    "model": name,
                    "device": device,
                    "name": machine.device_name(device),
                    "dtype": precision,
                    "ceilings": step_times.ceilings_json(roofs),
                    "widths": rows,
                    "twelve_per_cent": pair,
                    "monitor": watching,
                },
                allow_nan=False,
            )
        )
        return 0
    print(
        f"{name} on {machine.device_name(device)} ({precision}): memory {format.si(roofs.bandwidth, 'B/s')}, compute "
        f"{format.si(roofs.flops, 'FLOP/s')}, ridge {format.number(roofs.ridge)} FLOP/byte"
    )
    if warning := ceilings.steady_warning(roofs):
        print(f"  {warning}")
    if warning := step_times.spread_warning(widths):
        print(f"  {warning}")
    print(f"\nTime of a pass by its positions, context {arguments.context}: measured, and modelled as roofs + dispatch")
    print(f"{'n':>3} {'measured':>9} {'roofs':>9} {'dispatch':>9} {'kernels':>9} {'rest':>9} {'error':>7}")
    for width, row in zip(widths, rows):
        parts = step_times.explain(width, roofs)
        print(
            f"{row['positions']:>3} {1e3 * row['seconds']:>6.1f} ms {1e3 * row['roofs']:>6.1f} ms "
            f"{1e3 * row['dispatch']:>6.1f} ms {1e3 * row['kernels']:>6.1f} ms {1e3 * row['rest']:>6.1f} ms "
            f"{100 * row['error']:>+5.0f} %  {parts.culprit or ''}"
        )
    for label, step in (("plain step", busy.plain), ("verify of 5", busy.verify)):
        p = step.point(roofs)
        print(
            f"{label}, {step.batch} rows: {format.seconds(step.seconds)}, compute busy "
            f"{format.percent(p.busy_fraction)}, memory streaming {format.percent(p.stream_fraction)}"
        )
    if not busy.reached:
        print("No batch that was tried keeps a plain step 12 % busy: shown is the closest.")
    print(
        f"Monitor: {cost.samples} samples in {format.seconds(cost.watched_seconds)} took "
        f"{format.seconds(cost.sampling_seconds)}, {format.percent(cost.share)} of the run; a plain step took "
        f"{format.seconds(cost.step_watched)} with it, {format.seconds(cost.step_alone)} without."
    )
    return 0


def _model(arguments: argparse.Namespace, device: str, precision: str, told):
    """The model to time, and its name: a pair's target, or a shape filled with noise."""
    if arguments.shape:
        from specviz.hardware import shapes
        from specviz.loader.hub_config import hub_config
        from specviz.models import random_weights

        name = arguments.shape
        config = shapes.CONFIGS.get(name) or hub_config(name)
        return random_weights.build(config, device, precision, name, told), f"{name} with random weights"
    from specviz.engine.run import STORE
    from specviz.loader.pairs import find_pair

    pair = find_pair(arguments.pair)
    return STORE.open(pair.target, device, precision).model, pair.name


def _where(arguments: argparse.Namespace) -> tuple[str, str]:
    from specviz.hardware import machine
    from specviz.loader.pairs import EMBEDDED, find_pair
    from specviz.loader.precision import resolve_precision

    device = machine.resolve_device(arguments.device)
    pair = None if getattr(arguments, "shape", None) else find_pair(getattr(arguments, "pair", EMBEDDED))
    return device, resolve_precision(arguments.precision, device, pair and pair.target)


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
