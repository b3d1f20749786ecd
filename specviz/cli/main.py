"""The command line, `python -m specviz`: parser and dispatch; one module per command.

Answers go to stdout, progress and everything else to stderr. The exit code is 0, or 2 with one sentence on stderr,
or 130 after Ctrl-C. torch is imported only by the commands that decode, so `trace show` works without it. With
SPECVIZ_DEBUG=1 in the environment a defect shows its traceback.
"""

from __future__ import annotations

import argparse
import logging
import os
import re
import sys
from typing import NoReturn

from specviz.cli import (
    bench,
    bottleneck,
    ceilings,
    check,
    distance,
    doctor,
    fetch,
    lanes,
    load,
    pairs,
    retune,
    roofline,
    run,
    sweep,
    trace,
    training,
)
from specviz.cli.options import say
from specviz.cli.progress import INTERRUPTED
from specviz.drafters.names import code_permitted
from specviz.errors import SettingsError, SpecVizError

COMMANDS = (
    run,
    pairs,
    fetch,
    trace,
    doctor,
    bench,
    check,
    distance,
    ceilings,
    roofline,
    bottleneck,
    lanes,
    sweep,
    load,
    retune,
    training,
)
"""The modules of the commands, in the order of --help."""
FAILED = 2
"""Exit code: refused or failed, with a sentence."""


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit code. Never raises for wrong input."""
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
        say(str(error))
        return FAILED
    except KeyboardInterrupt:
        say("Stopped.")
        return INTERRUPTED
    except BrokenPipeError:  # the reader of our output has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        say(f"The system refused: {error.strerror or error}{f' ({error.filename})' if error.filename else ''}.")
        return FAILED


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
    parser = _Parser(
        prog="python -m specviz",
        description="See speculative decoding on real models.",
        epilog="The app: streamlit run app.py",
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True, parser_class=_Parser)
    for module in COMMANDS:
        module.add_parsers(commands)
    return parser
