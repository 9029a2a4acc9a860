"""What of a Gymnasium observation becomes what a policy sees; all that does not fit is said at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from toy_env import SIZE, ToyEnv

from mstar_rt.client import CameraSchema, PolicyInfo, RobotSchema, VectorSchema
from mstar_rt.errors import FailedPrecondition
from sim_bridge.gym_mapping import RENDER, WHOLE, GymForm, GymMapping


def policy(*cameras: CameraSchema, state: int | None = 3) -> PolicyInfo:
    schema = RobotSchema(cameras, None if state is None else VectorSchema(state), VectorSchema(2))
    return PolicyInfo(schema, 8, True, 1, (), (), None)


TOP, WRIST = CameraSchema("top", SIZE, SIZE), CameraSchema("wrist", SIZE, SIZE, may_be_masked=True)
JOINED = GymMapping(state=("joints", "gripper"))


def form(mapping: GymMapping, what: PolicyInfo, frame: Any = None, env: ToyEnv | None = None) -> GymForm:
    env = env or ToyEnv()
    return GymForm(mapping, what, env.reset(seed=3)[0], frame, env.action_space)


def test_names_are_found_and_parts_of_the_state_follow_each_other() -> None:
    made = form(JOINED, policy(TOP, WRIST))
    assert made.schema == RobotSchema((TOP,), VectorSchema(3), VectorSchema(2)), "the wrist's may be left out"
    picked = made.picked(ToyEnv().reset(seed=3)[0])
    assert picked.images["top"].shape == (SIZE, SIZE, 3)
    assert picked.images["top"][0, 0, 0] == 30
    np.testing.assert_array_equal(picked.state, np.array([3, 0, 0.5], np.float32))


def test_keys_functions_and_what_is_rendered() -> None:
    mapping = GymMapping(
        cameras={"top": lambda seen: seen["eyes"]["top"][:8, :8], "wrist": RENDER},
        state=lambda seen: [*seen["joints"], 1],
        action=lambda action: int(action[0]),
    )
    made = form(mapping, policy(TOP, WRIST), ToyEnv(render_mode="rgb_array").render())
    assert [camera.height for camera in made.schema.cameras] == [8, SIZE]
    picked = made.picked(ToyEnv().reset(seed=3)[0], np.full((SIZE, SIZE, 3), 5, np.uint8))
    assert (picked.images["wrist"][0, 0, 0], picked.state.tolist()) == (5, [3.0, 0.0, 1.0])
    assert made.action(np.array([2.0, 0.0], np.float32)) == 2


def test_an_observation_that_is_one_array() -> None:
    image = np.zeros((SIZE, SIZE, 3), np.uint8)
    space = spaces.Box(-1, 1, (2, 1), np.float64)
    made = GymForm(GymMapping({"top": WHOLE}), policy(TOP, state=None), image, None, space)
    assert made.picked(image).state is None
    action = made.action(np.array([0.5, 0.25], np.float32))
    assert (action.dtype, action.shape) == (np.float64, (2, 1))
    numbers = GymForm(GymMapping(state=WHOLE), policy(state=3), np.arange(3), None, space)
    assert numbers.picked(np.arange(3)).state.tolist() == [0, 1, 2]


def test_all_differences_come_at_once() -> None:
    mapping = GymMapping({"top": "eyes/grey", "wrist": RENDER, "front": "eyes/top"}, state=("joints", "grip"))
    with pytest.raises(FailedPrecondition) as refusal:
        GymForm(mapping, policy(TOP, WRIST), ToyEnv().reset()[0], None, spaces.Discrete(4))
    assert str(refusal.value) == (
        "the environment does not fit the policy: camera 'front' is unknown to the policy, known: top, wrist; "
        "camera 'wrist' is rendered: make the environment with render_mode=\"rgb_array\"; "
        "camera 'top' is uint8 [16, 16], expected uint8 [height, width, 3]: wrap the environment, or give a function in "
        "`cameras`; the state is 'grip', which is not in the observation: it has eyes/top uint8 [16, 16, 3], "
        "eyes/grey uint8 [16, 16], joints float64 [2], gripper float32 []; "
        "the action space is Discrete(4): give a function as `action`"
    )


def test_what_has_no_name_must_be_named() -> None:
    with pytest.raises(FailedPrecondition, match="nothing is camera 'front': say in `cameras` which of eyes/top uint8"):
        form(JOINED, policy(CameraSchema("front", 8, 8)))
    with pytest.raises(FailedPrecondition, match="nothing is the state: say in `state` which of eyes/top"):
        form(GymMapping(), policy(TOP))
