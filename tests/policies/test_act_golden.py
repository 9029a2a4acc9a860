"""ACT against LeRobot's own code: the same folders, the same observations, the same actions."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))

from published_policies import Published, Tensors, call, close, published, run

from mstar_rt.model import NodeResources, ServedModel
from policies.act.model import declare
from policies.act.nodes import build_nodes

CASES = ["two_cameras", "no_state"]


@pytest.fixture(scope="module")
def policies() -> dict[str, Published]:
    return {case: published("act_tiny", case) for case in CASES}


@pytest.fixture(scope="module")
def models(policies: dict[str, Published], tmp_path_factory: pytest.TempPathFactory) -> dict[str, ServedModel]:
    folder = tmp_path_factory.mktemp("act")
    return {case: declare(case, str(one.write(folder / case)), {}) for case, one in policies.items()}


@pytest.fixture(scope="module")
def codes(models: dict[str, ServedModel]) -> dict[str, Any]:
    return {case: build_nodes(model, NodeResources()) for case, model in models.items()}


def act(code: Any, observations: list[Tensors]) -> list[torch.Tensor]:
    """The walk for several requests at once, node by node; all cameras of all requests in one step."""
    cameras = [name.removeprefix("image_") for name in observations[0] if name.startswith("image_")]
    calls = [call(f"see_{camera}", {"image": one[f"image_{camera}"]}) for one in observations for camera in cameras]
    seen = iter(run(code["see"], calls))
    given = [{f"features_{camera}": next(seen)["features"] for camera in cameras} for _ in observations]
    calls = [call("act", {**one, **features}) for one, features in zip(observations, given, strict=True)]
    return [outputs["actions"] for outputs in run(code["act"], calls)]


@pytest.mark.parametrize("case", CASES)
def test_actions_are_those_of_the_published_code(policies: Any, codes: Any, case: str) -> None:
    expected = policies[case].expected["actions"]
    for index in range(len(expected)):
        (actions,) = act(codes[case], [policies[case].inputs(index)])
        close(actions, expected[index])


@pytest.mark.parametrize("case", CASES)
def test_a_batch_gives_what_each_gives_alone(policies: Any, codes: Any, case: str) -> None:
    inputs = [policies[case].inputs(index) for index in (2, 0, 1, 0)]
    for together, one in zip(act(codes[case], inputs), inputs, strict=True):
        close(together, act(codes[case], [one])[0])


@pytest.mark.parametrize("case", CASES)
def test_statistics_beside_the_weights_give_the_same(policies: Any, case: str, tmp_path: Path) -> None:
    """The layout of before there were processor files."""
    code = build_nodes(declare("old", str(policies[case].write_old(tmp_path)), {}), NodeResources())
    close(act(code, [policies[case].inputs(1)])[0], policies[case].expected["actions"][1])


def test_every_input_counts(policies: Any, codes: Any) -> None:
    inputs = policies["two_cameras"].inputs(0)
    before = act(codes["two_cameras"], [inputs])[0]
    other = policies["two_cameras"].inputs(1)
    for name in ("image_top", "image_wrist", "state"):
        assert (act(codes["two_cameras"], [inputs | {name: other[name]}])[0] - before).abs().max() > 0.01, name
    swapped = inputs | {"image_top": inputs["image_wrist"], "image_wrist": inputs["image_top"]}
    assert (act(codes["two_cameras"], [swapped])[0] - before).abs().max() > 0.01
    turned = inputs | {"image_top": inputs["image_top"].flip(1)}
    assert (act(codes["two_cameras"], [turned])[0] - before).abs().max() > 0.01


def test_bfloat16_stays_near(models: Any, policies: Any) -> None:
    code = build_nodes(models["two_cameras"], NodeResources(dtype="bfloat16"))
    (actions,) = act(code, [policies["two_cameras"].inputs(0)])
    assert actions.dtype == torch.float32
    assert 0 < float((actions - policies["two_cameras"].expected["actions"][0]).abs().mean()) < 0.03


def test_a_rank_has_the_weights_of_its_own_nodes(models: Any) -> None:
    only = NodeResources(nodes=frozenset({"see"}))
    assert set(build_nodes(models["two_cameras"], only)) == {"see"}
