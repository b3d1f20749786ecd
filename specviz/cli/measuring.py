"""Device, precision, ceilings and model of the commands that time passes."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from specviz import format
from specviz.cli.progress import reporting
from specviz.loader.pairs import EMBEDDED, find_pair
from specviz.trace.records import Ceilings
from specviz.worker import Job

if TYPE_CHECKING:
    from specviz.models.causal import CausalModel


def device_and_precision(arguments: argparse.Namespace) -> tuple[str, str]:
    """What --device and --precision name, `auto` resolved for the pair's target or a shape's random weights."""
    from specviz.hardware import machine
    from specviz.loader.precision import resolve_precision

    device = machine.resolve_device(arguments.device)
    shape = getattr(arguments, "shape", None)
    source = None if shape else find_pair(getattr(arguments, "pair", EMBEDDED)).target
    return device, resolve_precision(arguments.precision, device, source)


def ceilings_of(device: str, precision: str, take_cached: bool = True, quick: bool = False) -> Ceilings:
    """The ceilings of a device, measured now if there is no cached measurement."""
    from specviz.hardware import ceilings

    known = ceilings.cached(device, precision) if take_cached else None
    if known is not None:
        return known
    with reporting() as job:
        return ceilings.measure(device, precision, quick, job)


def model_of(arguments: argparse.Namespace, device: str, precision: str, job: Job) -> tuple[CausalModel, str]:
    """The model to time and its name: the target of --pair, or --shape with random weights."""
    if arguments.shape:
        from specviz.hardware import shapes
        from specviz.loader.hub_config import hub_config
        from specviz.models import random_weights

        name = arguments.shape
        config = shapes.CONFIGS.get(name) or hub_config(name)
        return random_weights.build(config, device, precision, name, job), f"{name} with random weights"
    from specviz.engine.model_store import STORE

    pair = find_pair(arguments.pair)
    return STORE.open(pair.target, device, precision, job).model, pair.name


def roofs_line(name: str, device: str, precision: str, roofs: Ceilings) -> str:
    """A model on a device, with the roofs of its roofline."""
    from specviz.hardware import machine

    return (
        f"{name} on {machine.device_name(device)} ({precision}): memory {format.si(roofs.bandwidth, 'B/s')}, compute "
        f"{format.si(roofs.flops, 'FLOP/s')}, ridge {format.number(roofs.ridge)} FLOP/byte"
    )
