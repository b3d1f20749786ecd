"""Options that several commands share: pair, drafter, device, precision, seed, JSON; and the types of their values."""

from __future__ import annotations

import argparse
import re
import sys

from specviz.hardware.options import DEVICES, PRECISIONS
from specviz.loader.pairs import EMBEDDED

Subparsers = argparse._SubParsersAction  # the type of what `add_subparsers` returns; argparse has no public name for it


def add_pair(parser: argparse.ArgumentParser, default: str = EMBEDDED) -> None:
    """--pair, whose value `find_pair` reads."""
    parser.add_argument(
        "--pair",
        default=default,
        metavar="P",
        help="a name that `pairs` lists, or TARGET+DRAFT: two Hub ids or folders (default: %(default)s)",
    )


def add_drafter(parser: argparse.ArgumentParser) -> None:
    """--drafter, whose value `check_drafter` checks; None is the first of the pair."""
    parser.add_argument(
        "--drafter",
        metavar="D",
        help="a drafter of the pair (default: its first), the folder of a trained or published one, or "
        "FILE.py:CLASS, which runs the code of that file",
    )


def add_device(parser: argparse.ArgumentParser, precision_note: str = "") -> None:
    """--device and --precision, whose values `resolve_device` and `resolve_precision` read. precision_note: appended to
    the help of --precision."""
    parser.add_argument("--device", default="auto", metavar="D", help=f"{', '.join(DEVICES)} (default: auto)")
    add_precision(parser, precision_note)


def add_precision(parser: argparse.ArgumentParser, note: str = "") -> None:
    """--precision alone; `note` is appended to its help."""
    choices = ", ".join(PRECISIONS)
    parser.add_argument("--precision", default="auto", metavar="P", help=f"{choices} (default: auto){note}")


def add_temperature_and_seed(parser: argparse.ArgumentParser) -> None:
    """--temperature (0) and --seed (0) of commands that measure."""
    parser.add_argument("--temperature", type=float, default=0.0, metavar="X", help="0 is greedy (default: 0)")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="of the first row (default: 0)")


def add_json(parser: argparse.ArgumentParser) -> None:
    """--json."""
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def whole(text: str) -> int:
    """A whole number of at most 18 digits, as the type of an argument."""
    if not re.fullmatch(r"\s*[+-]?\d{1,18}\s*", text, re.ASCII):
        raise argparse.ArgumentTypeError(f"must be a whole number, not {text[:40]!r}")
    return int(text)


def number(text: str) -> float:
    """A number, as the type of an argument."""
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a number, not {text[:40]!r}") from None


def say(text: str) -> None:
    """Print a line that is no answer: on stderr."""
    print(text, file=sys.stderr, flush=True)
