"""Prompts as people write them: whole conversations, composed at random from word lists. Knows no tokenizer or model.

Kinds: short questions, longer requests, code, edits of a text, tables, maths, chat, other languages, and turns that the
target writes itself. Half are written carelessly: in lower case, misspelt, without punctuation. A third have more than
one user turn, a fifth a system prompt of their own. A conversation is a function of its random generator, so a seed
gives the same prompts on every machine.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from numpy.random import Generator

from specviz.paths import ASSETS

FILE = ASSETS / "corpus" / "prompts.txt"
"""The word lists and templates; written for this project."""
VALIDATION_FILE = ASSETS / "validation" / "prompts.txt"
SHARE_SYSTEM = 0.2
"""Of conversations, with a system prompt other than the chat template's"""
SHARE_OWN_FOLLOW_UP = 0.35
"""Of the user turns after the first, written by the target"""
TURNS = (0.62, 0.26, 0.12)
"""Shares of conversations with one, two and three user turns"""
TEMPERATURES = (0.0, 0.0, 0.0, 0.7, 0.8, 1.0)
"""Of the answers, equally frequent"""
LENGTHS = (64, 160, 256, 256, 320, 512)
"""Most tokens of an answer, equally frequent"""


@dataclass(frozen=True)
class UserTurn:
    """What the user says: a text, or only its beginning."""

    text: str = ""
    by_target: bool = False
    """The target continues the text until it ends the turn."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A conversation before the target has written anything."""

    kind: str
    """Of KINDS"""
    system: str | None
    """None: the chat template's own"""
    turns: tuple[UserTurn, ...]
    temperature: float
    """Of the answers"""
    answer_tokens: int
    """Most tokens of each answer"""


def plan(random: Generator) -> Plan:
    """A random conversation."""
    kind = str(random.choice(list(KINDS), p=[share for share, _ in KINDS.values()]))
    count = 1 + int(random.choice(len(TURNS), p=TURNS))
    return Plan(
        kind=kind,
        turns=(KINDS[kind][1](random), *(_follow_up(random) for _ in range(count - 1))),
        system=fill(random, "{system}") if random.random() < SHARE_SYSTEM else None,
        temperature=float(random.choice(TEMPERATURES)),
        answer_tokens=int(random.choice(LENGTHS)),
    )


def fill(random: Generator, template: str) -> str:
    """The template with each {name} replaced by a random entry of that list, until none is left."""
    while "{" in template:
        name = template[template.index("{") + 1 : template.index("}")]
        template = template.replace("{" + name + "}", _pick(random, phrases()[name]), 1)
    return template


@functools.cache
def phrases() -> dict[str, tuple[str, ...]]:
    """The lists of FILE by name."""
    return read_lists(FILE)


@functools.cache
def validation() -> dict[str, tuple[str, ...]]:
    """Prompts by kind that nothing is trained or fitted on: drafters are measured on them."""
    return read_lists(VALIDATION_FILE)


def read_lists(file: Path) -> dict[str, tuple[str, ...]]:
    """Lists of texts by name: [name] begins one, a line is an entry. Lines before the first list are comments. In an
    entry \\n is a line break and \\\\n a backslash and n; quotes around an entry keep its blanks."""
    lists: dict[str, list[str]] = {}
    name = ""
    for line in file.read_text(encoding="utf-8").splitlines():
        if re.fullmatch(r"\[\w+\]", line):
            name = line[1:-1]
            lists[name] = []
        elif name and line:
            quoted = len(line) > 1 and line[0] == line[-1] == '"'
            lists[name].append((line[1:-1] if quoted else line).replace("\\n", "\n").replace("\\\n", "\\n"))
    return {name: tuple(entries) for name, entries in lists.items()}


def paragraph(random: Generator, sentences: int) -> str:
    """Plain sentences that have nothing to do with each other."""
    made = []
    for _ in range(sentences):
        text = fill(random, "{join}{clause}")
        if random.random() < 0.3:
            text += f", {_pick(random, ('and', 'but', 'so', 'while'))} " + fill(random, "{clause}")
        made.append(text[0].upper() + text[1:] + ".")
    return " ".join(made)


def misspell(random: Generator, text: str, share: float) -> str:
    """The text with about this share of its words of four letters and more misspelt: two letters swapped, one left
    out, doubled or replaced."""
    words = text.split(" ")
    for i, word in enumerate(words):
        if len(word) < 4 or not word.isalpha() or random.random() >= share:
            continue
        at = int(random.integers(1, len(word) - 1))
        before, letter, after = word[:at], word[at], word[at + 1 :]
        other = chr(ord("a") + int(random.integers(26)))
        middle = (after[0] + letter + after[1:], after, letter + letter + after, other + after)
        words[i] = before + _pick(random, middle)
    return " ".join(words)


def program(random: Generator) -> str:
    """A small program with random names and numbers, one in seven with a mistake in it."""
    a, b, c = (str(name) for name in random.choice(phrases()["variable"], 3, replace=False))
    numbers = {"n": str(random.integers(2, 13)), "m": str(random.integers(10, 100))}
    names = {"a": a, "b": b, "c": c, "f": _pick(random, phrases()["function"]), "C": a.capitalize(), **numbers}
    text = re.sub(r"<([abcfCnm])>", lambda match: names[match[1]], _pick(random, phrases()["program"]))
    if random.random() < 0.15:
        old, new = (("return", "retrun"), ("(", ""), (":", ""), (a, b), ("==", "="))[int(random.integers(5))]
        text = text.replace(old, new, 1)
    return f"```\n{text}\n```" if random.random() < 0.3 else text


def table(random: Generator) -> str:
    """3 to 9 rows of a name and up to two numbers: CSV, a markdown table, JSON lines, a sentence or a list."""
    names = phrases()["item" if random.random() < 0.5 else "first_name"]
    rows = [
        (_pick(random, names), int(random.integers(1, 200)), round(float(random.random()) * 50, 2))
        for _ in range(int(random.integers(3, 10)))
    ]
    heads = [str(x) for x in random.choice(phrases()["field"], 3, replace=False)]
    match int(random.integers(5)):
        case 0:
            return "\n".join([",".join(heads), *(f"{n},{i},{x}" for n, i, x in rows)])
        case 1:
            lines = [f"| {' | '.join(heads)} |", "|---|---|---|"]
            return "\n".join([*lines, *(f"| {n} | {i} | {x} |" for n, i, x in rows)])
        case 2:
            return "\n".join(f'{{"{heads[0]}": "{n}", "{heads[1]}": {i}}}' for n, i, _ in rows)
        case 3:
            return ", ".join(n for n, _, _ in rows)
        case _:
            return "\n".join(f"- {n}: {i}" for n, i, _ in rows)


def _careless(random: Generator, text: str) -> str:
    """Half of the texts unchanged, the others as somebody in a hurry types them."""
    chance = random.random()
    if chance < 0.5:
        return text
    if chance < 0.68:
        return text.lower().rstrip(".?! ").replace("'", "" if random.random() < 0.5 else "'")
    if chance < 0.84:
        return misspell(random, text, 0.2)
    if chance < 0.92:
        return fill(random, "{beginning}") + text[:1].lower() + text[1:]
    if chance < 0.99:
        return text.rstrip() + fill(random, "{ending}")
    return text.upper()


def _pick(random: Generator, choices: tuple[str, ...]) -> str:
    return choices[int(random.integers(len(choices)))]


def _follow_up(random: Generator) -> UserTurn:
    by_target = random.random() < SHARE_OWN_FOLLOW_UP
    return UserTurn(by_target=True) if by_target else UserTurn(_careless(random, fill(random, "{follow_up}")))


def _edit(random: Generator) -> UserTurn:
    text = paragraph(random, int(random.integers(1, 9)))
    if random.random() < 0.35:
        text = misspell(random, text, 0.25)
    return _beside(random, "{edit}", text)


def _code(random: Generator) -> UserTurn:
    if random.random() < 0.35:
        return UserTurn(_careless(random, fill(random, "{code_request}")))
    return _beside(random, "{code_task}", program(random))


def _beside(random: Generator, task: str, text: str) -> UserTurn:
    """A task about a text: before it in four of five cases, otherwise behind it."""
    words, gap = _careless(random, fill(random, task)), _pick(random, ("\n\n", "\n\n", "\n", " "))
    return UserTurn(text + gap + words if random.random() < 0.2 else words + gap + text)


def _of_target(random: Generator) -> UserTurn:
    """Magpie (arXiv 2406.08464): the target writes the user's turn; a third of them from a given beginning."""
    return UserTurn(fill(random, "{turn_start}") if random.random() < 0.33 else "", by_target=True)


def _of(name: str) -> Callable[[Generator], UserTurn]:
    return lambda random: UserTurn(_careless(random, fill(random, name)))


KINDS: dict[str, tuple[float, Callable[[Generator], UserTurn]]] = {
    "short": (0.15, _of("{short}")),
    "longer": (0.13, _of("{longer}")),
    "request": (0.12, _of("{request}")),
    "code": (0.12, _code),
    "edit": (0.12, _edit),
    "data": (0.05, lambda random: _beside(random, "{data_task}", table(random))),
    "maths": (0.07, _of("{maths}")),
    "chat": (0.05, _of("{chat}")),
    "foreign": (0.04, _of("{foreign}")),
    "by target": (0.15, _of_target),
}
"""Share and maker of the first user turn, by kind."""
