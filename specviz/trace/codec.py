"""The JSON form of a trace and its JSON Schema, both derived from the dataclasses in records."""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from typing import Any

from specviz.errors import SettingsError, TraceError
from specviz.trace.records import Trace
from specviz.trace.validation import check

VERSION = 2
"""Version 2 added `Position.target_entropy`; version 1 is read too."""
FORMAT = "specviz-trace"


def to_json(trace: Trace) -> dict[str, Any]:
    """The trace as plain JSON values; exact (floats by their shortest round-trip form)."""
    return {"format": FORMAT, "version": VERSION, **_encode(trace)}


def from_json(data: object) -> Trace:
    """The Trace in `data` (parsed JSON). Raises TraceError with one sentence for anything else."""
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise TraceError(
            "This is not a SpecViz trace: it does not say format = specviz-trace. Choose a file that SpecViz exported."
        )
    version = data.get("version")
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        raise TraceError("This trace does not say which version it has, so it cannot be read.")
    if version > VERSION:
        raise TraceError(f"This trace is of version {version} and this SpecViz reads up to {VERSION}: update SpecViz.")
    body = {k: v for k, v in data.items() if k not in ("format", "version")}
    try:
        trace = _decode(Trace, body, "trace")
    except SettingsError as error:
        raise TraceError(f"This trace holds a setting that SpecViz cannot have written: {error}") from None
    except RecursionError:
        raise TraceError("This trace is nested too deeply to be a SpecViz trace.") from None
    check(trace)
    return trace


def schema() -> dict[str, Any]:
    """JSON Schema of a trace file (docs/trace.schema.json)."""
    definitions: dict[str, dict] = {}
    _schema(Trace, definitions)
    root = definitions.pop("Trace")
    versions = {"enum": list(range(1, VERSION + 1))}
    root["properties"] = {"format": {"const": FORMAT}, "version": versions} | root["properties"]
    root["required"] = ["format", "version", *root["required"]]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "SpecViz trace",
        **root,
        "$defs": dict(sorted(definitions.items())),
    }


def _encode(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return {f.name: _encode(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, tuple):
        return [_encode(v) for v in value]
    if isinstance(value, dict):
        return {str(k): v for k, v in value.items()}
    return value


@functools.cache
def _hints(record: type) -> dict[str, Any]:
    return typing.get_type_hints(record)


def _decode(hint: Any, value: Any, where: str) -> Any:
    """`value` (parsed JSON) as an instance of the type `hint`. Raises TraceError that names the wrong entry."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        if value is None:
            return None
        return _decode(next(a for a in args if a is not type(None)), value, where)
    if origin is typing.Literal:
        if value not in args or not isinstance(value, str):
            raise TraceError(f"This trace is damaged: {where} is none of {', '.join(args)}.")
        return value
    if origin is tuple:
        if not isinstance(value, list) or (args[-1] is not Ellipsis and len(value) != len(args)):
            raise TraceError(f"This trace is damaged: {where} is not a list of the right length.")
        return tuple(_decode(args[0], v, where) for v in value)
    if origin is dict:
        return _decode_pieces(value, where)
    if dataclasses.is_dataclass(hint):
        return _decode_record(hint, value, where)
    return _decode_scalar(hint, value, where)


def _decode_pieces(value: Any, where: str) -> dict[int, str]:
    """A table from token id to text."""
    if not isinstance(value, dict) or not all(
        k.isdecimal() and len(k) < 10 and isinstance(v, str) for k, v in value.items()
    ):
        raise TraceError(f"This trace is damaged: {where} does not map token ids to text.")
    return {int(k): v for k, v in value.items()}


def _decode_record(record: Any, value: Any, where: str) -> Any:
    """An instance of a dataclass. Unknown and missing entries are errors."""
    if not isinstance(value, dict):
        raise TraceError(f"This trace is damaged: {where} is not an object.")
    fields = {f.name: f for f in dataclasses.fields(record)}
    if unknown := set(value) - set(fields):
        raise TraceError(f"This trace is damaged: {where} has an unknown entry {min(unknown)[:40]!r}.")
    for name, field in fields.items():
        optional = field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
        if name not in value and not optional:
            raise TraceError(f"This trace is damaged: {where} lacks {name!r}.")
    hints = _hints(record)
    return record(**{n: _decode(hints[n], v, f"{where}.{n}") for n, v in value.items()})


def _decode_scalar(hint: Any, value: Any, where: str) -> float | int | bool | str:
    """A finite number, an integer of 64 bits, a boolean or a string."""
    if hint is float and isinstance(value, int | float) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if math.isfinite(number):
            return number
    elif hint is int and isinstance(value, int) and not isinstance(value, bool):
        if abs(value) < 2**63:
            return value
    elif hint in (bool, str) and isinstance(value, hint):
        return value
    raise TraceError(f"This trace is damaged: {where} is not of type {getattr(hint, '__name__', hint)}.")


def _schema(hint: Any, definitions: dict[str, dict]) -> dict[str, Any]:
    """JSON Schema of a type; the schemas of dataclasses are added to `definitions`."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [_schema(a, definitions) for a in args]}
    if origin is typing.Literal:
        return {"enum": list(args)}
    if origin is tuple:
        fixed = {} if args[-1] is Ellipsis else {"minItems": len(args), "maxItems": len(args)}
        return {"type": "array", "items": _schema(args[0], definitions), **fixed}
    if origin is dict:
        return {"type": "object", "propertyNames": {"pattern": "^[0-9]+$"}, "additionalProperties": {"type": "string"}}
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return _record_schema(hint, definitions)
    return {"type": {int: "integer", float: "number", str: "string", bool: "boolean", type(None): "null"}[hint]}


def _record_schema(record: type, definitions: dict[str, dict]) -> dict[str, Any]:
    """A reference to the schema of a dataclass."""
    name = record.__name__
    if name not in definitions:
        definitions[name] = {}
        fields = dataclasses.fields(record)
        hints = _hints(record)
        definitions[name] = {
            "type": "object",
            "properties": {f.name: _schema(hints[f.name], definitions) for f in fields},
            "required": [f.name for f in fields if f.default is dataclasses.MISSING],
            "additionalProperties": False,
        }
    return {"$ref": f"#/$defs/{name}"}
