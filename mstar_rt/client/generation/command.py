"""`mstar-rt chat` and `mstar-rt say`."""

from __future__ import annotations

import argparse
import sys
from typing import TextIO

from mstar_rt.client.blocking import Client, connect
from mstar_rt.connection_arguments import connection
from mstar_rt.errors import NotFound

PROMPT = "> "


def chat(args: argparse.Namespace, out: TextIO | None = None) -> int:
    """One answer to `args.text`, or a conversation until the end of standard input.

    Raises:  what the server refuses it with.
    """
    out = out or sys.stdout
    with connect(args.address, **connection(args)) as client:
        model = args.model or _only_model(client, "chat")
        if args.text is not None:
            _answer(client, model, [{"role": "user", "content": args.text}], args, out)
            return 0
        turns: list[dict[str, str]] = []
        while (said := _read(out)) is not None:
            if said.strip():
                turns.append({"role": "user", "content": said})
                turns.append({"role": "assistant", "content": _answer(client, model, turns, args, out)})
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


def _answer(client: Client, model: str, turns: list[dict[str, str]], args: argparse.Namespace, out: TextIO) -> str:
    options = {"max_tokens": args.max_tokens, "temperature": args.temperature, "seed": args.seed}
    text = ""
    for piece in client.chat(model, turns, **{name: value for name, value in options.items() if value is not None}):
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
