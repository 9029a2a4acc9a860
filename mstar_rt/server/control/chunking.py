"""Continuity between a session's chunks: what the robot asks for, and what that means for one observation.

Modes of the model get the actions that the robot has not executed yet and the delay, in consumed actions, until the new
chunk can be there. Temporal ensembling is the session's own and concerns the answer only.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from mstar_rt.errors import InvalidArgument, MstarError
from mstar_rt.model import ParamValue, PolicySpec
from mstar_rt.protos import control_pb2 as wire
from mstar_rt.server.control.arrival import Arrived
from mstar_rt.server.control.decoding import vector
from mstar_rt.server.control.delay import DelayEstimate
from mstar_rt.server.control.ensemble import DEFAULT_DECAY
from mstar_rt.server.control.schema_check import MODES, TEMPORAL_ENSEMBLE

FIELDS = {
    "guided": ("schedule", "max_guidance_weight", "prefix_attention_horizon", "delay"),
    "guided_identity": ("schedule", "max_guidance_weight", "prefix_attention_horizon", "delay"),
    "prefix": ("delay",),
    TEMPORAL_ENSEMBLE: ("ensemble_decay",),
}
"""Fields of RealTimeChunking that mean something in each mode."""

DECAY_RANGE = (-1.0, 100.0)
"""Below 0 the newest chunk weighs most, and the weights of many chunks would overflow soon."""


@dataclass(frozen=True)
class Chunking:
    """`params` are the options of every chunk that goes on from another one. `attention_horizon` is where guidance
    ends: as the robot says, or what is left of a chunk after `replan_every` actions; None: the model's own default.
    """

    mode: str
    max_delay: int
    params: dict[str, ParamValue] = field(default_factory=dict)
    delay: int | None = None
    attention_horizon: int | None = None
    attention_horizon_is_given: bool = False
    ensemble_decay: float | None = None

    @property
    def of_the_model(self) -> bool:
        return self.mode != TEMPORAL_ENSEMBLE


@dataclass(frozen=True)
class Continuation:
    """What one chunk goes on from: [n, A] float32, n >= 1, robot units, row 0 at the observation's tick. `delay` is at
    most n: no other chunk comes before this one, so the robot has no more to consume.
    """

    previous_actions: np.ndarray
    delay: int
    params: dict[str, ParamValue]


def mode_of(opening: wire.OpenControl) -> str | None:
    """Raises:  InvalidArgument: chunking without a mode that is known."""
    if not opening.HasField("chunking"):
        return None
    mode = next((name for name, number in MODES.items() if number == opening.chunking.mode), None)
    if mode is None:
        raise InvalidArgument(f"the chunking has no known mode, expected one of {', '.join(MODES)}")
    return mode


def chunking_from(opening: wire.OpenControl, policy: PolicySpec) -> Chunking | None:
    """Whether the policy serves the mode is for the schema check to say.

    Raises:  InvalidArgument: a field that the mode has no use for, or a value out of range.
    """
    mode = mode_of(opening)
    if mode is None:
        return None
    message = opening.chunking
    for descriptor, _ in message.ListFields():
        if descriptor.name != "mode" and descriptor.name not in FIELDS[mode]:
            raise InvalidArgument(
                f"chunking mode {mode!r} has no use for {descriptor.name}, only for {', '.join(FIELDS[mode])}"
            )
    if mode == TEMPORAL_ENSEMBLE:
        return Chunking(mode, policy.action_horizon - 1, ensemble_decay=_decay(message))
    params: dict[str, ParamValue] = {"chunking": mode}
    if message.schedule != wire.RealTimeChunking.SCHEDULE_UNSPECIFIED:
        params["schedule"] = _schedule(message.schedule)
    if message.HasField("max_guidance_weight"):
        params["max_guidance_weight"] = message.max_guidance_weight
    horizon, given = _attention_horizon(opening, policy, mode)
    limit = policy.action_horizon - 1
    if mode == "prefix" and policy.max_prefix_delay is not None:
        limit = min(limit, policy.max_prefix_delay)
    if message.HasField("delay"):
        params["delay"] = message.delay
    chunking = Chunking(mode, limit, params, params.get("delay"), horizon, given)  # type: ignore[arg-type]
    if chunking.delay is not None:
        check_delay(chunking, chunking.delay)
    return chunking


def check_delay(chunking: Chunking, delay: int) -> None:
    """Raises:  InvalidArgument: no chunk can be made for it."""
    if delay > chunking.max_delay:
        why = "the policy was trained for" if chunking.mode == "prefix" else "a chunk of this policy can bridge"
        raise InvalidArgument(f"the delay is {delay} actions, the most that {why} is {chunking.max_delay}")
    if chunking.attention_horizon_is_given and delay > (chunking.attention_horizon or 0):
        raise InvalidArgument(
            f"the delay is {delay} actions, but prefix_attention_horizon is {chunking.attention_horizon}: "
            "expected at least the delay"
        )


def continuation(chunking: Chunking | None, arrived: Arrived, estimate: DelayEstimate) -> Continuation | None:
    """None: the chunk is made from nothing. An estimate that is too large loses its oldest measurement.

    Raises:  InvalidArgument: the observation says too little, too much or nonsense for this session.
    """
    message = arrived.message
    if chunking is None or not chunking.of_the_model:
        _refuse_fields(chunking, message)
        if chunking is not None and arrived.tick is None:
            raise InvalidArgument(f"the observation has no executed_index, which chunking mode {chunking.mode!r} needs")
        return None
    if chunking.delay is not None and message.HasField("delay") and message.delay != chunking.delay:
        raise InvalidArgument(
            f"the observation has delay {message.delay}, but the session was opened with {chunking.delay} for all"
        )
    previous = _previous_actions(arrived)
    if previous is None:
        return None
    delay = chunking.delay
    if delay is None:
        delay = message.delay if message.HasField("delay") else min(estimate.ticks, len(previous))
    try:
        check_delay(chunking, delay)
    except MstarError as error:
        if chunking.delay is None and not message.HasField("delay"):
            estimate.forget_oldest()
            raise InvalidArgument(f"{error} (estimated from the last answers: the server is too slow)") from None
        raise
    num_left = len(previous)
    # After those the robot holds and consumes nothing: to freeze more would make it stand still for as long.
    delay = min(delay, num_left)
    params = chunking.params | {"delay": delay}
    if chunking.attention_horizon is not None:
        horizon = chunking.attention_horizon
        params["prefix_attention_horizon"] = (
            horizon if chunking.attention_horizon_is_given else max(min(horizon, num_left), delay)
        )
    return Continuation(previous, delay, params)


def _previous_actions(arrived: Arrived) -> np.ndarray | None:
    message = arrived.message
    if message.HasField("previous_actions"):
        given = vector(message.previous_actions, "previous_actions")
        return given if given.shape[:1] != (0,) else None
    if arrived.tick is not None:
        return arrived.episode.sent.not_executed(arrived.tick)
    raise InvalidArgument(
        "the observation has neither executed_index nor previous_actions, of which chunking needs one after a chunk"
    )


def _refuse_fields(chunking: Chunking | None, message: wire.Observation) -> None:
    for name in ("delay", "previous_actions"):
        if message.HasField(name):
            how = "without chunking" if chunking is None else f"with chunking mode {chunking.mode!r}"
            raise InvalidArgument(f"the observation has {name}, which a session {how} does not use: leave it unset")


def _attention_horizon(opening: wire.OpenControl, policy: PolicySpec, mode: str) -> tuple[int | None, bool]:
    message = opening.chunking
    if message.HasField("prefix_attention_horizon"):
        if message.prefix_attention_horizon > policy.action_horizon:
            raise InvalidArgument(
                f"prefix_attention_horizon is {message.prefix_attention_horizon}, expected at most "
                f"{policy.action_horizon}, the actions of a chunk"
            )
        return message.prefix_attention_horizon, True
    if opening.HasField("replan_every") and "prefix_attention_horizon" in FIELDS[mode]:
        return policy.action_horizon - opening.replan_every, False
    return None, False


def _decay(message: wire.RealTimeChunking) -> float:
    decay = message.ensemble_decay if message.HasField("ensemble_decay") else DEFAULT_DECAY
    if not DECAY_RANGE[0] <= decay <= DECAY_RANGE[1]:
        raise InvalidArgument(f"ensemble_decay is {decay}, expected {DECAY_RANGE[0]:g} to {DECAY_RANGE[1]:g}")
    return decay


def _schedule(number: wire.RealTimeChunking.Schedule) -> str:
    if number not in wire.RealTimeChunking.Schedule.values():
        raise InvalidArgument(
            f"schedule {number} is not known, expected one of {', '.join(wire.RealTimeChunking.Schedule.keys())}"
        )
    return wire.RealTimeChunking.Schedule.Name(number).removeprefix("SCHEDULE_").lower()
