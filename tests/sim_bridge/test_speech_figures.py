"""What `mstar-rt demo speech` says about what it heard, and what it and `mstar-rt demo image` refuse."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mstar_rt.cli import main
from mstar_rt.client import AudioPiece
from mstar_rt.errors import Unavailable
from sim_bridge.demo_speech import listen

RATE_HZ = 1000


class Stream:
    """Pieces of so many seconds, each with the time on `clock` at which it comes."""

    def __init__(self, clock: SimpleNamespace, pieces: list[tuple[float, float]], done: Any = "done") -> None:
        self._clock, self._pieces, self._done = clock, pieces, done
        self.done: Any = None

    def __iter__(self) -> Iterator[AudioPiece]:
        num_samples = 0
        for at_s, duration_s in self._pieces:
            self._clock.now_s = at_s
            samples = np.ones(int(duration_s * RATE_HZ), np.float32)
            yield AudioPiece(samples, num_samples, RATE_HZ)
            num_samples += len(samples)
        self.done = self._done


def test_figures_count_from_the_request_and_see_a_player_run_dry() -> None:
    clock = SimpleNamespace(now_s=10.0)
    pieces = [(10.5, 1.0), (11.0, 1.0), (13.0, 2.0), (14.0, 1.0)]  # dry from 12.5 to 13.0
    speech, figures = listen(Stream(clock, pieces), lambda: clock.now_s)  # type: ignore[arg-type]
    assert speech.duration_s == figures.duration_s == 5.0
    assert (figures.first_sound_s, figures.all_there_s, figures.num_pieces) == (0.5, 4.0, 4)
    assert figures.silent_s == pytest.approx(0.5)
    assert figures.real_time_factor == pytest.approx(0.8)  # what comes before the first sound is part of it


def test_a_stream_that_ends_without_a_word_is_no_speech() -> None:
    with pytest.raises(Unavailable, match="without a sound"):
        listen(Stream(SimpleNamespace(now_s=0.0), [], done=None), lambda: 0.0)  # type: ignore[arg-type]


def test_it_needs_no_simulator_and_refuses_a_model_that_it_does_not_serve(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert main(["demo", "speech", "--model", "tara"]) == 2
    assert "--model is tara, but without --address the demo serves 'voice'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "name"),
    [(["speech", " "], "text"), (["image", ""], "prompt"), (["image", "a ring", "--edit", ""], "edit")],
)
def test_an_empty_text_is_refused_at_once(
    arguments: list[str], name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["demo", *arguments, "--output", str(tmp_path / "out")]) == 2
    said = capsys.readouterr()
    assert f"the {name} is empty, expected at least a word" in said.err
    assert said.out == ""
    assert not (tmp_path / "out").exists()
