"""The command `drafters export`: the autoregressive drafter as a standard Hugging Face folder."""

from __future__ import annotations

import argparse
from pathlib import Path

from specviz.cli.options import Subparsers, add_pair
from specviz.drafters.names import trained


def add_parser(commands: Subparsers) -> None:
    """Add the command; the parser sets `handler`, a function from the parsed arguments to an exit code."""
    export = commands.add_parser("export", help="write the autoregressive drafter as a standard Hugging Face folder")
    export.add_argument("name", metavar="NAME", help="autoregressive, or a folder of your own")
    export.add_argument("folder", metavar="FOLDER")
    add_pair(export)
    export.set_defaults(handler=export_command)


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
