"""The text and the bytes of single tokens, for any tokenizer.

A token may be a part of a character. Bytes that are not valid UTF-8 by themselves are written \\xNN, so that every
token is legible; the bytes from `token_bytes` concatenate to those of the whole text.
"""

from __future__ import annotations

import functools
import json
import re
import unicodedata
from collections.abc import Iterable

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def piece_table(tokenizer, ids: Iterable[int]) -> dict[int, str]:
    """The text of each of these ids. Special tokens keep their name; ids beyond the vocabulary (padding of the LM
    head) become `<pad 49153>`."""
    return {token: text_of(tokenizer, token) for token in sorted({int(i) for i in ids})}


def text_of(tokenizer, token: int) -> str:
    """The text of one token."""
    return legible(token_bytes(tokenizer, token))


def legible(raw: bytes) -> str:
    """Bytes as text; each byte that is not part of a complete UTF-8 character becomes \\xNN."""
    return raw.decode("utf-8", errors="backslashreplace")


def token_bytes(tokenizer, token: int) -> bytes:
    """The bytes of one token. For ordinary text the bytes of its tokens concatenate to the text."""
    name = tokenizer.convert_ids_to_tokens(token) if 0 <= token < len(tokenizer) else None
    if name is None:
        return f"<pad {token}>".encode()
    added = tokenizer.added_tokens_decoder.get(token)
    if added is not None:
        return added.content.encode("utf-8", errors="replace")
    kind = _kind(tokenizer)
    if kind == "byte-level" and all(letter in _BYTE_OF for letter in name):
        return bytes(_BYTE_OF[letter] for letter in name)
    if kind == "sentencepiece":
        if match := _BYTE_TOKEN.fullmatch(name):
            return bytes([int(match[1], 16)])
        return name.replace("▁", " ").encode("utf-8", errors="replace")
    if kind == "wordpiece":
        return (name[2:] if name.startswith("##") else f" {name}").encode("utf-8", errors="replace")
    return name.encode("utf-8", errors="replace")


def _kind(tokenizer) -> str:
    """How the vocabulary encodes bytes and spaces: byte-level, sentencepiece, wordpiece or plain. Cached."""
    known = getattr(tokenizer, "_specviz_kind", None)
    if known is None:
        known = _find_kind(tokenizer)
        tokenizer._specviz_kind = known
    return known


def _find_kind(tokenizer) -> str:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        # The decoder says how token strings become text; it is plain data inside the tokenizer's JSON.
        found = set(_types(json.loads(_decoder_json(backend))))
        if "ByteLevel" in found:
            return "byte-level"
        if found & {"Metaspace", "ByteFallback"} or "▁" in str(backend.decoder):
            return "sentencepiece"
        if "WordPiece" in found:
            return "wordpiece"
    vocabulary = tokenizer.get_vocab()
    if "Ġthe" in vocabulary:
        return "byte-level"
    return "sentencepiece" if "▁the" in vocabulary else "plain"


def _decoder_json(backend) -> str:
    decoder = backend.decoder
    return decoder.__getstate__().decode() if decoder is not None else "{}"


def _types(node) -> Iterable[str]:
    if isinstance(node, dict):
        if isinstance(node.get("type"), str):
            yield node["type"]
        for value in node.values():
            yield from _types(value)
    elif isinstance(node, list):
        for value in node:
            yield from _types(value)


@functools.cache
def _letters() -> dict[int, str]:
    """GPT-2's byte-to-character table of byte-level vocabularies: visible Latin-1 characters map to themselves, other
    bytes to characters from U+0100 on."""
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare = iter(range(0x100, 0x200))
    return {byte: chr(byte if byte in visible else next(spare)) for byte in range(256)}


_BYTE_OF = {letter: byte for byte, letter in _letters().items()}


def visible(piece: str) -> str:
    """A token's text with invisible characters made visible: leading and trailing spaces as middle dots, line ends
    and tabs as arrows, control and formatting characters by their code, the empty string as '(empty)'."""
    if piece == "":
        return "(empty)"
    core = piece.strip(" ")
    if not core:
        return "·" * len(piece)
    lead = len(piece) - len(piece.lstrip(" "))
    tail = len(piece) - len(piece.rstrip(" "))
    text = "·" * lead + "".join(map(_visible_char, core)) + "·" * tail
    # a combining mark needs a base character
    return "◌" + text if unicodedata.combining(text[0]) else text


def _visible_char(char: str) -> str:
    if char == "\n":
        return "↵"
    if char == "\t":
        return "→"
    if char == "\r":
        return "\\r"
    if char != " " and unicodedata.category(char) in {"Cc", "Cf", "Zs", "Zl", "Zp", "Co", "Cn", "Cs"}:
        # \u, since \x stands for a byte that is no character by itself
        return f"\\u{ord(char):04X}"
    return char
