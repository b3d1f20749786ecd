"""Conversations as people begin and continue them, composed from word lists: the prompts of the drafters' corpus.

Kinds: short questions, longer requests, code, edits of a text, tables, maths, chat, other languages, and turns that the
target writes itself. Many are written carelessly: lower case, misspelt, without punctuation. A third have more than one
user turn, a fifth a system prompt of their own. Everything is a function of a random generator: a seed gives the same
prompts on every machine. Knows no tokenizer and no model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from specviz.training import code_samples, phrases, turns

PARTS: dict[str, tuple[str, ...]] = {
    **turns.PARTS,
    **phrases.PARTS,
    "short": phrases.SHORT,
    "longer": phrases.LONGER,
    "clause_sentence": tuple(f"{c[0].upper()}{c[1:]}." for c in phrases.PARTS["clause"] if c[0] != "{"),
}
OWN = None
"""In the place of a user turn: the target writes it."""
SHARE_SYSTEM = 0.2
SHARE_OWN_FOLLOW_UP = 0.35
TURNS = (0.62, 0.26, 0.12)
"""Shares of conversations with one, two and three user turns."""
TEMPERATURES = (0.0, 0.0, 0.0, 0.7, 0.8, 1.0)
LENGTHS = (64, 160, 256, 256, 320, 512)
"""Most tokens of an answer"""


@dataclass(frozen=True)
class Plan:
    """A conversation before the target has written anything."""

    kind: str
    """Of KINDS"""
    system: str | None
    """None: the chat template's own"""
    turns: tuple[str | None, ...]
    """User turns; OWN: written by the target"""
    temperature: float
    """Of the answers"""
    answer_tokens: int
    """Most tokens of each answer"""


def plan(random: np.random.Generator) -> Plan:
    """The next conversation."""
    kind = str(random.choice(list(KINDS), p=_SHARES))
    first = KINDS[kind][1](random)
    count = 1 + int(random.choice(len(TURNS), p=TURNS))
    more = tuple(
        OWN if random.random() < SHARE_OWN_FOLLOW_UP else _careless(random, fill(random, phrases.FOLLOW_UPS))
        for _ in range(count - 1)
    )
    system = fill(random, phrases.SYSTEMS) if random.random() < SHARE_SYSTEM else None
    return Plan(kind, system, (first, *more), float(random.choice(TEMPERATURES)), int(random.choice(LENGTHS)))


def fill(random: np.random.Generator, templates: tuple[str, ...]) -> str:
    """One of the templates, each {name} in it replaced by a random entry of PARTS, as often as there are any."""
    text = _pick(random, templates)
    while "{" in text:
        name = text[text.index("{") + 1 : text.index("}")]
        text = text.replace("{" + name + "}", _pick(random, PARTS[name]), 1)
    return text


def paragraph(random: np.random.Generator, sentences: int) -> str:
    """Unrelated plain sentences one after the other."""
    made = []
    for _ in range(sentences):
        text = fill(random, phrases.PARTS["join"]) + fill(random, phrases.PARTS["clause"])
        if random.random() < 0.3:
            text += f", {_pick(random, ('and', 'but', 'so', 'while'))} " + fill(random, phrases.PARTS["clause"])
        made.append(text[0].upper() + text[1:] + ".")
    return " ".join(made)


def misspell(random: np.random.Generator, text: str, share: float = 0.12) -> str:
    """The text with letters swapped, dropped, doubled or hit beside, in about this share of its longer words."""
    words = text.split(" ")
    for i, word in enumerate(words):
        if len(word) < 4 or not word.isalpha() or random.random() >= share:
            continue
        at = int(random.integers(1, len(word) - 1))
        words[i] = (
            word[:at] + word[at + 1] + word[at] + word[at + 2 :],
            word[:at] + word[at + 1 :],
            word[:at] + word[at] + word[at:],
            word[:at] + "qwertyuiopasdfghjklzxcvbnm"[int(random.integers(26))] + word[at + 1 :],
        )[int(random.integers(4))]
    return " ".join(words)


def _careless(random: np.random.Generator, text: str) -> str:
    """As a hurried person would type it, in half of the cases."""
    how = random.random()
    if how < 0.5:
        return text
    if how < 0.68:
        return text.lower().rstrip(".?! ").replace("'", "" if random.random() < 0.5 else "'")
    if how < 0.84:
        return misspell(random, text, 0.2)
    if how < 0.92:
        return _pick(random, phrases.BEGINNINGS) + text[:1].lower() + text[1:]
    if how < 0.99:
        return text.rstrip() + fill(random, phrases.ENDINGS)
    return text.upper()


def _pick(random: np.random.Generator, choices: tuple[str, ...]) -> str:
    return choices[int(random.integers(len(choices)))]


def _edit(random: np.random.Generator) -> str:
    task, text = fill(random, phrases.EDITS), paragraph(random, int(random.integers(1, 9)))
    if random.random() < 0.35:
        text = misspell(random, text, 0.25)
    return _around(random, _careless(random, task), text)


def _code(random: np.random.Generator) -> str:
    if random.random() < 0.35:
        return _careless(
            random,
            fill(
                random,
                (
                    "Write a {language} function that {task}.",
                    "{language} code that {task}",
                    "Write a {language} program that {task}. Add comments.",
                ),
            ),
        )
    return _around(random, _careless(random, fill(random, code_samples.CODE_TASKS)), code_samples.program(random))


def _data(random: np.random.Generator) -> str:
    names = phrases.PARTS["item"] if random.random() < 0.5 else phrases.PARTS["first_name"]
    return _around(
        random,
        _careless(random, fill(random, phrases.DATA_TASKS)),
        code_samples.table(random, phrases.PARTS["field"], names),
    )


def _around(random: np.random.Generator, task: str, text: str) -> str:
    """The task before the text, or now and then behind it."""
    gap = _pick(random, ("\n\n", "\n\n", "\n", " "))
    return text + gap + task if random.random() < 0.2 else task + gap + text


def _of(*templates: str) -> Callable[[np.random.Generator], str]:
    return lambda random: _careless(random, fill(random, templates))


KINDS: dict[str, tuple[float, Callable[[np.random.Generator], str | None]]] = {
    "short": (0.17, _of(*phrases.SHORT)),
    "longer": (0.12, _of(*phrases.LONGER)),
    "request": (0.15, _of(*turns.FRAMES)),
    "code": (0.12, _code),
    "edit": (0.12, _edit),
    "data": (0.05, _data),
    "maths": (0.07, _of(*phrases.MATHS)),
    "chat": (0.06, _of(*phrases.CHAT)),
    "foreign": (0.04, _of(*phrases.FOREIGN)),
    "own": (0.10, lambda random: OWN),
}
"""Share and maker of the first user turn."""
_SHARES = [share for share, _ in KINDS.values()]
