"""A model that draws, edits, and answers questions about images, for the toy runtime: what it makes can be told from what
it was asked."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from toy_generators import COUNT, LIMIT, SEED, STOP, TEMPERATURE, chat, write
from toy_runtime import Job, Script, ToyRuntime, toy_runtime

from mstar_rt.graph import GraphNode, Walk, WalkGraph
from mstar_rt.model import (
    ChatSpec,
    GenerationSpec,
    ImageSpec,
    ParamSpec,
    Reason,
    ServedModel,
    TaskSpec,
    TensorSpec,
)
from mstar_rt.server.dispatch import MAX_UNREAD_BYTES
from mstar_rt.server.edge import EdgeConfig

NAME = "painter"
SIZE = (48, 32)
"""Height and width of an image for which no other is asked: raw it is longer than what travels inside a message."""
MAX_SIDE = 256
NUM_STEPS = 6
LATENTS = (4, 2)
PLAN = "first the sky"

PIXELS = ("H", "W", 3)
CONVERSATION = TensorSpec("conversation", ("N",), ("uint8",), "UTF-8 JSON", max_sizes=(("N", 4096),))
IMAGE = TensorSpec("image", PIXELS, ("uint8",), "RGB", max_sizes=(("H", MAX_SIDE), ("W", MAX_SIDE)))
TEXT = (
    TensorSpec("text", ("B",), ("uint8",), "UTF-8", optional=True),
    TensorSpec("token", (1,), ("int64",), "sampled"),
)
READ = TensorSpec("num_input_tokens", (), ("int64",), "what it was made from")
DRAWN = (
    TensorSpec("step", (), ("int64",), "steps done"),
    TensorSpec("preview", PIXELS, ("uint8",), "RGB", optional=True),
    TensorSpec("latents", ("T", "D"), ("float32",), "in between", optional=True),
    TensorSpec("image", PIXELS, ("uint8",), "RGB"),
    READ,
)
SIZES = tuple(
    ParamSpec(name, "int", size, "pixels", minimum=8, maximum=MAX_SIDE)
    for name, size in zip(("height", "width"), SIZE, strict=True)
)
DRAWING = (
    SEED,
    ParamSpec("num_denoise_steps", "int", NUM_STEPS, "steps", minimum=1, maximum=100),
    ParamSpec("timestep_shift", "float", 3.0, "", minimum=0.1, maximum=10.0),
    ParamSpec("text_guidance", "float", 4.0, "1: none", minimum=1.0, maximum=20.0),
    ParamSpec("image_guidance", "float", 1.0, "1: none", minimum=1.0, maximum=20.0),
    ParamSpec("guidance_start", "float", 0.4, "flow time", minimum=0.0, maximum=1.0),
    ParamSpec("guidance_end", "float", 1.0, "flow time", minimum=0.0, maximum=1.0),
    ParamSpec("renormalization", "str", "global", "", choices=("none", "global", "channel", "text_channel")),
    ParamSpec("renormalization_min", "float", 0.0, "", minimum=0.0, maximum=1.0),
    ParamSpec("preview_every", "int", 0, "steps, 0: never", minimum=0),
    ParamSpec("latents_every", "int", 0, "steps, 0: never", minimum=0),
)
WRITING = (LIMIT, TEMPERATURE, STOP)


def painter(
    name: str = NAME, draws: bool = True, edits: bool = True, thinks: bool = True, chats: bool = True
) -> ServedModel:
    """Its tasks are chat, describe_image, text_to_image, think_and_draw and edit_image, or some of them."""
    tasks: list[TaskSpec] = []
    if chats:
        tasks += [
            _task("chat", (CONVERSATION,), (*TEXT, COUNT, READ), (SEED, *WRITING)),
            _task("describe_image", (CONVERSATION, IMAGE), (*TEXT, COUNT, READ), (SEED, *WRITING)),
        ]
    if draws:
        tasks.append(_task("text_to_image", (CONVERSATION,), DRAWN, (*DRAWING, *SIZES)))
    if draws and thinks:
        tasks.append(_task("think_and_draw", (CONVERSATION,), (*TEXT, COUNT, *DRAWN), (*DRAWING, *SIZES, *WRITING)))
    if edits:
        tasks.append(_task("edit_image", (CONVERSATION, IMAGE), DRAWN, DRAWING))
    names = {task.name for task in tasks}
    generation = GenerationSpec(
        chat=ChatSpec(image_task="describe_image") if chats else None,
        images=ImageSpec(
            *(each if each in names else "" for each in ("text_to_image", "think_and_draw", "edit_image")), SIZE
        ),
    )  # fmt: skip
    nodes, walks = [], []
    for task in tasks:
        node = GraphNode(f"{task.name}_node", inputs=tuple(spec.name for spec in task.inputs), outputs=_slots(task))
        nodes.append(node)
        walks.append(Walk(task.name, node, emit=_slots(task)))
    graph = WalkGraph(tuple(nodes), tuple(walks))
    return ServedModel(
        name, "painter", "A model for tests.", graph, tuple(tasks), "nowhere:nodes", generation=generation
    )


def _task(
    name: str, inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...], params: tuple[ParamSpec, ...]
) -> TaskSpec:
    return TaskSpec(name, "for tests", inputs, outputs, (name,), params, criticality="generation")


def _slots(task: TaskSpec) -> tuple[str, ...]:
    return tuple(spec.name for spec in task.outputs)


# ---- what its worker computes


def picture_of(prompt: str, params: dict[str, Any], image: np.ndarray | None = None) -> np.ndarray:
    """[height, width, 3] uint8: noise of prompt, seed and all options that change an image; of an edit beside what was
    given."""
    height, width = SIZE if image is None else image.shape[:2]
    height, width = params.get("height", height), params.get("width", width)
    passive = ("preview_every", "latents_every", "max_tokens", "temperature", "stop")
    told = json.dumps([prompt, sorted((key, value) for key, value in params.items() if key not in passive)])
    noise = np.random.default_rng(list(hashlib.sha256(told.encode()).digest()))
    pixels = noise.integers(0, 256, (height, width, 3), np.uint8)
    return pixels if image is None else pixels // 2 + image // 2


def preview_of(pixels: np.ndarray, step: int) -> np.ndarray:
    return (pixels // 2 + step).astype(np.uint8)


def latents_of(step: int) -> np.ndarray:
    return np.full(LATENTS, step / 8, np.float32)


async def draw(job: Job) -> None:
    """Also what edits. Each step gives the event loop a chance, as between steps a request may be taken back."""
    params, image = job.submit.params, job.inputs.get("image")
    turns = json.loads(job.inputs["conversation"].tobytes())
    pixels = picture_of(turns[-1]["content"], params, image)
    num_steps = params["num_denoise_steps"]
    assert isinstance(num_steps, int)
    for i in range(num_steps):
        denoise(job, pixels, i)
        await asyncio.sleep(0)
    job.emit("image", pixels)
    job.emit("num_input_tokens", np.array(sum(len(turn["content"]) for turn in turns), np.int64))
    job.finish()


def denoise(job: Job, pixels: np.ndarray, i: int) -> None:
    """What step i emits: previews and latents where they are due, and nothing in them else."""
    params, step = job.submit.params, i + 1
    has_preview = params["preview_every"] and step % params["preview_every"] == 0  # type: ignore[operator]
    has_latents = params["latents_every"] and step % params["latents_every"] == 0  # type: ignore[operator]
    job.emit("preview", preview_of(pixels, step) if has_preview else np.zeros((0, 0, 3), np.uint8), (i,))
    job.emit("step", np.array(step, np.int64), (i,))
    job.emit("latents", latents_of(step) if has_latents else np.zeros((0, 0), np.float32), (i,))


async def think(job: Job) -> None:
    """One character of the plan is one token."""
    limit = job.submit.params["max_tokens"]
    assert isinstance(limit, int)
    for i, character in enumerate(PLAN[:limit]):
        write(job, character, i)
    reason = Reason.END if limit >= len(PLAN) else Reason.MAX_TOKENS
    job.emit("reason", np.array(int(reason), np.int64))
    await draw(job)


async def describe(job: Job) -> None:
    """The mean of the image is part of the conversation's last turn."""
    turns = json.loads(job.inputs["conversation"].tobytes())
    height, width, _ = job.inputs["image"].shape
    turns[-1]["content"] += f" [{height} x {width}, {job.inputs['image'].mean():.1f}]"
    job.inputs["conversation"] = np.frombuffer(json.dumps(turns).encode(), np.uint8)
    await chat(job)


def endless_steps(first: int) -> Script:
    """Takes so many steps, and then waits until the client takes the request back."""

    async def run(job: Job) -> None:
        for i in range(first):
            denoise(job, picture_of("", {"height": 32, "width": 32}), i)
        await asyncio.Event().wait()

    return run


SCRIPTS: dict[str, Script] = {
    "chat": chat, "describe_image": describe, "text_to_image": draw, "think_and_draw": think, "edit_image": draw,
}  # fmt: skip


@contextmanager
def painting_runtime(
    config: EdgeConfig | None = None, model: ServedModel | None = None, max_unread_bytes: int = MAX_UNREAD_BYTES
) -> Iterator[ToyRuntime]:
    """A running edge of a painter; at the end nothing may be held any more."""
    config = config or EdgeConfig(port=0, max_message_bytes=1 << 20)
    with toy_runtime(config, True, max_unread_bytes, model or painter(), SCRIPTS) as running:
        yield running
