"""`Filling`: what a robot sees into a message that the server takes."""

from __future__ import annotations

from mstar_rt.client.control.observation import ObservationForm, Seen
from mstar_rt.client.control.shared_path import SharedPath
from mstar_rt.errors import InvalidArgument, Unavailable
from mstar_rt.protos import control_pb2 as wire

REST_OF_MESSAGE_BYTES = 32 << 10
"""Of an observation besides its images: state, noise, previous actions."""


class Filling:
    """`max_message_bytes`: of the server that is connected; 0: it has not said."""

    def __init__(self, form: ObservationForm, shared: SharedPath) -> None:
        self.max_message_bytes = 0
        self._form = form
        self._shared = shared

    def check(self, seen: Seen) -> None:
        """Raises:  InvalidArgument: it does not fit the schema."""
        self._form.check(seen)

    def fill(self, observation: wire.Observation, seen: Seen, seq: int) -> bool:
        """Returns whether raw images went into shared memory, which is then taken in the name of `seq`.

        Raises:  InvalidArgument: it does not fit the schema, or is longer than what the server takes.  Unavailable:
        there is no shared memory now.
        """
        slot = self._shared.take(seq)
        try:
            self._form.fill(observation, seen, slot)
            self._check_length(seen, shared=slot is not None)
        except BaseException:
            self._shared.give_back(seq)
            raise
        return slot is not None

    def _check_length(self, seen: Seen, shared: bool) -> None:
        """A message that the server does not take would end the connection, and each one after it in the same way."""
        num_bytes = sum(
            len(picture) if isinstance(picture, bytes) else 0 if shared else picture.nbytes
            for picture in seen.images.values()
        )
        if 0 < self.max_message_bytes < num_bytes + REST_OF_MESSAGE_BYTES:
            if self._shared.in_use and not any(isinstance(picture, bytes) for picture in seen.images.values()):
                raise Unavailable("all shared memory is taken by observations on their way, wait until one is answered")
            raise InvalidArgument(
                f"the images have {num_bytes} bytes together, the server takes messages of {self.max_message_bytes}: "
                "give JPEG files, or set max_message_mb in the server's deployment"
            )
