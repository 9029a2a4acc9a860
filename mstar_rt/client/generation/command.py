"""`mstar-rt chat`, `mstar-rt say` and `mstar-rt draw`."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from mstar_rt.client.blocking import Client, connect
from mstar_rt.client.generation import messages, results
from mstar_rt.client.generation.streams import ImageStream
from mstar_rt.client.messages import encoding_of
from mstar_rt.connection_arguments import connection
from mstar_rt.errors import InvalidArgument, NotFound
from mstar_rt.wording import reworded

PROMPT = "> "
MOST_IMAGES = 16
"""Of one call; the server refuses more."""
FLAGS = {
    "max_tokens": "--max-tokens", "temperature": "--temperature", "seed": "--seed", "voice": "--voice",
    "speed": "--speed", "num_images": "--num", "height": "--size (height)", "width": "--size (width)",
    "num_denoise_steps": "--steps", "think": "--think",
}  # fmt: skip
"""By the option that each is to the model."""
PLAIN_WORDS = ("voice", "speed", "think")
"""Options whose names sentences have for other things, too."""


def chat(args: argparse.Namespace, out: TextIO | None = None) -> int:
    """One answer to `args.text`, or a conversation until the end of standard input.

    Raises:  what the server refuses it with.
    """
    out = out or sys.stdout
    if args.text is not None:
        _check_words(args.text)
    image = None if args.image is None else _picture(args.image)
    with connect(args.address, **connection(args)) as client:
        model = args.model or _only_model(client, "chat")
        if args.text is not None:
            _answer(client, model, [{"role": "user", "content": args.text}], image, args, out)
            return 0
        turns: list[dict[str, str]] = []
        while (said := _read(out)) is not None:
            if said.strip():
                turns.append({"role": "user", "content": said})
                turns.append({"role": "assistant", "content": _answer(client, model, turns, image, args, out)})
    return 0


def say(args: argparse.Namespace, out: TextIO | None = None) -> int:
    """`args.text` as a WAV file.

    Raises:  InvalidArgument: the file cannot be written; what the server refuses it with.
    """
    _check_words(args.text)
    _check_out(Path(args.out))
    options = {"voice": args.voice, "speed": args.speed, "seed": args.seed}
    with connect(args.address, **connection(args)) as client:
        model = args.model or _only_model(client, "speech")
        given = {name: value for name, value in options.items() if value is not None}
        with _in_flags():
            speech = client.speak(model, args.text, **given).collect()
    speech.save_wav(args.out)
    print(f"{args.out}: {speech.duration_s:.2f} s", file=out or sys.stdout)
    return 0


def draw(args: argparse.Namespace, out: TextIO | None = None) -> int:
    """An image of `args.text`, or `args.image` changed as it says, as PNG or JPEG files.

    Raises:  InvalidArgument: the file cannot be written, or its name says neither; what the server refuses it with.
    """
    _check_words(args.text)
    height, width = (None, None) if args.size is None else _size(args.size)
    options = {
        "num_images": args.num, "seed": args.seed, "height": height, "width": width, "num_denoise_steps": args.steps,
        "think": args.think or None,
    }  # fmt: skip
    given = {name: value for name, value in options.items() if value is not None}
    out = out or sys.stdout
    if Path(args.out).suffix.lower() not in (".png", *results.JPEG_SUFFIXES):
        raise InvalidArgument(f"--out is {args.out}, expected a name that ends in .png, .jpg or .jpeg")
    for index in range(min(args.num or 1, MOST_IMAGES)):
        _check_out(Path(_numbered(args.out, index)))
    edited = None if args.image is None else _picture(args.image)
    with connect(args.address, **connection(args)) as client:
        model = args.model or _only_model(client, "text_to_image" if edited is None else "edit_image")
        with _in_flags(args.image):
            if edited is None:
                stream = client.draw(model, args.text, **given)
            else:
                stream = client.edit_image(model, edited, args.text, **given)
            images, plans = _read_images(stream, out)
    for image in images:
        path = args.out if len(images) == 1 else _numbered(args.out, image.index)
        _save(image, path)
        if image.index in plans:
            print(plans[image.index], file=out)
        print(f"{path}: {image.image.shape[1]}x{image.image.shape[0]}, seed {image.seed}", file=out)
    return 0


def _read_images(stream: ImageStream, out: TextIO) -> tuple[list[results.ImageResult], dict[int, str]]:
    """All images, and what is left to print of their plans, by index: that of the first image is printed as it is
    written, up to the end of its line. The others, which are written at the same time, would be mixed into it."""
    pieces: list[results.ImagePiece] = []
    plans: dict[int, str] = {}
    for piece in stream:
        pieces.append(piece)
        if isinstance(piece, results.TextPiece):
            now, later = (piece.text, "") if piece.image_index == 0 else ("", piece.text)
            print(now, end="", file=out, flush=True)
            plans[piece.image_index] = plans.get(piece.image_index, "") + later
    return messages.all_images(pieces, stream.done), plans


def _save(image: results.ImageResult, path: str) -> None:
    if Path(path).suffix.lower() not in results.JPEG_SUFFIXES:
        image.save_png(path)
        return
    import cv2  # here: a program with a client needs numpy and grpc only

    _, file = cv2.imencode(".jpg", cv2.cvtColor(image.image, cv2.COLOR_RGB2BGR))  # in OpenCV's quality, 95
    Path(path).write_bytes(file.tobytes())


def _check_words(text: str) -> None:
    """Raises:  InvalidArgument: there are none."""
    if not text.strip():
        raise InvalidArgument("the text has no word in it, expected at least one")


def _picture(path: str) -> bytes:
    """Raises:  InvalidArgument: it is no file of an image."""
    file = Path(path).read_bytes()
    if encoding_of(file) is None:
        raise InvalidArgument(f"--image is {path}, which is neither a JPEG nor a PNG file: name one that is")
    return file


@contextmanager
def _in_flags(image: str | None = None) -> Iterator[None]:
    """What is refused meanwhile is said of the flags of the command, `image` being the file that it names."""
    try:
        yield
    except InvalidArgument as error:
        error.args = (reworded(str(error), _flags_by_name(image))[0],)
        raise


def _flags_by_name(image: str | None) -> Mapping[str, str]:
    """By what sentences call it."""
    names = {name: flag for name, flag in FLAGS.items() if name not in PLAIN_WORDS}
    for name, flag in FLAGS.items():
        names |= {f"option {name!r}": flag, f"`{name}`": flag}
    return names if image is None else names | dict.fromkeys(("image 'image'", "tensor 'image'"), f"--image {image!r}")


def _check_out(path: Path) -> None:
    """Of a file that is written at the end, when minutes would be lost.

    Raises:  InvalidArgument: it is a folder, its folder does not exist, one of the two cannot be written.
    """
    folder = path.absolute().parent
    if not folder.is_dir():
        raise InvalidArgument(f"--out is {path}, whose folder does not exist: make it, or write somewhere else")
    if path.is_dir():
        raise InvalidArgument(f"--out is {path}, which is a folder: name a file in it")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise InvalidArgument(f"--out is {path}, which you may not write: write somewhere else")


def _size(text: str) -> tuple[int, int]:
    """Height and width of "WIDTHxHEIGHT"."""
    match = re.fullmatch(r"([0-9]{1,6})x([0-9]{1,6})", text)
    if match is None:
        raise InvalidArgument(f'--size is {text!r}, expected "WIDTHxHEIGHT" in pixels')
    return int(match[2]), int(match[1])


def _numbered(path: str, index: int) -> str:
    """dog.png, dog-1.png, dog-2.png ..."""
    file = Path(path)
    return str(file.with_stem(f"{file.stem}-{index}")) if index else path


def _answer(
    client: Client,
    model: str,
    turns: list[dict[str, str]],
    image: bytes | None,
    args: argparse.Namespace,
    out: TextIO,
) -> str:
    options = {"max_tokens": args.max_tokens, "temperature": args.temperature, "seed": args.seed}
    text = ""
    given = {name: value for name, value in options.items() if value is not None}
    with _in_flags(args.image):
        for piece in client.chat(model, turns, image=image, **given):
            text += piece.text
            print(piece.text, end="", file=out, flush=True)
    print(file=out)
    return text


def _read(out: TextIO) -> str | None:
    """What the user says next; None: no more."""
    if sys.stdin.isatty():
        print(PROMPT, end="", file=out, flush=True)
    line = sys.stdin.readline()
    return line.rstrip("\n") if line else None


def _only_model(client: Client, task: str) -> str:
    """Raises:  NotFound: not one model has the task."""
    names = [model.name for model in client.models() if task in model.tasks]
    if len(names) != 1:
        found = f"models {', '.join(names)} have" if names else "no model has"
        raise NotFound(f"{found} the task {task!r} at {client.address}: name one with --model")
    return names[0]
