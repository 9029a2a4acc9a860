"""A control session without threads and sockets, and the server's side of it, on a clock that a test moves."""

from __future__ import annotations

from typing import Any

import numpy as np
from fake_policy_server import HORIZON, picture, policy_schema, rows

from mstar_rt.client import RobotAction
from mstar_rt.client.control.control_state import ControlState
from mstar_rt.client.control.observation import Seen
from mstar_rt.client.control.robot_schema import policy_info
from mstar_rt.client.control.settings import ControlSettings
from mstar_rt.clock import ManualClock
from mstar_rt.protos import control_pb2, request_pb2
from mstar_rt.protos.arrays import tensor_from_array

SEEN = Seen({"top": picture(), "wrist": picture()}, [0.0, 0.0, 0.0])
PERIOD_NS = 50_000_000


class Bench:
    """A session at 20 Hz, opened, and the server's side of it."""

    def __init__(self, horizon: int = HORIZON, num_observations: int = 1, **settings: Any) -> None:
        self.clock = ManualClock(10**9)
        given = {"model": "toy", "control_hz": 20.0, "instruction": "push", "max_action_age_s": 1e3, **settings}
        policy = policy_schema(action_horizon=horizon, num_observations=num_observations)
        self.state = ControlState(ControlSettings(**given), policy_info(policy), self.clock)
        self.epoch = self.connect().epoch

    def connect(self) -> control_pb2.OpenControl:
        opening = self.state.connecting().open
        self.epoch = opening.epoch
        self.state.received(control_pb2.ControlResponse(opened=control_pb2.ControlOpened(session_id="s")))
        return opening

    def tick(self) -> RobotAction:
        action = self.state.act(SEEN)
        self.clock.advance_ns(PERIOD_NS)
        return action

    def sent(self) -> list[Any]:
        """All that waits to be sent, each as the message it is."""
        messages = []
        while (message := self.state.outbox.pop()) is not None:
            messages.append(getattr(message, message.WhichOneof("message")))
        return messages

    def observation(self) -> control_pb2.Observation:
        (observation,) = self.sent()
        return observation

    def answer(self, seq: int, actions: np.ndarray | None = None, **more: Any) -> None:
        tensor = tensor_from_array(rows(0) if actions is None else actions)
        fields = {"answers_seq": seq, "epoch": self.epoch, "actions": tensor, **more}
        self.state.received(control_pb2.ControlResponse(chunk=control_pb2.ActionChunk(**fields)))

    def event(self, kind: str, seq: int | None = None, epoch: int | None = None, detail: str = "") -> None:
        error = request_pb2.ErrorDetail(code="INTERNAL", message=detail) if detail else None
        number = control_pb2.ControlEvent.Kind.Value(f"KIND_{kind.upper()}")
        event = control_pb2.ControlEvent(
            kind=number, seq=seq, epoch=self.epoch if epoch is None else epoch, detail=error
        )
        self.state.received(control_pb2.ControlResponse(event=event))

    def started(self, num_ticks: int = 0) -> Bench:
        """Observation 1 is answered, and so many of its actions are executed; nothing waits to be sent."""
        self.tick()
        self.sent()
        self.answer(1)
        for _ in range(num_ticks):
            self.tick()
        self.sent()
        return self


# ---- what the server does not take
