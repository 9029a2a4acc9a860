"""A dialect's keys, layouts and conventions to one policy and back; nothing is guessed and nothing left out."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

sys.path.insert(0, str(Path(__file__).parents[2] / "models"))

from toy_policy import POLICY, SIZE, toy_policy

from mstar_rt.config import parse_deployment
from mstar_rt.config_dialects import CameraSource, DialectConfig, StateSource
from mstar_rt.errors import ConfigError, FailedPrecondition, InvalidArgument
from mstar_rt.model import CameraSpec, PolicySpec, VectorSpec
from mstar_rt.protos import control_pb2 as wire
from mstar_rt.protos.arrays import tensor_from_array
from mstar_rt.server.compat.mapping import Mapping
from mstar_rt.server.compat.pictures import picture

BLOCK: dict[str, Any] = {
    "kind": "openpi", "model": "toy", "control_hz": 20, "execute": 4,
    "cameras": {"top": {"key": "cam/top"}}, "mask": ["wrist"],
    "state": [{"key": "arm", "size": 2}, {"key": "grip", "size": 1}],
    "instruction": {"key": "prompt"}, "options": {"normalization": "lab"},
}  # fmt: skip


def dialects(*blocks: dict[str, Any]) -> tuple[DialectConfig, ...]:
    models = [{"name": "toy", "family": "toy_policy:declare"}]
    return parse_deployment({"name": "test", "models": models, "dialects": list(blocks)}).dialects


def mapping(policy: PolicySpec = POLICY, **changes: Any) -> Mapping:
    return Mapping(dialects(BLOCK | changes)[0], toy_policy(policy))


def message(**changes: Any) -> dict[str, Any]:
    fields = {
        "cam/top": np.full((SIZE, SIZE, 3), 7, np.uint8),
        "arm": np.array([1.0, 2.0]),
        "grip": 0.5,
        "prompt": "go",
    }
    return fields | changes


def chunk(actions: np.ndarray) -> wire.ActionChunk:
    return wire.ActionChunk(actions=tensor_from_array(actions.astype(np.float32)))


def test_a_message_becomes_an_observation() -> None:
    seen = mapping().observation(message())
    assert list(seen.images) == ["top"]
    assert seen.images["top"].shape == (SIZE, SIZE, 3)
    assert seen.state is not None
    assert seen.state.dtype == np.float32
    assert (seen.state.tolist(), seen.instruction) == ([1.0, 2.0, 0.5], "go")


def test_nested_and_bytes_keys_are_the_same() -> None:
    nested = {
        b"cam": {b"top": np.zeros((SIZE, SIZE, 3), np.uint8)},
        b"arm": [1, 2],
        "grip": np.float64(3),
        "prompt": np.array("go"),
    }
    seen = mapping().observation(nested)
    assert seen.state is not None
    assert (seen.state.tolist(), seen.instruction) == ([1, 2, 3], "go")
    with pytest.raises(InvalidArgument, match="'cam/top' is given twice"):
        mapping().observation(message(cam={"top": np.zeros((SIZE, SIZE, 3), np.uint8)}))


def test_all_that_does_not_fit_is_told_at_once() -> None:
    bad = {"cam/top": np.zeros((3, SIZE, SIZE), np.uint8), "arm": np.zeros(3), "grip": np.nan, "promt": "go", "x": 1}
    with pytest.raises(InvalidArgument) as failure:
        mapping().observation(bad)
    assert str(failure.value) == (
        "the observation does not fit policy 'toy', 6 differences: 'promt' is not used, did you mean 'prompt'?; "
        "'x' is not used, known: arm, cam/top, grip, prompt; "
        "'cam/top' has shape [3, 16, 16], expected [height, width, 3] as the declared layout hwc; "
        "'arm' has shape [3] of float64, expected [2] of numbers; 'grip' has a number that is not finite; "
        "'prompt' is missing or no text, expected the instruction"
    )


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("arm", np.array(["1", "2"])), ("arm", np.array([True, False])), ("arm", np.array([[1.0, 2.0]])), ("arm", "12"),
        ("arm", np.array([1, np.inf])), ("arm", np.array([1e300, 0])), ("arm", [1, "2"]), ("arm", [1, 10**400]),
        ("arm", None), ("grip", True), ("grip", {"a": 1}), ("prompt", ""), ("prompt", 3), ("prompt", ["go"]),
        ("cam/top", b"jpeg"), ("cam/top", np.zeros((SIZE, SIZE, 3), np.float32)), ("cam/top", np.zeros((0, 0, 3), np.uint8)),
        ("cam/top", np.zeros((SIZE, SIZE, 4), np.uint8)), ("cam/top", np.zeros((2 * SIZE, SIZE, 3), np.uint8)),
    ],
)  # fmt: skip
def test_what_is_no_such_value_is_refused(key: str, value: Any) -> None:
    with pytest.raises(InvalidArgument, match=key.split("/")[0]):
        mapping().observation(message(**{key: value}))


def test_keys_of_no_use_are_named_in_the_file_or_refused() -> None:
    mapping(ignore=["depth"]).observation(message(depth=1))
    many = message(**{f"k{i}": 0 for i in range(5000)})
    with pytest.raises(InvalidArgument, match="4997 more keys are not used"):
        mapping().observation(many)


def test_an_instruction_may_have_a_default() -> None:
    fields = message()
    del fields["prompt"]
    assert mapping(instruction={"key": "prompt", "default": "stay"}).observation(fields).instruction == "stay"
    assert (
        mapping(instruction={"key": "prompt", "default": "stay"}).observation(fields | {"prompt": " "}).instruction
        == "stay"
    )


def test_the_state_is_scaled_by_part() -> None:
    state = [{"key": "arm", "size": 2, "scale": [2, 3]}, {"key": "grip", "size": 1, "scale": [-1.0], "offset": [1.0]}]
    seen = mapping(state=state).observation(message())
    assert seen.state is not None
    assert seen.state.tolist() == [2, 6, 0.5]


def test_actions_are_cut_scaled_and_split() -> None:
    actions = np.arange(16, dtype=np.float32).reshape(8, 2)
    assert np.array_equal(mapping().actions(chunk(actions))["actions"], actions)
    assert mapping(actions={"key": "a", "size": 1}).actions(chunk(actions))["a"].shape == (8, 1)
    scaled = mapping(actions={"scale": [1, 10], "offset": [0.5, 0]}).actions(chunk(actions))["actions"]
    assert scaled.dtype == np.float32
    assert scaled[1].tolist() == [2.5, 30]
    split = mapping(actions={"split": {"x": 1, "y": 1}}).actions(chunk(actions))
    assert (split["x"][:, 0].tolist(), split["y"][:, 0].tolist()) == (actions[:, 0].tolist(), actions[:, 1].tolist())


@settings(max_examples=20)
@given(hnp.arrays(np.uint8, (SIZE, SIZE, 3)))
def test_layouts_and_values_keep_every_pixel(pixels: np.ndarray) -> None:
    camera = CameraSpec("top", SIZE, SIZE)
    for dtype in (np.float16, np.float32, np.float64):
        unit = (pixels.astype(dtype) / 255).astype(dtype)
        assert np.array_equal(picture(unit, CameraSource("k", values="unit"), camera), pixels)
    assert np.array_equal(picture(pixels.transpose(2, 0, 1), CameraSource("k", layout="chw"), camera), pixels)


@settings(max_examples=30)
@given(st.floats(allow_nan=True, allow_infinity=True, width=32).filter(lambda x: not 0 <= x <= 1))
def test_values_outside_the_declared_range_are_refused(value: float) -> None:
    image = np.full((SIZE, SIZE, 3), 0.5, np.float32)
    image[0, 0, 0] = value
    with pytest.raises(InvalidArgument, match=r"outside \[0, 1\]"):
        picture(image, CameraSource("k", values="unit"), CameraSpec("top", SIZE, SIZE))


def test_resizing_is_declared_and_keeps_or_leaves_the_aspect_ratio() -> None:
    wide = np.full((SIZE, 2 * SIZE, 3), 200, np.uint8)
    camera = CameraSpec("top", SIZE, SIZE)
    with pytest.raises(InvalidArgument, match=r"is 16 x 32, expected 16 x 16 \(height x width\) for camera 'top'"):
        picture(wide, CameraSource("k"), camera)
    assert (picture(wide, CameraSource("k", resize="stretch"), camera) == 200).all()
    padded = picture(wide, CameraSource("k", resize="pad"), camera)
    assert (padded[SIZE // 4 : -SIZE // 4] == 200).all()
    assert not padded[: SIZE // 4].any()
    assert not padded[-SIZE // 4 :].any()


def test_gr00t_arrays_have_a_batch_and_a_time() -> None:
    changes = {
        "cameras": {"top": {"key": "video.top"}},
        "state": [{"key": "state.arm", "size": 3}],
        "instruction": {"key": "language.task"},
    }
    gr00t = mapping(kind="gr00t", **changes)
    fields = {
        "video": {"top": np.zeros((1, 1, SIZE, SIZE, 3), np.uint8)},
        "state": {"arm": np.zeros((1, 1, 3), np.float32)},
    }
    seen = gr00t.observation(fields | {"language": {"task": [["go"]]}})
    assert (seen.images["top"].shape, seen.instruction) == ((SIZE, SIZE, 3), "go")
    assert gr00t.observation(fields | {"task": ["go"]}).instruction == "go", "flat, without its modality"
    published = mapping(kind="gr00t", **{**changes, "instruction": {"key": "annotation.human.task_description"}})
    told = {"language": {"annotation.human.task_description": [["go"]]}}
    assert published.observation(fields | told).instruction == "go"
    flat = {"video.top": fields["video"]["top"], "state.arm": fields["state"]["arm"]}
    assert published.observation(flat | {"annotation.human.task_description": ("go",)}).instruction == "go"
    with pytest.raises(InvalidArgument, match=r"'annotation.human.task_description' is given twice"):
        published.observation(flat | told | {"annotation.human.task_description": ("go",)})
    fields["state"] = {"arm": np.zeros((1, 2, 3), np.float32)}
    with pytest.raises(InvalidArgument, match=r"'state.arm' has shape \[1, 2, 3\], expected 2 leading sizes of 1"):
        gr00t.observation(fields | {"language": {"task": [["go"]]}})


# ---- does the file fit the policy


def test_all_differences_to_the_policy_are_told_at_once() -> None:
    wrong = mapping(
        cameras={"tip": {"key": "a"}}, mask=["top"], state=[{"key": "arm", "size": 7}], instruction=None, execute=9,
        actions={"size": 3},
    )  # fmt: skip
    with pytest.raises(FailedPrecondition) as failure:
        wrong.check()
    assert str(failure.value) == (
        "the openpi dialect does not fit policy 'toy', 7 differences: camera 'tip' is not known, did you mean 'top'?; "
        "camera 'top' is masked, but the policy needs it; "
        "camera 'wrist' (16 x 16) has no key, name it in cameras, or put it into mask; "
        "state has 7 numbers (arm 7), expected 3; instruction has no key, and the policy needs one; "
        "execute is 9, a chunk has 8 actions; actions have 3 numbers for clients, those of the policy 2"
    )


@pytest.mark.parametrize(
    ("options", "difference"),
    [
        ({}, "no normalization is chosen, the policy has lab, field"),
        ({"normalization": "lap"}, "normalization 'lap' is not known, did you mean 'lab'?"),
        ({"normalization": "lab", "num_denoise_steps": 99}, "num_denoise_steps"),
        ({"normalization": "lab", "model_options": {"spice": 1}}, "spice"),
        ({"normalization": "lab", "anytime": True}, "no denoise steps"),
        ({"normalization": "lab", "chunking": "guide"}, "mode 'guide' is not served by the policy, expected guided"),
        ({"normalization": "lab", "chunking": "prefix", "delay": 5}, "the most that the policy was trained for is 4"),
        ({"normalization": "lab", "chunking": "guided", "schedule": "sine"}, "schedule is 'sine'"),
        ({"normalization": "lab", "budget_ms": -1.0}, "budget_ms"),
    ],
)
def test_options_are_checked_before_anybody_connects(options: dict[str, Any], difference: str) -> None:
    (found,) = mapping(options=options).differences()
    assert difference in found


def test_every_option_reaches_the_session() -> None:
    options = {
        "normalization": "field",
        "budget_ms": 80,
        "seed": 3,
        "num_denoise_steps": 4,
        "chunking": "guided",
        "schedule": "ones",
        "max_guidance_weight": 2,
        "model_options": {"hold_s": 0.5},
    }
    fitting = mapping(options=options)
    fitting.check()
    opening = fitting.opening()
    assert (opening.budget_ms, opening.seed, opening.num_denoise_steps, opening.replan_every) == (80, 3, 4, 4)
    assert (opening.chunking.mode, opening.chunking.delay, opening.chunking.max_guidance_weight) == (1, 0, 2)
    assert opening.model_options["hold_s"].number == 0.5
    assert opening.schema.normalization == "field"
    assert [camera.name for camera in opening.schema.cameras] == ["top"]


def pi_policy(state: int, action: int) -> PolicySpec:
    names = ("base_0_rgb", "left_wrist_0_rgb", "right_wrist_0_rgb")
    cameras = tuple(CameraSpec(name, 8, 8, may_be_masked=name.startswith("right")) for name in names)
    return replace(POLICY, cameras=cameras, state=VectorSpec(state), action=VectorSpec(action), normalizations=())


IMAGE = np.zeros((8, 8, 3), np.uint8)
CHW = IMAGE.transpose(2, 0, 1)


@pytest.mark.parametrize(
    ("preset", "sizes", "sent"),
    [
        ("droid", (8, 32), {
            "observation/exterior_image_1_left": IMAGE, "observation/wrist_image_left": IMAGE,
            "observation/joint_position": np.zeros(7), "observation/gripper_position": np.zeros(1), "prompt": "go",
        }),
        ("libero", (8, 32), {
            "observation/image": IMAGE, "observation/wrist_image": IMAGE, "observation/state": np.zeros(8), "prompt": "go",
        }),
        ("aloha", (14, 32), {
            "images": dict.fromkeys(("cam_high", "cam_low", "cam_left_wrist", "cam_right_wrist"), CHW),
            "state": np.ones(14), "prompt": "go",
        }),
        ("sglang", (8, 32), {
            "observation.images.base_0_rgb": IMAGE, "observation.images.left_wrist_0_rgb": IMAGE,
            "observation.images.right_wrist_0_rgb": IMAGE, "observation.state": np.zeros(8), "task": "go",
        }),
        ("vllm_omni", (8, 32), {
            "observation/exterior_image_1_left": IMAGE, "observation/exterior_image_2_left": IMAGE, "embodiment": "droid",
            "observation/wrist_image_left": IMAGE, "observation/joint_position": np.zeros(7),
            "observation/gripper_position": np.zeros(1), "prompt": "go",
        }),
    ],
)  # fmt: skip
def test_presets_take_what_the_clients_send(preset: str, sizes: tuple[int, int], sent: dict[str, Any]) -> None:
    policy = pi_policy(*sizes)
    (dialect,) = dialects({"kind": "openpi", "model": "toy", "preset": preset})
    preset_mapping = Mapping(dialect, toy_policy(policy))
    preset_mapping.check()
    seen = preset_mapping.observation(sent)
    assert seen.state is not None
    assert (len(seen.state), seen.instruction) == (sizes[0], "go")
    expected = {"droid": 8, "libero": 7, "aloha": 14, "sglang": 32, "vllm_omni": 8}[preset]
    (actions,) = preset_mapping.actions(chunk(np.zeros((8, 32)))).values()
    assert actions.shape == (8, expected)


def test_the_file_overrides_its_preset() -> None:
    policy = pi_policy(8, 8)
    (dialect,) = dialects(
        {
            "kind": "openpi",
            "model": "toy",
            "preset": "droid",
            "actions": {"key": "a", "size": 2},
            "mask": ["right_wrist_0_rgb"],
            "state": [{"key": "q", "size": 8}],
        }
    )
    layout = Mapping(dialect, toy_policy(policy)).layout
    assert (layout.actions.size, layout.state) == (2, (StateSource("q", 8),))
    assert list(layout.cameras) == ["base_0_rgb", "left_wrist_0_rgb"]


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        ({"kind": "ros"}, "kind is 'ros', expected one of openpi, lerobot, gr00t"),
        ({"model": "toi"}, "model is 'toi', did you mean 'toy'?"),
        ({"presets": "droid"}, "unknown key 'presets', did you mean 'preset'?"),
        ({"preset": "droit"}, "preset is 'droit'"),
        ({"kind": "gr00t", "preset": "droid"}, "preset 'droid' is of openpi clients"),
        ({"cameras": {"top": {"key": "a", "layout": "whc"}}}, "cameras.top.layout is 'whc', expected one of hwc, chw"),
        ({"cameras": {"top": "a"}}, "cameras.top is 'a', expected a mapping"),
        ({"cameras": {"top": {"key": "arm"}}}, "key 'arm' is used twice"),
        ({"cameras": {"top": {"key": ""}}}, "a key is empty"),
        ({"state": [{"key": "arm", "size": 0}]}, "'arm' has size 0"),
        ({"state": [{"key": "arm", "size": 3, "scale": [1, 2]}]}, "scale has 2 numbers, expected 1 or 3"),
        ({"actions": {"size": 2, "split": {"x": 1}}}, "size is 2, but split has 1 numbers"),
        ({"actions": {"split": {"x": "one"}}}, "split.x is 'one'"),
        ({"execute": 0}, "execute is 0"),
        ({"control_hz": 0}, "control_hz is 0"),
        ({"idle_timeout_s": 0}, "idle_timeout_s is 0"),
        ({"port": 70000}, "port is 70000"),
        ({"kill": True}, "kill is for gr00t clients"),
        ({"kind": "lerobot", "port": 1}, "lerobot clients use the port of the server"),
        ({"options": {"budget": 1}}, "unknown key 'budget', did you mean 'budget_ms'?"),
        ({"options": {"seed": 1.5}}, "options.seed is 1.5, expected int"),
        ({"options": {"delay": 1}}, "options.delay says how chunks are joined: give chunking too"),
    ],
)
def test_what_no_policy_could_serve_is_refused_with_the_place(changes: dict[str, Any], wrong: str) -> None:
    with pytest.raises(ConfigError) as failure:
        dialects(BLOCK | changes)
    assert wrong in str(failure.value)


def test_two_dialects_need_two_ports() -> None:
    with pytest.raises(ConfigError, match=r"port 8000 of 127.0.0.1 is given to two dialects"):
        dialects(BLOCK, BLOCK)
    with pytest.raises(ConfigError, match=r"port 50051 is that of the server"):
        dialects(BLOCK | {"port": 50051})
    assert len(dialects(BLOCK, BLOCK | {"port": 8001}, BLOCK | {"kind": "gr00t"})) == 3
