"""`Tape`: what of a control session goes into its recording, as it happens."""

from __future__ import annotations

import time

from mstar_rt import __version__
from mstar_rt.client.control.robot_schema import PolicyInfo, policy_message
from mstar_rt.client.control.shared_path import SharedPath
from mstar_rt.client.recording.writer import Recording, RecordingWriter
from mstar_rt.clock import Clock
from mstar_rt.protos import control_pb2 as wire
from mstar_rt.protos.recording_pb2 import RecordingFrame, RecordingHeader


class Tape:
    """Raises:  FailedPrecondition: the file cannot be written."""

    def __init__(
        self, recording: Recording, policy: PolicyInfo, address: str, clock: Clock, shared: SharedPath
    ) -> None:
        self._writer = RecordingWriter(recording)
        self._clock = clock
        self._shared = shared
        self._started_ns = clock.now_ns()
        self._end_is_known = False
        header = RecordingHeader(
            recorder=f"mstar-rt {__version__}",
            address=address,
            created_unix_ms=time.time_ns() // 1_000_000,
            policy=policy_message(policy),
        )
        self._writer.put(RecordingFrame(header=header))

    def sent(self, request: wire.ControlRequest) -> None:
        """It is about to be sent. The memory that its images may lie in is still theirs."""
        if request.WhichOneof("message") == "heartbeat":
            return
        frame = RecordingFrame(time_ns=self._time_ns(), request=request)
        for image in frame.request.observation.images.values() if request.HasField("observation") else ():
            if image.HasField("shared"):
                image.data = self._shared.read(image.shared)
        self._writer.put(frame)

    def received(self, response: wire.ControlResponse) -> None:
        if response.WhichOneof("message") != "heartbeat":
            self._writer.put(RecordingFrame(time_ns=self._time_ns(), response=response))

    def has_ended(self) -> str:
        """Why the recording has ended, once; "" else."""
        if self._end_is_known or not self._writer.ended:
            return ""
        self._end_is_known = True
        return self._writer.ended

    def close(self) -> None:
        self._writer.close()

    def _time_ns(self) -> int:
        return self._clock.now_ns() - self._started_ns
