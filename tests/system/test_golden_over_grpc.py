"""The published implementation's numbers, through the client, gRPC, the conductor and a worker process."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from golden_data import Arrays, close, frames_of, past_of, plan_options
from serving import assert_nothing_is_held

from mstar_rt.client import Client
from mstar_rt.errors import InvalidArgument

pytestmark = [pytest.mark.system, pytest.mark.timeout(90)]


@pytest.mark.parametrize("row", [0, 1])
def test_the_encoder_equals_the_published_one(client: Client, golden: Arrays, row: int) -> None:
    encoding = client.encode("tiny", frames_of(golden, row))
    close(encoding.latents, golden["frame_latents_normed"][row], 1e-5)
    assert_nothing_is_held(client)


def test_frames_that_are_not_finite_or_not_normalised_are_refused(client: Client, golden: Arrays) -> None:
    frames = frames_of(golden, 0)
    for fault, sentence in ((np.nan, "NaN or infinity"), (200.0, "values up to 200, expected normalised ones")):
        frames[0, 3, 4, 1] = fault
        with pytest.raises(InvalidArgument, match=sentence):
            client.encode("tiny", frames)
    assert_nothing_is_held(client)


@pytest.mark.parametrize("view", ["frames", "latents"])
def test_six_steps_equal_the_published_ones(client: Client, golden: Arrays, view: str) -> None:
    for row in range(2):
        frames = frames_of(golden, row) if view == "frames" else None
        latents = golden["frame_latents_normed"][row] if view == "latents" else None
        actions, states = golden["actions"][row, 1:], golden["states"][row, 1:]
        stream = client.rollout("tiny", frames, actions, latents=latents, states=states, **past_of(golden, row))
        got = np.stack([step.latent for step in stream if step.latent is not None])
        close(got, golden["rollout"][row], 1e-5)
        assert stream.done is not None
        assert stream.done.num_steps == 6
    assert_nothing_is_held(client)


def test_the_server_integrates_poses_as_published(client: Client, golden: Arrays, golden_poses: Arrays) -> None:
    latents = golden["frame_latents_normed"][0, :1]
    rows = zip(*(golden_poses[name].reshape(-1, 7) for name in ("pose", "action", "new_pose")), strict=True)
    for pose, action, new_pose in list(rows)[:12]:
        (step,) = client.rollout("tiny", None, action[None], pose, latents=latents)
        close(step.pose, new_pose, 1e-5)


def test_integrated_poses_give_the_same_steps_as_supplied_ones(client: Client, golden: Arrays) -> None:
    latents, state = golden["frame_latents_normed"][0, :1], golden["states"][0, 0]
    actions = golden["actions"][0, 1:] * 0.1
    integrated = list(client.rollout("tiny", None, actions, state, latents=latents))
    states = np.stack([state, *(step.pose for step in integrated[:-1] if step.pose is not None)])
    supplied = list(client.rollout("tiny", None, actions, state, latents=latents, states=states))
    for one, other in zip(integrated, supplied, strict=True):
        assert one.latent is not None
        assert one.pose is not None
        close(other.latent, one.latent, 1e-5)
        close(other.pose, one.pose, 1e-6)
    assert np.abs(states[-1, 3:6] - states[0, 3:6]).max() > 1e-2


@pytest.mark.parametrize("name", ["h1", "h3", "h2_pinned"])
def test_plans_equal_the_published_planner(client: Client, golden_cem: Any, name: str) -> None:
    arrays, settings = golden_cem
    plan = client.plan(
        "tiny", None, None, arrays["pose"][0, 0], latents=arrays["context_latents"][0],
        goal_latents=arrays["goal_latents"][0, 0], **plan_options(settings, name),
    )  # fmt: skip
    close(plan.actions, arrays[f"plan_{name}"], 1e-4)
    assert plan.num_iterations == len(plan.improvements) == settings[name]["cem_steps"]
    assert_nothing_is_held(client)
