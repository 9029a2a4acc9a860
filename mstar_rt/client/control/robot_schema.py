"""What a policy expects of a robot and what a robot offers, and how the two differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mstar_rt.errors import FailedPrecondition, InvalidArgument, nearest
from mstar_rt.protos import control_pb2 as wire
from mstar_rt.protos import runtime_pb2

MODES = {
    "guided": wire.RealTimeChunking.MODE_GUIDED,
    "guided_identity": wire.RealTimeChunking.MODE_GUIDED_IDENTITY,
    "prefix": wire.RealTimeChunking.MODE_PREFIX,
    "temporal_ensemble": wire.RealTimeChunking.MODE_TEMPORAL_ENSEMBLE,
}
_MODE_NAMES = {number: name for name, number in MODES.items()}


@dataclass(frozen=True)
class CameraSchema:
    """Pixels. `may_be_masked`, of a policy: it takes observations without this camera."""

    name: str
    height: int
    width: int
    may_be_masked: bool = False


@dataclass(frozen=True)
class VectorSchema:
    """A state or an action: its size, and name and unit of each dimension; empty: they are not compared."""

    size: int
    names: tuple[str, ...] = ()
    units: tuple[str, ...] = ()


@dataclass(frozen=True)
class RobotSchema:
    """`normalization` names the policy's statistics to use; None: the only ones that it has."""

    cameras: tuple[CameraSchema, ...]
    state: VectorSchema | None
    action: VectorSchema
    normalization: str | None = None

    def __post_init__(self) -> None:
        for kind, vector in (("state", self.state), ("action", self.action)):
            if vector is None:
                continue
            for what, texts in (("names", vector.names), ("units", vector.units)):
                if texts and len(texts) != vector.size:
                    raise InvalidArgument(f"the schema's {kind} has {len(texts)} {what} for {vector.size} numbers")
        names = [camera.name for camera in self.cameras]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise InvalidArgument(f"the schema has two cameras of the name {twice[0]!r}")

    def camera(self, name: str) -> CameraSchema | None:
        return next((camera for camera in self.cameras if camera.name == name), None)


@dataclass(frozen=True)
class PolicyInfo:
    """`schema` is what the policy was made for, `chunking` the names that `Client.control` takes for its `chunking`,
    `action_horizon` the actions of a chunk, `max_prefix_delay` the largest delay with "prefix", in actions. `anytime`:
    it can make a chunk in fewer denoise steps where the budget asks for it.
    """

    schema: RobotSchema
    action_horizon: int
    takes_instruction: bool
    num_observations: int
    normalizations: tuple[str, ...]
    chunking: tuple[str, ...]
    max_prefix_delay: int | None
    anytime: bool = False


def check_schema(robot: RobotSchema, policy: PolicyInfo, model: str) -> None:
    """Raises:  FailedPrecondition: the robot does not fit the policy; the message has every difference."""
    found = [
        *_camera_differences(robot.cameras, policy.schema.cameras),
        *_vector_differences("state", robot.state, policy.schema.state),
        *_vector_differences("action", robot.action, policy.schema.action),
        *_normalization_differences(robot.normalization, policy.normalizations),
    ]
    if found:
        raise FailedPrecondition(f"the robot does not fit the policy {model!r}: {'; '.join(found)}")


def _camera_differences(robot: Sequence[CameraSchema], policy: Sequence[CameraSchema]) -> list[str]:
    theirs, known = {camera.name: camera for camera in robot}, {camera.name: camera for camera in policy}
    found = [
        f"camera {name!r} ({camera.height}x{camera.width}) is missing, and must not be masked"
        for name, camera in known.items()
        if name not in theirs and not camera.may_be_masked
    ]
    for name, camera in theirs.items():
        if name not in known:
            found.append(f"camera {name!r} is unknown to it, {nearest(name, known)}")
        elif (camera.height, camera.width) != (known[name].height, known[name].width):
            sizes = f"{camera.height}x{camera.width}, it expects {known[name].height}x{known[name].width}"
            found.append(f"camera {name!r} is {sizes} (height x width)")
    return found


def _vector_differences(kind: str, robot: VectorSchema | None, policy: VectorSchema | None) -> list[str]:
    if robot is None or policy is None:
        if robot is None and policy is None:
            return []
        return [f"it takes no {kind}, the robot's schema has one" if policy is None else f"the {kind} is missing"]
    if robot.size != policy.size:
        return [f"the {kind} has {robot.size} numbers, it expects {policy.size}"]
    return [
        f"the {what} of the {kind} are {', '.join(ours)}, it expects {', '.join(theirs)}"
        for what, ours, theirs in (("names", robot.names, policy.names), ("units", robot.units, policy.units))
        if ours and theirs and ours != theirs
    ]


def _normalization_differences(name: str | None, known: Sequence[str]) -> list[str]:
    if name is None and len(known) > 1:
        return [f"it has several normalizations: say in the schema which of {', '.join(known)}"]
    if name is not None and name not in known:
        return [f"normalization {name!r} is unknown to it, {nearest(name, known)}"]
    return []


# ---- the wire


def policy_of(description: runtime_pb2.DescribeModelResponse, model: str) -> PolicyInfo:
    """Raises:  FailedPrecondition: it is not a model for robots."""
    if not description.HasField("policy"):
        raise FailedPrecondition(f"model {model!r} is no policy, so it cannot control a robot: `models()` lists others")
    return policy_info(description.policy)


def policy_info(policy: wire.PolicySchema) -> PolicyInfo:
    return PolicyInfo(
        schema=_robot_schema(policy.schema),
        action_horizon=policy.action_horizon,
        takes_instruction=policy.takes_instruction,
        num_observations=policy.num_observations,
        normalizations=tuple(policy.normalizations),
        chunking=tuple(_MODE_NAMES.get(mode, "unknown") for mode in policy.chunking),
        max_prefix_delay=policy.max_prefix_delay if policy.HasField("max_prefix_delay") else None,
        anytime=policy.anytime,
    )


def policy_message(policy: PolicyInfo) -> wire.PolicySchema:
    """The inverse of `policy_info`."""
    return wire.PolicySchema(
        schema=robot_schema_message(policy.schema),
        action_horizon=policy.action_horizon,
        takes_instruction=policy.takes_instruction,
        num_observations=policy.num_observations,
        normalizations=policy.normalizations,
        chunking=[MODES[name] for name in policy.chunking if name in MODES],
        max_prefix_delay=policy.max_prefix_delay,
        anytime=policy.anytime,
    )


def robot_schema_message(schema: RobotSchema) -> wire.RobotSchema:
    return wire.RobotSchema(
        cameras=[
            wire.CameraSchema(name=each.name, height=each.height, width=each.width, may_be_masked=each.may_be_masked)
            for each in schema.cameras
        ],
        state=None if schema.state is None else _vector_message(schema.state),
        action=_vector_message(schema.action),
        normalization=schema.normalization,
    )


def _robot_schema(schema: wire.RobotSchema) -> RobotSchema:
    return RobotSchema(
        cameras=tuple(CameraSchema(each.name, each.height, each.width, each.may_be_masked) for each in schema.cameras),
        state=_vector(schema.state) if schema.HasField("state") else None,
        action=_vector(schema.action),
        normalization=schema.normalization if schema.HasField("normalization") else None,
    )


def _vector(vector: wire.VectorSchema) -> VectorSchema:
    return VectorSchema(vector.size, tuple(vector.names), tuple(vector.units))


def _vector_message(vector: VectorSchema) -> wire.VectorSchema:
    return wire.VectorSchema(size=vector.size, names=vector.names, units=vector.units)
