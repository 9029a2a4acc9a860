"""What the robot sees, checked against the schema and as a wire message."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mstar_rt.client import messages
from mstar_rt.client.control.robot_schema import CameraSchema, PolicyInfo, RobotSchema
from mstar_rt.client.control.shared_slots import Slot
from mstar_rt.client.messages import Numbers
from mstar_rt.errors import InvalidArgument, nearest
from mstar_rt.protos import control_pb2 as wire
from mstar_rt.protos import tensor_pb2
from mstar_rt.protos.arrays import fill_tensor

Picture = np.ndarray | bytes
"""uint8 [height, width, 3], RGB, or a whole JPEG or PNG file of that size."""


@dataclass(frozen=True)
class Seen:
    """What `act` is given: one picture per camera, the state [S] in robot units."""

    images: Mapping[str, Picture]
    state: Numbers | None = None
    masked_cameras: Sequence[str] = ()
    noise: Numbers | None = None


class ObservationForm:
    """Fills observations of one robot. Cameras that its schema lacks are not spoken of: the server knows of that."""

    def __init__(self, schema: RobotSchema, policy: PolicyInfo) -> None:
        self._cameras = {camera.name: camera for camera in schema.cameras}
        self._may_be_masked = {camera.name for camera in policy.schema.cameras if camera.may_be_masked}
        self._state_size = None if schema.state is None else schema.state.size

    def fill(self, message: wire.Observation, seen: Seen, slot: Slot | None = None) -> None:
        """Copies everything, raw images into `slot` if there is one, so that the caller may use its arrays again.

        Raises:  InvalidArgument: it does not fit the schema.
        """
        state = self.check(seen)
        for name, picture in seen.images.items():
            _fill_image(message.images[name], self._cameras[name], picture, slot)
        message.masked_cameras.extend(seen.masked_cameras)
        if state is not None:
            fill_tensor(message.state, "float32", (state.size,), state.tobytes())
        if seen.noise is not None:
            message.noise.CopyFrom(messages.numbers(seen.noise, "noise"))

    def check(self, seen: Seen) -> np.ndarray | None:
        """The state [S] float32, None if the robot has none.

        Raises:  InvalidArgument: it does not fit the schema.
        """
        self._check_cameras(seen)
        for name, picture in seen.images.items():
            _check_image(self._cameras[name], picture)
        if self._state_size is not None:
            return self._state(seen.state)
        if seen.state is not None:
            raise InvalidArgument("state is given, but the schema has none: leave it out")
        return None

    def _check_cameras(self, seen: Seen) -> None:
        if not isinstance(seen.images, Mapping):
            raise InvalidArgument(
                f"images is a {type(seen.images).__name__}, expected a mapping from cameras to images"
            )
        if isinstance(seen.masked_cameras, str):
            raise InvalidArgument(f"masked_cameras is {seen.masked_cameras!r}, expected a sequence of names")
        for name in (*seen.images, *seen.masked_cameras):
            if name not in self._cameras:
                raise InvalidArgument(f"camera {name!r} is not in the schema, {nearest(str(name), self._cameras)}")
        for name in seen.masked_cameras:
            if name in seen.images:
                raise InvalidArgument(f"camera {name!r} is masked and in images: leave one of them out")
            if name not in self._may_be_masked:
                raise InvalidArgument(f"camera {name!r} must not be masked: the policy cannot do without it")
        missing = [name for name in self._cameras if name not in seen.images and name not in seen.masked_cameras]
        if missing:
            raise InvalidArgument(f"images lacks camera {missing[0]!r}: give it, or name it in masked_cameras")

    def _state(self, state: Numbers | None) -> np.ndarray:
        if state is None:
            raise InvalidArgument(f"state is missing, expected {self._state_size} numbers")
        try:
            array = np.asarray(state, np.float32)
        except (TypeError, ValueError) as error:
            raise InvalidArgument(f"state is {state!r}, expected {self._state_size} numbers") from error
        if array.shape != (self._state_size,):
            raise InvalidArgument(f"state has shape {list(array.shape)}, expected [{self._state_size}]")
        if not np.isfinite(array).all():
            raise InvalidArgument("state holds NaN or infinity, expected finite numbers")
        return array


def _check_image(camera: CameraSchema, picture: Picture) -> None:
    if isinstance(picture, bytes):
        _encoding(camera.name, picture)
        return
    expected = (camera.height, camera.width, 3)
    if not isinstance(picture, np.ndarray) or picture.dtype != np.uint8 or picture.shape != expected:
        shown = (
            f"{picture.dtype} {list(picture.shape)}"
            if isinstance(picture, np.ndarray)
            else f"a {type(picture).__name__}"
        )
        raise InvalidArgument(
            f"the image of camera {camera.name!r} is {shown}, expected uint8 {list(expected)}, "
            "or a JPEG or PNG file as bytes"
        )


def _fill_image(image: tensor_pb2.Image, camera: CameraSchema, picture: Picture, slot: Slot | None) -> None:
    if isinstance(picture, bytes):
        image.encoding = _encoding(camera.name, picture)
        image.data = picture
        return
    image.encoding = tensor_pb2.Image.ENCODING_RAW
    image.height, image.width, image.channels = picture.shape
    if slot is None:
        image.data = picture.tobytes()
    else:
        slot.fill(image, camera.name, picture)


def _encoding(name: str, data: bytes) -> tensor_pb2.Image.Encoding:
    if data.startswith(b"\xff\xd8"):
        return tensor_pb2.Image.ENCODING_JPEG
    if data.startswith(b"\x89PNG"):
        return tensor_pb2.Image.ENCODING_PNG
    raise InvalidArgument(f"the image of camera {name!r} is {len(data)} bytes that are neither a JPEG nor a PNG file")
