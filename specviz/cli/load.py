"""The command `load`: requests that arrive at random, served under several policies for the verify length."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Sequence

from specviz.cli.options import Subparsers, add_device, add_drafter, add_json, add_pair, add_temperature_and_seed
from specviz.cli.progress import finish
from specviz.cli.ranges import numbers
from specviz.drafters.names import drafter_names
from specviz.errors import SettingsError
from specviz.format import number, percent, seconds
from specviz.loader.pairs import find_pair
from specviz.serving.load_test import LoadTest, LoadTestRequest, Simulation
from specviz.serving.policies import ALL, NAMES
from specviz.serving.step_table import StepTable
from specviz.trace.records import Settings


def add_parsers(subparsers: Subparsers) -> None:
    """Add the command; its parser sets `handler`, a function from the parsed arguments to an exit code."""
    load = subparsers.add_parser(
        "load",
        help="serve arriving requests under several policies for the verify length",
        description="The same arrivals and seeds under each policy, on the real engine with continuous batching.",
    )
    add_pair(load)
    add_drafter(load)
    add_temperature_and_seed(load)
    add_device(load)
    add_json(load)
    load.add_argument(
        "--policy",
        default="all",
        metavar="P,P",
        help=f"all (the first four) or some of {', '.join(ALL)}; fixed:3 sets its K (default: all)",
    )
    load.add_argument("--rate", default="0.5", metavar="LIST", help="requests a second, one or several (default: 0.5)")
    load.add_argument(
        "--seconds",
        type=float,
        default=20.0,
        metavar="S",
        help="seconds during which requests arrive (default: %(default)s)",
    )
    load.add_argument("--k", type=int, default=4, metavar="K", help="K of the policy fixed (default: %(default)s)")
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
    _add_simulation(load)
    load.set_defaults(handler=load_command)


def _add_simulation(load: argparse.ArgumentParser) -> None:
    load.add_argument(
        "--simulate",
        metavar="DEVICE",
        help="run no model: rounds take the time of the roofline of a device of the catalogue, such as "
        "'H100 SXM', and drafts are accepted at random",
    )
    load.add_argument(
        "--shape", default="Llama-3.1-8B", metavar="NAME", help="of --simulate: a built-in shape (default: %(default)s)"
    )
    load.add_argument(
        "--survival",
        type=float,
        default=0.8,
        metavar="P",
        help="of --simulate: acceptance probability of draft 1; two thirds of it at the last (default: %(default)s)",
    )
    load.add_argument(
        "--draft-share",
        type=float,
        default=0.05,
        metavar="S",
        help="of --simulate: time of a drafter pass as a share of a target pass (default: %(default)s)",
    )
    load.add_argument(
        "--prompt-tokens",
        type=int,
        default=200,
        metavar="N",
        help="of --simulate: tokens of every prompt (default: %(default)s)",
    )


def load_command(arguments: argparse.Namespace) -> int:
    """Serve the loads and print the figures of each policy."""
    orders = _orders(arguments)
    runs: list[LoadTest | Simulation] = []
    code = 0
    if arguments.simulate:
        runs.append(_simulation(arguments, orders[0], [order.rate for order in orders]))
        code = finish(runs[0])
    else:
        for order in orders:
            run = LoadTest(order)
            runs.append(run)
            if code := finish(run):
                break
    found = [{"seed": o.seed, **dataclasses.asdict(o.summary)} for run in runs for o in run.results]
    if arguments.json:
        print(json.dumps(_as_json(arguments, runs[-1], found), allow_nan=False))
    else:
        _print(found)
    return code


def _orders(arguments: argparse.Namespace) -> list[LoadTestRequest]:
    """One order per rate."""
    try:
        rates = [float(x) for x in arguments.rate.split(",")]
    except ValueError:
        raise SettingsError(f"--rate must be a number or several with commas, not {arguments.rate[:40]!r}.") from None
    pair, simulated = find_pair(arguments.pair), bool(arguments.simulate)
    order = LoadTestRequest(
        pair=arguments.pair,
        drafter="simulated" if simulated else arguments.drafter or drafter_names(pair)[0],
        policies=NAMES if arguments.policy == "all" else tuple(p.strip() for p in arguments.policy.split(",")),
        rate=rates[0],
        seconds=arguments.seconds,
        burst=arguments.burst,
        k=arguments.k,
        lengths=_span(arguments.length),
        seeds=tuple(arguments.seeds),
        rows=arguments.rows,
        cancel=0.0 if simulated else arguments.cancel,
        settings=Settings(temperature=arguments.temperature, seed=arguments.seed),
        device=arguments.device,
        precision=arguments.precision,
    )
    return [dataclasses.replace(order, rate=rate) for rate in rates]


def _as_json(arguments: argparse.Namespace, run: LoadTest | Simulation, found: list[dict]) -> dict:
    table = run.table if isinstance(run, LoadTest) else None
    return {
        "pair": arguments.shape if arguments.simulate else arguments.pair,
        "drafter": run.order.drafter,
        "device": run.device if isinstance(run, LoadTest) else arguments.simulate,
        "table": None if table is None else _table_json(table),
        "simulated": bool(arguments.simulate),
        "policies": found,
    }


def _table_json(table: StepTable) -> dict:
    """The step table; its seconds also under a name that says what is timed."""
    out = dataclasses.asdict(table)
    return {**out, "verify_and_judge_seconds": out["seconds"]}


def _print(found: list[dict]) -> None:
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


def _simulation(arguments: argparse.Namespace, order: LoadTestRequest, rates: Sequence[float]) -> Simulation:
    """The load on a device of the catalogue, with the times of its roofline. Raises SpecVizError for unknown names."""
    from specviz.hardware import catalogue, shapes
    from specviz.serving import step_table
    from specviz.serving.engines import SurvivalModel
    from specviz.serving.requests import ServerLimits

    if not (0 <= arguments.draft_share <= 10 and 1 <= arguments.prompt_tokens <= 100_000):
        raise SettingsError("--draft-share must be from 0 to 10 and --prompt-tokens from 1 to 100,000.")
    entry, shape = catalogue.device(arguments.simulate), shapes.shape(arguments.shape)
    precision = "bf16" if "bf16" in entry.peaks else next(iter(entry.peaks))
    context = arguments.prompt_tokens + order.lengths[1] // 2
    costs = step_table.modelled(shape, entry.ceilings(precision), context, arguments.draft_share, False)
    chances = SurvivalModel(tuple(arguments.survival * (1 - i / 18) for i in range(7)), 0.25)
    limits = ServerLimits(order.rows, arguments.prompt_tokens + order.lengths[1] + 16, chunk=2048)
    return Simulation(order, rates, costs, chances, limits, arguments.prompt_tokens)


def _span(text: str) -> tuple[int, int]:
    low, dots, high = text.partition("..")
    try:
        return int(low), int(high if dots else low)
    except ValueError:
        raise SettingsError(f"--length must be 32 or 16..48, not {text[:40]!r}.") from None
