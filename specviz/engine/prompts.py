"""Prompts: presets, the chat template or raw text, tokenization, and length limits."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from specviz.errors import SettingsError

MAX_CHARACTERS = 200_000
"""Length limit of a prompt; checked before tokenization, which would take long."""


@dataclass(frozen=True)
class Preset:
    """An example prompt. `expect`: how well drafts are accepted on it, and why."""

    name: str
    title: str
    text: str
    expect: str


PRESETS: tuple[Preset, ...] = (
    Preset(
        "code",
        "Code",
        "Write a Python function that takes a list of temperatures in Celsius and returns the warmest, the coldest "
        "and their mean. Add a short docstring.",
        "Code repeats names, indentation and idioms: drafts are easy to guess.",
    ),
    Preset(
        "copy-edit",
        "Copy-edit",
        "Correct the spelling and leave everything else as it is:\n\n"
        "The harbour was quite that evning. Two fishermen were mending a net beside the old lighthouse, and neither "
        "of them spoke. When the first lamp was lit, the younger one put down his neeedle, looked at the water and "
        "said that the wind would turn befor morning.",
        "The answer copies the prompt nearly word for word: looking drafts up in the prompt shines here.",
    ),
    Preset(
        "story",
        "Story",
        "Tell a short story about a clockmaker who finds a letter inside a clock that he built thirty years ago.",
        "Free prose has many good next words: fewer drafts survive.",
    ),
    Preset(
        "list",
        "List",
        "List eight things to check before a long bicycle tour, one per line, each with a reason of a few words.",
        "The form of the lines repeats, the content does not: drafts survive in bursts.",
    ),
    Preset(
        "maths",
        "Maths",
        "A baker sells 24 loaves in the morning and half as many in the afternoon, at 3 euros each. Flour and wood "
        "cost him 41 euros. How much does he earn that day? Work it out step by step.",
        "Numbers from the question come back, the connecting words are formulaic.",
    ),
    Preset(
        "translation",
        "Translation",
        "Translate into French: The train to the coast leaves at nine, and we should be at the station a little "
        "earlier, because my sister still has to buy her ticket.",
        "Once a phrase has begun, the rest of it often follows; names and choices of words do not.",
    ),
)


TOY_PRESETS: tuple[Preset, ...] = (
    Preset("toy", "Six words", "the cat sees the dog and", "The toy pair knows: the, cat, dog, sees, and, full stop."),
)


def presets_for(pair_name: str) -> tuple[Preset, ...]:
    """The presets of a pair: the toy pair has a vocabulary of six words."""
    return TOY_PRESETS if pair_name == "toy" else PRESETS


def preset(name: str) -> Preset:
    """A preset by name. Raises SettingsError with the names that exist."""
    for candidate in PRESETS + TOY_PRESETS:
        if candidate.name == name:
            return candidate
    raise SettingsError(f"There is no preset {name[:40]!r}: choose one of {', '.join(p.name for p in PRESETS)}.")


@dataclass(frozen=True)
class Encoded:
    """A tokenized prompt."""

    ids: tuple[int, ...]
    """At least one token; the last one is the first anchor."""
    text: str
    """The text that was tokenized, including the chat template."""
    raw: bool
    """True if no chat template was used, by choice or because the model has none."""
    note: str = ""
    """Sentences on deviations from the request, for the screen; otherwise empty."""


def encode(
    tokenizer,
    text: str,
    system: str | None = None,
    raw: bool = False,
    max_tokens: int | None = None,
    limit_note: str = "",
) -> Encoded:
    """Token ids of a prompt. `system` None leaves the template's own default; `raw` skips the template.

    `max_tokens` is the most that fits: the model's positions minus the new tokens; `limit_note` says what sets that
    limit, if it is not the model's context. Raises SettingsError for an empty or an enormous prompt. Half surrogates
    and NUL characters are replaced by U+FFFD, and the note says so.
    """
    text = text if isinstance(text, str) else str(text)
    for what, value in (("prompt", text), ("system prompt", system or "")):
        if len(value) > MAX_CHARACTERS:
            raise SettingsError(
                f"The {what} has {len(value):,} characters; at most {MAX_CHARACTERS:,} are taken. Shorten it."
            )
    notes = []
    text, changed = _clean(text)
    system, system_changed = (None, False) if system is None else _clean(system)
    if changed or system_changed:
        notes.append("Characters that are no text (NUL, half surrogates) were replaced by U+FFFD.")
    if not text.strip() and not (raw and text):
        raise SettingsError("The prompt is empty: type something, or choose a preset.")
    if not raw and not getattr(tokenizer, "chat_template", None):
        raw = True
        notes.append("This model has no chat template, so the prompt is given to it as raw text.")
    if raw:
        if system:
            notes.append("The system prompt is not used with raw text.")
        whole, ids = text, _raw_ids(tokenizer, text)
    else:
        whole, folded = _templated(tokenizer, text, system)
        if folded:
            notes.append(folded)
        ids = _ids(tokenizer, whole, False)  # the template contains the special tokens
    if not ids:
        raise SettingsError("The prompt holds no token that this model knows: type something else.")
    if max_tokens is not None and len(ids) > max_tokens:
        raise SettingsError(
            f"The prompt has {len(ids):,} tokens and at most {max(0, max_tokens):,} fit this model beside the new "
            f"ones: shorten it, or ask for fewer new tokens. {limit_note}".rstrip()
        )
    return Encoded(tuple(int(i) for i in ids), whole, raw, " ".join(notes))


def lines_of(file: str) -> list[str]:
    """The non-blank lines of a text file, stripped: one prompt per line. Raises SettingsError."""
    try:
        lines = Path(file).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"The prompts in {file[:80]} cannot be read: {error}.") from None
    if not (lines := [line.strip() for line in lines if line.strip()]):
        raise SettingsError(f"{file[:80]} holds no prompt: write one a line.")
    return lines


def _raw_ids(tokenizer, text: str) -> list[int]:
    """Token ids of raw text, without the end-of-text token that some tokenizers append to every text."""
    ids = _ids(tokenizer, text, True)
    if len(ids) > 1 and ids[-1] == tokenizer.eos_token_id and not text.endswith(str(tokenizer.eos_token)):
        return ids[:-1]
    return ids


def _ids(tokenizer, text: str, special: bool) -> list[int]:
    """Token ids of a text. Raises SettingsError if the vocabulary cannot encode it."""
    try:
        return list(tokenizer.encode(text, add_special_tokens=special))
    except Exception as error:  # tokenizers raises bare Exception on text outside a closed vocabulary
        words = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().get)
        only = f" It knows only: {' '.join(words)}.".replace("Ġ", "") if len(words) <= 20 else ""
        raise SettingsError(f"This model's vocabulary cannot spell the prompt ({str(error)[:80]}).{only}") from None


def _templated(tokenizer, text: str, system: str | None) -> tuple[str, str]:
    """The text with the chat template around it, and a note if the system prompt had to go elsewhere."""
    user = {"role": "user", "content": text}
    turns = [user] if system is None else [{"role": "system", "content": system}, user]
    try:
        return tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False), ""
    except Exception as error:  # templates are programs in Jinja: whatever they raise, they do not take these turns
        if system is None:
            raise SettingsError(f"The model's chat template fails ({str(error)[:120]}): use raw text.") from None
    user = {"role": "user", "content": f"{system}\n\n{text}"}
    return (
        tokenizer.apply_chat_template([user], add_generation_prompt=True, tokenize=False),
        "This model's template takes no system prompt, so it was put before the prompt.",
    )


def _clean(text: str) -> tuple[str, bool]:
    """The text with half surrogates and NUL characters replaced by U+FFFD, and whether any were."""
    cleaned = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").replace("\0", "\ufffd")
    return cleaned, cleaned.count("\ufffd") > text.count("\ufffd")
