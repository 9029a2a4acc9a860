"""A conversation as a tensor: uint8 [N], UTF-8 JSON `[{"role": "user", "content": "Hello"}]`, oldest turn first."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

import numpy as np

from mstar_rt.errors import InvalidArgument

ROLES = ("system", "user", "assistant")
WARM_UP = "\0"
"""The text of a warm-up, whose inputs are zeros."""
Turn = Mapping[str, str]
"""`role`, one of ROLES, and `content`, its text."""


def write_conversation(turns: Iterable[Turn]) -> np.ndarray:
    """uint8 [N]. The reader checks the turns, as it has to do in any case."""
    turns = [{"role": turn["role"], "content": turn["content"]} for turn in turns]
    return write_text(json.dumps(turns, ensure_ascii=False))


def write_text(text: str) -> np.ndarray:
    """uint8 [N]: a text as a tensor."""
    return np.frombuffer(bytearray(text.encode("utf-8", errors="surrogatepass")), np.uint8)


def read_text(tensor: np.ndarray, name: str) -> str:
    """Raises:  InvalidArgument: `tensor`, uint8 [N], is not UTF-8."""
    try:
        return tensor.tobytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"tensor {name!r} is not UTF-8: {error.reason} at byte {error.start}") from error


def read_conversation(tensor: np.ndarray) -> list[dict[str, str]]:
    """The turns, of which at least one is the user's. One zero byte is a conversation, too: the warm-up's.

    Raises:  InvalidArgument: it is no conversation, or has a turn of the user without a word.
    """
    text = read_text(tensor, "conversation")
    if text == WARM_UP:
        return [{"role": "user", "content": text}]
    try:
        turns = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"tensor 'conversation' is not JSON: {error}") from error
    if not isinstance(turns, list) or not turns:
        raise InvalidArgument("tensor 'conversation' has no turns, expected a list of at least one")
    for index, turn in enumerate(turns):
        _check_turn(turn, f"turn {index} of the conversation")
    if not any(turn["role"] == "user" for turn in turns):
        raise InvalidArgument("the conversation has no turn of the user, expected at least one")
    return turns


def _check_turn(turn: object, where: str) -> None:
    if not isinstance(turn, dict) or turn.keys() != {"role", "content"}:
        raise InvalidArgument(f"{where} has not just 'role' and 'content'")
    role, content = turn["role"], turn["content"]
    if role not in ROLES:
        raise InvalidArgument(f"{where} has the role {role!r}, expected one of {', '.join(ROLES)}")
    if not isinstance(content, str):
        raise InvalidArgument(f"{where} has a content that is no text")
    if any("\ud800" <= character <= "\udfff" for character in content):
        raise InvalidArgument(f"{where} has half a character (a lone surrogate) in it")
    if role == "user" and not content.strip():
        raise InvalidArgument(f"{where} is of the user and has no word in it")
