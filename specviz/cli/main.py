"""The command line, `python -m specviz`: the same engine as the app, with text and JSON instead of pictures.

Answers go to stdout, progress and everything else to stderr. The exit code is 0, or 2 with one sentence on stderr,
or 130 after Ctrl-C. torch is imported only by the commands that decode, so `trace show` works without it. With
SPECVIZ_DEBUG=1 in the environment a defect shows its traceback.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import re
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import NoReturn

from specviz.cli import bench, doctor, hardware, lanes, load, retune, training
from specviz.cli import check as cli_check
from specviz.cli.progress import INTERRUPTED, Line, watch
from specviz.cli.ranges import parse_range
from specviz.drafters.names import check_drafter, code_permitted, drafter_names
from specviz.engine.prompts import MAX_CHARACTERS
from specviz.engine.request import Order
from specviz.errors import SettingsError, SpecVizError
from specviz.format import binary_bytes, number, percent, seconds, si
from specviz.loader.pairs import CATALOGUE, EMBEDDED, find_pair
from specviz.trace import metrics
from specviz.trace import records as tracing
from specviz.trace.records import Settings, Trace

FAILED = 2
"""Exit code: refused or failed, with a sentence."""


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit code. Never raises for what a person may do wrong."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a terminal that cannot show a character shows its code instead
            stream.reconfigure(errors="backslashreplace")
    logging.getLogger("specviz").setLevel(logging.NOTSET if os.environ.get("SPECVIZ_DEBUG") else logging.CRITICAL + 1)
    try:
        arguments = _parser().parse_args(argv)
        with code_permitted():
            code = arguments.handler(arguments)
        sys.stdout.flush()
        return code or 0
    except SpecVizError as error:
        _say(str(error))
        return FAILED
    except KeyboardInterrupt:
        _say("Stopped.")
        return INTERRUPTED
    except BrokenPipeError:  # whoever read our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        _say(f"The system refused: {error.strerror or error}{f' ({error.filename})' if error.filename else ''}.")
        return FAILED


# --------------------------------------------------------------------------------------------- parsing


class _Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one sentence and no usage dump."""

    def __init__(self, *arguments, **options):
        options.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(*arguments, allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        message = re.sub(r"^argument (\S+): ", r"\1: ", message).rstrip(".")
        message = message if len(message) <= 600 else message[:597] + "..."
        raise SettingsError(f"{' '.join(message.split())}. See {self.prog} --help.")


def _parser() -> argparse.ArgumentParser:
    defaults = Settings()
    parser = _Parser(
        prog="python -m specviz",
        description="See speculative decoding on real models.",
        epilog="The app: streamlit run app.py",
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True, parser_class=_Parser)

    run = commands.add_parser(
        "run",
        help="decode a prompt speculatively",
        description=("Decode a prompt speculatively. The text goes to stdout, figures and progress to stderr."),
    )
    run.add_argument(
        "--pair",
        default=EMBEDDED,
        metavar="P",
        help="a name that `pairs` lists, or TARGET+DRAFT: two Hub ids or folders (default: %(default)s)",
    )
    run.add_argument(
        "--drafter",
        metavar="D",
        help="a drafter of the pair (default: its first), the folder of a trained or published one, or "
        "FILE.py:CLASS, which runs the code of that file",
    )
    run.add_argument("--prompt", required=True, metavar="T", help="the prompt; - reads it from stdin")
    run.add_argument("--system", metavar="T", help="the system message (default: the chat template's own)")
    run.add_argument("--raw", action="store_true", help="the prompt as it is, without the chat template")
    run.add_argument(
        "--k",
        type=_whole,
        default=defaults.k,
        metavar="K",
        help=f"draft tokens per round, 0 (plain decoding) to {tracing.MAX_K} (default: %(default)s)",
    )
    run.add_argument(
        "--batch",
        type=_whole,
        default=1,
        metavar="R",
        help="rows: the prompt this many times, each with its own seed S, S + 1, ... (default: 1)",
    )
    run.add_argument(
        "--temperature",
        type=_number,
        default=defaults.temperature,
        metavar="X",
        help="0 is greedy (default: %(default)s)",
    )
    run.add_argument("--top-k", type=_whole, default=defaults.top_k, metavar="N", help="0 is off (default)")
    run.add_argument("--top-p", type=_number, default=defaults.top_p, metavar="X", help="1 is off (default)")
    run.add_argument("--seed", type=_whole, default=defaults.seed, metavar="S", help="(default: %(default)s)")
    run.add_argument(
        "--max-new-tokens", type=_whole, default=defaults.max_new_tokens, metavar="N", help="(default: %(default)s)"
    )
    _add_device(run)
    run.add_argument("--trace", metavar="FILE", help="write the whole run here, to be shown, replayed or exported")
    run.add_argument("--json", action="store_true", help="print one JSON object instead of the text")
    run.set_defaults(handler=_run)

    pairs = commands.add_parser("pairs", help="list the pairs and what each needs")
    _add_device(pairs)
    pairs.set_defaults(handler=_pairs)

    fetch = commands.add_parser("fetch", help="fetch a pair's weights, so that a run starts at once")
    fetch.add_argument("pair", metavar="P", help="as for run --pair")
    fetch.set_defaults(handler=_fetch)

    trace = commands.add_parser("trace", help="read a trace file")
    traces = trace.add_subparsers(title="commands", metavar="COMMAND", required=True, parser_class=_Parser)
    show = traces.add_parser("show", help="print the rounds of a trace: every draft, verdict and draw")
    show.add_argument("file", metavar="FILE")
    show.add_argument("--row", default=None, metavar="ROWS", help="rows to show, e.g. 0 or 0..3 (default: all)")
    show.set_defaults(handler=_trace_show)

    check = commands.add_parser("doctor", help="versions, device, ceilings, what is missing and how to get it")
    _add_device(check)
    check.add_argument("--measure", action="store_true", help="measure the ceilings of the device now (seconds)")
    check.set_defaults(handler=_doctor)

    for module in (bench, cli_check, hardware, lanes, load, retune, training):
        module.add_parsers(commands)
    return parser


def _add_device(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", default="auto", metavar="D", help="auto, cpu, cuda or mps (default: auto)")
    parser.add_argument("--precision", default="auto", metavar="P", help="auto, fp32, bf16, fp16, int4 (default: auto)")


def _whole(text: str) -> int:
    if not re.fullmatch(r"\s*[+-]?\d{1,18}\s*", text, re.ASCII):
        raise argparse.ArgumentTypeError(f"must be a whole number, not {text[:40]!r}")
    return int(text)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a number, not {text[:40]!r}") from None


# ------------------------------------------------------------------------------------------------- run


def _run(arguments: argparse.Namespace) -> int:
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
        Order(
            arguments.pair,
            drafter,
            text,
            settings,
            arguments.system,
            arguments.raw,
            arguments.batch,
            arguments.device,
            arguments.precision,
        )
    )
    code = watch(run, lambda: _state(run))
    trace = run.trace
    if trace is not None and path is not None:
        try:
            _say(f"Trace: {tracing.save(trace, path)}")
        except OSError as error:
            raise SpecVizError(
                f"The run is done, but its trace could not be written to {path}: "
                f"{error.strerror or error}. Name another file and run again."
            ) from None
    if code == INTERRUPTED:
        kept = sum(len(v.emitted) for r in run.rounds for v in r.rows)
        _say(f"Stopped after {kept} tokens." if kept else "Stopped before the first token.")
        return code
    if run.status == "failed":
        hint = " Set SPECVIZ_DEBUG=1 to see it here." if run.error and run.error.endswith("The log says more.") else ""
        raise SpecVizError((run.error or "The run failed.") + hint)
    if trace is None:
        raise SpecVizError("The run was stopped before its first round.")
    if arguments.json:
        print(json.dumps(summary(trace), allow_nan=False))
    else:
        _print_texts(trace)
        _say(f"{_figures(trace)} {trace.machine.name}, {trace.machine.device}, {trace.machine.precision}.")
        if trace.note:
            _say(trace.note)
    return 0


def summary(trace: Trace) -> dict:
    """What `run --json` prints. With one row text and token_ids are scalars, with R rows lists of R; rates are None
    when nothing was drafted. rounds counts verify passes of the batch; rates and lengths pool the rows; the mean
    acceptance length includes the bonus token; seconds are those of decoding, without prefill."""
    rows = range(len(trace.prompts))
    texts, ids = list(trace.texts), [trace.token_ids(row) for row in rows]
    counts = metrics.counts(trace.rounds)
    return {
        "pair": trace.pair,
        "drafter": trace.drafter,
        "device": trace.machine.device,
        "dtype": trace.machine.precision,
        "prompt_tokens": len(trace.prompts[0].token_ids),
        "text": texts if len(rows) > 1 else texts[0],
        "token_ids": ids if len(rows) > 1 else ids[0],
        "rounds": counts.passes,
        "drafted": counts.proposed,
        "accepted": counts.accepted,
        "acceptance_rate": metrics.acceptance_rate(trace.rounds),
        "mean_acceptance_length": metrics.mean_acceptance_length(trace.rounds),
        "seconds": trace.seconds,
        "tokens_per_second": metrics.tokens_per_second(trace.rounds),
    }


def _prompt(given: str, raw: bool) -> str:
    """The prompt as typed or from stdin, refused here if it can be, before any weights are fetched."""
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
    """The path, once it is known that a file can be written there. A run that cannot be kept is not begun."""
    path = Path(name).expanduser()
    reason = None
    try:
        folder = path.parent
        if not path.name or path.is_dir():
            reason = "it is a folder, so add a file name"
        elif path.exists() and not path.is_file():
            reason = "it is no ordinary file"
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


def _state(run) -> str:
    if run.status == "loading":
        return stage(run.progress)
    emitted = sum(len(v.emitted) for r in run.rounds for v in r.rows)
    return f"Decoding: {emitted} of at most {run.settings.max_new_tokens * run.order.rows} tokens"


def stage(progress) -> str:
    """A Progress in words, e.g. `Downloading: 40.1 MiB of 88.6 MiB, 12.0 MB/s, 4.1 s left`."""
    text = progress.stage
    if progress.total_bytes:
        text += f": {binary_bytes(progress.done_bytes)} of {binary_bytes(progress.total_bytes)}"
        if progress.bytes_per_second:
            text += f", {si(progress.bytes_per_second, 'B/s')}"
        if progress.seconds_left is not None:
            text += f", {seconds(progress.seconds_left)} left"
    elif progress.fraction is not None:
        text += f": {percent(progress.fraction)}"
    return text


def _print_texts(trace: Trace) -> None:
    for row, (text, prompt) in enumerate(zip(trace.texts, trace.prompts)):
        if len(trace.texts) > 1:
            print(f"--- row {row}, seed {prompt.seed}")
        print(text)


def _figures(trace: Trace) -> str:
    counts = metrics.counts(trace.rounds)
    length, rate = metrics.mean_acceptance_length(trace.rounds), metrics.acceptance_rate(trace.rounds)
    text = f"{counts.emitted} tokens in {counts.passes} verify pass{'es' if counts.passes != 1 else ''}"
    if rate is None:
        text += "; nothing was drafted"
    else:
        text += (
            f": {number(length)} tokens a pass and row, bonus token included; {counts.accepted} of "
            f"{counts.proposed} drafts accepted ({percent(rate)})"
        )
    text += f". Measured: {seconds(trace.seconds)} decoding, {number(metrics.tokens_per_second(trace.rounds))} tokens/s"
    plain, faster = trace.baseline.tokens_per_second, metrics.speed_up(trace.rounds, trace.baseline)
    if plain is not None:
        text += (
            f"; plain decoding {number(plain)} tokens/s ({len(trace.baseline.seconds)} steps of the same run), "
            f"so {number(faster)} times as fast"
        )
    return f"{text}."


# --------------------------------------------------------------------------------------- pairs and fetch


def _pairs(arguments: argparse.Namespace) -> int:
    from specviz.loader.requirements import needs

    for pair in CATALOGUE:
        wanted = needs(pair, arguments.device, arguments.precision)
        print(
            f"{pair.name}\n    {pair.title}{'; gated' if pair.gated else ''}. Licence: {pair.licence}.\n"
            f"    Drafters: {', '.join(drafter_names(pair))}.\n    {wanted.sentence}"
        )
        for note in pair.notes:
            print(textwrap.fill(note, 110, initial_indent="    ", subsequent_indent="    "))
    print(
        "\nAny other pair: TARGET+DRAFT, or TARGET alone, with Hub ids (owner/model, owner/model@revision), folders "
        "or GGUF files."
    )
    return 0


def _fetch(arguments: argparse.Namespace) -> int:
    pair = find_pair(arguments.pair)

    from specviz.loader.fetch import fetch
    from specviz.loader.load_model import check
    from specviz.loader.requirements import needs

    line = Line()
    _say(needs(pair, ask_hub=True).sentence)
    check(pair, lambda progress: line.show(stage(progress)))  # small files first: a pair that cannot work ends here
    for source in (pair.target, pair.draft):
        if source is not None:
            folder = fetch(source, lambda progress: line.show(stage(progress)))
            line.end()
            print(folder)
    return 0


def _doctor(arguments: argparse.Namespace) -> int:
    return doctor.report(arguments.device, arguments.precision, arguments.measure)


# ------------------------------------------------------------------------------------------------ traces


def _trace_show(arguments: argparse.Namespace) -> int:
    trace = tracing.load(arguments.file)
    rows = range(len(trace.prompts))
    if arguments.row is not None:
        rows = parse_range(arguments.row)
        if missing := [row for row in rows if row >= len(trace.prompts)]:
            raise SettingsError(f"There is no row {missing[0]}: this trace has rows 0 to {len(trace.prompts) - 1}.")
    print("\n".join(_head(trace)))
    for row in rows:
        print("\n".join(_row(trace, row)))
    return 0


def _head(trace: Trace) -> list[str]:
    s, m = trace.settings, trace.machine
    lines = [
        f"{_plain(trace.pair)}: {_plain(trace.target)}. {_plain(trace.drafter_label)}.",
        f"K {s.k}, temperature {number(s.temperature)}, top-k {s.top_k or 'off'}, "
        f"top-p {number(s.top_p) if s.top_p < 1 else 'off'}, seed {s.seed}, at most {s.max_new_tokens} new tokens.",
        f"Recorded {_plain(trace.recorded_at)} on {_plain(m.name)} ({_plain(m.device)}, {_plain(m.precision)}, "
        f"{m.threads} threads, torch {_plain(m.torch)}), {trace.end}.",
    ]
    if trace.rounds:
        lines.append(_figures(trace))
    return [*lines, _plain(trace.note)] if trace.note else lines


def _row(trace: Trace, row: int) -> list[str]:
    """One row's rounds as a table."""
    from specviz.trace.token_text import visible

    def piece(token: int) -> str:
        return f"{visible(trace.pieces[token])} [{token}]"

    prompt = trace.prompts[row]
    lines = [
        "",
        f"Row {row}, seed {prompt.seed}, prompt of {len(prompt.token_ids)} tokens: "
        f"{textwrap.shorten(_plain(prompt.text), 100)}",
    ]
    for round_, v in trace.row_rounds(row):
        cut = f", {v.proposed} drafted" if v.proposed != v.verified else ""
        lines += [
            "",
            f"Round {round_.index}: {v.context} tokens cached, anchor {piece(v.anchor)}, {v.verified} drafts"
            f"{cut}, {v.accepted} accepted, {seconds(round_.seconds)}",
        ]
        if v.verified:
            lines.append(f"    {'slot':>4}  {'q':>8}  {'p':>8}  {'min(1,p/q)':>10}  {'u':>8}  {'verdict':<8}  draft")
        for slot, x in enumerate(v.positions[: v.verified]):
            p, q = x.probs(x.draft_token)
            u = "" if x.accept_uniform is None else f"{x.accept_uniform:.4f}"
            lines.append(
                f"    {slot + 1:>4}  {q:>8.4f}  {p:>8.4f}  {x.threshold:>10.4f}  {u:>8}  {x.verdict:<8}  "
                f"{piece(x.draft_token)}"
            )
        if v.kind is None:
            lines.append("    no bonus token: the text ended on an accepted draft")
        else:
            source = "the leftover norm(max(0, p - q))" if v.kind == "leftover" else "p, as all drafts were accepted"
            if not v.verified:
                source = "p, as nothing was drafted"
            lines.append(
                f"    bonus token {piece(v.bonus_token)}, drawn from {source}; p "
                f"{v.positions[v.accepted].probs(v.bonus_token)[0]:.4f}, u {v.bonus_uniform:.4f}"
            )
        if v.finished:
            lines.append(f"    finished: {'end of text' if v.finished == 'eos' else 'length limit'}")
    return [*lines, "", textwrap.indent(_plain(trace.texts[row], keep="\n"), "    ")]


def _plain(text: str, keep: str = "") -> str:
    """Text of a foreign file without what would steer the terminal."""
    return "".join(c if c.isprintable() or c in keep else "\N{REPLACEMENT CHARACTER}" for c in text)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
