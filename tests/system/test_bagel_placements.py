"""The same requests to a BAGEL under five placements give equal answers, alone and all at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from composite_serving import Values, ask, ask_in, series
from serving import Serving, assert_nothing_is_held, write_deployment

from mstar_rt.client import Client
from mstar_rt.model.conversation import write_conversation
from tests.models import bagel_tiny

pytestmark = [pytest.mark.system, pytest.mark.timeout(120)]

PLACEMENTS: dict[str, list[dict[str, Any]]] = {
    "one_rank": [{"ranks": [0]}],
    "encoders_apart": [{"ranks": [1]}, {"nodes": ["encode_latents", "encode_vision", "decode_image"], "ranks": [0]}],
    "prefill_apart": [{"ranks": [2]}, {"nodes": ["flow", "guide"], "ranks": [3]}, {"nodes": ["decode"], "ranks": [1]}],
    "branches_apart": [
        {"ranks": [3]}, {"nodes": ["flow_without_text"], "ranks": [0]}, {"nodes": ["flow_without_image"], "ranks": [1]},
    ],
    "everything_apart": [
        {"nodes": ["tokenize", "read_vision", "read_thought", "guide", "flow_without_text"], "ranks": [0]},
        {"nodes": ["encode_latents", "read_text", "flow_without_image", "report"], "ranks": [1]},
        {"nodes": ["encode_vision", "read_latents", "decode", "noise"], "ranks": [2]},
        {"nodes": ["begin", "begin_writing", "finish", "thought", "decode_image", "flow"], "ranks": [3]},
    ],
}  # fmt: skip
NUM_RANKS = 4
TOLERANCE = 2e-5
"""Of latents of about 1: branches that share a step add up in another order than those that do not."""

Ask = Callable[[Client, str], Values]
SMALL = {"height": 16, "width": 24, "num_denoise_steps": 4, "latents_every": 1, "seed": 3}


def said(*turns: tuple[str, str]) -> dict[str, np.ndarray]:
    return {"conversation": write_conversation([{"role": role, "content": content} for role, content in turns])}


def picture(seed: int) -> dict[str, np.ndarray]:
    coarse = np.random.default_rng(seed).integers(0, 256, (5, 4, 3), dtype=np.uint8)
    return {"image": coarse.repeat(4, axis=0).repeat(4, axis=1)}


def one(task: str, tensors: dict[str, np.ndarray], **options: Any) -> Ask:
    return lambda client, model: ask(client, model, task, tensors, **options)


EDIT = {name: value for name, value in SMALL.items() if name not in ("height", "width")}
USER, SYSTEM = "user", "system"
REQUESTS: dict[str, Ask] = {
    "draw": one("text_to_image", said((SYSTEM, "be brief"), (USER, "a red cross")), **SMALL, preview_every=3),
    "draw, unguided": one("text_to_image", said((USER, "a red cross")), **SMALL, text_guidance=1.0),
    "edit": one("edit_image", {**said((USER, "make it blue")), **picture(1)}, **EDIT),
    "edit, by its text": one(
        "edit_image", {**said((USER, "make it red")), **picture(2)}, **EDIT, image_guidance=1.0, sample_latents=True
    ),
    "think and draw": one("think_and_draw", said((USER, "a grey cross")), **SMALL, max_tokens=4, image_guidance=1.5),
    "chat": one("chat", said((USER, "hello")), max_tokens=5, ignore_end=True, temperature=1.0, seed=1),
    "describe": one("describe_image", {**said((USER, "what is it")), **picture(3)}, max_tokens=5, ignore_end=True),
}


@pytest.fixture(scope="module")
def placed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """One model per placement, all on the same four workers."""
    folder = tmp_path_factory.mktemp("bagel_placements")
    checkpoint = bagel_tiny.write_folder(folder / "tiny")
    worker = {"kv_memory_mb": 8, "shared_memory_mb": 64, "check_outputs": True}
    data = {
        "name": "bagel-test", "server": {"port": 0},
        "models": [{"name": name, "family": "bagel", "checkpoint": str(checkpoint)} for name in PLACEMENTS],
        "workers": [{"rank": rank, **worker} for rank in range(NUM_RANKS)],
        "placement": [{"model": name, **rule} for name, rules in PLACEMENTS.items() for rule in rules],
    }  # fmt: skip
    serving = Serving(write_deployment(folder, data))
    try:
        yield serving.wait()
    finally:
        said_at_end = serving.end()
    assert serving.process.returncode == 0, said_at_end


@pytest.fixture
def client(placed: Serving) -> Iterator[Client]:
    with placed.connect() as connected:
        yield connected


@pytest.fixture(scope="module")
def expected(placed: Serving) -> dict[str, Values]:
    """Every request alone, on one rank."""
    with placed.connect() as client:
        return {name: request(client, "one_rank") for name, request in REQUESTS.items()}


def assert_equal(got: Values, want: Values, name: str) -> None:
    """Pictures may differ by a step of their bytes, where a value lies between two."""
    assert got.keys() == want.keys(), name
    for key, wanted in want.items():
        tolerance = {"float32": TOLERANCE}.get(wanted.dtype.name, 1 if key[0] in ("image", "preview") else 0)
        assert got[key].shape == wanted.shape, (name, key)
        difference = np.abs(got[key].astype(np.float64) - wanted.astype(np.float64))
        assert difference.max(initial=0) <= tolerance, (name, key)


def steps_of(values: Values) -> Sequence[int]:
    return [int(step) for step in series(values, "step")]


def test_the_requests_show_what_they_are_meant_to(expected: dict[str, Values]) -> None:
    """A model whose contexts had no effect would be equal anywhere."""
    images = [values["image", ()] for values in expected.values() if ("image", ()) in values]
    assert [image.shape for image in images] == [(16, 24, 3), (16, 24, 3), (20, 16, 3), (20, 16, 3), (16, 24, 3)]
    for index, image in enumerate(images):
        assert all(image.shape != other.shape or (image != other).any() for other in images[:index])
    assert all(steps_of(values) == [1, 2, 3, 4] for values in expected.values() if ("image", ()) in values)
    assert [preview.size > 0 for preview in series(expected["draw"], "preview")] == [False, False, True, False]
    assert len(series(expected["think and draw"], "token")) <= 4
    assert len(series(expected["describe"], "token")) == 5


@pytest.mark.parametrize("placement", [name for name in PLACEMENTS if name != "one_rank"])
def test_alone_every_placement_gives_the_same(client: Client, expected: dict[str, Values], placement: str) -> None:
    for name, request in REQUESTS.items():
        assert_equal(request(client, placement), expected[name], f"{name} under {placement}")
    assert_nothing_is_held(client)


def test_all_at_once_under_all_placements(client: Client, expected: dict[str, Values]) -> None:
    jobs = [(request, placement) for placement in PLACEMENTS for request in REQUESTS]
    start = threading.Barrier(len(jobs))

    def run(job: tuple[str, str]) -> Values:
        request, placement = job
        start.wait()
        return REQUESTS[request](client, placement)

    with ThreadPoolExecutor(len(jobs)) as pool:
        answers = list(pool.map(run, jobs))
    for (request, placement), got in zip(jobs, answers, strict=True):
        assert_equal(got, expected[request], f"{request} under {placement}, among others")
    assert_nothing_is_held(client)


def test_requests_of_a_session_do_not_see_each_other(client: Client, expected: dict[str, Values]) -> None:
    """What an edit leaves behind is not where the next one begins."""
    edit = {**said((USER, "make it blue")), **picture(1)}
    describe = {**said((USER, "what is it")), **picture(3)}
    with client.task_session("everything_apart") as session:
        for _ in range(2):
            assert_equal(ask_in(session, "edit_image", edit, **EDIT), expected["edit"], "edit in a session")
            told = ask_in(session, "describe_image", describe, max_tokens=5, ignore_end=True)
            assert_equal(told, expected["describe"], "describe in a session")
    assert_nothing_is_held(client)
