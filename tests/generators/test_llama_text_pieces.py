"""Text goes out as soon as it is sure, and never has to be taken back."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence

import pytest
from llama_tiny import tokenizer

from generators.llama.text_pieces import Pieces, next_piece, read_stops
from mstar_rt.errors import InvalidArgument

TOKENIZER = tokenizer()


def decode(ids: Sequence[int]) -> str:
    return TOKENIZER.decode(list(ids), skip_special_tokens=True)


def pieces_of(ids: Sequence[int], stops: Sequence[str] = ()) -> tuple[list[str], bool]:
    """What goes out after each token, and whether a stop string ended it."""
    state, given = Pieces(0, 0), []
    for count in range(1, len(ids) + 1):
        window = ids[state.first : count]
        text, state, is_stopped = next_piece(state, window, decode, stops, is_last=count == len(ids))
        given.append(text)
        if is_stopped:
            return given, True
    return given, False


def encoded(text: str) -> list[int]:
    return list(TOKENIZER.encode(text, add_special_tokens=False).ids)


@pytest.mark.parametrize("text", ["hello world", "naïve 日本語 🤖🤖", " ", "é" * 5 + "\n\nhello"])
def test_pieces_are_whole_characters_and_the_text_in_all(text: str) -> None:
    given, _ = pieces_of(encoded(text))
    assert "".join(given) == text
    assert not any("\ufffd" in piece for piece in given)


def test_any_tokens_give_what_decoding_them_at_once_gives() -> None:
    """Also those that are no characters; nothing is held back for more than a few tokens."""
    generator = random.Random(1)
    for _ in range(60):
        ids = [generator.randrange(3, 268) for _ in range(generator.randrange(1, 25))]
        assert "".join(pieces_of(ids)[0]) == decode(ids)
    robot = encoded("🤖")
    assert len(robot) == 4
    assert pieces_of(robot)[0] == ["", "", "", "🤖"]
    assert pieces_of(robot[:3])[0] == ["", "", "\ufffd"]


def test_special_tokens_are_no_text() -> None:
    assert "".join(pieces_of([*encoded("hello"), 2])[0]) == "hello"


@pytest.mark.parametrize(
    ("text", "stops", "expected"),
    [
        ("one two three", ["two"], "one "),
        ("one two three", ["xyz"], "one two three"),
        ("aab", ["ab"], "a"),
        ("abcabd", ["abd", "bca"], "a"),
        ("日本語", ["本"], "日"),
        ("one tw", ["two"], "one tw"),
        ("xx", ["x"], ""),
        ("hello world", ["o w", "world"], "hell"),
    ],
)
def test_stop_strings_end_the_text_and_are_never_seen(text: str, stops: list[str], expected: str) -> None:
    for ids in (encoded(text), [number for letter in text for number in encoded(letter)]):
        given, is_stopped = pieces_of(ids, stops)
        assert "".join(given) == expected
        assert is_stopped == (expected != text)
        for count in range(len(given)):
            sent = "".join(given[: count + 1])
            assert expected.startswith(sent)


def test_what_is_no_list_of_stop_strings() -> None:
    assert read_stops("[]") == ()
    assert read_stops('["a", "b"]') == ("a", "b")
    for option in ("", "{}", "[1]", '[""]', json.dumps(["a" * 257]), json.dumps(["a"] * 17), "[" * 100_000):
        with pytest.raises(InvalidArgument, match="'stop'"):
            read_stops(option)
