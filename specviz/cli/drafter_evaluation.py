"""The command `drafters eval` of `python -m specviz`: acceptance of drafters on held-out prompts, by kind of text."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from specviz.drafters.names import check_drafter, trained
from specviz.engine.prompts import encode, lines_of
from specviz.errors import SettingsError
from specviz.loader.pairs import EMBEDDED, Pair, find_pair
from specviz.trace.records import MAX_K, Settings

_QUIET_SECONDS = 15.0


def add_parser(commands) -> None:
    """Add the command; the parser sets `handler`, a function from the parsed arguments to an exit code."""
    parser = commands.add_parser("eval", help="acceptance of the trained drafters on held-out prompts")
    parser.add_argument("--pair", default=EMBEDDED, metavar="P")
    parser.add_argument(
        "--prompts",
        default="heldout",
        metavar="FILE",
        help="a text file, one prompt a line; heldout: prompts of the drafters' corpus that nothing was fitted to; "
        "validation: prompts that people would write, with results by kind of text (default: %(default)s)",
    )
    parser.add_argument("--count", type=int, default=20, metavar="N", help="prompts at most (default: %(default)s)")
    parser.add_argument("--k", type=int, default=7, metavar="K", help="(default: %(default)s)")
    parser.add_argument("--temperature", type=float, default=0.0, metavar="X", help="(default: 0)")
    parser.add_argument("--max-new-tokens", type=int, default=128, metavar="N", help="(default: %(default)s)")
    parser.add_argument(
        "--rows",
        type=int,
        default=1,
        metavar="N",
        help="prompts decoded at a time: faster, but the speeds are those of a batch (default: %(default)s)",
    )
    parser.add_argument(
        "--drafter",
        action="append",
        metavar="D",
        help="only this one: hybrid, parallel, autoregressive, the folder of a trained or published "
        "one, or FILE.py:CLASS (may be given again; default: all trained ones)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(handler=eval_command)


def reports() -> Callable[[str], None]:
    """A function that writes a line to stderr, but not more often than every 15 seconds."""
    last = [0.0]

    def report(text: str) -> None:
        if time.monotonic() - last[0] > _QUIET_SECONDS:
            last[0] = time.monotonic()
            print(text, file=sys.stderr, flush=True)

    return report


def eval_command(arguments: argparse.Namespace) -> int:
    """Measure drafters in the decoding loop; print a table or one JSON object."""
    if arguments.count < 1 or not 1 <= arguments.k <= MAX_K or not 1 <= arguments.rows <= 64:
        raise SettingsError(f"--count must be at least 1, --k from 1 to {MAX_K} and --rows from 1 to 64.")
    settings = Settings(k=arguments.k, temperature=arguments.temperature, max_new_tokens=arguments.max_new_tokens)
    pair = find_pair(arguments.pair)
    names = _names(arguments, pair)
    from specviz.engine.model_store import STORE
    from specviz.training import evaluate

    opened, report = STORE.open(pair.target, "auto", "auto"), reports()
    kinds, prompts = _prompts(arguments.prompts, opened.tokenizer, arguments.count)
    plain = evaluate.plain_texts(opened.model, prompts, settings, arguments.rows)
    found, results = [], {}
    for name in names:
        one, results[name] = _measure(name, pair, opened, prompts, settings, plain, arguments.rows, report)
        if kinds:
            one["by_kind"] = evaluate.by_kind(kinds, results[name])
        found.append(one)
    serial = None  # what the serial head adds
    if {"hybrid", "parallel"} <= results.keys() and len(prompts) > 1:
        serial = evaluate.gain(results["parallel"], results["hybrid"])
    if not arguments.json:
        _print(arguments, found, len(prompts), serial)
        return 0
    more = {"hybrid_minus_parallel": {"mean_acceptance_length": serial[0], "ci": serial[1:]}} if serial else {}
    about = {"pair": arguments.pair, "k": arguments.k, "temperature": arguments.temperature, "prompts": len(prompts)}
    print(json.dumps({**about, "settings": asdict(settings), "drafters": found, **more}))
    return 0


def _names(arguments: argparse.Namespace, pair: Pair) -> list[str]:
    """The drafters to measure. Raises SettingsError if there are none or the prompts do not fit the pair."""
    names = arguments.drafter or (list(trained()) if pair.name == EMBEDDED else [])
    if not names:
        raise SettingsError(f"{pair.title} has no trained drafters: name one with --drafter, such as a folder.")
    for name in names:
        check_drafter(pair, name)
    if arguments.prompts == "heldout" and pair.name != EMBEDDED:
        raise SettingsError(
            "The held-out prompts are token ids of the embedded target: for another pair name a text "
            "file with --prompts, one prompt a line."
        )
    return names


def _measure(name: str, pair: Pair, opened, prompts, settings: Settings, plain, rows: int, report) -> tuple[dict, Any]:
    """One drafter: a JSON object of everything, and the evaluate.Live in it."""
    from specviz.drafters import checkpoints
    from specviz.engine.drafter_factory import make_drafter
    from specviz.training import evaluate

    def make(settings: Settings):
        return make_drafter(name, pair, opened, settings)

    def progress(done: int) -> None:
        report(f"{name}: {done} of {len(prompts)} prompts")

    live = evaluate.live(opened.model, make, prompts, settings, plain, progress, rows)
    stored = checkpoints.read(trained()[name])[3] if name in trained() else {}
    seconds = evaluate.draft_seconds(opened.model, make, prompts[0], range(1, MAX_K + 1))
    overlap = stored.get("alpha_by_position", {}).get(name)
    return {"name": name, **live.as_json(), "draft_seconds_by_k": seconds, "alpha_by_position": overlap}, live


def _print(arguments: argparse.Namespace, found: list[dict], prompts: int, serial) -> None:
    print(f"{arguments.pair}, K {arguments.k}, temperature {arguments.temperature:g}, {prompts} prompts")
    for one in found:
        low, high = one["mean_acceptance_length_ci"] or (float("nan"),) * 2
        print(
            f"{one['name']:16} mean acceptance length {one['mean_acceptance_length']:.2f} ({low:.2f} to {high:.2f}), "
            f"{one['tokens_per_second']:.1f} tokens/s, plain {one['plain_tokens_per_second']:.1f}, distinct-4 "
            f"{one['distinct_4']:.2f}, by position {[round(x, 2) for x in one['acceptance_by_position']]}"
        )
        if one["calibration_error"] is not None:
            print(f"  confidence: calibration error {one['calibration_error']:.1%}, AUC {one['auc']:.2f}")
        for kind, (length, low, high, n) in one.get("by_kind", {}).items():
            print(f"  {kind:14} {length:.2f} ({low:.2f} to {high:.2f}), {n} prompts")
    if serial:
        print(
            f"hybrid minus parallel: mean acceptance length {serial[0]:+.2f} ({serial[1]:+.2f} to {serial[2]:+.2f}), "
            "95 % by a bootstrap over the same prompts"
        )


def _prompts(source: str, tokenizer, count: int) -> tuple[list[str], list[list[int]]]:
    """Kind and token ids of each prompt: held-out ones of the shipped corpus, the validation prompts (of each kind
    equally many), or a file's lines in the chat template. The first and the last have no kinds."""
    if source == "heldout":
        from specviz.training.corpus import judging

        return [], [part.prompt(i).tolist() for part, i in judging()[:count]]
    if source == "validation":
        from specviz.training import prompts

        lists = prompts.validation()
        longest = max(map(len, lists.values()))
        pairs = [(kind, texts[i]) for i in range(longest) for kind, texts in lists.items() if i < len(texts)][:count]
        return [kind for kind, _ in pairs], [list(encode(tokenizer, text).ids) for _, text in pairs]
    return [], [list(encode(tokenizer, line).ids) for line in lines_of(source)[:count]]
