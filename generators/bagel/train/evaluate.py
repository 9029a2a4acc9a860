"""How good the small model is, by the judge: pictures of held-out captions, edits, answers and thoughts.

    python -m generators.bagel.train.evaluate --weights generators/bagel/weights/shapes

In process, without a server or a cache.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from generators.bagel.config import BagelConfig
from generators.bagel.train import lessons
from generators.bagel.train.files import load_shapes
from generators.bagel.train.sampling import Painter, noise_of
from mstar_rt.errors import InvalidArgument
from sim_bridge.shapes import Scene, caption, draw, draw_scene, held_out_scenes, judge, read_caption

_PARTS = ("colour", "shape", "background", "position", "size")
_AT_ONCE = 50
Shares = dict[str, float]


def accuracy(seen: Sequence[Scene], wanted: Sequence[Scene]) -> Shares:
    """Share of pictures that show each part of what was wanted, and that show all of it; "" may be anything."""
    pairs = list(zip(seen, wanted, strict=True))
    shares = {
        part: float(np.mean([getattr(want, part) in ("", getattr(one, part)) for one, want in pairs]))
        for part in _PARTS
    }
    shares["all"] = float(np.mean([one.shows(want) for one, want in pairs]))
    return {name: round(share, 3) for name, share in shares.items()}


class Evaluation:
    """Everything is seeded. Pictures to be drawn, changed and described are of what training never saw."""

    def __init__(self, painter: Painter, config: BagelConfig, seed: int = 0) -> None:
        self._painter, self._config, self._seed = painter, config, seed

    def drawing(self, params: Mapping[str, Any], num_scenes: int | None = None) -> Shares:
        """Pictures of captions that say everything."""
        scenes = _spread(held_out_scenes(), num_scenes)
        texts = [caption(scene) for scene in scenes]
        seen = self._judged(len(texts), lambda part, noise: self._painter.draw(texts[part], params, noise))
        return accuracy(seen, scenes)

    def editing(self, params: Mapping[str, Any], num_scenes: int | None = None) -> Shares:
        """All parts count: what was to change and what was to stay."""
        rng = np.random.default_rng([self._seed, 40])
        scenes = _spread(held_out_scenes(), num_scenes)
        edits = [lessons.edit(scene, rng) for scene in scenes]
        pictures = np.array([draw(scene) for scene in scenes])
        seen = self._judged(
            len(scenes),
            lambda part, noise: self._painter.edit(pictures[part], [edit.text for edit in edits[part]], params, noise),
        )
        return accuracy(seen, [edit.after for edit in edits])

    def describing(self, num_scenes: int | None = None) -> Shares:
        """Share of right answers to each question about pictures."""
        scenes = _spread(held_out_scenes(), num_scenes)
        pictures = np.array([draw(scene) for scene in scenes])
        shares = {}
        for question in lessons.QUESTIONS:
            answers = self._painter.describe(pictures, [question] * len(scenes))
            right = [said == lessons.answer(question, scene) for said, scene in zip(answers, scenes, strict=True)]
            shares[question] = round(float(np.mean(right)), 3)
        return shares

    def thinking(self, params: Mapping[str, Any], num_prompts: int = 100) -> Shares:
        """`thought`: share of thoughts that say everything and what was asked for; then of pictures, against these."""
        rng = np.random.default_rng([self._seed, 41])
        asked, texts = zip(*(lessons.vague_prompt(draw_scene(rng), rng) for _ in range(num_prompts)), strict=True)
        thoughts = self._painter.think(texts)
        planned = [_planned(thought) for thought in thoughts]
        whole = [
            plan.shows(want) and all(getattr(plan, part) != "?" for part in _PARTS)
            for plan, want in zip(planned, asked, strict=True)
        ]
        seen = self._judged(
            num_prompts,
            lambda part, noise: self._painter.draw_thought(texts[part], thoughts[part], params, noise),
        )
        return {"thought": round(float(np.mean(whole)), 3)} | accuracy(seen, planned)

    def chatting(self) -> Shares:
        answers = self._painter.chat(list(lessons.CHAT))
        return {"chat": float(np.mean([a == b for a, b in zip(answers, lessons.CHAT.values(), strict=True)]))}

    def _judged(self, count: int, painted: Callable[[slice, torch.Tensor], NDArray[np.uint8]]) -> list[Scene]:
        noise = noise_of(self._config, count, self._seed)
        parts = [slice(first, first + _AT_ONCE) for first in range(0, count, _AT_ONCE)]
        return [judge(picture) for part in parts for picture in painted(part, noise[part])]


def drawing_params(config: BagelConfig) -> dict[str, Any]:
    """Options of text_to_image as they are without a word."""
    usual = config.defaults
    names = ("num_denoise_steps", "timestep_shift", "text_guidance", "image_guidance", "guidance_start", "guidance_end",
             "renormalization", "renormalization_min")  # fmt: skip
    return {name: getattr(usual, name) for name in names}


def editing_params(config: BagelConfig) -> dict[str, Any]:
    usual = config.defaults
    return drawing_params(config) | {
        "text_guidance": usual.edit_text_guidance,
        "image_guidance": usual.edit_image_guidance,
        "guidance_start": usual.edit_guidance_start,
        "renormalization": usual.edit_renormalization,
    }


OFF = {"text_guidance": 1.0, "image_guidance": 1.0}


def summary(painter: Painter, config: BagelConfig, log: Callable[[str], None], seed: int = 0) -> dict[str, Shares]:
    evaluation = Evaluation(painter, config, seed)
    drawing, editing = drawing_params(config), editing_params(config)
    parts: dict[str, Callable[[], Shares]] = {
        "drawing": lambda: evaluation.drawing(drawing),
        "drawing without guidance": lambda: evaluation.drawing(drawing | OFF),
        "editing": lambda: evaluation.editing(editing),
        "editing without guidance": lambda: evaluation.editing(editing | OFF),
        "describing": evaluation.describing,
        "thinking": lambda: evaluation.thinking(drawing),
        "chatting": evaluation.chatting,
    }
    results = {}
    for name, measure in parts.items():
        started = time.process_time()
        results[name] = measure()
        log(f"{name}: {results[name]}, {time.process_time() - started:.0f} s of CPU")
    return results


def main() -> None:
    arguments = _arguments()
    torch.set_num_threads(1)
    config, both, autoencoder, vocabulary = load_shapes(arguments.weights)
    given = {name: getattr(arguments, name) for name in drawing_params(config)}
    changed = {name: value for name, value in given.items() if value is not None}
    painter = Painter(both, autoencoder, vocabulary)
    if changed:
        evaluation = Evaluation(painter, config, arguments.seed)
        results = {
            "drawing": evaluation.drawing(drawing_params(config) | changed),
            "editing": evaluation.editing(editing_params(config) | changed),
        }
        print(changed, results)
    else:
        results = summary(painter, config, print, arguments.seed)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m generators.bagel.train.evaluate", description=__doc__)
    parser.add_argument("--weights", type=Path, required=True, help="folder in the published layout")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    for name in ("text_guidance", "image_guidance", "guidance_start", "guidance_end", "timestep_shift"):
        parser.add_argument(f"--{name.replace('_', '-')}", type=float, help="instead of the model's own")
    parser.add_argument("--num-denoise-steps", type=int)
    parser.add_argument("--renormalization", choices=("none", "global", "channel", "text_channel"))
    parser.add_argument("--renormalization-min", type=float)
    return parser.parse_args()


def _spread(scenes: list[Scene], count: int | None) -> list[Scene]:
    """`count` of them, from all parts of the list."""
    return scenes if count is None else [scenes[index * len(scenes) // count] for index in range(count)]


def _planned(thought: str) -> Scene:
    """What a thought says; where it says nothing no picture is right."""
    try:
        said = read_caption(thought)
    except InvalidArgument:
        said = Scene("", "", "", "", "")
    parts: dict[str, Any] = {part: getattr(said, part) or "?" for part in _PARTS}
    return Scene(**parts)


if __name__ == "__main__":
    main()
