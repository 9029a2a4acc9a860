"""What robots see and do, for the Rerun viewer: pictures, states, actions, chunks, plans and latencies.

python -m sim_bridge.rerun_log run.rec run.rrd    # of a recorded control session

`rerun-sdk` is an extra of its own (pip install 'mstar-rt[viz]') and imported when a log is opened.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any

import numpy as np

from mstar_rt.client import ActionChunk, Plan, RobotAction
from mstar_rt.client.control.arrivals import event_from
from mstar_rt.client.recording.file_format import RecordingReader
from mstar_rt.clock import Clock, MonotonicClock
from mstar_rt.errors import FailedPrecondition, MstarError
from mstar_rt.protos import control_pb2 as wire
from mstar_rt.protos.arrays import array_from_tensor
from mstar_rt.protos.recording_pb2 import RecordingFrame
from mstar_rt.protos.tensor_pb2 import Image


class RerunLog:
    """A .rrd file, to be used in `with`; a `sim_bridge.gym_bridge.RobotLog`. Robot i is the entity "robot_i"; its
    timelines are "tick" and, in seconds since the log was opened, "time".

    Raises:  FailedPrecondition: rerun-sdk is not installed.
    """

    def __init__(self, path: str | os.PathLike[str], clock: Clock | None = None) -> None:
        try:
            import rerun
        except ImportError as error:
            raise FailedPrecondition("rerun-sdk is not installed: pip install 'mstar-rt[viz]'") from error
        self._rerun = rerun
        self._stream: Any = rerun.RecordingStream("mstar-rt")
        self._stream.save(os.fspath(path))
        self._clock = clock or MonotonicClock()
        self._started_ns = self._clock.now_ns()

    def __enter__(self) -> RerunLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._stream.flush()
        self._stream.disconnect()

    # ---- robots

    def seen(self, robot: int, tick: int, images: Mapping[str, np.ndarray | bytes], state: np.ndarray | None) -> None:
        """Images uint8 [height, width, 3], RGB, or JPEG or PNG files; state [S] in robot units."""
        self._at(tick)
        for camera, image in images.items():
            self._picture(f"robot_{robot}/{camera}", image)
        if state is not None:
            self._numbers(f"robot_{robot}/state", state)

    def acted(self, robot: int, tick: int, action: RobotAction) -> None:
        self._at(tick)
        if action.action is not None:
            self._numbers(f"robot_{robot}/action", action.action)
        if action.kind != "chunk":
            self._say(f"robot_{robot}/events", f"{action.kind}: {action.reason}")
        if action.age_s is not None:
            self._numbers(f"robot_{robot}/action_age_ms", [1e3 * action.age_s])

    def chunk(self, robot: int, tick: int, chunk: ActionChunk) -> None:
        """As the server made it, from the tick of its observation on."""
        self._at(tick)
        self._actions(f"robot_{robot}/chunk", chunk.actions)
        self._numbers(f"robot_{robot}/latency_ms/chunk", [1e3 * chunk.latency_s])
        self._numbers(f"robot_{robot}/latency_ms/server", [chunk.timing.total_us / 1e3])

    def plan(self, robot: int, tick: int, plan: Plan, latency_ms: float) -> None:
        """A world model's, e.g. from the `on_plan` of `sim_bridge.episode.run_episode`."""
        self._at(tick)
        self._actions(f"robot_{robot}/plan", plan.actions)
        self._numbers(f"robot_{robot}/plan_cost", [plan.cost])
        self._numbers(f"robot_{robot}/latency_ms/plan", [latency_ms])

    def recorded(self, frame: RecordingFrame, robot: int = 0) -> None:
        """One frame of a recording, on the timelines "time" and "observation"."""
        self._stream.set_time("time", duration=frame.time_ns / 1e9)
        if frame.request.HasField("observation"):
            self._observation(frame.request.observation, f"robot_{robot}")
        elif frame.response.HasField("chunk"):
            chunk = frame.response.chunk
            self._stream.set_time("observation", sequence=chunk.answers_seq)
            self._actions(f"robot_{robot}/chunk", array_from_tensor(chunk.actions, "actions"))
            self._numbers(f"robot_{robot}/latency_ms/server", [chunk.timing.total_us / 1e3])
        elif text := _told(frame):
            self._say(f"robot_{robot}/events", text)

    # ---- entities

    def _observation(self, observation: wire.Observation, robot: str) -> None:
        self._stream.set_time("observation", sequence=observation.seq)
        for camera, image in observation.images.items():
            self._picture(f"{robot}/{camera}", _picture_of(image))
        if observation.HasField("state"):
            self._numbers(f"{robot}/state", array_from_tensor(observation.state, "state"))

    def _at(self, tick: int) -> None:
        self._stream.set_time("tick", sequence=tick)
        self._stream.set_time("time", duration=(self._clock.now_ns() - self._started_ns) / 1e9)

    def _picture(self, entity: str, image: np.ndarray | bytes) -> None:
        logged = (
            self._rerun.EncodedImage(contents=image) if isinstance(image, bytes) else self._rerun.Image(np.array(image))
        )
        self._stream.log(entity, logged)

    def _numbers(self, entity: str, values: Any) -> None:
        self._stream.log(entity, self._rerun.Scalars(np.asarray(values, np.float64)))

    def _actions(self, entity: str, actions: np.ndarray) -> None:
        """Each dimension over the steps, as a line, and the numbers themselves."""
        steps = np.arange(len(actions))
        lines = [np.column_stack([steps, actions[:, index]]) for index in range(actions.shape[1])]
        self._stream.log(entity, self._rerun.LineStrips2D(lines))
        self._stream.log(f"{entity}/numbers", self._rerun.Tensor(np.array(actions), dim_names=("step", "dimension")))

    def _say(self, entity: str, text: str) -> None:
        self._stream.log(entity, self._rerun.TextLog(text))


def write_rrd(recording: str | os.PathLike[str], rrd: str | os.PathLike[str]) -> int:
    """Returns the number of frames. Raises:  FailedPrecondition: it is no recording; rerun-sdk is not installed."""
    num_frames = 0
    with RerunLog(rrd) as log:
        for frame in _frames(recording):
            log.recorded(frame)
            num_frames += 1
    return num_frames


def _frames(recording: str | os.PathLike[str]) -> Iterator[RecordingFrame]:
    with open(recording, "rb") as file:
        for _, frame in RecordingReader(file):
            yield frame


def _picture_of(image: Image) -> np.ndarray | bytes:
    if image.encoding != Image.ENCODING_RAW:
        return image.data
    return np.frombuffer(image.data, np.uint8).reshape(image.height, image.width, image.channels)


def _told(frame: RecordingFrame) -> str:
    if frame.response.HasField("event"):
        event, _ = event_from(frame.response.event)
        return f"{event.kind} {'' if event.seq is None else event.seq} {event.detail}".strip()
    if frame.request.HasField("set_instruction"):
        return f"instruction: {frame.request.set_instruction.instruction}"
    if frame.request.HasField("reset"):
        return f"episode {frame.request.reset.epoch}"
    return f"the recording ends: {frame.end.reason}" if frame.HasField("end") else ""


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m sim_bridge.rerun_log", description="A recording for the Rerun viewer."
    )
    parser.add_argument("recording")
    parser.add_argument("rrd", help="the file to write")
    args = parser.parse_args(argv)
    try:
        num_frames = write_rrd(args.recording, args.rrd)
    except (MstarError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{args.rrd}: {num_frames} frames")
    return 0


if __name__ == "__main__":
    sys.exit(main())
