"""What docs/http.md shows and lists."""

from __future__ import annotations

import re
import sys
import wave
from pathlib import Path

import pytest
import yaml

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

from openai_client import painting, served, url_of

from mstar_rt.config import parse_deployment
from mstar_rt.server.gateway import chat, errors, image_fields, speech

PAGE = (Path(__file__).parents[3] / "docs" / "http.md").read_text()
PROGRAMS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
MODELS = ('"smollm2"', '"voice"')


def test_the_program_runs_as_printed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program, _ = PROGRAMS
    monkeypatch.chdir(tmp_path)
    with served() as runtime:
        for written, here in (("http://127.0.0.1:8080/v1", url_of(runtime)), *((name, '"talker"') for name in MODELS)):
            assert written in program
            program = program.replace(written, here)
        exec(program, {})
    said = capsys.readouterr().out
    assert "talker ['chat', 'speech']" in said
    assert "samples audio/pcm; rate=8000; channels=1" in said
    with wave.open("gripper.wav") as file:
        assert file.getnframes() == 4 * 800


def test_the_images_are_made_as_printed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, program = PROGRAMS
    connects = first[: first.index("for model")].replace("http://127.0.0.1:8080/v1", "URL")
    monkeypatch.chdir(tmp_path)
    with painting() as runtime:
        exec(connects.replace("URL", url_of(runtime)) + program.replace('"shapes"', '"painter"'), {})
    assert sorted(file.name for file in tmp_path.iterdir()) == ["cross-7.png", "cross-8.png"]
    *events, said = capsys.readouterr().out.splitlines()
    assert events == ["image_edit.partial_image 32x48"] * 2 + ["image_edit.completed 32x48"]
    assert "What colour is it? [48 x 32" in said


def test_the_printed_key_is_one() -> None:
    (block,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    config = parse_deployment({"name": "test", "models": [{"name": "voice", "family": "x"}], **yaml.safe_load(block)})
    assert config.server.http_port == 8080


def test_every_field_and_every_status_is_listed() -> None:
    served_fields = {*chat.KNOWN, *speech.KNOWN, *image_fields.OF_ALL, *image_fields.OF_OPTIONS.values(), "think"}
    missing = {name for name in served_fields if f"`{name}`" not in PAGE and f"`{name}:" not in PAGE}
    assert missing == set()
    listed = {int(status) for row in re.findall(r"^\| ([\d, ]+) \|", PAGE, re.MULTILINE) for status in row.split(", ")}
    assert {*errors.STATUS.values()} - listed == {499, 501}  # nobody is there to read it; nothing of it is served
