"""The voice against the package that has it: the same samples, sentence by sentence; and what becomes of odd texts."""

from __future__ import annotations

import functools
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from walk_driver import Request, Served, WalkDriver, drive

from generators.hibari.model import declare
from generators.hibari.processor import Reader, Reading, bounded, cut, noise_from, noise_state
from mstar_rt.errors import ConfigError, InvalidArgument
from mstar_rt.model.conversation import write_text

TEXT = 'Good morning. Dr. Smith paid $9.99 for 3 cups, at 7:30 pm! "Is that all?" he asked.'


@functools.cache
def voice() -> WalkDriver:
    return drive(declare("voice", "", {}))


@pytest.fixture
def driver() -> WalkDriver:
    driver = voice()
    driver.now_ns = driver.step_ns = 0
    driver.predicted_ns.clear()
    return driver


def tensor(text: str) -> torch.Tensor:
    return torch.from_numpy(write_text(text))


def request(text: str, deadline_ns: int | None = None, **options: Any) -> Request:
    return Request("speech", {"text": tensor(text)}, options, deadline_ns)


def sound(served: Served) -> np.ndarray:
    return torch.cat(served.emitted["audio"]).numpy()


def test_it_is_the_packages_voice_bit_for_bit_and_comes_by_sentence(driver: WalkDriver) -> None:
    from hibari import Hibari

    speak = Hibari()
    for seed, speed in ((7, 1.0), (8, 1.5)):
        (served,) = driver.run(request(TEXT, seed=seed, speed=speed))
        assert len(served.emitted["audio"]) == 3
        np.testing.assert_array_equal(sound(served), speak(TEXT, speed, seed).clip(-1, 1))
    phonemes = speak.phonemize(TEXT)
    assert [int(value) for value in served.emitted["num_input_tokens"]] == [sum(map(len, phonemes))]
    assert [int(value) for value in served.emitted["reason"]] == [1]
    assert served.flags == []


def test_a_request_sounds_the_same_alone_and_beside_others(driver: WalkDriver) -> None:
    requests = [request(TEXT, seed=3), request("One. Two. Three. Four.", seed=3), request(TEXT, seed=4)]
    alone = [sound(driver.run(each)[0]) for each in requests]
    together = [sound(served) for served in driver.run(*requests, stagger=2)]
    for one, other in zip(alone, together, strict=True):
        np.testing.assert_array_equal(one, other)
    assert np.abs(alone[0] - alone[2]).max() > 1e-4


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (" \n", "has no word in it"),
        ("***", "nothing in the text can be spoken in English: it begins with '\\*\\*\\*'"),
        ("你好。", "can be spoken in English"),
        ("a" * 5000, "has 5000 characters, the limit of this model is 4096"),
        ("a" * 20_000, "N = 20000, the limit of this model is 16384"),
    ],
)
def test_texts_that_are_refused(driver: WalkDriver, text: str, sentence: str) -> None:
    with pytest.raises(InvalidArgument, match=sentence):
        driver.run(request(text))


def test_what_is_no_utf8_is_refused(driver: WalkDriver) -> None:
    with pytest.raises(InvalidArgument, match="not UTF-8"):
        driver.run_one("speech", {"text": torch.tensor([0xC3, 0x28], dtype=torch.uint8)})


@pytest.mark.parametrize("options", [{"voice": "tara"}, {"speed": 0.1}, {"seed": -1}, {"temperature": 1.0}])
def test_options_that_are_refused(driver: WalkDriver, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match=next(iter(options))):
        driver.run(request("Hello.", **options))


def test_sentences_without_a_sound_are_left_out_and_reported(driver: WalkDriver) -> None:
    (served,) = driver.run(request("*** \n One. 你好。 Two. \n ***", seed=1))
    assert served.flags == ["unspoken"]
    np.testing.assert_array_equal(sound(served), sound(driver.run(request("One. Two.", seed=1))[0]))
    (before,) = driver.run(request("你好。Hello.", seed=1))
    assert before.flags == ["unspoken"]
    np.testing.assert_array_equal(sound(before), sound(driver.run(request("Hello.", seed=1))[0]))


def test_it_answers_to_the_zeros_of_a_warm_up(driver: WalkDriver) -> None:
    assert len(sound(driver.run(request("\0"))[0])) > 24_000


@pytest.mark.parametrize(("predicted_ns", "num_spoken"), [(0, 2), (15, 1)])
def test_a_deadline_ends_it_between_two_sentences(driver: WalkDriver, predicted_ns: int, num_spoken: int) -> None:
    whole = driver.run(request(TEXT, seed=1))[0].emitted["audio"]
    driver.now_ns, driver.step_ns, driver.predicted_ns["speak"] = 0, 10, predicted_ns
    (served,) = driver.run(request(TEXT, deadline_ns=15, seed=1))
    assert served.flags == ["deadline"]
    assert int(served.emitted["reason"][0]) == 4
    np.testing.assert_array_equal(sound(served), torch.cat(whole[:num_spoken]).numpy())


def test_long_sentences_come_in_pieces_with_nothing_left_out(driver: WalkDriver) -> None:
    (served,) = driver.run(request("and on and on without a comma " * 16, seed=1))
    audio = served.emitted["audio"]
    assert len(audio) == 2
    assert max(map(len, audio)) < 25 * 24_000


@pytest.mark.parametrize("text", ["1" * 4000, "1-" * 2000, "[a](" * 900, "word " * 800, "a" * 59 + " " + "b" * 100])
def test_the_package_is_never_given_what_it_takes_seconds_for(text: str) -> None:
    given = bounded([text])
    assert max(map(len, given)) <= 600
    assert max(len(word) for sentence in given for word in sentence.split()) <= 60
    assert not re.search(r"\d{31}", " ".join(given))
    assert "".join(given).replace(" ", "") == text.replace(" ", "")


def test_what_the_package_fails_at_is_the_texts_fault(driver: WalkDriver) -> None:
    assert len(sound(driver.run(request("1" * 45))[0])) > 24_000  # alone it fails at 37 digits

    def phonemes(sentence: str) -> str:
        raise IndexError("list index out of range")

    with pytest.raises(InvalidArgument, match="'odd' cannot be read out: put it in other words"):
        Reader(lambda text: [text], phonemes, "a", 400).find("odd", Reading(0, 0, 0, 0, ()))


@settings(deadline=None, max_examples=50)
@given(st.text("ab,; ", max_size=80), st.integers(4, 20))
def test_cut_leaves_nothing_out(phonemes: str, most: int) -> None:
    pieces = cut(phonemes, most)
    assert "".join(pieces).replace(" ", "") == phonemes.replace(" ", "")
    assert all(0 < len(piece) <= most or len(phonemes) <= most for piece in pieces)


@pytest.mark.parametrize(
    ("phonemes", "pieces"),
    [("aa, bb cc dd", ["aa,", "bb cc dd"]), ("aa bb cc dd", ["aa bb cc", "dd"]), ("a" * 20, ["a" * 9, "a" * 9, "aa"])],
)
def test_cut_prefers_clauses_to_words_and_words_to_anything(phonemes: str, pieces: list[str]) -> None:
    assert cut(phonemes, 9) == pieces


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**64), st.integers(0, 9))
def test_the_noise_goes_on_where_it_was(seed: int, num_drawn: int) -> None:
    noise = np.random.default_rng(seed)
    noise.standard_normal(num_drawn, dtype=np.float32)
    state = noise_state(noise)
    assert all(-(2**63) <= number < 2**63 for number in state)
    np.testing.assert_array_equal(
        noise_from(state).standard_normal(5, dtype=np.float32), noise.standard_normal(5, dtype=np.float32)
    )


def test_a_sentence_is_looked_up_once() -> None:
    seen: list[str] = []

    def phonemes(sentence: str) -> str:
        seen.append(sentence)
        return sentence.strip("*")

    reader = Reader(lambda text: text.split("."), phonemes, "ab", 40)
    place: Reading | None = Reading(0, 0, 0, 0, ())
    said = []
    while place is not None:
        place, _ = reader.find("a.*.b", place)
        if place is not None:
            said.append(reader.piece("a.*.b", place))
            place = Reading(place.sentence, place.piece + 1, 0, 0, ())
    assert said == ["a", "b"]
    assert seen == ["a", "*", "b"]


@pytest.mark.parametrize(
    ("checkpoint", "options", "sentence"),
    [
        ("voice.onnx", {}, "leave it out"),
        ("", {"voice": "heart"}, "did you mean 'voices'|voices"),
        ("", {"voices": "heart"}, "expected a list"),
        ("", {"voices": ["haert"]}, "heart"),
        ("", {"voices": ["heart", "heart"]}, "twice"),
        ("", {"max_phonemes": 10}, "from 40"),
        ("", {"max_characters": True}, "whole number"),
    ],
)
def test_declarations_that_are_refused(checkpoint: str, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        declare("voice", checkpoint, options)


def test_options_are_what_clients_see() -> None:
    model = declare("voice", "", {"voices": ["emma", "heart"], "max_characters": 10})
    assert model.generation is not None
    assert model.generation.speech is not None
    assert model.generation.speech.voices == ("emma", "heart")
    assert model.generation.speech.default_voice == "emma"
    assert model.task("speech").inputs[0].max_sizes == (("N", 40),)


def test_a_voice_that_was_not_fetched_ends_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is downloaded behind anybody's back."""
    monkeypatch.setenv("HIBARI_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match=f"'emma' is not in {tmp_path}: fetch it once"):
        drive(declare("voice", "", {"voices": ["emma"]}))


def test_without_the_package_the_start_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hibari", None)
    with pytest.raises(ConfigError, match=r"pip install 'mstar-rt\[speech\]'"):
        drive(declare("voice", "", {}))
