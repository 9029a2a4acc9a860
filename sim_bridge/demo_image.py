"""`mstar-rt demo image`: a picture from words by a served model, looked at by a judge and written to a PNG file."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mstar_rt.client import Client, ImageProgress, ImageResult, connect
from mstar_rt.errors import InvalidArgument, Unavailable
from sim_bridge.demo_arguments import generator_arguments, server_access
from sim_bridge.server_process import GIVEN_TIMEOUT_S, served_or_given
from sim_bridge.shapes import SIDE_PX, Scene, caption, judge, read_caption

CONFIG = Path(__file__).parents[1] / "configs" / "shapes.yaml"
MODEL = "shapes"
PROMPT = "a green cross on grey"
QUESTION = "what is in the picture?"


def main(argv: Sequence[str] | None = None) -> int:
    """0 only if the judge sees in the picture what was asked for."""
    args = _arguments(argv)
    access = server_access(args)
    output = Path(args.output)
    output.mkdir(parents=True, exist_ok=True)
    with served_or_given(CONFIG, args.address, args.model, access) as address, connect(address, **access) as client:
        client.wait_until_serving(GIVEN_TIMEOUT_S, args.model)  # connects: what follows is timed
        summary = _draw(client, args, output)
        if args.edit is not None:
            summary |= _edit(client, args, output)
    (output / "summary.json").write_text(json.dumps(summary, indent=1))
    return 0 if all(verdict for name, verdict in summary.items() if name.startswith("accepted")) else 1


def _draw(client: Client, args: argparse.Namespace, output: Path) -> dict[str, Any]:
    asked_s = time.perf_counter()
    result, num_steps = _last(client.draw(args.model, args.prompt, seed=args.seed, think=args.think))
    took_s = time.perf_counter() - asked_s
    result.save_png(output / "image.png")
    print(f"{output / 'image.png'}: {args.prompt!r} in {took_s * 1e3:.0f} ms, {num_steps} steps, seed {result.seed}")
    summary = {"prompt": args.prompt, "seed": result.seed, "took_s": took_s, "num_steps": num_steps}
    summary |= _judged("", result, args.prompt)
    said = client.chat(args.model, QUESTION, image=result.image).text()
    print(f"asked {QUESTION!r}, the model says: {said}")
    return summary | {"said": said}


def _edit(client: Client, args: argparse.Namespace, output: Path) -> dict[str, Any]:
    (before,) = client.draw(args.model, args.prompt, seed=args.seed).images()
    result, _ = _last(client.edit_image(args.model, before.image, args.edit, seed=args.seed))
    result.save_png(output / "edited.png")
    print(f"{output / 'edited.png'}: {args.edit!r}")
    return {"edit": args.edit} | _judged("_edit", result, args.edit)


def _last(stream: Any) -> tuple[ImageResult, int]:
    """The picture, and how many steps it took."""
    num_steps, result = 0, None
    for answer in stream:
        if isinstance(answer, ImageProgress):
            num_steps = answer.step
        elif isinstance(answer, ImageResult):
            result = answer
    if result is None:
        raise Unavailable("the server ended the call without a picture: run the demo again")
    return result, num_steps


def _judged(which: str, result: ImageResult, words: str) -> dict[str, Any]:
    """What the judge says, of pictures of its size with words that it knows."""
    try:
        wanted = read_caption(words)
    except InvalidArgument as error:
        print(f"not judged: {error}")
        return {}
    if result.image.shape != (SIDE_PX, SIDE_PX, 3):
        print(f"not judged: the judge looks at pictures of {SIDE_PX} x {SIDE_PX} pixels")
        return {}
    seen = judge(result.image)
    accepts = seen.shows(wanted)
    print(f"the judge sees {_worded(seen)}: {'accepted' if accepts else 'NOT what was asked for'}")
    return {f"seen{which}": _worded(seen), f"accepted{which}": accepts}


def _worded(seen: Scene) -> str:
    return caption(seen) if seen.shape or seen.colour else "nothing that it knows"


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="mstar-rt demo image", description=__doc__)
    parser.add_argument("prompt", nargs="?", default=PROMPT, help=f"what is drawn (default: {PROMPT!r})")
    parser.add_argument("--edit", help='then change it, e.g. "make it blue"')
    parser.add_argument("--think", action="store_true", help="let the model plan in words first")
    parser.add_argument("--seed", type=int, default=0, help="equal seeds give equal pictures")
    parser.add_argument("--output", default="out/demo/image", help="folder for image.png and summary.json")
    return generator_arguments(parser, argv, MODEL, "draws", ("prompt", "edit"))
