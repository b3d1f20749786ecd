"""What must work without streamlit or without torch, proved in processes where they cannot be imported."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for path in (ROOT / "specviz").rglob("*.py")
    if "ui" not in path.relative_to(ROOT).parts and path.name != "__main__.py"
)
BLOCKER = """
import importlib, importlib.abc, sys

class Blocked(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ImportError(name + " is blocked in this test")

sys.meta_path.insert(0, Blocked())
for module in {modules!r}:
    importlib.import_module(module)
    print(module)
"""


def import_without(blocked: set[str], modules: list[str]) -> None:
    """Import modules in a fresh Python that has none of `blocked`."""
    program = BLOCKER.format(blocked=blocked, modules=modules)
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split() == modules


@pytest.mark.slow
def test_all_but_the_user_interface_imports_without_streamlit():
    assert len(MODULES) > 30 and "specviz.engine.loop" in MODULES and not any(".ui" in name for name in MODULES)
    import_without({"streamlit"}, MODULES)


def test_no_module_outside_the_user_interface_names_streamlit_in_an_import():
    """Late imports inside functions would slip through the other test."""
    for name in MODULES:
        path = ROOT / Path(*name.split("."))
        source = (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text()
        assert "import streamlit" not in source and "from streamlit" not in source, name


@pytest.mark.slow
def test_records_and_everything_computed_from_them_import_without_torch():
    figures = [name for name in MODULES if name.startswith("specviz.views.figures")]
    modules = [
        "specviz.trace.records",
        "specviz.trace.metrics",
        "specviz.views.frames",
        *figures,
        "specviz.views.export",
        "specviz.hardware.roofline",
        "specviz.hardware.costs",
        "specviz.cli.main",
        "specviz.cli.doctor",
    ]
    import_without({"torch", "transformers", "streamlit", "tokenizers", "safetensors"}, modules)


@pytest.mark.parametrize(
    "name", ["trace.records", "trace.metrics", "views.frames", "hardware.roofline", "hardware.costs", "cli.main"]
)
def test_these_need_nothing_but_python(name):
    import_without({"torch", "transformers", "streamlit", "numpy", "pandas", "plotly", "psutil"}, [f"specviz.{name}"])
