"""The command `pairs`: the catalogue of pairs, and what each needs on this machine."""

from __future__ import annotations

import argparse
import textwrap

from specviz.cli.options import Subparsers, add_device
from specviz.drafters.names import drafter_names
from specviz.loader.pairs import CATALOGUE


def add_parsers(subparsers: Subparsers) -> None:
    """Add the command; its parser sets `handler`, a function from the parsed arguments to an exit code."""
    parser = subparsers.add_parser("pairs", help="list the pairs and what each needs")
    add_device(parser)
    parser.set_defaults(handler=pairs_command)


def pairs_command(arguments: argparse.Namespace) -> int:
    """Print each pair with its licence, drafters and needs."""
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
