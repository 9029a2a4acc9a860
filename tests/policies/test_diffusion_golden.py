"""Diffusion Policy against LeRobot's own code: the same folders, the same observations and noise, the same actions."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

sys.path.insert(0, str(Path(__file__).parent))

from published_policies import GOLDEN, Published, Tensors, call, close, published, run

from mstar_rt.model import NodeCall, NodeResources, ServedModel
from policies.diffusion import nodes as nodes_module
from policies.diffusion.config import ScheduleConfig, read_config
from policies.diffusion.model import declare
from policies.diffusion.nodes import build_nodes
from policies.diffusion.schedule import NoiseSchedule

CASES = ["ddpm", "ddim"]
STEPS = {"ddpm": 20, "ddim": 6}


@pytest.fixture(scope="module")
def policies() -> dict[str, Published]:
    return {case: published("diffusion_tiny", case) for case in CASES}


@pytest.fixture(scope="module")
def models(policies: dict[str, Published], tmp_path_factory: pytest.TempPathFactory) -> dict[str, ServedModel]:
    folder = tmp_path_factory.mktemp("diffusion")
    return {case: declare(case, str(one.write(folder / case)), {}) for case, one in policies.items()}


@pytest.fixture(scope="module")
def codes(models: dict[str, ServedModel]) -> dict[str, Any]:
    return {case: build_nodes(model, NodeResources()) for case, model in models.items()}


@pytest.fixture
def given_noise(policies: dict[str, Published], monkeypatch: pytest.MonkeyPatch) -> None:
    """The noise of every step is that of the golden data."""
    fresh = policies["ddpm"].expected["fresh"]

    def given(one: NodeCall, shape: Any, device: torch.device) -> torch.Tensor:
        assert one.node == "denoise"
        return fresh[one.iteration[-1]]

    monkeypatch.setattr(nodes_module, "drawn", given)


def begun(code: Any, observations: list[Tensors], seed: int = 0, steps: int = 1) -> list[Tensors]:
    """What the loop begins with, of several requests; all cameras of one network in one step."""
    cameras = [name.removeprefix("image_") for name in observations[0] if name.startswith("image_")]
    seen: list[Tensors] = [{} for _ in observations]
    calls = [
        (index, camera, call(f"see_{camera}", {"image": one[f"image_{camera}"]}))
        for index, one in enumerate(observations)
        for camera in cameras
    ]
    for key in dict.fromkeys(code["see"].batch_key(one) for *_, one in calls):
        mine = [each for each in calls if code["see"].batch_key(each[2]) == key]
        for (index, camera, _), outputs in zip(mine, run(code["see"], [each[2] for each in mine]), strict=True):
            seen[index][f"features_{camera}"] = outputs["features"]
    inputs = [{"noise": None, **one, **features} for one, features in zip(observations, seen, strict=True)]
    return run(code["begin"], [call("begin", one, seed=seed, num_denoise_steps=steps) for one in inputs])


def act(code: Any, observations: list[Tensors], steps: int, seed: int = 0) -> list[torch.Tensor]:
    """The walk for several requests at once, node by node."""
    states = begun(code, observations, seed, steps)
    for index in range(steps):
        calls = [call("denoise", one, (index,), seed) for one in states]
        for state, outputs in zip(states, run(code["denoise"], calls), strict=True):
            state |= {"latent": outputs["denoised"], "denoised": outputs["denoised"]}
    finished = run(code["finish"], [call("finish", one) for one in states])
    assert [int(one["num_denoise_steps"]) for one in finished] == [steps] * len(finished)
    return [one["actions"] for one in finished]


@pytest.mark.parametrize("case", CASES)
def test_what_is_seen_is_what_the_published_code_sees(policies: Any, codes: Any, case: str) -> None:
    expected = policies[case].expected["condition"]
    for index, state in enumerate(begun(codes[case], [policies[case].inputs(index) for index in range(3)])):
        close(state["condition"], expected[index])


@pytest.mark.usefixtures("given_noise")
@pytest.mark.parametrize("case", CASES)
def test_actions_are_those_of_the_published_code(policies: Any, codes: Any, case: str) -> None:
    expected = policies[case].expected
    together = act(codes[case], [policies[case].inputs(index) for index in range(3)], STEPS[case])
    for index, actions in enumerate(together):
        close(actions, expected["actions"][index])
    close(act(codes[case], [policies[case].inputs(0)], 7)[0], expected["actions_in_7_steps"])


@pytest.mark.usefixtures("given_noise")
def test_requests_at_different_turns_share_a_step(policies: Any, codes: Any) -> None:
    """Of a chunk in 20 turns and one in 3, each gets the turn that is its own."""
    denoise = codes["ddpm"]["denoise"]
    inputs = policies["ddpm"].inputs
    (first,), (second,) = (begun(codes["ddpm"], [inputs(index)], steps=steps) for index, steps in ((0, 20), (1, 3)))
    calls = [call("denoise", first, (7,)), call("denoise", second, (1,))]
    for together, one in zip(run(denoise, calls), calls, strict=True):
        close(together["denoised"], run(denoise, [one])[0]["denoised"])


@pytest.mark.parametrize("case", CASES)
def test_statistics_beside_the_weights_give_the_same(policies: Any, case: str, tmp_path: Path) -> None:
    """The layout of before there were processor files; of the eyes alone, and of what comes out."""
    model = declare("old", str(policies[case].write_old(tmp_path)), {})
    code = build_nodes(model, NodeResources())
    (state,) = begun(code, [policies[case].inputs(1)])
    close(state["condition"], policies[case].expected["condition"][1])


def test_every_input_and_the_seed_count(policies: Any, codes: Any) -> None:
    inputs, other = policies["ddpm"].inputs(0), policies["ddpm"].inputs(1)
    before = act(codes["ddpm"], [inputs], 4)[0]
    close(act(codes["ddpm"], [inputs], 4)[0], before, atol=0)
    for name in ("image_top", "image_wrist", "state", "noise"):
        for moment in (0, 1):
            changed = inputs[name].clone()
            changed[moment] = other[name][moment]
            assert (act(codes["ddpm"], [inputs | {name: changed}], 4)[0] - before).abs().max() > 1e-3, (name, moment)
    assert (act(codes["ddpm"], [inputs], 4, seed=1)[0] - before).abs().max() > 1e-3
    unset = {name: tensor for name, tensor in inputs.items() if name != "noise"}
    drawn = [act(codes["ddpm"], [unset], 4, seed)[0] for seed in (3, 3, 4)]
    close(drawn[0], drawn[1], atol=0)
    assert (drawn[0] - drawn[2]).abs().max() > 1e-3


@pytest.mark.parametrize("name", ["squaredcos_cap_v2", "linear", "scaled_linear"])
def test_the_noise_of_training_is_the_published_one(models: Any, name: str) -> None:
    signals = load_file(GOLDEN / "diffusion_tiny.safetensors")[f"signals.{name}"]
    config = ScheduleConfig("DDPM", 100, 100, name, 0.0001, 0.02, "epsilon", 1.0)
    torch.testing.assert_close(NoiseSchedule(config).signals, signals, rtol=1e-6, atol=1e-12)


def test_the_policy_is_declared_as_its_files_have_it(models: Any) -> None:
    for case, observations, horizon, steps in (("ddpm", 2, 7, 20), ("ddim", 3, 6, 6)):
        policy = models[case].policy
        assert (policy.num_observations, policy.action_horizon, policy.takes_instruction) == (
            observations,
            horizon,
            False,
        )
        assert policy.normalizations == ("checkpoint",)
        shapes = {spec.name: spec.shape for spec in models[case].task("act").inputs}
        assert shapes[policy.cameras[0].tensor] == (observations, 72, 104, 3)
        assert (shapes["state"], shapes["noise"]) == ((observations, 5), (8, 4))
        assert {spec.name: spec.default for spec in models[case].task("act").params}["num_denoise_steps"] == steps
    assert read_config(models["ddim"].checkpoint).vision.crop == (64, 80)


def test_bfloat16_stays_near(models: Any, policies: Any) -> None:
    code = build_nodes(models["ddim"], NodeResources(dtype="bfloat16"))
    (actions,) = act(code, [policies["ddim"].inputs(0)], 6)
    assert actions.dtype == torch.float32
    assert 0 < float((actions - policies["ddim"].expected["actions"][0]).abs().mean()) < 0.05
