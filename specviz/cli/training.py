"""The commands `train` and `drafters` of `python -m specviz`: corpus, training, evaluation and export of drafters."""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path

from specviz.cli import drafter_test
from specviz.drafters.names import check_drafter, trained
from specviz.engine.prompts import encode, lines_of
from specviz.errors import SettingsError
from specviz.loader.pairs import EMBEDDED, find_pair
from specviz.paths import write_atomically
from specviz.trace.records import MAX_K, Settings

_QUIET_SECONDS = 15.0


def add_parsers(subparsers) -> None:
    """Add both commands; each parser sets `handler`, a function from the parsed arguments to an exit code."""
    train = subparsers.add_parser("train", help="make a corpus and train drafters on it")
    trains = train.add_subparsers(title="commands", metavar="COMMAND", required=True)
    corpus = trains.add_parser(
        "corpus",
        help="let the target write conversations, and store its taps",
        description=(
            "Shards go to FOLDER and are continued on the next call. With --import the token ids of an existing corpus "
            "are used (the shipped one lies in assets/corpus) and only the taps are computed."
        ),
    )
    corpus.add_argument("folder", metavar="FOLDER")
    corpus.add_argument("--pair", default=EMBEDDED, metavar="P")
    corpus.add_argument(
        "--tokens", type=int, default=1_000_000, metavar="N", help="answer tokens (default: %(default)s)"
    )
    corpus.add_argument(
        "--rows", type=int, default=64, metavar="N", help="conversations at a time (default: %(default)s)"
    )
    corpus.add_argument("--seed", type=int, default=0, metavar="N")
    corpus.add_argument(
        "--import", dest="source", metavar="FILE", help="a corpus file (.npz) to take the token ids from"
    )
    corpus.set_defaults(handler=corpus_command)
    drafter = trains.add_parser("drafter", help="train a drafter on the shards of a folder")
    drafter.add_argument("kind", choices=("autoregressive", "hybrid"), help="hybrid also gives the parallel drafter")
    drafter.add_argument("folder", metavar="FOLDER", help="of the shards")
    drafter.add_argument("to", metavar="TO", help="where the drafters' folders are written")
    drafter.add_argument("--pair", default=EMBEDDED, metavar="P")
    drafter.add_argument("--minutes", type=float, default=30.0, metavar="M", help="(default: %(default)s)")
    drafter.add_argument("--learning-rate", type=float, default=2e-4, metavar="X", help="(default: %(default)s)")
    drafter.set_defaults(handler=drafter_command)

    drafters = subparsers.add_parser("drafters", help="evaluate, test and export drafters")
    commands = drafters.add_subparsers(title="commands", metavar="COMMAND", required=True)
    evaluate = commands.add_parser("eval", help="acceptance of the trained drafters on held-out prompts")
    evaluate.add_argument("--pair", default=EMBEDDED, metavar="P")
    evaluate.add_argument(
        "--prompts", default="heldout", metavar="FILE", help="a text file, one prompt a line, or heldout"
    )
    evaluate.add_argument("--count", type=int, default=20, metavar="N", help="prompts at most (default: %(default)s)")
    evaluate.add_argument("--k", type=int, default=7, metavar="K", help="(default: %(default)s)")
    evaluate.add_argument("--temperature", type=float, default=0.0, metavar="X", help="(default: 0)")
    evaluate.add_argument("--max-new-tokens", type=int, default=128, metavar="N", help="(default: %(default)s)")
    evaluate.add_argument(
        "--drafter",
        action="append",
        metavar="D",
        help="only this one: hybrid, parallel, autoregressive, the folder of a trained or published "
        "one, or FILE.py:CLASS (may be given again; default: all trained ones)",
    )
    evaluate.add_argument("--json", action="store_true", help="print one JSON object")
    evaluate.set_defaults(handler=eval_command)
    drafter_test.add_parser(commands)
    export = commands.add_parser("export", help="write the autoregressive drafter as a standard Hugging Face folder")
    export.add_argument("name", metavar="NAME", help="autoregressive, or a folder of your own")
    export.add_argument("folder", metavar="FOLDER")
    export.add_argument("--pair", default=EMBEDDED, metavar="P")
    export.set_defaults(handler=export_command)


def _told():
    last = [0.0]

    def tell(text: str) -> None:
        if time.monotonic() - last[0] > _QUIET_SECONDS:
            last[0] = time.monotonic()
            print(text, file=sys.stderr, flush=True)

    return tell


def corpus_command(arguments: argparse.Namespace) -> int:
    """Write shards of token ids, then the taps that are missing."""
    if arguments.tokens < 1 or not 1 <= arguments.rows <= 512:
        raise SettingsError("--tokens must be at least 1 and --rows from 1 to 512.")
    from specviz.loader.load_model import load_target
    from specviz.models.causal import CausalModel
    from specviz.training import features, synthesis
    from specviz.training.corpus import Corpus

    folder, tell = Path(arguments.folder), _told()
    folder.mkdir(parents=True, exist_ok=True)
    loaded = load_target(arguments.pair, "cpu", "auto")
    if arguments.source:
        Corpus.load(Path(arguments.source)).save(folder / f"{Path(arguments.source).stem}.npz")
    else:
        seed = [arguments.seed, len(list(folder.glob("*.npz")))]
        made = synthesis.Synthesis(loaded.module, loaded.tokenizer, arguments.rows, seed=seed)

        def progress(tokens: int, tally: synthesis.Tally) -> None:
            tell(
                f"{tokens} answer tokens; in this shard {tally.answer_tokens / tally.seconds:.0f} a second and "
                f"{tally.looped} loops dropped"
            )

        total = synthesis.write_shards(made, folder, arguments.tokens, progress=progress)
        print(f"{total} answer tokens in {folder}.")
    target = CausalModel(loaded.module)
    for path in sorted(folder.glob("*.npz")):
        if not path.with_name(path.stem + ".taps.npy").exists():
            features.compute(
                target,
                Corpus.load(path),
                path.with_name(path.stem),
                lambda share, name=path.stem: tell(f"taps of {name}: {share:.0%}"),
            )
    return 0


def drafter_command(arguments: argparse.Namespace) -> int:
    """Train one drafter (hybrid: two) and write its folder. Interrupted training goes on from its checkpoint."""
    if not 0 < arguments.minutes <= 10_000 or not 0 < arguments.learning_rate < 1:
        raise SettingsError("--minutes must be above 0 and --learning-rate between 0 and 1.")
    import torch

    from specviz.drafters import checkpoints
    from specviz.loader.load_model import load_target
    from specviz.training import recipes
    from specviz.training.block import BlockRecipe
    from specviz.training.causal import CausalRecipe
    from specviz.training.features import TapStore

    tell, to = _told(), Path(arguments.to)
    s = recipes.setting(load_target(arguments.pair, "cpu", "fp32").module, TapStore(Path(arguments.folder)))
    work = recipes.work_folder(to / "training", arguments.kind)
    block = arguments.kind == "hybrid"
    net = recipes.block_net(s) if block else recipes.causal_net(s)
    begin = work / "start.pt"
    if begin.exists():
        net.load_state_dict(torch.load(begin, weights_only=True))
    else:
        print(json.dumps((recipes.start_block if block else recipes.start_causal)(net, s)), file=sys.stderr)
        write_atomically(begin, lambda file: torch.save(net.state_dict(), file))
    options = {
        "share_done": lambda at: at.seconds / 60 / arguments.minutes,
        "checkpoint": work / "checkpoint.pt",
        "report": lambda at: tell(f"step {at.step}, {at.seconds:.0f} s, loss {at.losses[-1]}, alpha {at.alphas}"),
    }
    if block:
        done = recipes.train_block(net, s, BlockRecipe(learning_rate=arguments.learning_rate), **options)
        recipes.fit_confidence(net, s)
        about = {"confidence_temperatures": recipes.calibrate(net, s), "alpha_by_position": recipes.alpha_block(net, s)}
    else:
        done = recipes.train_causal(net, s, CausalRecipe(learning_rate=arguments.learning_rate), **options)
        about = {"alpha_by_position": {"autoregressive": [recipes.alpha_causal(net, s)]}}
    about |= {"steps": done.step, "seconds": round(done.seconds), "answer_tokens": s.store.answer_tokens(s.train)}
    for kind in ("parallel", "hybrid") if block else ("autoregressive",):
        checkpoints.save(to / kind, kind, net, about)
    print(json.dumps(about))
    return 0


def eval_command(arguments: argparse.Namespace) -> int:
    """Measure the trained drafters live; print a table or one JSON object."""
    if arguments.count < 1 or not 1 <= arguments.k <= MAX_K:
        raise SettingsError(f"--count must be at least 1 and --k from 1 to {MAX_K}.")
    settings = Settings(k=arguments.k, temperature=arguments.temperature, max_new_tokens=arguments.max_new_tokens)
    from specviz.drafters import checkpoints
    from specviz.engine.run import STORE, make_drafter
    from specviz.training import evaluate

    pair = find_pair(arguments.pair)
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
    opened, tell = STORE.open(pair.target, "auto", "auto"), _told()
    target = opened.model
    prompts = _prompts(arguments.prompts, opened.tokenizer)[: arguments.count]
    plain = evaluate.plain_texts(target, prompts, settings)
    found, lives = [], {}
    for name in names:

        def make(settings: Settings, name=name):
            return make_drafter(name, pair, opened, settings)

        result = lives[name] = evaluate.live(
            target, make, prompts, settings, plain, lambda n, name=name: tell(f"{name}: {n} of {len(prompts)} prompts")
        )
        stored = checkpoints.read(trained()[name])[3] if name in trained() else {}
        seconds = evaluate.draft_seconds(target, make, prompts[0], range(1, MAX_K + 1))
        found.append(
            {
                "name": name,
                **result.as_json(),
                "draft_seconds_by_k": seconds,
                "alpha_by_position": stored.get("alpha_by_position", {}).get(name),
            }
        )
    serial = None  # what the serial pass adds
    if {"hybrid", "parallel"} <= lives.keys() and len(prompts) > 1:
        serial = evaluate.gain(lives["parallel"], lives["hybrid"])
    if arguments.json:
        more = {"hybrid_minus_parallel": {"mean_acceptance_length": serial[0], "ci": serial[1:]}} if serial else {}
        print(
            json.dumps(
                {
                    "pair": arguments.pair,
                    "k": arguments.k,
                    "temperature": arguments.temperature,
                    "prompts": len(prompts),
                    "settings": asdict(settings),
                    "drafters": found,
                    **more,
                }
            )
        )
        return 0
    print(f"{arguments.pair}, K {arguments.k}, temperature {arguments.temperature:g}, {len(prompts)} prompts")
    for one in found:
        low, high = one["mean_acceptance_length_ci"] or (float("nan"),) * 2
        print(
            f"{one['name']:16} mean acceptance length {one['mean_acceptance_length']:.2f} ({low:.2f} to {high:.2f}), "
            f"{one['tokens_per_second']:.1f} tokens/s, plain {one['plain_tokens_per_second']:.1f}, distinct-4 "
            f"{one['distinct_4']:.2f}, by position {[round(x, 2) for x in one['acceptance_by_position']]}"
        )
    if serial:
        print(
            f"hybrid minus parallel: mean acceptance length {serial[0]:+.2f} ({serial[1]:+.2f} to {serial[2]:+.2f}), "
            "95 % by a bootstrap over the same prompts"
        )
    return 0


def _prompts(source: str, tokenizer) -> list[list[int]]:
    """Held-out prompts of the shipped corpus (nothing was fitted to them), or a file's lines in the chat template."""
    if source == "heldout":
        from specviz.training.corpus import judging

        return [part.prompt(i).tolist() for part, i in judging()]
    lines = lines_of(source)
    return [list(encode(tokenizer, line).ids) for line in lines]


def export_command(arguments: argparse.Namespace) -> int:
    """Write the standard folder."""
    from specviz.drafters import trained_autoregressive
    from specviz.loader.config_and_tokenizer import load_tokenizer
    from specviz.loader.load_model import load_target
    from specviz.models.causal import CausalModel

    source = trained().get(arguments.name, Path(arguments.name))
    loaded = load_target(arguments.pair, "cpu", "fp32")
    to = Path(arguments.folder)
    trained_autoregressive.export(source, CausalModel(loaded.module), load_tokenizer(loaded.folder, stock=True), to)
    print(
        f"Wrote {to}: a standard model with the full vocabulary. Its q, and so its acceptance, differ from the "
        "shipped form's, whose head is cut to a draft vocabulary."
    )
    return 0
