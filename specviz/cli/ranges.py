"""Parses lists of whole numbers on the command line: `7`, `1..8`, `0,3,7`."""

from __future__ import annotations

import argparse
import re

from specviz.errors import SettingsError

MAX_RANGE = 4096
"""Most numbers that a range may name."""


def parse_range(text: str) -> tuple[int, ...]:
    """Whole numbers written as `7`, `1..8` (both ends included) or `0,3,7`, and any mixture, in the order written.

    Raises SettingsError with a sentence for anything else, for more than `MAX_RANGE` numbers and for a number that
    comes twice.
    """
    found: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,9})\s*(?:\.\.\s*(\d{1,9})\s*)?", part, re.ASCII)
        if not match:
            raise SettingsError(f"{text[:60]!r} is not a list of whole numbers: write 7, or 1..8, or 0,3,7.")
        first = int(match[1])
        last = first if match[2] is None else int(match[2])
        if last < first:
            raise SettingsError(f"The range {part.strip()} runs backwards: write {last}..{first}.")
        if len(found) + last - first + 1 > MAX_RANGE:
            raise SettingsError(f"{text[:60]!r} names more than {MAX_RANGE} numbers: name fewer.")
        found += range(first, last + 1)
    if len(set(found)) < len(found):
        raise SettingsError(f"{text[:60]!r} names a number twice: name each once.")
    return tuple(found)


def numbers(text: str) -> tuple[int, ...]:
    """`parse_range` as the type of an argument; argparse adds the option's name to the error."""
    try:
        return parse_range(text)
    except SettingsError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
