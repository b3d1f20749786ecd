"""The command `bottleneck`: modelled and measured pass times, the 12 % busy batch, and the cost of the monitor."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from specviz import format
from specviz.cli.measuring import ceilings_of, device_and_precision, model_of, roofs_line
from specviz.cli.options import Subparsers, add_device, add_json, add_pair
from specviz.cli.progress import reporting
from specviz.cli.ranges import numbers
from specviz.errors import SettingsError
from specviz.trace.records import Ceilings

if TYPE_CHECKING:
    from specviz.bench.monitor_overhead import Overhead
    from specviz.bench.step_times import BusySearch, WidthStep


def add_parsers(subparsers: Subparsers) -> None:
    """Add the command; its parser sets `handler`, a function from the parsed arguments to an exit code."""
    parser = subparsers.add_parser(
        "bottleneck",
        help="modelled against measured time by width, the batch that is 12 %% busy, and the monitor's cost",
    )
    add_device(parser)
    add_json(parser)
    add_pair(parser)
    parser.add_argument("--shape", help="instead of a pair: a built-in shape or a Hub id, timed with random weights")
    parser.add_argument("--widths", default="1..32", type=numbers, help="positions of a pass (default 1..32)")
    parser.add_argument("--context", default=128, type=int, help="tokens in each row's cache (default 128)")
    parser.add_argument("--repeats", default=3, type=int, help="timed repetitions of each pass (default 3)")
    parser.add_argument("--largest", default=64, type=int, help="largest batch tried for the 12 %% (default 64)")
    parser.add_argument("--watch", default=10.0, type=float, help="seconds spent on the monitor's cost (default 10)")
    parser.set_defaults(handler=bottleneck_command)


def bottleneck_command(arguments: argparse.Namespace) -> int:
    """Time and print what the Bottleneck page shows, for one model on this device."""
    from specviz.bench import monitor_overhead, step_times
    from specviz.hardware import machine

    repeats, context, largest = arguments.repeats, arguments.context, arguments.largest
    if not (1 <= repeats <= 100 and 1 <= largest <= step_times.LARGEST_BATCH and 0 < arguments.watch <= 600):
        raise SettingsError(f"Repetitions go from 1 to 100, batches to {step_times.LARGEST_BATCH}, watching to 600 s.")
    device, precision = device_and_precision(arguments)
    roofs = ceilings_of(device, precision)
    with reporting() as job:
        model, name = model_of(arguments, device, precision, job)
        widths = step_times.by_width(model, arguments.widths, context, repeats, job)
        busy = step_times.find_busy(model, roofs, context=context, repeats=repeats, largest=largest, job=job)
        cost = monitor_overhead.measure(model, arguments.watch, context, job=job)
    if arguments.json:
        out = {
            "model": name,
            "device": device,
            "name": machine.device_name(device),
            "dtype": precision,
            "ceilings": step_times.ceilings_json(roofs),
            "widths": [step_times.width_json(w, roofs) for w in widths],
            "twelve_per_cent": _busy_json(busy, roofs),
            "monitor": _monitor_json(cost),
        }
        print(json.dumps(out, allow_nan=False))
        return 0
    print(roofs_line(name, device, precision, roofs))
    _print_widths(widths, roofs, context)
    _print_busy(busy, roofs)
    print(
        f"Monitor: {cost.samples} samples in {format.seconds(cost.watched_seconds)} took "
        f"{format.seconds(cost.sampling_seconds)}, {format.percent(cost.share)} of the run; a plain step took "
        f"{format.seconds(cost.step_watched)} with it, {format.seconds(cost.step_alone)} without."
    )
    return 0


def _busy_json(busy: BusySearch, roofs: Ceilings) -> dict:
    from specviz.bench import step_times

    return {
        "reached": busy.reached,
        "plain": step_times.as_json(busy.plain, roofs),
        "verify": step_times.as_json(busy.verify, roofs),
    }


def _monitor_json(cost: Overhead) -> dict:
    return {
        "share": cost.share,
        "samples": cost.samples,
        "watched_seconds": cost.watched_seconds,
        "sampling_seconds": cost.sampling_seconds,
        "step_watched": cost.step_watched,
        "step_alone": cost.step_alone,
    }


def _print_widths(widths: list[WidthStep], roofs: Ceilings, context: int) -> None:
    from specviz.bench import step_times
    from specviz.hardware import ceilings

    for warning in (ceilings.steady_warning(roofs), step_times.spread_warning(widths)):
        if warning:
            print(f"  {warning}")
    print(f"\nTime of a pass by its positions, context {context}: measured, and modelled as roofs + dispatch")
    print(f"{'n':>3} {'measured':>9} {'roofs':>9} {'dispatch':>9} {'kernels':>9} {'rest':>9} {'error':>7}")
    for width in widths:
        row, parts = step_times.width_json(width, roofs), step_times.explain(width, roofs)
        print(
            f"{row['positions']:>3} {1e3 * row['seconds']:>6.1f} ms {1e3 * row['roofs']:>6.1f} ms "
            f"{1e3 * row['dispatch']:>6.1f} ms {1e3 * row['kernels']:>6.1f} ms {1e3 * row['rest']:>6.1f} ms "
            f"{100 * row['error']:>+5.0f} %  {parts.culprit or ''}"
        )


def _print_busy(busy: BusySearch, roofs: Ceilings) -> None:
    for label, step in (("plain step", busy.plain), ("verify of 5", busy.verify)):
        p = step.point(roofs)
        print(
            f"{label}, {step.batch} rows: {format.seconds(step.seconds)}, compute busy "
            f"{format.percent(p.busy_fraction)}, memory streaming {format.percent(p.stream_fraction)}"
        )
    if not busy.reached:
        print("No batch that was tried keeps a plain step 12 % busy: shown is the closest.")
