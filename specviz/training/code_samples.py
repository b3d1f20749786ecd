"""Small programs and tables with random names and numbers, for prompts about code and data."""

from __future__ import annotations

import numpy as np

NAMES = (
    "total",
    "count",
    "result",
    "value",
    "items",
    "data",
    "user",
    "score",
    "price",
    "index",
    "limit",
    "nums",
    "words",
    "rows",
    "acc",
    "temp",
    "left",
    "right",
    "name",
    "size",
)
FUNCTIONS = (
    "compute",
    "process",
    "get_total",
    "find_max",
    "check",
    "parse",
    "filter_items",
    "update",
    "load",
    "merge",
    "is_valid",
    "average",
    "count_words",
    "to_upper",
    "add",
    "main",
    "run",
    "clean",
    "split_line",
    "best",
)

PROGRAMS: tuple[str, ...] = (
    "def {f}({a}):\n    {b} = 0\n    for x in {a}:\n        {b} += x\n    return {b}",
    "def {f}({a}, {b}):\n    if {a} > {b}:\n        return {a}\n    return {b}",
    "def {f}({a}):\n    {b} = []\n    for i in range(len({a})):\n        if {a}[i] % {n} == 0:\n            {b}.append({a}[i])\n"
    "    return {b}",
    "def {f}(n):\n    if n <= 1:\n        return n\n    return {f}(n - 1) + {f}(n - 2)\n\nprint({f}({n}))",
    "{a} = {{'{b}': {n}, '{c}': {m}}}\nfor k, v in {a}.items():\n    print(k, v)",
    "class {C}:\n    def __init__(self, {a}):\n        self.{a} = {a}\n\n    def {f}(self):\n        return self.{a} * {n}",
    "with open('{b}.txt') as f:\n    {a} = [line.strip() for line in f]\nprint(len({a}))",
    "import random\n\n{a} = [random.randint(1, {m}) for _ in range({n})]\nprint(sorted({a})[:{n}])",
    "try:\n    {a} = int(input('{b}? '))\nexcept ValueError:\n    print('not a number')",
    "{a} = [x ** 2 for x in range({n}) if x % 2]\nprint(sum({a}))",
    "function {f}({a}) {{\n  let {b} = 0;\n  for (const x of {a}) {{\n    {b} += x;\n  }}\n  return {b};\n}}",
    "const {f} = ({a}) => {a}.filter(x => x > {n}).map(x => x * {m});",
    "document.getElementById('{a}').addEventListener('click', () => {{\n  alert('{b}');\n}});",
    'for (int i = 0; i < {n}; i++) {{\n    printf("%d\\n", i * {m});\n}}',
    "int {f}(int {a}) {{\n    int {b} = 1;\n    while ({a} > 0) {{\n        {b} *= {a};\n        {a}--;\n    }}\n    return {b};\n}}",
    "public static int {f}(int[] {a}) {{\n    int {b} = {a}[0];\n    for (int x : {a}) {{\n        if (x > {b}) {b} = x;\n    }}\n"
    "    return {b};\n}}",
    "SELECT {a}, COUNT(*) FROM {b} WHERE {c} > {n} GROUP BY {a} ORDER BY COUNT(*) DESC;",
    "SELECT * FROM {a} JOIN {b} ON {a}.id = {b}.{c}_id LIMIT {n};",
    '#!/bin/bash\nfor f in *.{a}; do\n  mv "$f" "{b}_$f"\ndone',
    "<ul>\n  <li>{a}</li>\n  <li>{b}</li>\n  <li>{c}</li>\n</ul>",
    ".{a} {{\n  color: #{n}{m};\n  margin: {n}px;\n}}",
    'Traceback (most recent call last):\n  File "{a}.py", line {n}, in {f}\n    {b}[{m}]\nIndexError: list index out of range',
    "TypeError: {f}() missing 1 required positional argument: '{a}'",
    '{{\n  "{a}": {n},\n  "{b}": [{n}, {m}],\n  "{c}": "{f}"\n}}',
)

CODE_TASKS: tuple[str, ...] = (
    "Explain this code:",
    "What does this do?",
    "whats wrong with this code",
    "Find the bug:",
    "Add comments:",
    "Add a docstring and type hints:",
    "Rewrite this in {language}:",
    "Make this faster:",
    "What does it print?",
    "Write a test for this:",
    "Simplify:",
    "Rename the variables to something better:",
    "Convert this to a function:",
    "how do I fix this error?",
    "Refactor this:",
    "Is this code correct?",
    "Repeat this code and fix the indentation:",
    "Explain line by line.",
    "Add error handling to this code:",
    "why is this slow",
)


def program(random: np.random.Generator) -> str:
    """One of PROGRAMS with random names and numbers; now and then with a mistake in it."""
    a, b, c = (str(x) for x in random.choice(NAMES, 3, replace=False))
    text = str(random.choice(PROGRAMS)).format(
        a=a,
        b=b,
        c=c,
        f=str(random.choice(FUNCTIONS)),
        C=str(random.choice(NAMES)).capitalize(),
        n=int(random.integers(2, 13)),
        m=int(random.integers(10, 100)),
    )
    if random.random() < 0.15:
        old, new = (("return", "retrun"), ("(", ""), (":", ""), (a, b), ("==", "="))[int(random.integers(5))]
        text = text.replace(old, new, 1)
    return f"```\n{text}\n```" if random.random() < 0.3 else text


def table(random: np.random.Generator, fields: tuple[str, ...], names: tuple[str, ...]) -> str:
    """3 to 9 rows of a name and one or two numbers, as CSV, a markdown table, JSON lines or a plain list."""
    rows = [
        (str(random.choice(names)), int(random.integers(1, 200)), round(float(random.random()) * 50, 2))
        for _ in range(int(random.integers(3, 10)))
    ]
    heads = [str(x) for x in random.choice(fields, 3, replace=False)]
    style = int(random.integers(5))
    if style == 0:
        return "\n".join([",".join(heads), *(f"{n},{i},{x}" for n, i, x in rows)])
    if style == 1:
        return "\n".join([f"| {' | '.join(heads)} |", "|---|---|---|", *(f"| {n} | {i} | {x} |" for n, i, x in rows)])
    if style == 2:
        return "\n".join(f'{{"{heads[0]}": "{n}", "{heads[1]}": {i}}}' for n, i, _ in rows)
    if style == 3:
        return ", ".join(n for n, _, _ in rows)
    return "\n".join(f"- {n}: {i}" for n, i, _ in rows)
