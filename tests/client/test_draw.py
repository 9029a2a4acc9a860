"""`draw`, `edit_image` and images in `chat`, blocking and asyncio, over real gRPC against the toy edge."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from toy_painter import (
    NUM_STEPS,
    PLAN,
    SIZE,
    endless_steps,
    latents_of,
    painting_runtime,
    picture_of,
    preview_of,
)
from toy_runtime import ToyRuntime

from mstar_rt.cli import main
from mstar_rt.client import Client, ImageProgress, ImageResult, connect, connect_async
from mstar_rt.client.generation import command
from mstar_rt.client.generation.png_file import png_file
from mstar_rt.client.generation.results import GenerationDone, ImagePiece, TextPiece
from mstar_rt.errors import Cancelled, FailedPrecondition, InvalidArgument, NotFound, Unavailable
from mstar_rt.message import CancelRequest, Submit

GIVEN = np.random.default_rng(3).integers(0, 256, (40, 24, 3), np.uint8)
PROMPT = "a red barn"
OPTIONS: dict[str, Any] = {
    "height": 24, "width": 40, "text_guidance": 5, "image_guidance": 2.0, "guidance_start": 0.25, "guidance_end": 0.75,
    "num_denoise_steps": 3, "timestep_shift": 2.0, "renormalization": "text_channel", "renormalization_min": 0.5,
    "preview_every": 2, "latents_every": 3, "seed": 1,
}  # fmt: skip


@pytest.fixture
def painting() -> Iterator[ToyRuntime]:
    with painting_runtime() as running:
        yield running


@pytest.fixture
def painter_client(painting: ToyRuntime) -> Iterator[Client]:
    with connect(painting.address) as connected:
        yield connected


@pytest.fixture(scope="module")
def alone() -> Iterator[Client]:
    """A client of no server, for what it refuses itself."""
    with connect("127.0.0.1:9") as unconnected:
        yield unconnected


def last_params(runtime: ToyRuntime) -> dict[str, Any]:
    return dict(runtime.seen(Submit)[-1].params)


def read(path: Path) -> np.ndarray:
    return cv2.cvtColor(cv2.imread(str(path), cv2.IMREAD_UNCHANGED), cv2.COLOR_BGR2RGB)


def test_draw(painter_client: Client, painting: ToyRuntime, tmp_path: Path) -> None:
    stream = painter_client.draw("painter", PROMPT, **OPTIONS)
    *progress, result = list(stream)
    assert isinstance(result, ImageResult)
    params = last_params(painting)
    assert params == {**OPTIONS, "text_guidance": 5.0}
    np.testing.assert_array_equal(result.image, picture_of(PROMPT, params))
    assert (result.seed, result.index) == (1, 0)
    assert [(each.step, each.num_steps) for each in progress if isinstance(each, ImageProgress)] == [
        (1, 3),
        (2, 3),
        (3, 3),
    ]
    first, second, third = progress
    assert isinstance(first, ImageProgress) and first.preview is None and first.latents is None  # noqa: PT018
    np.testing.assert_array_equal(second.preview, preview_of(result.image, 2))  # type: ignore[union-attr]
    np.testing.assert_array_equal(third.latents, latents_of(3))  # type: ignore[union-attr]
    assert stream.done is not None
    assert (stream.done.reason, stream.done.num_input_tokens) == ("end", len(PROMPT))
    assert stream.done.timing.total_us > 0
    result.save_png(tmp_path / "barn.png")
    np.testing.assert_array_equal(read(tmp_path / "barn.png"), result.image)


@pytest.mark.parametrize("shape", [(1, 1, 3), (1, 7, 3), (5, 1, 3), (33, 64, 3)])
def test_png_files_hold_what_was_put_into_them(shape: tuple[int, int, int]) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    decoded = cv2.imdecode(np.frombuffer(png_file(pixels), np.uint8), cv2.IMREAD_UNCHANGED)
    np.testing.assert_array_equal(cv2.cvtColor(decoded, cv2.COLOR_BGR2RGB), pixels)


@pytest.mark.parametrize("name", ["barn.jpg", "barn.JPEG"])
def test_no_png_has_the_name_of_a_jpeg_file(name: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=f"{name}: use a name that ends in .png"):
        ImageResult(GIVEN, 0).save_png(tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_several_images_come_in_order(painter_client: Client, painting: ToyRuntime) -> None:
    images = painter_client.draw("painter", PROMPT, num_images=3, seed=5).images()
    assert [(image.index, image.seed) for image in images] == [(0, 5), (1, 6), (2, 7)]
    (again,) = painter_client.draw("painter", PROMPT, seed=6).images()
    np.testing.assert_array_equal(again.image, images[1].image)


def test_an_edit_takes_arrays_and_files(painter_client: Client, painting: ToyRuntime) -> None:
    file = cv2.imencode(".png", cv2.cvtColor(GIVEN, cv2.COLOR_RGB2BGR))[1].tobytes()
    for given in (GIVEN, GIVEN[:, ::-1][:, ::-1], file):
        (result,) = painter_client.edit_image("painter", given, PROMPT, seed=4).images()
        np.testing.assert_array_equal(result.image, picture_of(PROMPT, last_params(painting), GIVEN))


def test_a_plan_and_a_system_turn(painter_client: Client, painting: ToyRuntime) -> None:
    pieces = list(painter_client.draw("painter", PROMPT, system="in oil", think=True, max_tokens=20, stop=["x"]))
    assert "".join(piece.text for piece in pieces if hasattr(piece, "text")) == PLAN
    assert all(piece.thought for piece in pieces if hasattr(piece, "thought"))
    assert painting.seen(Submit)[-1].task == "think_and_draw"
    (again,) = painter_client.draw("painter", PROMPT, task="think_and_draw").images()
    assert again.image.shape == (*SIZE, 3)


def test_a_chat_about_an_image(painter_client: Client) -> None:
    turns = [
        {"role": "user", "content": "what?"},
        {"role": "assistant", "content": "?"},
        {"role": "user", "content": "!"},
    ]
    for task in ("chat", "describe_image"):
        text = painter_client.chat("painter", turns, image=GIVEN, seed=1, task=task).text()
        assert text == f"3 turns, seed 1: ! [40 x 24, {GIVEN.mean():.1f}]"


def test_the_same_with_asyncio(painting: ToyRuntime) -> None:
    async def all_at_once() -> None:
        async with connect_async(painting.address) as client:
            drawn, edited, chat = (
                client.draw("painter", PROMPT, seed=1, num_images=2),
                client.edit_image("painter", GIVEN, PROMPT, seed=1),
                client.chat("painter", "what?", image=GIVEN, seed=1),
            )
            images, (edit,), text = await asyncio.gather(drawn.images(), edited.images(), chat.text())
            assert [image.seed for image in images] == [1, 2]
            assert edit.image.shape == GIVEN.shape
            assert text.startswith("1 turns, seed 1: what? [40 x 24")
            assert drawn.done is not None
            steps = [piece async for piece in client.draw("painter", PROMPT) if isinstance(piece, ImageProgress)]
            assert len(steps) == NUM_STEPS
            with pytest.raises(FailedPrecondition, match=r"a stream is read once, .* or call again"):
                await drawn.images()
            with pytest.raises(InvalidArgument, match="height"):
                await client.draw("painter", PROMPT, height=3).images()

    asyncio.run(all_at_once())


# ---- leaving early


def test_leaving_the_loop_takes_all_images_back(painter_client: Client, painting: ToyRuntime) -> None:
    painting.script("text_to_image", endless_steps(2))
    for _ in painter_client.draw("painter", PROMPT, num_images=2):
        break
    painting.wait_for(CancelRequest, 2)
    waiting = painter_client.draw("painter", PROMPT)
    pieces = iter(waiting)
    assert isinstance(next(pieces), ImageProgress)
    waiting.cancel()
    painting.wait_for(CancelRequest, 3)
    with pytest.raises(Cancelled, match="was cancelled by this client"):
        list(pieces)
    with pytest.raises(FailedPrecondition, match="read once"):
        waiting.images()
    painting.wait_until_nothing_is_held()
    left = iter(painter_client.draw("painter", PROMPT))
    next(left)
    painter_client.close()
    with pytest.raises(Cancelled, match="was cancelled by this client"):
        list(left)


def test_a_stream_that_is_cancelled_says_so_in_asyncio(painting: ToyRuntime) -> None:
    painting.script("text_to_image", endless_steps(1))

    async def cancel() -> None:
        async with connect_async(painting.address) as client:
            stream = client.draw("painter", PROMPT)
            pieces = aiter(stream)
            await anext(pieces)
            stream.cancel()
            with pytest.raises(Cancelled, match="was cancelled by this client"):
                [piece async for piece in pieces]

    asyncio.run(cancel())


def test_a_task_that_is_cancelled_takes_its_images_back(painting: ToyRuntime) -> None:
    painting.script("text_to_image", endless_steps(1))

    async def leave() -> None:
        async with connect_async(painting.address) as client:
            drawing = asyncio.create_task(client.draw("painter", PROMPT, num_images=2).images())
            await asyncio.to_thread(painting.wait_for, Submit, 2)
            drawing.cancel()
            await asyncio.wait([drawing])
            assert drawing.cancelled()
            await asyncio.to_thread(painting.wait_for, CancelRequest, 2)

    asyncio.run(leave())


# ---- what goes wrong


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"prompt": 3}, "content"),
        ({"system": 3}, "content"),
        ({"task": 3}, "task is 3"),
        ({"height": 2.5}, "height"),
        ({"width": -8}, "option 'width' cannot be -8: a whole number from 0 to 4294967295 is expected"),
        (
            {"preview_every": GIVEN},
            r"option 'preview_every' cannot be an array of dtype uint8 and shape \[40, 24, 3\]: ",
        ),
        ({"image": GIVEN}, "draw makes images of text alone, but an image is given: call edit_image"),
        ({"think": 1}, "'think' cannot be 1: True or False"),
        ({"renormalization": "local"}, "none, global, channel, text_channel"),
        ({"text_guidance": "strong"}, "text_guidance"),
        ({"seed": None}, "'seed' is None"),
        ({"timeout_s": -1}, "timeout_s"),
    ],
)
def test_arguments_that_draw_cannot_send(alone: Client, arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidArgument, match=sentence):
        alone.draw(**{"model": "painter", "prompt": "x", **arguments})


def test_an_edit_without_an_image_is_told_what_it_takes(alone: Client) -> None:
    with pytest.raises(InvalidArgument, match=r"image is None, but edit_image takes one: an array .* file as bytes"):
        alone.edit_image("painter", None, "make it blue")  # type: ignore[arg-type]


@pytest.mark.parametrize("image", [GIVEN.astype(np.float32), GIVEN[..., 0], GIVEN[..., :2], b"", "given.png"])
def test_what_is_no_image_is_not_sent(alone: Client, image: Any) -> None:
    with pytest.raises(InvalidArgument, match="image"):
        alone.edit_image("painter", image, "make it blue").images()
    with pytest.raises(InvalidArgument, match="image"):
        alone.chat("painter", "what is it?", image=image).text()


def test_a_task_of_another_kind_is_told_apart(painter_client: Client) -> None:
    with pytest.raises(InvalidArgument, match="gives progress, not text: ask for it by draw or edit_image"):
        painter_client.chat("painter", PROMPT, task="text_to_image").text()
    with pytest.raises(
        InvalidArgument, match=r"'chat' makes no images .* text_to_image or think_and_draw or edit_image"
    ):
        painter_client.draw("painter", PROMPT, task="chat").images()


def test_what_the_server_does_not_know_it_refuses(painter_client: Client) -> None:
    for name in ("encoding", "voice", "spice"):
        with pytest.raises(InvalidArgument, match=name):
            painter_client.draw("painter", PROMPT, **{name: "png"}).images()
    with pytest.raises(Unavailable):
        connect("127.0.0.1:9").draw("painter", PROMPT).images()


# ---- the commands


def test_mstar_rt_draw(painting: ToyRuntime, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "barn.png"
    to = ["--out", str(out), "--address", painting.address, "--seed", "3"]
    assert main(["draw", PROMPT, "--size", "40x24", "--steps", "2", "--think", *to]) == 0
    assert capsys.readouterr().out == f"{PLAN}\n{out}: 40x24, seed 3\n"
    assert read(out).shape == (24, 40, 3)
    params = last_params(painting)
    assert (params["height"], params["width"], params["num_denoise_steps"]) == (24, 40, 2)
    assert painting.seen(Submit)[-1].task == "think_and_draw"
    assert main(["draw", PROMPT, "--image", str(out), "--num", "2", "--model", "painter", *to]) == 0
    assert capsys.readouterr().out == f"{out}: 40x24, seed 3\n{tmp_path / 'barn-1.png'}: 40x24, seed 4\n"
    assert painting.seen(Submit)[-1].task == "edit_image"
    jpeg = str(tmp_path / "barn.JPG")
    assert main(["draw", PROMPT, "--size", "40x24", *to, "--out", jpeg]) == 0
    assert Path(jpeg).read_bytes().startswith(b"\xff\xd8\xff")
    assert read(Path(jpeg)).shape == (24, 40, 3)


def test_red_is_red_in_a_jpeg_file(tmp_path: Path) -> None:
    image = np.full((24, 40, 3), (200, 40, 10), np.uint8)
    command._save(ImageResult(image, 0), str(tmp_path / "red.jpeg"))
    np.testing.assert_allclose(read(tmp_path / "red.jpeg").astype(int), image, atol=3)


def test_plans_of_several_images_are_not_mixed(capsys: pytest.CaptureFixture[str]) -> None:
    class Stream:
        done: GenerationDone | None = None

        def __iter__(self) -> Iterator[ImagePiece]:
            for index, text in ((0, "sky"), (1, "sea"), (0, " first"), (1, " last")):
                yield TextPiece(text, 1, True, index)
                written.append(capsys.readouterr().out)
            yield ImageResult(GIVEN, 5, 1)
            yield ImageResult(GIVEN, 4, 0)
            self.done = GenerationDone("end", 0, 0, 0, None, "")  # type: ignore[arg-type]

    written: list[str] = []
    images, plans = command._read_images(Stream(), sys.stdout)  # type: ignore[arg-type]
    assert written == ["sky", "", " first", ""]
    assert plans == {0: "", 1: "sea last"}
    assert [image.seed for image in images] == [4, 5]


def test_mstar_rt_chat_about_a_file(painting: ToyRuntime, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "given.png"
    file.write_bytes(png_file(GIVEN))
    assert main(["chat", "what?", "--image", str(file), "--seed", "1", "--address", painting.address]) == 0
    assert capsys.readouterr().out == f"1 turns, seed 1: what? [40 x 24, {GIVEN.mean():.1f}]\n"


def test_what_the_commands_refuse(painting: ToyRuntime, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    to = ["--out", str(tmp_path / "barn.png"), "--address", painting.address]
    given = tmp_path / "given.png"
    given.write_bytes(png_file(GIVEN))
    for arguments, sentence in (
        (["--size", "large"], "--size is 'large'"),
        (["--image", str(tmp_path / "none.png")], "none.png"),
        (["--num", "0"], "--num is 0, expected 1 to 16"),
        (["--num", "-1"], "--num cannot be -1: a whole number from 0"),
        (["--seed", "-1"], "--seed cannot be -1: a whole number from 0 to 9223372036854775807 is expected"),
        (["--size", "4x64"], "painter.text_to_image: --size (width) is 4, expected 8 to 256"),
        (["--size", "64x64", "--image", str(given)], "--size (height) is given, but an edit has the size of its image"),
        (["--steps", "0"], "painter.text_to_image: --steps is 0"),
        (["--think", "--image", str(given)], "does not think before it edits: leave --think unset"),
        (["--out", str(tmp_path / "none" / "barn.png")], "whose folder does not exist"),
        (["--out", str(tmp_path / "barn.gif")], "barn.gif, expected a name that ends in .png, .jpg or .jpeg"),
        (["--out", str(tmp_path)], "expected a name that ends in .png"),
    ):
        assert main(["draw", PROMPT, *to, *arguments]) == 2
        assert sentence in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [given]
    assert not painting.seen(Submit)


@pytest.mark.parametrize(
    ("sentence", "said"),
    [
        ("a.b: option 'height' is 3, or width is 5", "a.b: --size (height) is 3, or --size (width) is 5"),
        ("a.b: option 'voice' is 'seed', expected one of x", "a.b: --voice is 'seed', expected one of x"),
        ("model 'seed' does not think: leave `think` unset", "model 'seed' does not think: leave --think unset"),
        ("image 'image' is not a complete PNG file", "--image 'a b.png' is not a complete PNG file"),
        ("a.b: tensor 'image' has H = 9", "a.b: --image 'a b.png' has H = 9"),
        ("the image has 9 x 1 pixels: crop it", "the image has 9 x 1 pixels: crop it"),
    ],
)
def test_what_a_server_refuses_is_said_of_flags(sentence: str, said: str) -> None:
    refused = InvalidArgument(sentence)
    with pytest.raises(InvalidArgument) as raised, command._in_flags("a b.png"):
        raise refused
    assert raised.value is refused
    assert str(refused) == said


@pytest.mark.parametrize("kind", ["chat", "draw"])
def test_a_file_that_is_no_image_is_named(kind: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "judge.py"
    for content in (b"", b"import sys"):
        file.write_bytes(content)
        to = ["--out", str(tmp_path / "barn.png")] if kind == "draw" else []
        assert main([kind, PROMPT, "--image", str(file), "--address", "127.0.0.1:9", *to]) == 2
        assert f"--image is {file}, which is neither a JPEG nor a PNG file" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["chat"], ["say", "--out", "x.wav"], ["draw", "--out", "x.png"]])
def test_a_text_without_a_word_is_refused_before_anybody_is_asked(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    for text in ("", " \n"):
        assert main([*arguments, text, "--address", "127.0.0.1:9"]) == 2
        assert "the text has no word in it, expected at least one" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "kind"), [("it.png", "draw"), ("it.wav", "say")])
def test_a_file_that_cannot_be_written_is_refused_before_anybody_is_asked(
    name: str, kind: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / name
    nobody = [kind, PROMPT, "--address", "127.0.0.1:9", "--out"]
    assert main([*nobody, str(tmp_path / "none" / name)]) == 2
    assert "whose folder does not exist" in capsys.readouterr().err
    file.mkdir()
    assert main([*nobody, str(file)]) == 2
    assert "which is a folder: name a file in it" in capsys.readouterr().err
    file.rmdir()
    for present in (tmp_path, file):  # the folder of a new file, and a file that is there
        if present == file:
            file.touch()
        monkeypatch.setattr(os, "access", lambda path, mode, present=present: path != present)
        assert main([*nobody, str(file)]) == 2
        assert "which you may not write" in capsys.readouterr().err
    if kind == "draw":
        (tmp_path / "new-2.png").mkdir()
        assert main([*nobody, str(tmp_path / "new.png"), "--num", "3"]) == 2
        assert "new-2.png, which is a folder" in capsys.readouterr().err


def test_without_a_model_for_it_the_command_says_so(runtime: ToyRuntime, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["draw", "hi", "--out", "x.png", "--address", runtime.address]) == 2
    assert "no model has the task 'text_to_image'" in capsys.readouterr().err
    with connect(runtime.address) as connected, pytest.raises(NotFound):
        connected.draw("painter", "hi").images()
