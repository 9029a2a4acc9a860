"""`mstar-rt chat`, `mstar-rt say` and `mstar-rt draw`."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import TextIO

from mstar_rt.client.blocking import Client, connect
from mstar_rt.connection_arguments import connection
from mstar_rt.errors import InvalidArgument, NotFound

PROMPT = "> "


def chat(args: argparse.Namespace, out: TextIO | None = None) -> int:
    """One answer to `args.text`, or a conversation until the end of standard input.

    Raises:  what the server refuses it with.
    """
    out = out or sys.stdout
    image = None if args.image is None else Path(args.image).read_bytes()
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

    Raises:  what the server refuses it with.
    """
    options = {"voice": args.voice, "speed": args.speed, "seed": args.seed}
    with connect(args.address, **connection(args)) as client:
        model = args.model or _only_model(client, "speech")
        given = {name: value for name, value in options.items() if value is not None}
        speech = client.speak(model, args.text, **given).collect()
    speech.save_wav(args.out)
    print(f"{args.out}: {speech.duration_s:.2f} s", file=out or sys.stdout)
    return 0


def draw(args: argparse.Namespace, out: TextIO | None = None) -> int:
    """An image of `args.text`, or `args.image` changed as it says, as PNG files.

    Raises:  what the server refuses it with.
    """
    height, width = (None, None) if args.size is None else _size(args.size)
    options = {
        "num_images": args.num, "seed": args.seed, "height": height, "width": width, "num_denoise_steps": args.steps,
        "think": args.think or None,
    }  # fmt: skip
    given = {name: value for name, value in options.items() if value is not None}
    out = out or sys.stdout
    if not Path(args.out).absolute().parent.is_dir():  # it is written at the end, when minutes would be lost
        raise InvalidArgument(f"--out is {args.out}, whose folder does not exist: make it, or write somewhere else")
    with connect(args.address, **connection(args)) as client:
        if args.image is None:
            stream = client.draw(args.model or _only_model(client, "text_to_image"), args.text, **given)
        else:
            model = args.model or _only_model(client, "edit_image")
            stream = client.edit_image(model, Path(args.image).read_bytes(), args.text, **given)
        images = stream.images()
    for image in images:
        path = args.out if len(images) == 1 else _numbered(args.out, image.index)
        image.save_png(path)
        print(f"{path}: {image.image.shape[1]}x{image.image.shape[0]}, seed {image.seed}", file=out)
    return 0


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
