"""Trace files: save and load, as plain or gzipped JSON."""

from __future__ import annotations

import gzip
import io
import json
import os
import zlib
from pathlib import Path
from typing import NoReturn

from specviz.errors import TraceError
from specviz.paths import write_atomically
from specviz.trace.codec import from_json, to_json
from specviz.trace.records import Trace

MAX_BYTES = 256 * 2**20
"""Size limit of a trace, decompressed: a guard against gzip bombs and files of other programs."""
GZIP_FROM_BYTES = 2**20
"""A larger trace is compressed even if its name does not end in .gz."""


def save(trace: Trace, path: str | os.PathLike) -> Path:
    """Write the trace atomically, gzipped if it is large or the name ends in .gz. Returns the path written."""
    path, content = Path(path), dumps(trace)
    if path.suffix == ".gz" or len(content) > GZIP_FROM_BYTES:
        content = gzip.compress(content, 6, mtime=0)
        path = path if path.suffix == ".gz" else path.with_name(path.name + ".gz")
    write_atomically(path, lambda file: file.write_bytes(content))
    return path


def dumps(trace: Trace) -> bytes:
    """The trace as one line of UTF-8 JSON, not compressed."""
    return json.dumps(to_json(trace), allow_nan=False, separators=(",", ":"), ensure_ascii=False).encode()


def load(path: str | os.PathLike) -> Trace:
    """The trace in a file, gzipped or not. Raises TraceError if it cannot be read or is not a trace."""
    path = Path(path)
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise TraceError(f"The trace {path.name} cannot be opened: {error.strerror or error}.") from None
    return loads(raw, path.name)


def loads(raw: bytes, name: str = "file") -> Trace:
    """The trace in the bytes of a file, gzipped or not. name: for error messages. Raises TraceError."""
    if raw[:2] == b"\x1f\x8b":
        try:
            with gzip.GzipFile(fileobj=io.BytesIO(raw)) as file:
                raw = file.read(MAX_BYTES + 1)
        except (OSError, EOFError, ValueError, zlib.error) as error:
            raise TraceError(f"The trace {name} is cut short or damaged ({error}): export or copy it again.") from None
    if len(raw) > MAX_BYTES:
        raise TraceError(f"The trace {name} is larger than {MAX_BYTES // 2**20} MiB and was not read.")
    try:
        data = json.loads(raw, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise TraceError(f"{name} is not a complete JSON file: it is cut short, damaged or of another kind.") from None
    return from_json(data)


def _no_constant(name: str) -> NoReturn:
    """Refuse NaN and Infinity, which are not JSON."""
    raise ValueError(f"{name} is not allowed")
