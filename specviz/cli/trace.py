"""The command `trace show`: the rounds of a trace file as tables. Needs no torch."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Sequence

from specviz.cli.options import Subparsers
from specviz.cli.ranges import parse_range
from specviz.cli.run_summary import figures
from specviz.errors import SettingsError
from specviz.format import number, seconds
from specviz.trace import files as trace_files
from specviz.trace.records import Trace, Verdict


def add_parsers(subparsers: Subparsers) -> None:
    """Add the command; its parser sets `handler`, a function from the parsed arguments to an exit code."""
    trace = subparsers.add_parser("trace", help="read a trace file")
    commands = trace.add_subparsers(title="commands", metavar="COMMAND", required=True)
    show = commands.add_parser("show", help="print the rounds of a trace: every draft, verdict and draw")
    show.add_argument("file", metavar="FILE")
    show.add_argument("--row", default=None, metavar="ROWS", help="rows to show, e.g. 0 or 0..3 (default: all)")
    show.set_defaults(handler=show_command)


def show_command(arguments: argparse.Namespace) -> int:
    """Print the settings of a trace and its rounds."""
    trace = trace_files.load(arguments.file)
    rows: Sequence[int] = range(len(trace.prompts))
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
        lines.append(figures(trace))
    return [*lines, _plain(trace.note)] if trace.note else lines


def _row(trace: Trace, row: int) -> list[str]:
    """One row's rounds as tables."""
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
            f"Round {round_.index}: {v.context} tokens cached, anchor {_piece(trace, v.anchor)}, {v.verified} drafts"
            f"{cut}, {v.accepted} accepted, {seconds(round_.seconds)}",
            *_drafts(trace, v),
            _bonus(trace, v),
        ]
        if v.finished:
            lines.append(f"    finished: {'end of text' if v.finished == 'eos' else 'length limit'}")
    return [*lines, "", textwrap.indent(_plain(trace.texts[row], keep="\n"), "    ")]


def _piece(trace: Trace, token: int) -> str:
    from specviz.trace.token_text import visible

    return f"{visible(trace.pieces[token])} [{token}]"


def _drafts(trace: Trace, v: Verdict) -> list[str]:
    """A line per verified draft: q, p, the accept threshold, u and the verdict."""
    lines = []
    for slot, x in enumerate(v.positions[: v.verified]):
        if x.draft_token is None:
            continue
        p, q = x.probs(x.draft_token)
        u = "" if x.accept_uniform is None else f"{x.accept_uniform:.4f}"
        lines.append(
            f"    {slot + 1:>4}  {q:>8.4f}  {p:>8.4f}  {x.threshold:>10.4f}  {u:>8}  {x.verdict:<8}  "
            f"{_piece(trace, x.draft_token)}"
        )
    head = f"    {'slot':>4}  {'q':>8}  {'p':>8}  {'min(1,p/q)':>10}  {'u':>8}  {'verdict':<8}  draft"
    return [head, *lines] if lines else []


def _bonus(trace: Trace, v: Verdict) -> str:
    if v.kind is None or v.bonus_token is None:
        return "    no bonus token: the text ended on an accepted draft"
    source = "the leftover norm(max(0, p - q))" if v.kind == "leftover" else "p, as all drafts were accepted"
    if not v.verified:
        source = "p, as nothing was drafted"
    return (
        f"    bonus token {_piece(trace, v.bonus_token)}, drawn from {source}; p "
        f"{v.positions[v.accepted].probs(v.bonus_token)[0]:.4f}, u {v.bonus_uniform:.4f}"
    )


def _plain(text: str, keep: str = "") -> str:
    """Text of a file without the characters that control a terminal."""
    return "".join(c if c.isprintable() or c in keep else "\N{REPLACEMENT CHARACTER}" for c in text)
