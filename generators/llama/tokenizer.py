"""The tokenizer and the chat template of a published folder. No torch."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from generators.llama.config import read_json
from mstar_rt.errors import ConfigError, InvalidArgument

NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token")


class LlamaTokenizer:
    """`tokenizer.json` of a folder, by the library tokenizers."""

    def __init__(self, folder: Path, vocab_size: int) -> None:
        """Raises:  ConfigError: it is missing or unreadable, or has more tokens than the network."""
        import tokenizers

        file = folder / "tokenizer.json"
        if not file.is_file():
            raise ConfigError(f"there is no {file}; download the folder's tokenizer, too")
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises nothing more exact
            raise ConfigError(f"{file} is not a file of the library tokenizers: {error}") from error
        if self._tokenizer.get_vocab_size() > vocab_size:
            raise ConfigError(
                f"{file} has {self._tokenizer.get_vocab_size()} tokens, the network {vocab_size}; they do not belong "
                "together"
            )
        added = self._tokenizer.get_added_tokens_decoder().values()
        self.special_texts = tuple(token.content for token in added if token.special)

    def special_in(self, text: str) -> str | None:
        """The first special token whose text is part of this one."""
        return next((special for special in self.special_texts if special in text), None)

    def encode(self, text: str, has_begin: bool) -> list[int]:
        """The ids of a text, in which special tokens are such; `has_begin`: with what the file puts around a text."""
        return list(self._tokenizer.encode(text, add_special_tokens=has_begin).ids)

    def decode(self, ids: Sequence[int]) -> str:
        """Special tokens are no text."""
        return str(self._tokenizer.decode(ids, skip_special_tokens=True))


class ChatTemplate:
    """Writes conversations as the model was trained to read them, by the template that comes with it."""

    def __init__(self, folder: Path) -> None:
        """Raises:  ConfigError: the folder has no chat template, or one that is none; or jinja2 is not installed."""
        values = read_json(folder / "tokenizer_config.json")
        self._tokens = {name: _text(values[name]) for name in NAMED_TOKENS if values.get(name) is not None}
        source = _template(folder, values)
        try:
            import jinja2
            from jinja2.sandbox import ImmutableSandboxedEnvironment
        except ImportError as error:
            raise ConfigError("chat templates need the package jinja2: pip install mstar-rt[text]") from error
        self._refusals: tuple[type[Exception], ...] = (jinja2.TemplateError, TypeError, ValueError, KeyError)
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _refuse
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise ConfigError(f"the chat template of {folder} is none: {error}") from error

    def write(self, turns: Sequence[Mapping[str, str]]) -> str:
        """The text up to where the assistant goes on.

        Raises:  InvalidArgument: the template refuses the conversation, e.g. as its roles do not alternate.
        """
        try:
            return str(self._template.render(messages=turns, add_generation_prompt=True, **self._tokens))
        except self._refusals as error:
            raise InvalidArgument(f"the model's chat template refuses the conversation: {error}") from error


def _template(folder: Path, values: Mapping[str, Any]) -> str:
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    template = values.get("chat_template")
    if isinstance(template, list):
        by_name = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, Mapping)}
        template = by_name.get("default")
    if not isinstance(template, str):
        raise ConfigError(
            f"{folder} has no chat template, neither chat_template.jinja nor in tokenizer_config.json; a model that "
            "was not trained to chat has none"
        )
    return template


def _text(token: Any) -> str:
    return str(token["content"] if isinstance(token, Mapping) else token)


def _refuse(message: str) -> None:
    raise ValueError(message)


def _to_json(value: Any, indent: int | None = None) -> str:
    """As templates expect it: without the escapes of HTML."""
    return json.dumps(value, ensure_ascii=False, indent=indent)
