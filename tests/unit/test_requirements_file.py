"""Every distribution that the code imports is declared in requirements.txt."""

import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OPTIONAL = {"llama_cpp", "vllm"}
"""Other programs that the benchmark asks where they are installed."""


def imported() -> set[str]:
    """The top-level packages that the app imports, imports inside functions included."""
    found = set()
    for file in [*(ROOT / "specviz").rglob("*.py"), *(ROOT / "pages").glob("*.py"), ROOT / "app.py"]:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found.add(node.module.split(".")[0])
    return found - sys.stdlib_module_names - {"specviz"} - OPTIONAL


def test_every_imported_distribution_is_declared():
    text = (ROOT / "requirements.txt").read_text(encoding="utf-8")
    declared = {name.lower().replace("-", "_") for name in re.findall(r"^[A-Za-z][\w.-]*", text, re.MULTILINE)}
    assert imported() <= declared
