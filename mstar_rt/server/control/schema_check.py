"""Does a robot fit a policy? Compared before the first motion; what does not fit is told all at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mstar_rt.errors import FailedPrecondition, nearest
from mstar_rt.model import CameraSpec, PolicySpec, VectorSpec
from mstar_rt.model.policy import CHUNKING_MODES
from mstar_rt.protos import control_pb2 as wire

TEMPORAL_ENSEMBLE = "temporal_ensemble"
MODES = {
    "guided": wire.RealTimeChunking.MODE_GUIDED,
    "guided_identity": wire.RealTimeChunking.MODE_GUIDED_IDENTITY,
    "prefix": wire.RealTimeChunking.MODE_PREFIX,
    TEMPORAL_ENSEMBLE: wire.RealTimeChunking.MODE_TEMPORAL_ENSEMBLE,
}
MAX_NAMED = 3
"""Differing dimensions of a vector that are told one by one."""


@dataclass(frozen=True)
class Negotiated:
    """What a session's observations hold. `normalization` is None if the policy has no statistics."""

    cameras: tuple[CameraSpec, ...]
    normalization: str | None

    def schema(self, policy: PolicySpec) -> wire.RobotSchema:
        return robot_schema(policy, self.cameras, self.normalization)


def negotiate(model: str, policy: PolicySpec, opening: wire.OpenControl, mode: str | None) -> Negotiated:
    """A robot that states no schema takes the policy's. A camera that may be masked and that the robot does not have is
    masked throughout.

    Raises:  FailedPrecondition: with all differences.
    """
    found = list(differences(policy, opening, mode))
    if found:
        things = "difference" if len(found) == 1 else "differences"
        raise FailedPrecondition(
            f"the robot does not fit policy {model!r}, {len(found)} {things}: {'; '.join(found)}; nothing was moved"
        )
    cameras = policy.cameras
    if opening.HasField("schema"):
        offered = {camera.name for camera in opening.schema.cameras}
        cameras = tuple(camera for camera in cameras if camera.name in offered)
    normalization = opening.schema.normalization or (policy.normalizations[0] if policy.normalizations else None)
    return Negotiated(cameras, normalization)


def differences(policy: PolicySpec, opening: wire.OpenControl, mode: str | None) -> Iterator[str]:
    """`mode` is that of the chunking that the robot asks for, None if it asks for none."""
    schema = opening.schema
    if opening.HasField("schema"):
        yield from _cameras(policy.cameras, schema.cameras)
        yield from _vector("state", policy.state, schema.state if schema.HasField("state") else None)
        yield from _vector("action", policy.action, schema.action if schema.HasField("action") else None)
    yield from _normalization(policy.normalizations, schema)
    if opening.instruction and not policy.takes_instruction:
        yield "an instruction is given, the policy takes none"
    if policy.takes_instruction and not opening.instruction.strip():
        yield "the instruction is empty, the policy needs one"
    if mode is not None and mode not in served_modes(policy):
        expected = " or ".join(served_modes(policy)) or "none: its chunks have one action"
        yield f"chunking mode {mode!r} is not served by the policy, expected {expected}"


def _cameras(needed: Sequence[CameraSpec], offered: Sequence[wire.CameraSchema]) -> Iterator[str]:
    known = {camera.name: camera for camera in needed}
    names = [camera.name for camera in offered]
    for name, camera in known.items():
        if name not in names and not camera.may_be_masked:
            yield f"camera {name!r} ({camera.height} x {camera.width}) is missing"
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield f"camera {name!r} is named twice"
    for robot in offered:
        wanted = known.get(robot.name)
        if wanted is None:
            yield f"camera {robot.name!r} is not known, {nearest(robot.name, known)}"
        elif (robot.height, robot.width) != (wanted.height, wanted.width):
            yield (
                f"camera {robot.name!r} is {robot.height} x {robot.width}, expected {wanted.height} x {wanted.width} "
                "(height x width)"
            )


def _vector(kind: str, wanted: VectorSpec | None, robot: wire.VectorSchema | None) -> Iterator[str]:
    if wanted is None:
        if robot is not None:
            yield f"the robot sends a {kind} of {robot.size} numbers, the policy takes none"
        return
    if robot is None:
        yield f"the robot states no {kind}, expected {wanted.size} numbers"
        return
    if robot.size != wanted.size:
        yield f"{kind} has {robot.size} numbers, expected {wanted.size}"
        return
    for what, ours, theirs in (("name", wanted.names, robot.names), ("unit", wanted.units, robot.units)):
        if theirs and len(theirs) != robot.size:
            yield f"{kind} has {len(theirs)} {what}s for {robot.size} numbers"
        elif ours and theirs:
            yield from _texts(f"{kind} {what}", ours, theirs)


def _texts(label: str, ours: Sequence[str], theirs: Sequence[str]) -> Iterator[str]:
    unequal = [i for i, (own, their) in enumerate(zip(ours, theirs, strict=True)) if own != their]
    for i in unequal[:MAX_NAMED]:
        yield f"{label} {i} is {theirs[i]!r}, expected {ours[i]!r}"
    if len(unequal) > MAX_NAMED:
        yield f"{label}s differ at {len(unequal) - MAX_NAMED} more dimensions"


def _normalization(known: Sequence[str], schema: wire.RobotSchema) -> Iterator[str]:
    if schema.HasField("normalization"):
        if schema.normalization not in known:
            yield f"normalization {schema.normalization!r} is not known, {nearest(schema.normalization, known)}"
    elif len(known) > 1:
        yield f"no normalization is chosen, the policy has {', '.join(known)}"


# ---- the policy on the wire


def policy_schema(policy: PolicySpec) -> wire.PolicySchema:
    return wire.PolicySchema(
        schema=robot_schema(policy, policy.cameras, None),
        action_horizon=policy.action_horizon,
        takes_instruction=policy.takes_instruction,
        num_observations=policy.num_observations,
        normalizations=policy.normalizations,
        chunking=[MODES[mode] for mode in (*CHUNKING_MODES, TEMPORAL_ENSEMBLE) if mode in served_modes(policy)],
        max_prefix_delay=policy.max_prefix_delay,
        anytime=policy.anytime_task is not None,
    )


def served_modes(policy: PolicySpec) -> tuple[str, ...]:
    """The model's own and the session's; chunks of one action have nothing in common."""
    return (*policy.chunking, TEMPORAL_ENSEMBLE) if policy.action_horizon > 1 else ()


def robot_schema(policy: PolicySpec, cameras: Sequence[CameraSpec], normalization: str | None) -> wire.RobotSchema:
    return wire.RobotSchema(
        cameras=[
            wire.CameraSchema(name=each.name, height=each.height, width=each.width, may_be_masked=each.may_be_masked)
            for each in cameras
        ],
        state=None if policy.state is None else _vector_schema(policy.state),
        action=_vector_schema(policy.action),
        normalization=normalization,
    )


def _vector_schema(vector: VectorSpec) -> wire.VectorSchema:
    return wire.VectorSchema(size=vector.size, names=vector.names, units=vector.units)
