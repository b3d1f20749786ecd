"""The command `run`: decode a prompt speculatively."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from specviz.cli.options import Subparsers, add_device, add_drafter, add_pair, number, say, whole
from specviz.cli.progress import INTERRUPTED, watch
from specviz.cli.run_summary import as_json, figures
from specviz.drafters.names import check_drafter, drafter_names
from specviz.engine.prompts import MAX_CHARACTERS
from specviz.engine.request import RunRequest
from specviz.errors import SettingsError, SpecVizError
from specviz.loader.pairs import find_pair
from specviz.trace import files as trace_files
from specviz.trace.records import MAX_K, Settings, Trace


def add_parsers(subparsers: Subparsers) -> None:
    """Add the command; its parser sets `handler`, a function from the parsed arguments to an exit code."""
    defaults = Settings()
    run = subparsers.add_parser(
        "run",
        help="decode a prompt speculatively",
        description="Decode a prompt speculatively. The text goes to stdout, figures and progress to stderr.",
    )
    add_pair(run)
    add_drafter(run)
    run.add_argument("--prompt", required=True, metavar="T", help="the prompt; - reads it from stdin")
    run.add_argument("--system", metavar="T", help="the system message (default: the chat template's own)")
    run.add_argument("--raw", action="store_true", help="the prompt as it is, without the chat template")
    run.add_argument(
        "--k",
        type=whole,
        default=defaults.k,
        metavar="K",
        help=f"draft tokens per round, 0 (plain decoding) to {MAX_K} (default: %(default)s)",
    )
    run.add_argument(
        "--batch",
        type=whole,
        default=1,
        metavar="R",
        help="rows: the prompt is decoded this many times, each with its own seed S, S + 1, ... (default: 1)",
    )
    run.add_argument(
        "--temperature",
        type=number,
        default=defaults.temperature,
        metavar="X",
        help="0 is greedy (default: %(default)s)",
    )
    run.add_argument("--top-k", type=whole, default=defaults.top_k, metavar="N", help="0 is off (default)")
    run.add_argument("--top-p", type=number, default=defaults.top_p, metavar="X", help="1 is off (default)")
    run.add_argument("--seed", type=whole, default=defaults.seed, metavar="S", help="(default: %(default)s)")
    run.add_argument(
        "--max-new-tokens", type=whole, default=defaults.max_new_tokens, metavar="N", help="(default: %(default)s)"
    )
    add_device(run)
    run.add_argument("--trace", metavar="FILE", help="write the whole run here, to be shown, replayed or exported")
    run.add_argument("--json", action="store_true", help="print one JSON object instead of the text")
    run.set_defaults(handler=run_command)


def run_command(arguments: argparse.Namespace) -> int:
    """Decode, print the text or JSON, and write the trace."""
    settings = Settings(
        k=arguments.k,
        temperature=arguments.temperature,
        top_k=arguments.top_k,
        top_p=arguments.top_p,
        seed=arguments.seed,
        max_new_tokens=arguments.max_new_tokens,
    )
    text = _prompt(arguments.prompt, arguments.raw)
    pair = find_pair(arguments.pair)
    drafter = arguments.drafter or drafter_names(pair)[0]
    check_drafter(pair, drafter)
    path = None if arguments.trace is None else _writable(arguments.trace)

    from specviz.engine.run import Run

    run = Run(
        RunRequest(
            pair=arguments.pair,
            drafter=drafter,
            text=text,
            settings=settings,
            system=arguments.system,
            raw=arguments.raw,
            rows=arguments.batch,
            device=arguments.device,
            precision=arguments.precision,
        )
    )
    code = watch(run)
    trace = run.trace
    if trace is not None and path is not None:
        _save(trace, path)
    if code == INTERRUPTED:
        kept = sum(len(v.emitted) for r in run.rounds for v in r.rows)
        say(f"Stopped after {kept} tokens." if kept else "Stopped before the first token.")
        return code
    if run.status == "failed":
        hint = " Set SPECVIZ_DEBUG=1 to see it here." if run.error and run.error.endswith("The log says more.") else ""
        raise SpecVizError((run.error or "The run failed.") + hint)
    if trace is None:
        raise SpecVizError("The run was stopped before its first round.")
    if arguments.json:
        print(json.dumps(as_json(trace), allow_nan=False))
    else:
        _print(trace)
    return 0


def _save(trace: Trace, path: Path) -> None:
    try:
        say(f"Trace: {trace_files.save(trace, path)}")
    except OSError as error:
        raise SpecVizError(
            f"The run is done, but its trace could not be written to {path}: {error.strerror or error}. Name another "
            "file and run again."
        ) from None


def _prompt(given: str, raw: bool) -> str:
    """The prompt, from stdin if it is `-`. Raises SettingsError before any weights are fetched."""
    if given == "-":
        if hasattr(sys.stdin, "reconfigure"):
            sys.stdin.reconfigure(errors="replace")
        given = sys.stdin.read(MAX_CHARACTERS + 1)
    if not given.strip() and not (raw and given):
        raise SettingsError("The prompt is empty: write it after --prompt, or pipe it in with --prompt -.")
    if len(given) > MAX_CHARACTERS:
        raise SettingsError(f"The prompt has more than {MAX_CHARACTERS:,} characters: shorten it.")
    return given


def _writable(name: str) -> Path:
    """The path of a trace. Raises SpecVizError if no file can be written there, so that no run is lost at its end."""
    path = Path(name).expanduser()
    reason = None
    try:
        folder = path.parent
        if not path.name or path.is_dir():
            reason = "it is a folder, so add a file name"
        elif path.exists() and not path.is_file():
            reason = "it is not an ordinary file"
        elif not folder.is_dir():
            reason = f"there is no folder {folder}"
        else:
            with tempfile.TemporaryFile(dir=folder) as file:
                file.write(b"\0" * 4096)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
    if reason:
        raise SpecVizError(f"The trace cannot be written to {name[:200]}: {reason}. Name another file after --trace.")
    return path


def _print(trace: Trace) -> None:
    """The texts on stdout, the figures on stderr."""
    for row, (text, prompt) in enumerate(zip(trace.texts, trace.prompts)):
        if len(trace.texts) > 1:
            print(f"--- row {row}, seed {prompt.seed}")
        print(text)
    say(f"{figures(trace)} {trace.machine.name}, {trace.machine.device}, {trace.machine.precision}.")
    if trace.note:
        say(trace.note)
