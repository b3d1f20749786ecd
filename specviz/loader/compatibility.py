"""Vocabulary compatibility of drafter and target: token ids are compared, from tokenizers and configs alone.

Speculative decoding compares p and q token by token, so every id that both models can emit must stand for the same
text. Equal sizes are not sufficient, and different sizes can be fine: vocabularies are often padded.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from specviz.errors import PairError


@dataclass(frozen=True)
class VocabularyMatch:
    """Result of `compare`."""

    ok: bool
    reason: str
    """One sentence: why they are incompatible, or how they differ without harm."""
    shared: int
    """ids 0 .. shared - 1 exist in both models; the drafter may propose only these. 0 if they are incompatible."""


def compare(target_tokenizer, draft_tokenizer, target_vocab_size: int, draft_vocab_size: int) -> VocabularyMatch:
    """Compare two transformers tokenizers id by id. The sizes are the models' (rows of the LM head).

    They are compatible if no id means two different texts, each has nearly all tokens of the other, and both
    end a text with the same token. A handful of tokens that only one names (added later, or mere padding to
    the other) is harmless: the drafter never proposes them.
    """
    shared = min(target_vocab_size, draft_vocab_size)
    target, draft = meanings(target_tokenizer), meanings(draft_tokenizer)
    differing = sorted(i for i in target.keys() & draft.keys() if i < shared and target[i] != draft[i])
    if differing:
        first = differing[0]
        more = f" ({len(differing):,} ids differ)" if len(differing) > 1 else ""
        return _no(
            f"token {first} is {_shown(target[first])} in the target and {_shown(draft[first])} in the drafter{more}"
        )
    few = min(_FEW, shared // 10)
    for name, own, other in (("drafter lacks", target, draft), ("target lacks", draft, target)):
        lost = sorted(own.keys() - other.keys())
        if len(lost) > few:
            return _no(
                f"the {name} {len(lost):,} tokens that the other has, such as token {lost[0]}, {_shown(own[lost[0]])}"
            )
    ends = target_tokenizer.eos_token_id, draft_tokenizer.eos_token_id
    if None not in ends and ends[0] != ends[1]:
        return _no(
            f"the target ends its text with token {ends[0]} ({_shown(target.get(ends[0]))}), "
            f"the drafter with token {ends[1]} ({_shown(draft.get(ends[1]))})"
        )
    if target_vocab_size == draft_vocab_size:
        return VocabularyMatch(True, "Target and drafter have the same tokenizer.", shared)
    return VocabularyMatch(
        True,
        f"Target and drafter have the same tokenizer; their vocabularies are padded to "
        f"{target_vocab_size:,} and {draft_vocab_size:,} ids.",
        shared,
    )


def check_pair(target_folder: Path | str, draft_folder: Path | str) -> VocabularyMatch:
    """`compare` for two model folders, before any weights are loaded. Raises PairError if they do not fit."""
    from specviz.loader.config_and_tokenizer import load_config, load_tokenizer

    sizes = [vocab_size(load_config(folder)) for folder in (target_folder, draft_folder)]
    match = compare(load_tokenizer(target_folder), load_tokenizer(draft_folder), *sizes)
    if not match.ok:
        raise PairError(match.reason)
    return match


def vocab_size(config) -> int:
    """Rows of the LM head according to a transformers config."""
    return int(config.get_text_config().vocab_size)


def meanings(tokenizer) -> dict[int, str]:
    """id -> token string, added and special tokens included."""
    return {int(i): text for text, i in tokenizer.get_vocab().items()}


_FEW = 256
"""More named tokens than this on one side only, and it is another tokenizer."""


def _no(what: str) -> VocabularyMatch:
    return VocabularyMatch(
        False, f"This drafter does not fit this target: {what}. Choose a drafter with the target's own tokenizer.", 0
    )


def _shown(text: str | None) -> str:
    if text is None:
        return "unnamed"
    # Byte-level vocabularies write a space as Ġ and a line break as Ċ, SentencePiece ones a space as ▁.
    return repr(text.replace("Ġ", " ").replace("Ċ", "\n").replace("▁", " ")[:40])
