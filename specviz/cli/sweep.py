"""The command `sweep`: speedup by K, batch and context of one pair and drafter."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from specviz.cli.options import Subparsers, add_device, add_drafter, add_json, add_pair, add_temperature_and_seed
from specviz.cli.progress import finish
from specviz.cli.ranges import numbers
from specviz.drafters.names import drafter_names
from specviz.format import number, percent
from specviz.loader.pairs import find_pair
from specviz.trace.records import Settings

if TYPE_CHECKING:
    from specviz.bench.sweep import Cell

_SAME_NAME = (
    "k",
    "batch",
    "tokens_per_second",
    "speedup",
    "acceptance_rate",
    "context",
    "plain_tokens_per_second",
    "mean_acceptance_length",
    "flops_per_token",
    "plain_flops_per_token",
    "round_seconds",
    "plain_step_seconds",
    "draft_seconds",
    "note",
)
KEYS = {name: name for name in _SAME_NAME} | {
    "verify_forward_seconds": "verify_seconds",
    "plain_forward_seconds": "plain_seconds",
    "verify_seconds": "verify_seconds",
    "plain_seconds": "plain_seconds",
}
"""Key in the JSON of a cell -> attribute of Cell. Rates are those of whole rounds and steps; the last two are older
names of the two before them."""


def add_parsers(subparsers: Subparsers) -> None:
    """Add the command; its parser sets `handler`, a function from the parsed arguments to an exit code."""
    sweep = subparsers.add_parser(
        "sweep",
        help="measure K x batch: where speculation stops paying",
        description="Decode copies of one prompt at every K and batch, and time plain steps of the same rows in the "
        "same run.",
    )
    add_pair(sweep)
    add_drafter(sweep)
    add_temperature_and_seed(sweep)
    add_device(sweep)
    add_json(sweep)
    sweep.add_argument(
        "--k", default="0..8", type=numbers, metavar="RANGE", help="draft tokens per round (default: %(default)s)"
    )
    sweep.add_argument(
        "--batch", default="1,2,4,8,16,32", type=numbers, metavar="LIST", help="rows (default: %(default)s)"
    )
    sweep.add_argument(
        "--context",
        default="0",
        type=numbers,
        metavar="LIST",
        help="tokens that the prompt is brought to; 0 leaves it as it is (default: %(default)s)",
    )
    sweep.add_argument("--prompt", metavar="T", help="the prompt (default: the pair's first preset)")
    sweep.add_argument(
        "--rounds",
        type=int,
        default=10,
        metavar="N",
        help="rounds per cell, the first not counted (default: %(default)s)",
    )
    sweep.set_defaults(handler=sweep_command)


def sweep_command(arguments: argparse.Namespace) -> int:
    """Measure the cells and print them."""
    from specviz.bench.sweep import Sweep, SweepRequest
    from specviz.engine.prompts import presets_for

    pair = find_pair(arguments.pair)
    order = SweepRequest(
        pair=arguments.pair,
        drafter=arguments.drafter or drafter_names(pair)[0],
        text=arguments.prompt or presets_for(pair.name)[0].text,
        ks=tuple(arguments.k),
        batches=tuple(arguments.batch),
        contexts=tuple(arguments.context),
        settings=Settings(temperature=arguments.temperature, seed=arguments.seed),
        rounds=arguments.rounds,
        device=arguments.device,
        precision=arguments.precision,
    )
    sweep = Sweep(order)
    code = finish(sweep)
    cells = [sweep.cells[key] for key in sweep.order.keys if key in sweep.cells]
    if arguments.json:
        out = {
            "pair": sweep.order.pair,
            "drafter": sweep.order.drafter,
            "device": sweep.device,
            "dtype": sweep.precision,
            "complete": not sweep.missing,
            "cells": [{key: getattr(c, name) for key, name in KEYS.items()} for c in cells],
        }
        print(json.dumps(out, allow_nan=False))
    else:
        _print(cells)
    return code


def _print(cells: list[Cell]) -> None:
    from specviz.bench.sweep import best_k

    print(
        f"{'context':>7} {'batch':>5} {'K':>3} {'tokens/s':>9} {'plain':>9} {'times':>6} {'accepted':>8} "
        f"{'FLOPs/token':>11}"
    )
    for c in cells:
        work = c.flops_per_token / c.plain_flops_per_token if c.flops_per_token and c.plain_flops_per_token else None
        print(
            f"{c.context:>7} {c.batch:>5} {c.k:>3} {number(c.tokens_per_second):>9} "
            f"{number(c.plain_tokens_per_second):>9} {number(c.speedup):>6} {percent(c.acceptance_rate):>8} "
            f"{number(work):>9} x {c.note}"
        )
    for context in sorted({c.context for c in cells}):
        for batch in sorted({c.batch for c in cells}):
            best = best_k(cells, batch, context)
            print(
                f"Context {context}, batch {batch}: "
                + (f"K = {best.k}, {number(best.speedup)} times as fast as plain" if best else "do not speculate here")
            )
