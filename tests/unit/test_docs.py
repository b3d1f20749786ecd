"""The documents stay true: modules are listed as they are, commands parse, linked files exist."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from specviz.cli import main
from specviz.trace.records import Settings

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def commands(path: Path) -> list[str]:
    """The lines of a page's shell blocks."""
    blocks = re.findall(r"^```sh\n(.*?)^```", path.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    return [line for block in blocks for line in block.splitlines() if line.strip() and not line.startswith("#")]


def specviz_commands() -> list[str]:
    return sorted({c.split(" > ")[0] for page in PAGES for c in commands(page) if c.startswith("python -m specviz ")})


@pytest.mark.slow
def test_the_list_of_modules_is_up_to_date():
    done = subprocess.run([sys.executable, "docs/architecture.py", "--check"], cwd=ROOT, check=False)
    assert done.returncode == 0, "run python docs/architecture.py"


def test_every_module_and_package_says_in_one_line_what_it_is():
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert not re.findall(r"^- `[^`]+`: *$", page, re.MULTILINE)
    assert not re.findall(r"^\| `[^`]+` \| *\|", page, re.MULTILINE)


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150


def test_both_commands_are_in_the_readme_word_for_word():
    assert "pip install -r requirements.txt && streamlit run app.py" in commands(ROOT / "README.md")
    assert "pip install -r requirements.txt -r tests/requirements.txt && python -m pytest" in commands(
        ROOT / "README.md"
    )


@pytest.mark.parametrize("command", specviz_commands())
def test_each_example_of_the_command_line_parses(command):
    words = shlex.split(command)
    arguments = main._parser().parse_args(words[3:])
    assert callable(arguments.handler)
    if words[3] == "run":
        Settings(
            k=arguments.k,
            temperature=arguments.temperature,
            top_k=arguments.top_k,
            top_p=arguments.top_p,
            seed=arguments.seed,
            max_new_tokens=arguments.max_new_tokens,
        )


def test_the_page_of_commands_has_an_example_of_every_command():
    shown = {shlex.split(c)[3] for c in commands(ROOT / "docs" / "command-line.md") if "-m specviz" in c}
    subparsers = next(a for a in main._parser()._actions if hasattr(a, "choices") and a.choices)
    assert shown >= set(subparsers.choices)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_to_files_lead_to_files(page):
    links = re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8"))
    assert not [link for link in links if not (page.parent / link).exists()]


@pytest.mark.parametrize("page", [ROOT / "CONTRIBUTING.md", ROOT / "docs" / "architecture.md"], ids=lambda p: p.name)
def test_files_that_are_named_exist(page):
    named = re.findall(r"`((?:specviz|pages|assets|tests|docs)/[\w./-]+)`", page.read_text(encoding="utf-8"))
    assert named and not [name for name in named if not (ROOT / name).exists()]


def test_each_walk_through_the_code_visits_no_file_twice():
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    for walk in text.partition("## Two walks")[2].partition("## Packages")[0].split("\n**")[1:]:
        steps = [re.search(r"`([\w./]+)`", step)[1] for step in re.findall(r"^\d+\. (.*)$", walk, re.MULTILINE)]
        assert len(steps) >= 10 and len(set(steps)) == len(steps)


def test_the_imports_in_the_documents_and_in_the_tests_scripts_work():
    """Scripts in strings are not seen by linters."""
    lines = set()
    for file in [*PAGES, *sorted((ROOT / "tests").rglob("*.py"))]:
        lines |= set(re.findall(r"^from specviz[\w.]* import [\w, ]+$", file.read_text(encoding="utf-8"), re.MULTILINE))
    program = "\n".join(sorted(lines))
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert lines and done.returncode == 0, done.stderr[-1000:]
