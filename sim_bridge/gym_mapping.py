"""What of a Gymnasium observation is a policy's camera or state, and what of its action an environment takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from gymnasium import spaces

from mstar_rt.client import CameraSchema, PolicyInfo, RobotSchema, VectorSchema
from mstar_rt.errors import FailedPrecondition, nearest

RENDER = "render()"
"""As a camera: what the environment's `render` gives. It needs render_mode="rgb_array"."""
WHOLE = ""
"""As a key: the observation itself, where that is an array."""

Pick = str | Callable[[Any], Any]
"""A key of the observation, "images/top" in nested ones, or a function of the observation."""


@dataclass(frozen=True)
class GymMapping:
    """`cameras`: by the policy's names; those that are not given are looked for under their own name. `state`: one key
    or function, or several, whose numbers follow each other; None: what is called "state", if the policy takes one.
    `action`: from the policy's action [A] float32 to the environment's; None: the same numbers, for a Box space.
    """

    cameras: Mapping[str, Pick] = field(default_factory=dict)
    state: Pick | Sequence[Pick] | None = None
    action: Callable[[np.ndarray], Any] | None = None

    @property
    def renders(self) -> bool:
        return RENDER in self.cameras.values()


@dataclass(frozen=True)
class Picked:
    """One observation as `ControlSession.act` takes it."""

    images: dict[str, np.ndarray]
    state: np.ndarray | None


class GymForm:
    """A mapping that fits a policy and an environment: `schema` is the robot that they make.

    Raises:  FailedPrecondition: they do not fit; the message has every difference.
    """

    def __init__(
        self, mapping: GymMapping, policy: PolicyInfo, observation: Any, frame: Any, action_space: spaces.Space[Any]
    ) -> None:
        self._problems: list[str] = []
        self._names = dict(_leaves(observation))
        self._cameras = self._find_cameras(mapping, policy)
        self._state = self._find_state(mapping, policy)
        self._to_env = mapping.action
        self._space = action_space
        images = {name: self._try(f"camera {name!r}", pick, observation, frame) for name, pick in self._cameras.items()}
        cameras = tuple(
            CameraSchema(name, *image.shape[:2])
            for name, image in images.items()
            if image is not None and self._is_image(name, image)
        )
        parts = [self._try("the state", pick, observation, frame) for pick in self._state or ()]
        size = sum(np.size(part) for part in parts if part is not None)
        state = None if self._state is None else VectorSchema(size)
        action = policy.schema.action if mapping.action is not None else VectorSchema(self._action_size(action_space))
        self.schema = RobotSchema(cameras, state, action)
        if self._problems:
            raise FailedPrecondition(f"the environment does not fit the policy: {'; '.join(self._problems)}")

    def picked(self, observation: Any, frame: Any = None) -> Picked:
        """`frame`: what was rendered, where a camera asks for it."""
        images = {name: np.asarray(_pick(pick, observation, frame)) for name, pick in self._cameras.items()}
        if self._state is None:
            return Picked(images, None)
        parts = [np.ravel(np.asarray(_pick(pick, observation, frame), np.float32)) for pick in self._state]
        return Picked(images, np.concatenate(parts))

    def action(self, action: np.ndarray) -> Any:
        """What the environment takes, for an action [A] of the policy."""
        if self._to_env is not None:
            return self._to_env(action)
        return action.astype(self._space.dtype).reshape(self._space.shape)

    # ---- what fits

    def _find_cameras(self, mapping: GymMapping, policy: PolicyInfo) -> dict[str, Pick]:
        known = {camera.name for camera in policy.schema.cameras}
        for name in mapping.cameras:
            if name not in known:
                self._problems.append(f"camera {name!r} is unknown to the policy, {nearest(name, known)}")
        found: dict[str, Pick] = {}
        for camera in policy.schema.cameras:
            pick = mapping.cameras.get(camera.name)
            if pick is None:
                pick = self._named(camera.name)
            if pick is not None:
                found[camera.name] = pick
            elif not camera.may_be_masked:
                self._problems.append(f"nothing is camera {camera.name!r}: say in `cameras` which of {self._shown()}")
        return found

    def _find_state(self, mapping: GymMapping, policy: PolicyInfo) -> list[Pick] | None:
        if mapping.state is not None:
            picks = mapping.state
            return [picks] if isinstance(picks, str) or callable(picks) else list(picks)
        if policy.schema.state is None:
            return None
        named = self._named("state")
        if named is None:
            self._problems.append(f"nothing is the state: say in `state` which of {self._shown()}")
            return None
        return [named]

    def _named(self, name: str) -> str | None:
        """The only array whose last key is `name`."""
        found = [path for path in self._names if path.rpartition("/")[2] == name]
        return found[0] if len(found) == 1 else None

    def _try(self, what: str, pick: Pick, observation: Any, frame: Any) -> np.ndarray | None:
        if isinstance(pick, str) and pick != RENDER and pick not in self._names:
            self._problems.append(f"{what} is {pick!r}, which is not in the observation: it has {self._shown()}")
            return None
        if pick == RENDER and frame is None:
            self._problems.append(f'{what} is rendered: make the environment with render_mode="rgb_array"')
            return None
        return np.asarray(_pick(pick, observation, frame))

    def _is_image(self, name: str, image: np.ndarray) -> bool:
        if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
            self._problems.append(
                f"camera {name!r} is {image.dtype} {list(image.shape)}, expected uint8 [height, width, 3]: "
                "wrap the environment, or give a function in `cameras`"
            )
            return False
        return True

    def _action_size(self, space: spaces.Space[Any]) -> int:
        if isinstance(space, spaces.Box):
            return int(np.prod(space.shape))
        self._problems.append(f"the action space is {space}: give a function as `action`")
        return 1

    def _shown(self) -> str:
        described = (
            f"{path or 'the observation itself (WHOLE)'} {np.asarray(leaf).dtype} {list(np.shape(leaf))}"
            for path, leaf in self._names.items()
        )
        return ", ".join(described) or "nothing"


def _leaves(observation: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(observation, Mapping):
        for key, value in observation.items():
            yield from _leaves(value, f"{path}/{key}" if path else str(key))
    elif isinstance(observation, tuple):
        for index, value in enumerate(observation):
            yield from _leaves(value, f"{path}/{index}" if path else str(index))
    else:
        yield path, observation


def _pick(pick: Pick, observation: Any, frame: Any) -> Any:
    if callable(pick):
        return pick(observation)
    if pick == RENDER:
        return frame
    for key in pick.split("/") if pick else ():
        observation = observation[int(key)] if isinstance(observation, tuple) else observation[key]
    return observation
