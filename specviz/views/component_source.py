"""Joins the ES modules of a component into one script for Streamlit or a single HTML file.

A component lies in assets/NAME: NAME.html, NAME.css and index.js with its modules. Streamlit runs a component's script
from a Blob URL, where a relative import cannot work, and no build step may be needed after `pip install`. So the
modules use a restricted form, checked here, in which joining is concatenation:

    import { a, b } from "./other.js";             named, no renaming, relative, at the top of the module
    export function f, export const x, export class C
    export default function                        in the entry alone

Modules are put in dependency order and share one scope; therefore a top-level name may occur once in all of them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from specviz.errors import SpecVizError
from specviz.paths import ASSETS

_IMPORT = re.compile(r'^import \{([^}]*)\} from "(\.{1,2}/[\w./-]+\.js)";\n', re.MULTILINE)
_DECLARED = re.compile(r"^(export )?(?:async )?(?:function\*?|const|let|class) (\w+)", re.MULTILINE)
_DEFAULT = re.compile(r"^export default function\b", re.MULTILINE)
_MODULE_WORDS = re.compile(r"^[^\S\n]*(import\b|export\b).*", re.MULTILINE)
_HIDDEN = re.compile(r"^(?:var\b|(?:const|let) [{\[]|(?:const|let) \w+,).*", re.MULTILINE)


@dataclass(frozen=True)
class ComponentSource:
    """What st.components.v2.component takes: three texts."""

    html: str
    css: str
    js: str


@dataclass(frozen=True)
class _Module:
    path: Path
    body: str
    exports: frozenset[str]
    declared: tuple[str, ...]
    imports: tuple[tuple[Path, tuple[str, ...]], ...]


def load_component(name: str, assets: Path = ASSETS) -> ComponentSource:
    """The html, css and joined script of the component in assets/`name`.

    Raises SpecVizError if a file is missing or a module leaves the restricted form.
    """
    folder = assets / name
    return ComponentSource(
        _read(folder / f"{name}.html"), _read(folder / f"{name}.css"), join_modules(folder / "index.js")
    )


def join_modules(entry: Path) -> str:
    """The script of `entry` with all modules that it imports, each once, after what it depends on.

    Raises SpecVizError for an import circle, a name declared twice or not exported, and any other form of import or
    export.
    """
    entry = entry.resolve()
    ordered: list[_Module] = []
    _collect(entry, entry, [], ordered)
    owner: dict[str, Path] = {}
    for module in ordered:
        for name in module.declared:
            if name in owner:
                raise SpecVizError(f"{name} is declared in {owner[name].name} and in {module.path.name}: rename one.")
            owner[name] = module.path
    return "\n".join(module.body for module in ordered)


def _collect(path: Path, entry: Path, above: list[Path], ordered: list[_Module]) -> _Module:
    """Depth first: what a module imports is in `ordered` before the module itself."""
    if path in above:
        circle = " -> ".join(p.name for p in [*above[above.index(path) :], path])
        raise SpecVizError(f"JavaScript modules import each other in a circle: {circle}.")
    done = next((module for module in ordered if module.path == path), None)
    if done is not None:
        return done
    module = _parse(path, is_entry=path == entry)
    for other, names in module.imports:
        imported = _collect(other, entry, [*above, path], ordered)
        for name in names:
            if name not in imported.exports:
                raise SpecVizError(f"{path.name} imports {name}, which {other.name} does not export.")
    ordered.append(module)
    return module


def _parse(path: Path, is_entry: bool) -> _Module:
    text = _read(path)
    imports = tuple(
        ((path.parent / where).resolve(), tuple(n.strip() for n in names.split(",") if n.strip()))
        for names, where in _IMPORT.findall(text)
    )
    for _, names in imports:
        for name in names:
            if not re.fullmatch(r"\w+", name):
                raise SpecVizError(f"{path.name}: import {name!r} is renamed; imports keep their names here.")
    body = _IMPORT.sub("", text)
    if bool(_DEFAULT.search(body)) != is_entry:
        raise SpecVizError(f"{path.name}: the entry, and only the entry, has an export default function.")
    exports = frozenset(name for exported, name in _DECLARED.findall(body) if exported)
    declared = tuple(name for _, name in _DECLARED.findall(body))
    body = re.sub(r"^export (?=(?:async )?(?:function|const|let|class) )", "", body, flags=re.MULTILINE)
    unknown = _MODULE_WORDS.search(_DEFAULT.sub("", body)) or _HIDDEN.search(body)
    if unknown:
        raise SpecVizError(f"{path.name}: cannot join this form: {unknown.group().strip()}")
    return _Module(path, body, exports, declared, imports)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise SpecVizError(f"A part of a component cannot be read: {path.name} ({error.strerror}).") from None
