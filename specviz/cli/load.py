"""The commands `sweep` and `load` of `python -m specviz`."""

from __future__ import annotations

import argparse
import dataclasses
import json

from specviz.cli.progress import finish
from specviz.cli.ranges import numbers
from specviz.drafters.names import drafter_names
from specviz.errors import SettingsError
from specviz.format import number, percent, seconds
from specviz.loader.pairs import EMBEDDED, find_pair
from specviz.serving.policies import ALL, NAMES
from specviz.trace.records import Settings

SWEEP_KEYS = (
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
    "draft_seconds",
    "verify_seconds",
    "plain_seconds",
    "note",
)


def add_parsers(subparsers) -> None:
    """Add both commands; each parser sets `handler`, a function from the parsed arguments to an exit code."""
    sweep = subparsers.add_parser(
        "sweep",
        help="measure K x batch: where speculation stops paying",
        description="Decode copies of one prompt at every K and batch, and time plain steps of the same rows in the "
        "same run.",
    )
    _common(sweep)
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

    load = subparsers.add_parser(
        "load",
        help="serve arriving requests under several policies for the verify length",
        description="The same arrivals and seeds under each policy, on the real engine with continuous batching.",
    )
    _common(load)
    load.add_argument(
        "--policy",
        default="all",
        metavar="P,P",
        help=f"all (the first four) or some of {', '.join(ALL)}; fixed:3 sets its K (default: all)",
    )
    load.add_argument("--rate", default="0.5", metavar="LIST", help="requests a second, one or several (default: 0.5)")
    load.add_argument(
        "--seconds", type=float, default=20.0, metavar="S", help="how long requests arrive (default: %(default)s)"
    )
    load.add_argument("--k", type=int, default=4, metavar="K", help="of the policy fixed (default: %(default)s)")
    load.add_argument("--burst", type=int, default=1, metavar="N", help="requests that come at once (default: 1)")
    load.add_argument(
        "--length", default="16..48", metavar="A..B", help="new tokens of a request, from and to (default: %(default)s)"
    )
    load.add_argument(
        "--rows", type=int, default=16, metavar="N", help="requests decoded at once at most (default: %(default)s)"
    )
    load.add_argument("--seeds", default="0", type=numbers, metavar="LIST", help="one load per seed (default: 0)")
    load.add_argument(
        "--cancel",
        type=float,
        default=0.0,
        metavar="SHARE",
        help="share of requests cancelled at a random moment (default: 0)",
    )
    load.add_argument(
        "--simulate",
        metavar="DEVICE",
        help="no model runs: rounds take what the roofs of a device of the catalogue allow, such as "
        "'H100 SXM', and drafts survive by chance",
    )
    load.add_argument(
        "--shape", default="Llama-3.1-8B", metavar="NAME", help="of --simulate: a built-in shape (default: %(default)s)"
    )
    load.add_argument(
        "--survival",
        type=float,
        default=0.8,
        metavar="P",
        help="of --simulate: the chance of draft 1, falling to two thirds of it at the last (default: %(default)s)",
    )
    load.add_argument(
        "--draft-share",
        type=float,
        default=0.05,
        metavar="S",
        help="of --simulate: one pass of the drafter in passes of the target (default: %(default)s)",
    )
    load.add_argument(
        "--prompt-tokens",
        type=int,
        default=200,
        metavar="N",
        help="of --simulate: tokens of every prompt (default: %(default)s)",
    )
    load.set_defaults(handler=load_command)


def _common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--pair", default=EMBEDDED, metavar="P", help="a name from `pairs`, or TARGET+DRAFT (default: %(default)s)"
    )
    parser.add_argument("--drafter", metavar="D", help="which drafter (default: the first that the pair has)")
    parser.add_argument("--temperature", type=float, default=0.0, metavar="X", help="0 is greedy (default: 0)")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="of the first row (default: 0)")
    parser.add_argument("--device", default="auto", metavar="D", help="auto, cpu, cuda or mps (default: auto)")
    parser.add_argument("--precision", default="auto", metavar="P", help="auto, fp32, bf16, fp16, int4 (default: auto)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def sweep_command(arguments: argparse.Namespace) -> int:
    """Measure the cells and print them."""
    from specviz.engine.prompts import presets_for

    pair = find_pair(arguments.pair)
    settings = Settings(temperature=arguments.temperature, seed=arguments.seed)
    text = arguments.prompt or presets_for(pair.name)[0].text

    from specviz.bench.sweep import Sweep, SweepOrder, best_k

    sweep = Sweep(
        SweepOrder(
            arguments.pair,
            arguments.drafter or drafter_names(pair)[0],
            text,
            tuple(arguments.k),
            tuple(arguments.batch),
            tuple(arguments.context),
            settings,
            arguments.rounds,
            arguments.device,
            arguments.precision,
        )
    )
    code = finish(sweep)
    cells = [sweep.cells[key] for key in sweep.order.keys if key in sweep.cells]
    if arguments.json:
        print(
            json.dumps(
                {
                    "pair": sweep.order.pair,
                    "drafter": sweep.order.drafter,
                    "device": sweep.device,
                    "dtype": sweep.precision,
                    "complete": not sweep.missing,
                    "cells": [{k: getattr(c, k) for k in SWEEP_KEYS} for c in cells],
                },
                allow_nan=False,
            )
        )
        return code
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
    return code


def load_command(arguments: argparse.Namespace) -> int:
    """Serve the loads and print what each policy made of them."""
    pair = find_pair(arguments.pair)
    settings = Settings(temperature=arguments.temperature, seed=arguments.seed)
    chosen = NAMES if arguments.policy == "all" else tuple(p.strip() for p in arguments.policy.split(","))
    try:
        rates = [float(x) for x in arguments.rate.split(",")]
    except ValueError:
        raise SettingsError(f"--rate must be a number or several with commas, not {arguments.rate[:40]!r}.") from None
    lengths = _span(arguments.length)

    from specviz.serving.load_test import LoadOrder, LoadRun

    found, code = [], 0
    if arguments.simulate:
        order = LoadOrder(
            arguments.pair,
            "simulated",
            chosen,
            rates[0],
            arguments.seconds,
            arguments.burst,
            arguments.k,
            lengths=lengths,
            seeds=tuple(arguments.seeds),
            rows=arguments.rows,
            settings=settings,
        )
        run = _simulation(arguments, order, rates)
        code = finish(run)
        found = [{"seed": o.seed, **dataclasses.asdict(o.summary)} for o in run.outcomes]
        rates = []
    for rate in rates:
        run = LoadRun(
            LoadOrder(
                arguments.pair,
                arguments.drafter or drafter_names(pair)[0],
                chosen,
                rate,
                arguments.seconds,
                arguments.burst,
                arguments.k,
                lengths=lengths,
                seeds=tuple(arguments.seeds),
                rows=arguments.rows,
                cancel=arguments.cancel,
                settings=settings,
                device=arguments.device,
                precision=arguments.precision,
            )
        )
        code = finish(run)
        found += [{"seed": o.seed, **dataclasses.asdict(o.summary)} for o in run.outcomes]
        if code:
            break
    if arguments.json:
        table = None if arguments.simulate or run.table is None else dataclasses.asdict(run.table)
        print(
            json.dumps(
                {
                    "pair": arguments.shape if arguments.simulate else arguments.pair,
                    "drafter": run.order.drafter,
                    "device": arguments.simulate or run.device,
                    "table": table,
                    "simulated": bool(arguments.simulate),
                    "policies": found,
                },
                allow_nan=False,
            )
        )
        return code
    print(
        f"{'rate':>6} {'policy':18} {'seed':>4} {'tokens/s':>9} {'per user':>9} {'per token':>9} {'verified':>8} "
        f"{'wasted':>7} {'running':>7} {'requests':>8} {'alone?':>7}"
    )
    for f in found:
        same = {True: "equal", False: f"{f['near_ties']} tied", None: "n/a"}[f["identical"]]
        same = "DIFFER" if f["differing"] else same
        print(
            f"{number(f['rate']):>6} {f['policy']:18} {f['seed']:>4} {number(f['tokens_per_second']):>9} "
            f"{number(f['tokens_per_second_per_user']):>9} {seconds(f['seconds_per_token']):>9} "
            f"{number(f['mean_verify_length']):>8} {percent(f['wasted_verify_fraction']):>7} "
            f"{number(f['mean_running']):>7} {f['requests']:>8} {same:>7}"
        )
    return code


def _simulation(arguments: argparse.Namespace, order, rates):
    """The server of an order on a device of the catalogue, by its roofs. Raises SpecVizError for unknown names."""
    from specviz.hardware import catalogue, shapes
    from specviz.serving import step_table
    from specviz.serving.load_test import Simulation
    from specviz.serving.server import Chances, Limits

    if not (0 <= arguments.draft_share <= 10 and 1 <= arguments.prompt_tokens <= 100_000):
        raise SettingsError("--draft-share lies in 0..10 and --prompt-tokens in 1..100000.")
    entry, shape = catalogue.device(arguments.simulate), shapes.shape(arguments.shape)
    precision = "bf16" if "bf16" in entry.peaks else next(iter(entry.peaks))
    context = arguments.prompt_tokens + order.lengths[1] // 2
    costs = step_table.modelled(shape, entry.ceilings(precision), context, arguments.draft_share, False)
    chances = Chances(tuple(arguments.survival * (1 - i / 18) for i in range(7)), 0.25)
    limits = Limits(order.rows, arguments.prompt_tokens + order.lengths[1] + 16, chunk=2048)
    return Simulation(order, rates, costs, chances, limits, arguments.prompt_tokens)


def _span(text: str) -> tuple[int, int]:
    low, dots, high = text.partition("..")
    try:
        return int(low), int(high if dots else low)
    except ValueError:
        raise SettingsError(f"--length must be 32 or 16..48, not {text[:40]!r}.") from None
