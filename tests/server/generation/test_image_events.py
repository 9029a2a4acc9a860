"""What a request that makes images emits, in whatever order it comes, and messages that nobody would send."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from fuzzing import fuzzed, outcomes
from toy_painter import painter

from mstar_rt.errors import Internal, Unavailable
from mstar_rt.message import Finished
from mstar_rt.model.generation import Reason
from mstar_rt.protos import generation_pb2 as wire
from mstar_rt.protos import request_pb2, tensor_pb2
from mstar_rt.server.generation.events import End
from mstar_rt.server.generation.image_events import (
    Every,
    ImageEvent,
    Picture,
    Progress,
    end_of_all,
    events_of_all,
    image_events,
)
from mstar_rt.server.generation.messages import read_request
from mstar_rt.server.request_stream import Emission, RequestStream

PIXELS = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
NOTHING = np.zeros((0, 0, 3), np.uint8)


def emission(name: str, value: Any, step: int | None = None) -> Emission:
    array = np.asarray(value)
    iteration = () if step is None else (step,)
    return Emission("walk", name, iteration, str(array.dtype), array.shape, array.tobytes())


def stream_of(emissions: Sequence[Emission], ends: bool = True) -> RequestStream:
    stream = RequestStream("r", "painter", {}, {}, lambda stream: None)
    for each in emissions:
        stream.add(each)
    if ends:
        stream.finish(Finished("r", len(emissions), {}, {}, {}, 1.0))
    return stream


async def events(emissions: Sequence[Emission], every: Every) -> list[ImageEvent]:
    return [event async for event in image_events(stream_of(emissions), every)]


IMAGE = emission("image", PIXELS)


@pytest.mark.parametrize(
    ("order", "steps"),
    [
        (["step0", "preview0", "step1", "preview1"], [(1, False), (2, True)]),
        (["preview0", "step0", "preview1", "step1"], [(1, False), (2, True)]),
        (["step0", "step1", "preview1"], [(1, False), (2, True)]),
        (["step0", "preview0", "step1", "step2", "preview1"], [(1, False), (3, False), (2, True)]),
        (["step0", "step1", "step2"], [(1, False), (3, False), (2, False)]),
        (["preview0", "preview1"], []),
    ],
)
async def test_what_belongs_to_one_step_comes_together(order: list[str], steps: list[tuple[int, bool]]) -> None:
    """A preview is due after two steps, and empty after the others, or left out."""
    emissions = []
    for name, step in ((each[:-1], int(each[-1])) for each in order):
        value: Any = step + 1 if name == "step" else PIXELS if step == 1 else NOTHING
        emissions.append(emission(name, value, step))
    *progress, picture, end = await events([*emissions, IMAGE], Every(preview=2))
    assert [(each.step, each.preview is not None) for each in progress if isinstance(each, Progress)] == steps
    assert isinstance(picture, Picture)
    np.testing.assert_array_equal(picture.pixels, PIXELS)
    assert end == End(Reason.END)


async def test_a_model_that_tells_nothing_of_its_steps() -> None:
    assert [type(event) for event in await events([IMAGE], Every())] == [Picture, End]
    with pytest.raises(Internal, match="without an image"):
        await events([emission("step", 1, 0)], Every())
    with pytest.raises(Internal, match="reason 9"):
        await events([IMAGE, emission("reason", 9)], Every())


async def test_events_of_several_come_as_they_are_made() -> None:
    streams = [stream_of([emission("step", 1, 0)], ends=False) for _ in range(3)]
    merged = events_of_all(streams, Every())
    assert {(await anext(merged))[0] for _ in range(3)} == {0, 1, 2}
    streams[1].add(emission("step", 2, 1))
    assert await anext(merged) == (1, Progress(2))
    streams[2].fail(Unavailable("gone"))
    with pytest.raises(Unavailable, match="gone"):
        await anext(merged)


async def test_leaving_them_leaves_no_task() -> None:
    before = asyncio.all_tasks()
    merged = events_of_all([stream_of([emission("step", 1, 0)], ends=False) for _ in range(3)], Every())
    await anext(merged)
    await merged.aclose()
    assert asyncio.all_tasks() == before


def test_one_end_for_all() -> None:
    ends = [End(Reason.END, 5, 2), End(Reason.MAX_TOKENS, 5, 9), End(Reason.END, 5, 1)]
    assert end_of_all(ends) == End(Reason.MAX_TOKENS, 5, 12)


async def test_requests_that_nobody_would_send() -> None:
    model = painter()
    image = tensor_pb2.Image(encoding=1, data=bytes(192), height=8, width=8, channels=3)
    options = wire.ImageOptions(
        height=16, width=32, num_images=2, text_guidance=2.0, guidance_start=0.5, num_denoise_steps=3, preview_every=2,
        latents_every=2, renormalization=2, encoding=3, think=True,
    )  # fmt: skip
    edited = wire.Turn(role=2, parts=[wire.Part(text="a barn"), wire.Part(image=image)])
    like = [
        wire.GenerateRequest(
            model="painter", task="think_and_draw", turns=[wire.Turn(role=2, parts=[wire.Part(text="a barn")])],
            image=options, seed=5, text=wire.TextOptions(max_tokens=5), model_options={"seed": request_pb2.OptionValue()},
        ),
        wire.GenerateRequest(
            model="painter", task="edit_image", turns=[edited], image=wire.ImageOptions(num_denoise_steps=2)
        ),
        wire.GenerateRequest(model="painter", task="chat", turns=[edited], text=wire.TextOptions(stop=["x"])),
    ]  # fmt: skip
    del like[0].model_options["seed"]

    async def take(data: bytes) -> None:
        asked = await read_request(model, wire.GenerateRequest.FromString(data))
        for given in asked.inputs:
            model.check_request(given.task, given.tensors, given.params)

    found = await outcomes(fuzzed(like, seed=9, count=3000), take)
    assert found.keys() <= {"taken", "no message", "INVALID_ARGUMENT", "NOT_FOUND", "UNIMPLEMENTED"}
    assert found["taken"] > 300, found
    assert found["INVALID_ARGUMENT"] > 500, found
