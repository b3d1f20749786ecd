"""The command `drafters eval`: acceptance of drafters on held-out prompts, by kind of text."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from specviz.cli.options import Subparsers, add_json, add_pair
from specviz.cli.progress import reporting
from specviz.drafters.names import check_drafter, trained
from specviz.engine.prompts import encode, lines_of
from specviz.errors import SettingsError
from specviz.loader.pairs import EMBEDDED, Pair, find_pair
from specviz.trace.records import MAX_K, Settings
from specviz.worker import Job

if TYPE_CHECKING:
    from specviz.drafters.base import Drafter
    from specviz.engine.model_store import LoadedModel
    from specviz.training.evaluate import Live


def add_parser(commands: Subparsers) -> None:
    """Add the command; the parser sets `handler`, a function from the parsed arguments to an exit code."""
    parser = commands.add_parser("eval", help="acceptance of the trained drafters on held-out prompts")
    add_pair(parser)
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
    add_json(parser)
    parser.set_defaults(handler=eval_command)


def eval_command(arguments: argparse.Namespace) -> int:
    """Measure drafters in the decoding loop; print a table or one JSON object."""
    if arguments.count < 1 or not 1 <= arguments.k <= MAX_K or not 1 <= arguments.rows <= 64:
        raise SettingsError(f"--count must be at least 1, --k from 1 to {MAX_K} and --rows from 1 to 64.")
    settings = Settings(k=arguments.k, temperature=arguments.temperature, max_new_tokens=arguments.max_new_tokens)
    pair = find_pair(arguments.pair)
    names = _names(arguments, pair)
    from specviz.engine.model_store import STORE
    from specviz.training import evaluate

    found, results = [], {}
    with reporting() as job:
        opened = STORE.open(pair.target, "auto", "auto", job)
        kinds, prompts = _prompts(arguments.prompts, opened.tokenizer, arguments.count)
        plain = evaluate.plain_texts(opened.model, prompts, settings, arguments.rows)
        measure = _Measure(pair, opened, prompts, settings, plain, arguments.rows)
        for i, name in enumerate(names):
            part = job.part(i / len(names), (i + 1) / len(names), f"Decoding with {name}")
            one, results[name] = measure(name, part)
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


@dataclass(frozen=True)
class _Measure:
    """Measures drafters of a pair on the same prompts. plain: texts and speed of plain decoding."""

    pair: Pair
    opened: LoadedModel
    prompts: list[list[int]]
    settings: Settings
    plain: tuple[list[list[int]], float]
    rows: int

    def __call__(self, name: str, job: Job) -> tuple[dict[str, Any], Live]:
        """One drafter: the JSON object of everything, and the acceptance and speed in it."""
        from specviz.drafters import checkpoints
        from specviz.engine.drafter_factory import make_drafter
        from specviz.training import evaluate

        def make(settings: Settings) -> Drafter:
            return make_drafter(name, self.pair, self.opened, settings)

        model = self.opened.model
        live = evaluate.live(model, make, self.prompts, self.settings, self.plain, job, self.rows)
        stored = checkpoints.read(trained()[name])[3] if name in trained() else {}
        seconds = evaluate.draft_seconds(model, make, self.prompts[0], range(1, MAX_K + 1))
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
