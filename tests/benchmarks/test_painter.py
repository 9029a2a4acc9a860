"""The painter: it paints as its walk says, and the same in parts, alone or beside others."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.painter.model import DIMENSIONS, PROMPT, declare
from benchmarks.painter.nodes import build_nodes
from mstar_rt.errors import ConfigError
from mstar_rt.model import NodeCall, NodeResources, NodeResult, ServedModel

SMALL = {"side": 6, "width": 8, "hidden": 32, "decoder_hidden": 32, "tile": 4}
STEPS = 5


@pytest.fixture(scope="module")
def model() -> ServedModel:
    return declare("painter", "", SMALL)


@pytest.fixture(scope="module")
def nodes(model: ServedModel) -> dict[str, Any]:
    return build_nodes(model, NodeResources())


def call(iteration: int = 0, seed: int = 0, **inputs: torch.Tensor) -> NodeCall:
    return NodeCall("r", "", "paint", (iteration,), inputs, {"steps": STEPS}, lambda: 0, seed=seed)


def at_step(number: int) -> NodeCall:
    """Somewhere in a painting; `number` decides what it shows."""
    generator = torch.Generator().manual_seed(number)
    canvas = torch.randn(6, 6, 8, generator=generator)
    return call(number % STEPS, canvas=canvas, next_canvas=canvas, condition=torch.randn(8, generator=generator))


def in_parts(node: Any, whole: NodeCall, cuts: list[int]) -> NodeResult:
    whole.num_items = node.num_items(whole)
    edges = sorted({0, whole.num_items, *(cut % whole.num_items for cut in cuts)})
    result = NodeResult({})
    for start, stop in itertools.pairwise(edges):
        whole.part, whole.progress = range(start, stop), result.progress
        assert not result.outputs
        (result,) = node.run([whole])
    return result


def test_a_painting(nodes: dict[str, Any]) -> None:
    (sketch,) = nodes["sketch"].run([call(prompt=torch.zeros(PROMPT))])
    canvas, condition = sketch.outputs["canvas"], sketch.outputs["condition"]
    previews = []
    for step in range(STEPS):
        (painted,) = nodes["paint"].run([call(step, canvas=canvas, condition=condition)])
        canvas = painted.outputs["next_canvas"]
        previews.append(painted.outputs["preview"])
    (picture,) = nodes["develop"].run([call(next_canvas=canvas)])
    assert tuple(picture.outputs["picture"].shape) == (24, 24, 3)
    assert canvas.abs().max() <= 1, "the last step is all the network's"
    assert not torch.equal(previews[0], previews[-1])


def test_another_seed_and_another_prompt_are_another_picture(nodes: dict[str, Any]) -> None:
    prompt = torch.zeros(PROMPT)
    plain, again, seeded = (
        nodes["sketch"].run([call(seed=seed, prompt=prompt)])[0].outputs["canvas"] for seed in (0, 0, 1)
    )
    assert torch.equal(plain, again)
    assert not torch.equal(plain, seeded)
    asked = nodes["sketch"].run([call(prompt=prompt + 1)])[0].outputs["condition"]
    assert asked.abs().max() > 0


@given(st.sampled_from(("paint", "develop")), st.lists(st.integers(1, 5), max_size=4), st.integers(0, 99))
def test_parts_are_the_whole(nodes: dict[str, Any], name: str, cuts: list[int], number: int) -> None:
    (whole,) = nodes[name].run([at_step(number)])
    parts = in_parts(nodes[name], at_step(number), cuts)
    for slot, value in whole.outputs.items():
        torch.testing.assert_close(parts.outputs[slot], value, rtol=0, atol=1 if value.dtype == torch.uint8 else 1e-5)


def test_those_that_share_a_step_get_what_they_get_alone(nodes: dict[str, Any]) -> None:
    calls = [at_step(number) for number in range(4)]
    calls[1].num_items, calls[1].part = 6, range(1, 3)
    together = nodes["paint"].run(calls)
    assert [bool(result.outputs) for result in together] == [True, False, True, True]
    for each, result in zip(calls, together, strict=True):
        (alone,) = nodes["paint"].run([each])
        assert result.outputs.keys() == alone.outputs.keys()
        for slot, value in alone.outputs.items():
            torch.testing.assert_close(result.outputs[slot].float(), value.float(), rtol=0, atol=1)


def test_what_it_does_not_know_is_refused() -> None:
    with pytest.raises(ConfigError, match="unknown option 'sides'"):
        declare("painter", "", {"sides": 3})
    with pytest.raises(ConfigError, match="tile is 1, expected 3 to 64"):
        declare("painter", "", {"tile": 1})
    with pytest.raises(ConfigError, match="takes no checkpoint"):
        declare("painter", "x.safetensors", {})
    assert declare("painter", "", {}).facts == DIMENSIONS
