"""The tokenizer of the small model: whole words, in a file of the library tokenizers."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import tokenizers
from tokenizers import normalizers
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split

from generators.bagel.tokens import BEGIN_IMAGE, BEGIN_TEXT, END_IMAGE, END_TEXT

UNKNOWN = "<unk>"
SPECIAL = (BEGIN_TEXT, END_TEXT, BEGIN_IMAGE, END_IMAGE, UNKNOWN)
_WORD = r"[a-z]+|\d+"
_SPELLINGS = {"gray": "grey", "center": "centre", "color": "colour"}


def write_tokenizer(path: Path, texts: Iterable[str]) -> None:
    """A tokenizer that knows the words of these texts, in capitals and in American spelling too; signs are no words."""
    words = sorted({word for text in texts for word in re.findall(_WORD, text.lower())})
    tokenizer = tokenizers.Tokenizer(WordLevel({name: index for index, name in enumerate((*SPECIAL, *words))}, UNKNOWN))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Lowercase(), *(normalizers.Replace(*spelling) for spelling in _SPELLINGS.items())]
    )
    tokenizer.pre_tokenizer = Split(tokenizers.Regex(_WORD), behavior="removed", invert=True)
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.save(str(path))


class Vocabulary:
    """The tokenizer in the form that training uses."""

    def __init__(self, path: Path) -> None:
        self._tokenizer = tokenizers.Tokenizer.from_file(str(path))
        self.begin, self.end, self.begin_image, self.end_image, self.unknown = (
            int(self._tokenizer.token_to_id(name) or 0) for name in SPECIAL
        )
        self.size = self._tokenizer.get_vocab_size()
        self._known: dict[str, list[int]] = {}

    def wrapped(self, text: str) -> list[int]:
        """The ids of a text between `begin` and `end`."""
        if text not in self._known:
            self._known[text] = [self.begin, *self._tokenizer.encode(text, add_special_tokens=False).ids, self.end]
        return self._known[text]

    def text(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=True))
