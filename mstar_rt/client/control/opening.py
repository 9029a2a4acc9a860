"""`Client.control` and `AsyncClient.control`, which differ in what they return only."""

from __future__ import annotations

import os
from typing import Any, Generic, Literal, TypeVar

from mstar_rt.client.channel import Connection
from mstar_rt.client.control.robot_schema import RobotSchema
from mstar_rt.client.control.settings import ControlSettings, hold_action
from mstar_rt.client.control.shared_path import AUTO
from mstar_rt.client.messages import Numbers
from mstar_rt.client.recording.writer import Recording, recording_of

Session = TypeVar("Session")


class OpensControl(Generic[Session]):
    """A client that opens control sessions."""

    _control_session: type[Session]
    _connection: Connection

    def control(
        self,
        model: str,
        *,
        control_hz: float,
        instruction: str | None = None,
        schema: RobotSchema | None = None,
        chunking: str | None = None,
        schedule: str | None = None,
        max_guidance_weight: float | None = None,
        prefix_attention_horizon: int | None = None,
        delay: int | None = None,
        ensemble_decay: float | None = None,
        replan_every: int | None = None,
        budget_ms: float | None = None,
        num_denoise_steps: int | None = None,
        anytime: bool = False,
        seed: int | None = None,
        hold: Numbers | str | None = None,
        max_action_age_s: float | None = None,
        epoch: int = 0,
        heartbeat_timeout_s: float = 2.0,
        open_timeout_s: float = 30.0,
        shared_memory: bool | Literal["auto"] = AUTO,
        record: str | os.PathLike[str] | Recording | None = None,
        **model_options: Any,
    ) -> Session:
        """A robot's session with a policy, to be used in `with` (`async with`). None: the default that is named here.

        Args:
            control_hz: actions that the robot executes per second.
            instruction: what to do, for policies that take one.
            schema: what the robot sends and takes; compared with the policy's before anything moves. None: just as
                the policy has it.
            chunking: how a chunk continues the one before. "guided" or "guided_identity" (real-time chunking with the
                true or the identity Jacobian), "prefix" (for policies trained for it), "temporal_ensemble"; None: not
                at all.
            schedule: how the guidance fades after the delay: "linear", "exponential", "ones", "zeros". None: the
                model's.
            max_guidance_weight: bound of the guidance's weight. None: the model's.
            prefix_attention_horizon: actions of the last chunk that guide the new one. None: action_horizon -
                replan_every, or the model's.
            delay: actions consumed while a chunk is made. None: the most that the last 10 chunks took, without the
                first, as far as the policy can bridge it; `ControlStats.num_outrun` counts where it could not.
            ensemble_decay: each newer chunk weighs exp(-decay) of the one before it, the oldest 1. None: 0.01.
            replan_every: ticks between two observations. None: the next one goes out when the last is answered.
            budget_ms: an observation's chunk is useless later than this after its arrival. None: `max_action_age_s`.
            num_denoise_steps: flow or diffusion steps. None: the policy's.
            anytime: where there is not the time for all of them before `budget_ms` is over, run as many as there is
                time for, down to the model option `min_denoise_steps`; `ActionChunk.num_denoise_steps` says how many.
                Needs `budget_ms` or `max_action_age_s`.
            seed: equal observations then give equal chunks. None: fresh noise.
            hold: what the robot does while no action is due: an action [A] that keeps it still, "repeat_last" (for
                positions, not for velocities), or None: `RobotAction.action` is None.
            max_action_age_s: no action is given out whose observation is older; the robot is told to stop. None: twice
                the time that a chunk lasts, at least 1 s.
            epoch: number of the first episode.
            heartbeat_timeout_s: a server that is silent for so long is lost, and connected to again.
            open_timeout_s: how long the server may take to open the session.
            shared_memory: raw images go through memory that the server reads, not through the connection. "auto": where
                the server runs on this machine as this user, see `ControlStats.shared_memory`; True: or the session is
                not opened; False: never.
            record: a file to record the session in, for `mstar-rt replay`; behind the sessions that are in it already.
                A `Recording` also says how long the file may become, 4 GiB otherwise. None: it is not recorded.
            model_options: further options that `describe` lists for the policy's task.
        Raises:  InvalidArgument, FailedPrecondition: the policy cannot do that; all that differs is in the message.
                 NotFound, Unavailable, ResourceExhausted: the server refuses, or is not there.
        """
        settings = ControlSettings(
            model=model, control_hz=control_hz, instruction=instruction, schema=schema, chunking=chunking,
            schedule=schedule, max_guidance_weight=max_guidance_weight,
            prefix_attention_horizon=prefix_attention_horizon, delay=delay, ensemble_decay=ensemble_decay,
            replan_every=replan_every, budget_ms=budget_ms, num_denoise_steps=num_denoise_steps,
            anytime=anytime, seed=seed, hold=hold_action(hold), max_action_age_s=max_action_age_s,
            epoch=epoch, heartbeat_timeout_s=heartbeat_timeout_s, open_timeout_s=open_timeout_s,
            shared_memory=shared_memory, record=recording_of(record), model_options=model_options,
        )  # fmt: skip
        return self._control_session(self._connection, settings)  # type: ignore[call-arg]
