"""A tokenizer without transformers: what the engine asks of one, over the tokenizers library.

Serves folders whose tokenizer.json says all there is to know, as transformers itself writes them, with a chat template
of no more than messages and special tokens. Every other folder is left to transformers.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import jinja2
from jinja2.meta import find_undeclared_variables
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

_NAMED = ("bos_token", "eos_token", "pad_token", "unk_token")
_HARMLESS = {"backend", "is_local", "local_files_only", "model_max_length", "tokenizer_class", "chat_template", *_NAMED}
"""Entries of tokenizer_config.json that change nothing here."""
_CLASSES = ("TokenizersBackend", "PreTrainedTokenizerFast")
"""Classes of transformers that take tokenizer.json as it is."""
_MORE_FILES = ("special_tokens_map.json", "added_tokens.json", "additional_chat_templates")
_VARIABLES = {"messages", "add_generation_prompt", "raise_exception", *_NAMED}


class Tokenizer:
    """Answers as transformers' tokenizer of the same folder does, and knows no more than is asked of it."""

    def __init__(self, backend: Backend, named: dict[str, str], template: str | None = None):
        """named: special tokens by name, such as eos_token. Raises jinja2.TemplateError if the template is none."""
        backend.no_truncation()
        backend.no_padding()
        self.backend_tokenizer = backend
        self.chat_template = template
        self.eos_token = named.get("eos_token")
        self.eos_token_id = None if self.eos_token is None else backend.token_to_id(self.eos_token)
        self._named = named
        self._render = None if template is None else _environment().from_string(template).render

    def __len__(self) -> int:
        """Tokens of the vocabulary, added ones included."""
        return self.backend_tokenizer.get_vocab_size(with_added_tokens=True)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text. Raises Exception for what the vocabulary cannot spell."""
        return self.backend_tokenizer.encode(text, add_special_tokens=add_special_tokens).ids

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        """The text of these ids."""
        return self.backend_tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens)

    def apply_chat_template(
        self, turns: Sequence[dict[str, str]], add_generation_prompt: bool = False, tokenize: bool = False
    ) -> str:
        """The turns (role and content each) as the model wants to read them. Raises jinja2.TemplateError."""
        return self._render(messages=turns, add_generation_prompt=add_generation_prompt, **self._named)

    def convert_ids_to_tokens(self, token: int) -> str | None:
        """How the vocabulary spells a token; None for an id that it lacks."""
        return self.backend_tokenizer.id_to_token(token)

    def get_vocab(self) -> dict[str, int]:
        """Spelling -> id, added tokens included."""
        return self.backend_tokenizer.get_vocab(with_added_tokens=True)

    @property
    def added_tokens_decoder(self) -> dict[int, AddedToken]:
        """The added tokens by id."""
        return self.backend_tokenizer.get_added_tokens_decoder()


def read(folder: Path) -> Tokenizer | None:
    """The tokenizer of a folder, or None if transformers must make it. Raises Exception for a damaged file."""
    file = folder / "tokenizer.json"
    if not file.is_file() or any((folder / name).exists() for name in _MORE_FILES):
        return None
    try:
        about = json.loads((folder / "tokenizer_config.json").read_bytes())
        template = folder / "chat_template.jinja"
        template = template.read_text(encoding="utf-8") if template.is_file() else about.get("chat_template")
    except (OSError, ValueError, AttributeError, RecursionError):
        return None
    if set(about) - _HARMLESS or about.get("tokenizer_class") not in _CLASSES or not _plain(template):
        return None
    backend = Backend.from_file(str(file))
    special = {token.content for token in backend.get_added_tokens_decoder().values() if token.special}
    named = {name: about[name] for name in _NAMED if about.get(name) is not None}
    return Tokenizer(backend, named, template) if all(token in special for token in named.values()) else None


def _plain(template) -> bool:
    """Whether a chat template, or None, is rendered here just as transformers would: it has no need of tools, dates or
    filters that transformers defines otherwise."""
    if template is None:
        return True
    if not isinstance(template, str) or "tojson" in template:
        return False
    try:
        return find_undeclared_variables(_environment().parse(template)) <= _VARIABLES
    except jinja2.TemplateError:
        return False


def _environment() -> ImmutableSandboxedEnvironment:
    """Where templates run: they come with the model, so they are kept from anything but the turns."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.globals = {"raise_exception": _raise}
    return environment


def _raise(message: str):
    raise jinja2.TemplateError(message)
