"""The prompt: an instruction, and for pi0.5 the state as text, to token ids. No torch.

Source: openpi's tokenizer, as described by the published code: only spaces, '_' and newlines are changed; state values
are bins of [-1, 1], and what lies below it is bin -1.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import numpy as np

from mstar_rt.errors import ConfigError, InvalidArgument

BIN_EDGES = np.linspace(-1, 1, 257)[:-1]
BEGIN_NAMES = ("<bos>", "<s>")
ANSWER = "\n"
CHARACTERS_PER_TOKEN = 64
"""No vocabulary gets more into a token, over a whole prompt: longer texts are refused before they are read."""


class Tokenizer(Protocol):
    """`begin_id` starts every prompt; `unknown_id` stands for what the vocabulary does not have, None if it has all."""

    begin_id: int
    unknown_id: int | None
    vocab_size: int

    def encode(self, text: str) -> list[int]:
        """The ids of `text`, nothing added."""
        ...


class Prompter:
    """Writes the prompts of one policy. `state_as_text`: pi0.5's format; without, that of pi0."""

    def __init__(self, tokenizer: Tokenizer, max_tokens: int, *, state_as_text: bool) -> None:
        self._tokenizer = tokenizer
        self._max_tokens = max_tokens
        self._state_as_text = state_as_text

    def ids(self, instruction: str, state: np.ndarray | None) -> list[int]:
        """The whole prompt.

        Args:    state [S], normalised, as the statistics leave it, not padded.
        Raises:  InvalidArgument: longer than the policy takes. It is never cut.
        """
        tokenizer = self._tokenizer
        if len(instruction) > CHARACTERS_PER_TOKEN * self._max_tokens:
            raise InvalidArgument(
                f"the instruction has {len(instruction)} characters, this policy {self._max_tokens} tokens: shorten it"
            )
        if self._state_as_text:
            assert state is not None
            ids = [tokenizer.begin_id, *tokenizer.encode(prompt_with_state(instruction, state))]
        else:
            ids = [tokenizer.begin_id, *tokenizer.encode(cleaned(instruction)), *tokenizer.encode(ANSWER)]
        if len(ids) > self._max_tokens:
            raise InvalidArgument(
                f"the prompt has {len(ids)} tokens, this policy takes {self._max_tokens}: shorten the instruction"
            )
        return ids

    def has_unknown(self, ids: list[int]) -> bool:
        """Whether the vocabulary lacks words of the prompt."""
        return self._tokenizer.unknown_id in ids


def cleaned(instruction: str) -> str:
    return instruction.strip().replace("_", " ").replace("\n", " ")


def prompt_with_state(instruction: str, state: np.ndarray) -> str:
    bins = " ".join(str(number) for number in state_bins(state))
    return f"Task: {cleaned(instruction)}, State: {bins};\nAction: "


def state_bins(state: np.ndarray) -> list[int]:
    """The bin of each normalised value: 0 to 255, and -1 below -1."""
    return [int(number) for number in np.digitize(state, BIN_EDGES) - 1]


def load_tokenizer(path: str, vocab_size: int) -> Tokenizer:
    """A SentencePiece model (`.model`) or a file of the library tokenizers (`.json`).

    Raises:  ConfigError: it is missing, unreadable, has no token to begin with, or more tokens than the network knows;
             or the library that reads it is not installed.
    """
    file = Path(path)
    readers: dict[str, type[Any]] = {".model": _SentencePiece, ".json": _Tokenizers}
    if file.suffix not in readers:
        raise ConfigError(f"tokenizer {path!r} ends in {file.suffix!r}, expected .model (SentencePiece) or .json")
    if not file.is_file():
        raise ConfigError(f"there is no tokenizer at {path}; name the file that belongs to the checkpoint")
    tokenizer: Tokenizer = readers[file.suffix](file)
    if tokenizer.vocab_size > vocab_size:
        raise ConfigError(
            f"tokenizer {path} has {tokenizer.vocab_size} tokens, the network {vocab_size}; they do not belong together"
        )
    return tokenizer


class _SentencePiece:
    def __init__(self, file: Path) -> None:
        try:
            import sentencepiece
        except ImportError as error:
            raise ConfigError(
                f"reading {file} needs the package sentencepiece: install it, or name a .json of the library tokenizers"
            ) from error
        self._processor = sentencepiece.SentencePieceProcessor()
        try:
            self._processor.LoadFromFile(str(file))
        except (OSError, RuntimeError) as error:
            raise ConfigError(f"{file} is not a SentencePiece model: {error}") from error
        self.begin_id = int(self._processor.bos_id())
        if self.begin_id < 0:
            raise ConfigError(f"{file} has no token to begin a prompt with (bos)")
        self.unknown_id: int | None = int(self._processor.unk_id())
        self.vocab_size = int(self._processor.vocab_size())

    def encode(self, text: str) -> list[int]:
        return list(self._processor.EncodeAsIds(text))


class _Tokenizers:
    def __init__(self, file: Path) -> None:
        try:
            import tokenizers
        except ImportError as error:
            raise ConfigError(f"reading {file} needs the package tokenizers: install it") from error
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises nothing more exact
            raise ConfigError(f"{file} is not a file of the library tokenizers: {error}") from error
        # As SentencePiece does it: "<eos>" in an instruction is text, not the token.
        self._tokenizer.encode_special_tokens = True
        begins = [self._tokenizer.token_to_id(name) for name in BEGIN_NAMES]
        found = [number for number in begins if number is not None]
        if not found:
            raise ConfigError(f"{file} has no token to begin a prompt with, expected {' or '.join(BEGIN_NAMES)}")
        self.begin_id: int = found[0]
        self.unknown_id: int | None = self._tokenizer.token_to_id("<unk>")
        self.vocab_size: int = self._tokenizer.get_vocab_size()

    def encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)
