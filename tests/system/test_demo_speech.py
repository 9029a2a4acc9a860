"""The voice is heard: what the demo and the page's script make is understood by a speech recogniser."""

from __future__ import annotations

import json
import re
import wave
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.signal import resample_poly

from mstar_rt.cli import main
from mstar_rt.client import connect
from mstar_rt.errors import InvalidArgument
from sim_bridge.demo_speech import TEXT
from sim_bridge.server_process import served

pytestmark = pytest.mark.system
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with served(ROOT / "configs" / "voice.yaml") as address:
        yield address


def words(text: str) -> str:
    return re.sub(r"[^a-z ]", "", text.lower())


def heard(file: Path) -> str:
    """What pocketsphinx, an English recogniser for 16 kHz, makes of it."""
    from pocketsphinx import Decoder

    with wave.open(str(file)) as wav:
        assert (wav.getframerate(), wav.getnchannels(), wav.getsampwidth()) == (24_000, 1, 2)
        samples = np.frombuffer(wav.readframes(wav.getnframes()), "<i2")
    decoder = Decoder(samprate=16_000, loglevel="FATAL")
    decoder.start_utt()
    decoder.process_raw(resample_poly(samples.astype(np.float64), 2, 3).astype("<i2").tobytes(), full_utt=True)
    decoder.end_utt()
    return str(decoder.hyp().hypstr)


def test_the_demo_writes_what_a_recogniser_understands(
    address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", "speech", "--address", address, "--seed", "1", "--output", str(tmp_path)]) == 0
    assert heard(tmp_path / "speech.wav") == words(TEXT)
    said = capsys.readouterr().out
    assert re.search(r"first sound after \d+ ms, all 5\.\d s of it after \d+ ms in 3 pieces: RTF \d", said)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert 0 < summary["first_sound_s"] <= summary["all_there_s"]
    assert summary["real_time_factor"] == summary["all_there_s"] / summary["duration_s"]


def test_the_pages_script_speaks(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "speech.md").read_text()
    script = re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0]
    assert "127.0.0.1:50051" in script
    names: dict[str, Any] = {}
    exec(script.replace("127.0.0.1:50051", address), names)
    with wave.open("hello.wav") as wav:
        assert wav.getnframes() == names["speech"].done.num_samples > 24_000
    assert capsys.readouterr().out.count(" s of sound") == 3


def test_seeds_reproduce_over_the_wire(address: str) -> None:
    with connect(address) as client:
        one, same, other = (
            client.speak("voice", "Hello.", seed=seed, encoding="float32").collect().samples for seed in (1, 1, 2)
        )
        fresh = [client.speak("voice", "Hello.", encoding="float32").collect().samples for _ in range(2)]
        with pytest.raises(InvalidArgument, match="word"):
            client.speak("voice", "  ").collect()
    np.testing.assert_array_equal(one, same)
    assert not np.array_equal(one, other)
    assert not np.array_equal(*fresh)
