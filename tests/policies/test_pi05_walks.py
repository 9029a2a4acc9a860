"""What a pi0.5 or pi0 declares, and every deployment that it refuses, with the sentence that says why."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "models"))

import pi05_tiny as tiny

from mstar_rt.config import DeploymentConfig, ModelConfig
from mstar_rt.errors import MstarError
from mstar_rt.model.declare import declare_model
from mstar_rt.model.policy import CameraSpec
from policies.pi05.model import declare, declare_pi0


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, Any]:
    return tiny.robot_settings(tmp_path)


def test_the_policy_is_what_the_settings_say(settings: dict[str, Any]) -> None:
    model = declare("robot", "", settings)
    policy = model.policy
    assert policy is not None
    assert policy.cameras == (CameraSpec("top", 56, 56), CameraSpec("wrist", 30, 40, may_be_masked=True))
    assert policy.state is not None
    assert (policy.state.size, policy.state.names, policy.action.size) == (3, ("x", "y", "gripper"), 5)
    assert (policy.action_horizon, policy.takes_instruction, policy.normalizations) == (10, True, ("default",))
    assert (policy.chunking, policy.max_prefix_delay) == (("guided", "guided_identity", "prefix"), 4)
    task = model.task("act")
    assert task.criticality == "control"
    assert model.caches["context"].max_sequence_tokens == 2 * 16 + 24
    assert "normalization" not in {param.name for param in task.params}


def test_a_policy_that_was_not_trained_for_prefixes_offers_none(settings: dict[str, Any]) -> None:
    del settings["max_prefix_delay"]
    policy = declare("robot", "", settings).policy
    assert policy is not None
    assert (policy.chunking, policy.max_prefix_delay) == (("guided", "guided_identity"), None)


def test_without_state_there_is_none_and_without_a_tokenizer_no_robot() -> None:
    model = declare("tiny", "", tiny.published_settings())
    (ids,) = (spec for spec in model.task("act").inputs if spec.name == "token_ids")
    assert not ids.optional
    assert "instruction" not in {param.name for param in model.task("act").params}
    assert model.policy is None
    assert "state" not in {spec.name for spec in model.task("act").inputs}


def test_several_statistics_are_chosen_by_name(settings: dict[str, Any], tmp_path: Path) -> None:
    settings["norm_stats"] = {name: tiny.write_statistics(tmp_path / f"{name}.json") for name in ("arm", "droid")}
    (option,) = (param for param in declare("robot", "", settings).task("act").params if param.name == "normalization")
    assert option.choices == ("arm", "droid")


def test_pi0_has_a_token_for_the_state(tmp_path: Path) -> None:
    graph = declare_pi0("pi0", "", tiny.pi0_settings(tmp_path)).graph
    assert [node.name for node in graph.nodes] == [
        "prepare", "see", "prefill", "remember_state", "start", "pace", "denoise", "finish"
    ]  # fmt: skip


def test_the_json_beside_the_checkpoint_and_options_make_one(settings: dict[str, Any], tmp_path: Path) -> None:
    """Paths in the JSON are relative to it, those among the options to the deployment file."""
    inside = {**settings, "norm_stats": "norm_stats.json"}
    tokenizer = inside.pop("tokenizer")
    (tmp_path / "weights.json").write_text(json.dumps(inside))
    options = {"tokenizer": "../" + Path(tokenizer).name, "num_denoise_steps": 5}
    config = DeploymentConfig(
        "d", (ModelConfig("robot", "pi05", "../weights.safetensors", options),), base_dir=str(tmp_path / "x")
    )
    model = declare_model(config, config.models[0])
    assert model.options["tokenizer"] == tokenizer
    (steps,) = (param for param in model.task("act").params if param.name == "num_denoise_steps")
    assert steps.default == 5
    (tmp_path / "weights.json").rename(tmp_path / "elsewhere.json")
    named = declare("robot", "", {"config": str(tmp_path / "elsewhere.json"), **model.options})
    assert named.policy == model.policy


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"camera": []}, "unknown option 'camera', did you mean 'cameras'?"),
    ({"network": "pi05_droids"}, "did you mean 'pi05_droid'"),
    ({"network": "pi0"}, "the network is of kind 'pi0', but the family is 'pi05'"),
    ({"network": {"name": "x"}}, "lacks the key 'vision'"),
    ({"action": {"size": 9}}, "the action has 9 numbers, the network takes 8"),
    ({"action": {"size": 2, "relative_to": [0]}}, "has 1 entries in 'relative_to', expected 2"),
    ({"action": {"size": 2, "relative_to": [0, 3]}}, "relative to 3, expected null or an index of the state's 3"),
    ({"action": {"size": 2, "names": ["x"]}}, "expected 2 texts"),
    ({"action": {"sizes": 2}}, "unknown key 'sizes', did you mean 'size'"),
    ({"state": None, "action": {"size": 5}}, "'state' is missing, which this policy takes"),
    ({"discrete_state_input": False, "action": {"size": 5}}, "'state' is declared, but nothing reads it"),
    ({"normalization": "zscore"}, "did you mean 'z_score'"),
    ({"normalization": "none"}, "normalization 'none' takes no 'norm_stats'"),
    ({"norm_stats": {}}, "normalization 'quantile' needs 'norm_stats'"),
    ({"norm_stats": ["a"]}, "expected a path or a mapping"),
    ({"cameras": [{"name": "top", "height": 0, "width": 4}]}, "0x4 pixels"),
    ({"cameras": [{"name": "a b", "height": 4, "width": 4}]}, "expected letters, digits"),
    ({"cameras": [{"name": "a", "height": 4, "width": 4}] * 2}, "two cameras of the name 'a'|two inputs? of the name|image_a"),
    ({"cameras": {"top": {}}}, "expected a list"),
    ({"max_prompt_tokens": 0}, "'max_prompt_tokens' is 0, expected 1 to"),
    ({"num_denoise_steps": 65}, "'num_denoise_steps' is 65, expected 1 to 64"),
    ({"num_denoise_steps": 2.5}, "'num_denoise_steps' is 2.5, expected int"),
    ({"max_prefix_delay": 10}, "'max_prefix_delay' is 10, expected 1 to 9 actions"),
    ({"max_prefix_delay": True}, "'max_prefix_delay' is True, expected int"),
    ({"random_seed": -1}, "'random_seed' is -1"),
    ({"tokenizer": "/nowhere.model"}, "there is no file at /nowhere.model, which 'tokenizer' names"),
    ({"norm_stats": {"arm": "/nowhere.json"}}, "there is no file at /nowhere.json, which 'norm_stats' names"),
    ({"config": "/nowhere.json"}, "cannot read the policy's settings at /nowhere.json"),
]  # fmt: skip


@pytest.mark.parametrize(("changed", "sentence"), WRONG, ids=[sentence[:40] for _, sentence in WRONG])
def test_contradictions_are_refused(settings: dict[str, Any], changed: dict[str, Any], sentence: str) -> None:
    with pytest.raises(MstarError, match=sentence):
        declare("robot", "", {**settings, **changed})


def test_a_key_is_given_once(settings: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "weights.json").write_text(json.dumps(settings))
    with pytest.raises(MstarError, match=r"'max_prompt_tokens' is an option and stands in .*weights.json too"):
        declare("robot", str(tmp_path / "weights.safetensors"), {"max_prompt_tokens": 30})
    with pytest.raises(MstarError, match="both a checkpoint and 'random_seed'"):
        declare("robot", str(tmp_path / "weights.safetensors"), {"random_seed": 1})


@pytest.mark.parametrize(
    ("text", "sentence"), [("[]", "holds a list"), ("{", "not valid JSON"), ('{"x": 1}', "unknown key 'x'")]
)
def test_a_damaged_json_is_refused(tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "weights.json").write_text(text)
    with pytest.raises(MstarError, match=sentence):
        declare("robot", str(tmp_path / "weights.safetensors"), {})


def test_pi0_takes_its_state_as_a_token_only(tmp_path: Path) -> None:
    settings = tiny.pi0_settings(tmp_path)
    with pytest.raises(MstarError, match="pi0 takes the state as a token"):
        declare_pi0("pi0", "", {**settings, "discrete_state_input": True})
    with pytest.raises(MstarError, match="the family is 'pi05'"):
        declare("pi0", "", settings)


def test_declaring_needs_no_torch(tmp_path: Path) -> None:
    (tmp_path / "weights.json").write_text(json.dumps(tiny.robot_settings(tmp_path)))
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from policies.pi05.model import declare\n"
        f"declare('robot', {str(tmp_path / 'weights.safetensors')!r}, {{}})\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])
