"""Texts to tokens, each between the two that begin and end one. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from generators.llama.tokenizer import LlamaTokenizer
from mstar_rt.errors import ConfigError

BEGIN_TEXT, END_TEXT, BEGIN_IMAGE, END_IMAGE = "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>"


class BagelTokens(LlamaTokenizer):
    """`tokenizer.json` of the folder. Its special tokens are looked up by their text: numbers differ between sizes."""

    def __init__(self, folder: Path, vocab_size: int) -> None:
        """Raises:  ConfigError: there is no such file, or it lacks a token."""
        super().__init__(folder, vocab_size)
        self.begin_id, self.end_id = self._id(BEGIN_TEXT, folder), self._id(END_TEXT, folder)
        self.image_ids = self._id(BEGIN_IMAGE, folder), self._id(END_IMAGE, folder)

    def wrapped(self, text: str) -> list[int]:
        return [self.begin_id, *self.encode(text, has_begin=False), self.end_id]

    def _id(self, text: str, folder: Path) -> int:
        ids: Sequence[int] = self.encode(text, has_begin=False)
        if text not in self.special_texts or len(ids) != 1:
            raise ConfigError(f"{folder / 'tokenizer.json'} has no special token {text!r}, which this model needs")
        return ids[0]
