"""Does a LeRobot robot fit the policy that is served? Told before the first motion, all differences at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from mstar_rt.errors import FailedPrecondition, InvalidArgument, MstarError
from mstar_rt.model import PolicySpec
from mstar_rt.server.compat.lerobot.payloads import PolicyInstructions
from mstar_rt.server.compat.mapping import Mapping as DialectMapping

STATE, IMAGES = "observation.state", "observation.images."
TASK = "task"
"""The key of the instruction in each observation; RobotClient always sends one, "" by default."""
MAX_FEATURES = 256
MAX_IMAGE_NUMBERS = 1 << 23
"""Numbers in all images of an observation together."""


def check_fit(given: PolicyInstructions, mapping: DialectMapping) -> None:
    """Raises:  FailedPrecondition: with the list of differences."""
    found = list(_differences(given, mapping))
    if found:
        things = "difference" if len(found) == 1 else "differences"
        raise FailedPrecondition(
            f"the robot does not fit policy {mapping.model.name!r}, {len(found)} {things}: {'; '.join(found)}; nothing "
            "was moved"
        )


def _differences(given: PolicyInstructions, mapping: DialectMapping) -> Iterator[str]:
    model, policy, execute = mapping.model, mapping.policy, mapping.dialect.execute
    if given.policy_type != model.family:
        yield f"policy_type is {given.policy_type[:64]!r}, {model.name!r} is of type {model.family!r}"
    if given.rename_map:
        yield "rename_map is given, but names are mapped by `cameras` and `state` of the server's dialect: leave it out"
    if not execute <= given.actions_per_chunk <= policy.action_horizon:
        yield (
            f"actions_per_chunk is {given.actions_per_chunk}, expected {execute} (what a robot executes between two "
            f"chunks, by the server's dialect) to {policy.action_horizon} (a whole chunk)"
        )
    try:
        mapping.observation(without_task(sample_observation(given.features), policy))
    except InvalidArgument as error:
        yield str(error)


def without_task(observation: Mapping[str, Any], policy: PolicySpec) -> Mapping[str, Any]:
    """A policy that takes no instruction is given none."""
    if policy.takes_instruction:
        return observation
    return {key: value for key, value in observation.items() if key != TASK}


def sample_observation(features: Mapping[str, Any]) -> dict[str, Any]:
    """An observation as the robot says that it will send them, of zeros: joints by name, images by camera, the task.

    Raises:  InvalidArgument: this describes no observation.
    """
    if len(features) > MAX_FEATURES:
        raise InvalidArgument(f"the robot has {len(features)} features, expected at most {MAX_FEATURES}")
    sample: dict[str, Any] = {TASK: "sample"}
    num_pixels = 0
    for name, feature in features.items():
        if type(feature) is dict and name == STATE:
            sample.update(dict.fromkeys(_joints(feature), 0.0))
        elif type(feature) is dict and name.startswith(IMAGES):
            image = sample[name.removeprefix(IMAGES)] = _image(name, feature)
            num_pixels += image.size
        else:
            raise _broken(name)
    if num_pixels > MAX_IMAGE_NUMBERS:
        raise InvalidArgument(f"the robot's images have {num_pixels} numbers, expected at most {MAX_IMAGE_NUMBERS}")
    return sample


def _joints(feature: Mapping[str, Any]) -> list[str]:
    names = feature.get("names")
    if type(names) is not list or len(names) > MAX_FEATURES or not all(type(name) is str for name in names):
        raise _broken(STATE)
    return names


def _image(name: str, feature: Mapping[str, Any]) -> np.ndarray:
    shape = feature.get("shape")
    if type(shape) not in (tuple, list) or len(shape) != 3:  # type: ignore[arg-type]
        raise _broken(name)
    if not all(type(size) is int and 0 < size <= MAX_IMAGE_NUMBERS for size in shape):  # type: ignore[union-attr]
        raise _broken(name)
    return np.broadcast_to(np.zeros((), np.uint8), tuple(shape))  # type: ignore[arg-type]


def _broken(name: str) -> MstarError:
    return InvalidArgument(
        f"the robot's feature {name[:64]!r} is none of an observation, expected observation.state with its names and "
        "observation.images.<camera> with its shape (height, width, 3)"
    )
