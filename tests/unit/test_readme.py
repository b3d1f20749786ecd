"""The README cannot rot: its file tree is the real one, its commands parse, its files exist."""

import ast
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from specviz.cli import main
from specviz.trace.records import Settings

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.DOTALL | re.MULTILINE)


def tree() -> dict[str, str]:
    """Path -> what its line says, from the README's file tree: folders end in / and indent what is in them."""
    found, folders = {}, []
    for line in blocks("text")[0].splitlines():
        name, _, said = line.strip().partition(" ")
        depth = (len(line) - len(line.lstrip())) // 2
        folders = folders[:depth]
        if name.endswith("/"):
            folders.append(name)
        found["".join(folders) if name.endswith("/") else "".join(folders) + name] = said.strip()
    return found


def sources() -> set[str]:
    """What the tree must name: app.py, every module and page, and what lies at the top of assets."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("no git checkout")
    files = [file for file in listed.stdout.splitlines() if (ROOT / file).exists()]
    wanted = {f for f in files if f == "app.py" or re.fullmatch(r"(specviz/.*|pages/[^/]*)\.py", f)}
    wanted |= {"/".join(f.split("/")[:2]) + ("/" if f.count("/") > 1 else "") for f in files if f.startswith("assets/")}
    return {f for f in wanted if not f.endswith("__init__.py")}


def suggestion(file: str) -> str:
    """A line for the tree, from the module's docstring."""
    path = ROOT / file
    text = (ast.get_docstring(ast.parse(path.read_text())) or "") if path.suffix == ".py" else ""
    return f"{file} {re.split(r'(?<=[.;:])', ' '.join(text.split()))[0]}"


def test_the_file_tree_is_the_real_one_with_a_line_for_each():
    shown = tree()
    assert all(shown.values()), f"lines without words: {[k for k, v in shown.items() if not v]}"
    missing = sorted(sources() - shown.keys())
    assert not missing, "not in the README's tree:\n" + "\n".join(map(suggestion, missing))
    gone = [file for file in shown if not (ROOT / file).exists()]
    assert not gone, f"in the README's tree but not here: {gone}"


def commands() -> list[str]:
    return [line for block in blocks("sh") for line in block.splitlines() if line.strip() and not line.startswith("#")]


def test_both_commands_are_there_word_for_word():
    assert "pip install -r requirements.txt && streamlit run app.py" in commands()
    assert "pip install -r requirements.txt -r tests/requirements.txt && python -m pytest" in commands()


@pytest.mark.parametrize("command", [c for c in commands() if "-m specviz" in c])
def test_each_example_of_the_command_line_parses(command):
    words = shlex.split(command)
    assert words[:3] == ["python", "-m", "specviz"]
    arguments = main._parser().parse_args([w for w in words[3:] if w not in ("|", ">")])
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


def test_the_examples_cover_every_command():
    shown = {shlex.split(c)[3] for c in commands() if "-m specviz" in c}
    subparsers = next(a for a in main._parser()._actions if hasattr(a, "choices") and a.choices)
    assert shown >= set(subparsers.choices)


def test_links_to_files_lead_somewhere():
    """Pictures too, once they are made."""
    links = re.findall(r"\]\(([^)#:]+)\)", README)
    missing = [link for link in links if not (ROOT / link).exists()]
    assert set(missing) <= {"docs/decode.png"} and "LICENSE" in links
