"""A tokenizer without transformers: the few methods that the engine uses, on the tokenizers library.

For folders whose tokenizer.json is complete, as transformers itself writes them, with a chat template that uses only
messages and special tokens. Every other folder is left to transformers.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import jinja2
from jinja2.meta import find_undeclared_variables
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

_NAMED = ("bos_token", "eos_token", "pad_token", "unk_token")
_HARMLESS = {"backend", "is_local", "local_files_only", "model_max_length", "tokenizer_class", "chat_template", *_NAMED}
"""Entries of tokenizer_config.json that have no effect here."""
_CLASSES = ("TokenizersBackend", "PreTrainedTokenizerFast")
"""Classes of transformers that use tokenizer.json unchanged."""
_MORE_FILES = ("special_tokens_map.json", "added_tokens.json", "additional_chat_templates")
_VARIABLES = {"messages", "add_generation_prompt", "raise_exception", *_NAMED}


class Tokenizer:
    """Gives the results of transformers' tokenizer of the same folder, for the methods below."""

    def __init__(self, backend: Backend, named: dict[str, str], template: str | None = None):
        """named: special tokens by name, such as eos_token. Raises jinja2.TemplateError for an invalid template."""
        backend.no_truncation()
        backend.no_padding()
        self.backend_tokenizer = backend
        self.chat_template = template
        self.eos_token = named.get("eos_token")
        self.eos_token_id = None if self.eos_token is None else backend.token_to_id(self.eos_token)
        self._named = named
        self._template = None if template is None else _environment().from_string(template)

    def __len__(self) -> int:
        """Tokens of the vocabulary, added ones included."""
        return self.backend_tokenizer.get_vocab_size(with_added_tokens=True)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text. Raises Exception for text that the vocabulary cannot represent."""
        return self.backend_tokenizer.encode(text, add_special_tokens=add_special_tokens).ids

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        """The text of these ids."""
        return self.backend_tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens)

    def apply_chat_template(
        self, turns: Sequence[dict[str, str]], add_generation_prompt: bool = False, tokenize: bool = False
    ) -> str:
        """The conversation (role and content of each turn) as text in the model's chat format. Raises
        jinja2.TemplateError, also where there is no template."""
        if self._template is None:
            raise jinja2.TemplateError("this tokenizer has no chat template")
        return self._template.render(messages=turns, add_generation_prompt=add_generation_prompt, **self._named)

    def convert_ids_to_tokens(self, token: int) -> str | None:
        """The vocabulary's string of a token; None for an id that it lacks."""
        return self.backend_tokenizer.id_to_token(token)

    def get_vocab(self) -> dict[str, int]:
        """Token string -> id, added tokens included."""
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
        own = folder / "chat_template.jinja"
        template = own.read_text(encoding="utf-8") if own.is_file() else about.get("chat_template")
    except (OSError, ValueError, AttributeError, RecursionError):
        return None
    if set(about) - _HARMLESS or about.get("tokenizer_class") not in _CLASSES or not _plain(template):
        return None
    backend = Backend.from_file(str(file))
    special = {token.content for token in backend.get_added_tokens_decoder().values() if token.special}
    named = {name: about[name] for name in _NAMED if about.get(name) is not None}
    return Tokenizer(backend, named, template) if all(token in special for token in named.values()) else None


def _plain(template: object) -> bool:
    """Whether a chat template, or None, is rendered here exactly as by transformers: it uses no tools, dates or filters
    that transformers defines differently."""
    if template is None:
        return True
    if not isinstance(template, str) or "tojson" in template:
        return False
    try:
        return find_undeclared_variables(_environment().parse(template)) <= _VARIABLES
    except jinja2.TemplateError:
        return False


def _environment() -> ImmutableSandboxedEnvironment:
    """A sandbox for chat templates, which are code that comes with the model: they see the turns only."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.globals = {"raise_exception": _raise}
    return environment


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
