"""Sentences in the words of whoever reads them: what is an option to a model came as a field or as a flag."""

from __future__ import annotations

import re
from collections.abc import Mapping

QUOTED = r"""(?<!option )(?<!tensor )(?<!image )(?<!\w)(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")"""
"""What a sentence quotes but for names of options and inputs: words of the client, names of models."""


def reworded(sentence: str, names: Mapping[str, str]) -> tuple[str, list[str]]:
    """`sentence` with each of `names` in it as its value, and those of them that are in it, in order. QUOTED stays."""
    found: list[str] = []

    def word_of(match: re.Match[str]) -> str:
        if match[1] is None:
            return match[0]
        found.append(match[1])
        return names[match[1]]

    # Models may be called like options: "voice.speech" stays as it is.
    name = rf"(?<![\w.-])({'|'.join(map(re.escape, names))})(?![\w-]|\.\w)"
    return re.sub(f"{QUOTED}|{name}", word_of, sentence), found
