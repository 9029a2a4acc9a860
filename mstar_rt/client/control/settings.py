"""`ControlSettings`: what one control session was asked for, each value checked, and its first message."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from mstar_rt.client import arguments, messages
from mstar_rt.client.control.action_queue import REPEAT_LAST
from mstar_rt.client.control.robot_schema import MODES, PolicyInfo, RobotSchema, check_schema, robot_schema_message
from mstar_rt.client.control.shared_path import AUTO
from mstar_rt.client.recording.writer import Recording
from mstar_rt.errors import FailedPrecondition, InvalidArgument, nearest
from mstar_rt.protos import control_pb2 as wire
from mstar_rt.protos import request_pb2

SCHEDULES = {
    "linear": wire.RealTimeChunking.SCHEDULE_LINEAR,
    "exponential": wire.RealTimeChunking.SCHEDULE_EXPONENTIAL,
    "ones": wire.RealTimeChunking.SCHEDULE_ONES,
    "zeros": wire.RealTimeChunking.SCHEDULE_ZEROS,
}
_GUIDED = ("guided", "guided_identity")
_OF_THE_MODEL = (*_GUIDED, "prefix")
_GOES_WITH = {
    "schedule": _GUIDED, "max_guidance_weight": _GUIDED, "prefix_attention_horizon": _GUIDED,
    "delay": _OF_THE_MODEL, "ensemble_decay": ("temporal_ensemble",),
}  # fmt: skip
MAX_CONTROL_HZ = 1e4
LEAST_HEARTBEAT_TIMEOUT_S = 0.1
OF_ACT = ("images", "state", "masked_cameras", "noise")


@dataclass(frozen=True)
class ControlSettings:
    """See `Client.control`. Raises InvalidArgument for a value that no policy could take."""

    model: str
    control_hz: float
    instruction: str | None = None
    schema: RobotSchema | None = None
    chunking: str | None = None
    schedule: str | None = None
    max_guidance_weight: float | None = None
    prefix_attention_horizon: int | None = None
    delay: int | None = None
    ensemble_decay: float | None = None
    replan_every: int | None = None
    budget_ms: float | None = None
    num_denoise_steps: int | None = None
    anytime: bool = False
    seed: int | None = None
    hold: np.ndarray | str | None = None
    max_action_age_s: float | None = None
    epoch: int = 0
    heartbeat_timeout_s: float = 2.0
    open_timeout_s: float = 30.0
    shared_memory: bool | Literal["auto"] = AUTO
    record: Recording | None = None
    model_options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        arguments.text("model", self.model)
        arguments.positive("control_hz", self.control_hz, MAX_CONTROL_HZ)
        if self.instruction is not None:
            arguments.text("instruction", self.instruction)
        if self.schema is not None and not isinstance(self.schema, RobotSchema):
            raise InvalidArgument(f"schema is {self.schema!r}, expected a RobotSchema, or None for the policy's own")
        self._check_chunking()
        arguments.count("replan_every", self.replan_every)
        arguments.count("num_denoise_steps", self.num_denoise_steps)
        if not isinstance(self.anytime, bool):
            raise InvalidArgument(f"anytime is {self.anytime!r}, expected True or False")
        arguments.budget_ms(self.budget_ms)
        if self.anytime and self.budget_ms is None and self.max_action_age_s is None:
            raise InvalidArgument(
                "anytime makes a chunk in fewer steps where it would miss its deadline, and there is none: give "
                f"budget_ms, e.g. {1e3 / self.control_hz:.4g}, one control period"
            )
        if self.seed is not None:
            arguments.whole_from_0("seed", self.seed)
        arguments.whole_from_0("epoch", self.epoch)
        for name in ("max_action_age_s", "heartbeat_timeout_s", "open_timeout_s"):
            if name != "max_action_age_s" or self.max_action_age_s is not None:
                arguments.positive(name, getattr(self, name), arguments.MAX_TIMEOUT_S)
        if self.heartbeat_timeout_s < LEAST_HEARTBEAT_TIMEOUT_S:
            raise InvalidArgument(
                f"heartbeat_timeout_s is {self.heartbeat_timeout_s:g}, expected at least {LEAST_HEARTBEAT_TIMEOUT_S}: "
                "a server that is busy for a moment is not lost"
            )
        _check_hold(self.hold)
        if self.shared_memory != AUTO and not isinstance(self.shared_memory, bool):
            raise InvalidArgument(f'shared_memory is {self.shared_memory!r}, expected True, False or "{AUTO}"')
        self._options()

    def _check_chunking(self) -> None:
        if self.chunking is not None and (not isinstance(self.chunking, str) or self.chunking not in MODES):
            raise InvalidArgument(f"chunking is {self.chunking!r}, expected None or one of {', '.join(MODES)}")
        for name, modes in _GOES_WITH.items():
            if getattr(self, name) is not None and self.chunking not in modes:
                raise InvalidArgument(
                    f"{name} is given with chunking {self.chunking!r}, which has no use for it: "
                    f"leave it out, or use chunking {' or '.join(repr(mode) for mode in modes)}"
                )
        if self.schedule is not None and (not isinstance(self.schedule, str) or self.schedule not in SCHEDULES):
            raise InvalidArgument(f"schedule is {self.schedule!r}, expected one of {', '.join(SCHEDULES)}")
        for name in ("max_guidance_weight", "ensemble_decay"):
            if getattr(self, name) is not None:
                arguments.finite(name, getattr(self, name))
        arguments.count("prefix_attention_horizon", self.prefix_attention_horizon)
        if self.delay is not None:
            arguments.whole_from_0("delay", self.delay)

    @property
    def sends_delay(self) -> bool:
        """Each observation says what this side expects; temporal ensembling has no use for it."""
        return self.chunking in _OF_THE_MODEL and self.delay is None

    @property
    def chunking_of_model(self) -> bool:
        return self.chunking in _OF_THE_MODEL

    def check_against(self, policy: PolicyInfo) -> None:
        """Raises:  FailedPrecondition, InvalidArgument: this policy cannot do that; nothing has been sent."""
        check_schema(self.schema or policy.schema, policy, self.model)
        self._check_instruction(policy)
        horizon = policy.action_horizon
        if self.chunking is not None and self.chunking not in policy.chunking:
            known = nearest(self.chunking, policy.chunking)
            raise FailedPrecondition(f"the policy {self.model!r} has no chunking {self.chunking!r}, {known}")
        if self.anytime and not policy.anytime:
            raise FailedPrecondition(f"the policy {self.model!r} has no denoise steps to leave out: leave out anytime")
        for name, limit in (("replan_every", horizon), ("prefix_attention_horizon", horizon), ("delay", horizon - 1)):
            value = getattr(self, name)
            if value is not None and value > limit:
                raise InvalidArgument(f"{name} is {value}, expected at most {limit}: a chunk has {horizon} actions")
        if self.chunking == "prefix" and self.delay is not None and self.delay > (policy.max_prefix_delay or 0):
            trained = f"{self.model!r} is trained for {policy.max_prefix_delay or 0}"
            raise InvalidArgument(f"delay is {self.delay}, which is too large: {trained}")
        reach = self.prefix_attention_horizon
        if reach is not None and self.delay is not None and reach < self.delay:
            raise InvalidArgument(f"prefix_attention_horizon is {reach}, expected at least the delay of {self.delay}")
        self._check_replanning(horizon)
        size = policy.schema.action.size
        if isinstance(self.hold, np.ndarray) and self.hold.shape != (size,):
            raise InvalidArgument(f"hold has shape {list(self.hold.shape)}, expected an action of {size} numbers")

    def _check_replanning(self, horizon: int) -> None:
        """A robot that always starves is a mistake."""
        if self.replan_every is None:
            return
        if self.delay is not None and self.replan_every + self.delay > horizon:
            raise InvalidArgument(
                f"replan_every is {self.replan_every} and delay {self.delay}, expected together at most the {horizon} "
                "actions of a chunk: the robot would run out of them each time"
            )
        lasts_s = self.replan_every / self.control_hz
        if self.max_action_age_s is not None and self.max_action_age_s < lasts_s:
            raise InvalidArgument(
                f"max_action_age_s is {self.max_action_age_s:g}, but with replan_every {self.replan_every} at "
                f"{self.control_hz:g} Hz a chunk is used for {lasts_s:g} s: replan more often, or allow older actions"
            )

    def _check_instruction(self, policy: PolicyInfo) -> None:
        if self.instruction and not policy.takes_instruction:
            raise FailedPrecondition(f"the policy {self.model!r} takes no instruction: leave it out")
        if policy.takes_instruction and not (self.instruction or "").strip():
            raise FailedPrecondition(f"the policy {self.model!r} takes an instruction: give one")

    def age_limit_s(self, policy: PolicyInfo) -> float:
        """`max_action_age_s`, or twice the time that a chunk lasts, at least 1 s."""
        if self.max_action_age_s is not None:
            return float(self.max_action_age_s)
        return max(1.0, 2.0 * policy.action_horizon / self.control_hz)

    def longest_delay(self, policy: PolicyInfo) -> int:
        """The most actions that a chunk can bridge: a robot that consumes more while it is made sees a seam."""
        limits = [policy.action_horizon - 1]
        if self.chunking == "prefix":
            limits.append(policy.max_prefix_delay or 0)
        if self.prefix_attention_horizon is not None:
            limits.append(self.prefix_attention_horizon)
        return min(limits)

    def opening(self, policy: PolicyInfo, epoch: int, instruction: str, seed: int | None) -> wire.OpenControl:
        return wire.OpenControl(
            model=self.model,
            instruction=instruction,
            control_hz=self.control_hz,
            replan_every=self.replan_every,
            schema=robot_schema_message(self.schema or policy.schema),
            chunking=self._chunking_message(),
            budget_ms=1e3 * self.age_limit_s(policy) if self.budget_ms is None else self.budget_ms,
            num_denoise_steps=self.num_denoise_steps,
            anytime=self.anytime or None,
            seed=seed,
            epoch=epoch,
            model_options=self._options(),
        )

    def _options(self) -> dict[str, request_pb2.OptionValue]:
        for name in OF_ACT:
            if name in self.model_options:
                raise InvalidArgument(f"{name} belongs to each observation: give it to `act`")
        return {name: messages.option_value(name, value) for name, value in self.model_options.items()}

    def _chunking_message(self) -> wire.RealTimeChunking | None:
        if self.chunking is None:
            return None
        return wire.RealTimeChunking(
            mode=MODES[self.chunking],
            schedule=None if self.schedule is None else SCHEDULES[self.schedule],
            max_guidance_weight=self.max_guidance_weight,
            prefix_attention_horizon=self.prefix_attention_horizon,
            delay=self.delay,
            ensemble_decay=self.ensemble_decay,
        )


def hold_action(hold: object) -> np.ndarray | str | None:
    """An action as an array; anything else as it is, for `ControlSettings` to judge."""
    if hold is None or isinstance(hold, str):
        return hold
    try:
        return np.array(hold, np.float32)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f'hold is {hold!r}, expected an action, "{REPEAT_LAST}" or None') from error


def _check_hold(hold: np.ndarray | str | None) -> None:
    if isinstance(hold, str) and hold != REPEAT_LAST:
        raise InvalidArgument(f'hold is {hold!r}, expected an action, "{REPEAT_LAST}" or None')
    if isinstance(hold, np.ndarray) and not np.isfinite(hold).all():
        raise InvalidArgument("hold is an action with NaN or infinity, expected finite numbers")
