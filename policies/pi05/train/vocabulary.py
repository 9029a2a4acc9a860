"""The tokenizer of the shipped policy: whole words, signs and whole numbers, in a file of the library tokenizers."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import tokenizers
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split

PAD, END, BEGIN, UNKNOWN = "<pad>", "<eos>", "<bos>", "<unk>"
PAD_ID = 0
FIRST_NUMBER_ID = 4
NUMBERS = range(-1, 256)
"""The bins of a state."""
VOCAB_SIZE = 384

_PIECE = r"-?\d+|[A-Za-z]+|[^\sA-Za-z\d]"
_FORMAT = "Task: , State: ;\nAction: "


def write_tokenizer(path: Path, texts: Iterable[str]) -> None:
    """A tokenizer that knows the words of these texts besides numbers and the words of the prompt's format."""
    words = sorted({word for text in (_FORMAT, *texts) for word in re.findall(_PIECE, text)})
    names = [PAD, END, BEGIN, UNKNOWN, *map(str, NUMBERS), *words]
    assert names.index("-1") == FIRST_NUMBER_ID
    assert len(names) <= VOCAB_SIZE
    tokenizer = tokenizers.Tokenizer(WordLevel({name: index for index, name in enumerate(names)}, UNKNOWN))
    tokenizer.pre_tokenizer = Split(tokenizers.Regex(_PIECE), behavior="removed", invert=True)
    tokenizer.add_special_tokens([PAD, END, BEGIN, UNKNOWN])
    tokenizer.save(str(path))
