"""A component's modules are joined into one script: right order, one scope; what cannot be joined is a sentence."""

import itertools
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from specviz.errors import SpecVizError
from specviz.views.component_source import join_modules, load_component

ASSETS = Path(__file__).resolve().parents[2] / "assets"
COMPONENTS = ("player", "lanes", "accept_rule")
ENTRY = "export default function () {}\n"


def write(folder: Path, **modules: str) -> Path:
    """The entry among modules written as name.js."""
    for name, text in modules.items():
        (folder / f"{name}.js").write_text(text)
    return folder / "index.js"


def test_each_module_is_joined_once_after_what_it_needs(tmp_path):
    entry = write(
        tmp_path,
        index='import { b } from "./b.js";\nimport {\n  c,\n} from "./c.js";\nconst used = [b, c];\n' + ENTRY,
        b='import { c } from "./c.js";\nexport const b = c + 1;\n',
        c="export const c = 1;\n",
    )
    script = join_modules(entry)
    assert "import" not in script and script.count("const c = 1") == 1
    assert script.index("const c") < script.index("const b") < script.index("const used")
    assert len(re.findall("^export", script, re.MULTILINE)) == 1, "the default export of the entry stays"


@pytest.mark.parametrize(
    ("modules", "says"),
    [
        (
            {
                "index": 'import { a } from "./a.js";\n' + ENTRY,
                "a": 'import { b } from "./b.js";\nexport const a = b;\n',
                "b": 'import { a } from "./a.js";\nexport const b = a;\n',
            },
            "circle: a.js -> b.js -> a.js",
        ),
        (
            {
                "index": 'import { a } from "./a.js";\nconst x = a;\n' + ENTRY,
                "a": "const x = 1;\nexport const a = x;\n",
            },
            "x is declared in a.js and in index.js",
        ),
        ({"index": 'import { a } from "./a.js";\n' + ENTRY, "a": "const a = 1;\n"}, "does not export"),
        ({"index": 'import { a as b } from "./a.js";\n' + ENTRY, "a": "export const a = 1;\n"}, "renamed"),
        ({"index": 'import * as a from "./a.js";\n' + ENTRY}, "cannot join this form"),
        ({"index": "import a from 'elsewhere';\n" + ENTRY}, "cannot join this form"),
        ({"index": "export { x };\n" + ENTRY}, "cannot join this form"),
        ({"index": "const { a, b } = window;\n" + ENTRY}, "cannot join this form"),
        ({"index": "const a = 1;\n"}, "export default function"),
        (
            {"index": 'import { a } from "./a.js";\n' + ENTRY, "a": "export const a = 1;\n" + ENTRY},
            "export default function",
        ),
        ({"index": 'import { a } from "./gone.js";\n' + ENTRY}, "gone.js"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_joined_is_refused_in_a_sentence(tmp_path, modules, says):
    with pytest.raises(SpecVizError, match=re.escape(says)):
        join_modules(write(tmp_path, **modules))


@pytest.mark.parametrize("name", COMPONENTS)
def test_a_shipped_component_has_its_page_part_styles_and_a_script_without_imports(name):
    source = load_component(name)
    assert source.html.lstrip().startswith("<section") and ":host" in source.css
    assert not re.search(r"^\s*import\b", source.js, re.MULTILINE)
    assert source.js.count("export default function") == 1


def test_every_module_is_short_says_what_it_is_and_documents_what_it_exports():
    modules = [path for folder in (*COMPONENTS, "lib") for path in sorted((ASSETS / folder).glob("*.js"))]
    assert len(modules) > 20
    for path in modules:
        lines = path.read_text(encoding="utf-8").splitlines()
        assert len(lines) < 300, path
        assert lines[0].startswith("// ") and len(lines[0]) > 20, f"{path} does not say what it is"
        assert max(map(len, lines)) <= 120, path
        for before, line in itertools.pairwise(lines):
            if line.startswith("export ") and "default" not in line:
                assert before.endswith("*/"), f"{path}: no comment on {line}"


def test_the_pure_functions_of_the_browser_pass_their_own_tests():
    """Runs tests/js with node, where it is installed."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("no node on this machine: the JavaScript functions are not tested")
    tests = sorted(map(str, (ASSETS.parent / "tests" / "js").glob("*.test.mjs")))
    assert tests
    done = subprocess.run([node, "--test", *tests], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(re.search(r"^# pass (\d+)$", done.stdout, re.MULTILINE)[1]) >= len(tests)
