"""An observation's messages to arrays. The only place of a control session that reads images and tensors."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mstar_rt.errors import InvalidArgument, nearest
from mstar_rt.model import CameraSpec
from mstar_rt.protos import control_pb2 as wire
from mstar_rt.protos import tensor_pb2
from mstar_rt.protos.arrays import array_from_tensor
from mstar_rt.server.control.region import SharedRegion
from mstar_rt.server.images import compressed_size, decode_image, raw_image, takes_long

OFF_LOOP_COPIED_BYTES = 4 << 20
"""Of shared memory, beyond which they are copied on another thread: a memory copy does about 5 GB/s."""
MAX_SHARED_STATE_BYTES = 64 << 10
"""Copied before it is compared with the policy's state."""


@dataclass(frozen=True)
class Seen:
    """One observation: images by camera, [h, w, 3] uint8, of those that are not masked; the state, [S] float32."""

    images: Mapping[str, np.ndarray]
    state: np.ndarray | None


async def decode(
    message: wire.Observation, cameras: Sequence[CameraSpec], has_state: bool, region: SharedRegion | None
) -> Seen:
    """Raw images and tensors become views of the message's bytes, or copies of what they refer to in `region`.

    Raises:  InvalidArgument: a camera or the state is missing, unknown, masked wrongly or not decodable.
    FailedPrecondition: the robot has overwritten what it refers to.
    """
    _check_cameras(message, cameras)
    if has_state != message.HasField("state"):
        raise InvalidArgument(
            "the observation has no state, which the policy needs"
            if has_state
            else "the observation has a state, but the session was opened without one"
        )
    images = await _images(message.images, region)
    return Seen(images, _vector(message.state, "state", region) if has_state else None)


def vector(tensor: tensor_pb2.Tensor, name: str) -> np.ndarray:
    return array_from_tensor(tensor, name)


async def _images(images: Mapping[str, tensor_pb2.Image], region: SharedRegion | None) -> dict[str, np.ndarray]:
    """Decompressing several is long enough to be done beside the event loop, and so is copying large ones."""
    num_copied = sum(image.shared.num_bytes for image in images.values() if image.WhichOneof("content") == "shared")
    if num_copied > OFF_LOOP_COPIED_BYTES or takes_long(images.values()):
        return await asyncio.to_thread(_decode_all, images, region)
    return _decode_all(images, region)


def _decode_all(images: Mapping[str, tensor_pb2.Image], region: SharedRegion | None) -> dict[str, np.ndarray]:
    return {name: _image(image, name, region) for name, image in images.items()}


def _image(image: tensor_pb2.Image, name: str, region: SharedRegion | None) -> np.ndarray:
    if region is None or image.WhichOneof("content") != "shared":
        return decode_image(image, name)
    if image.encoding != tensor_pb2.Image.ENCODING_RAW:
        raise InvalidArgument(f"image {name!r} is in shared memory, where only raw images are taken: send it in `data`")
    own = region.copied(raw_image(image, region.view(image.shared, name), name), name)
    region.check(image.shared, name)
    return own


def _check_size(image: tensor_pb2.Image, camera: CameraSpec) -> None:
    """Before any pixel is made or copied: a small file, or a reference, can stand for very many. What says no size is
    for the decoder to refuse.
    """
    if image.encoding == tensor_pb2.Image.ENCODING_RAW:
        size = (image.height, image.width) if image.height and image.width else None
    else:
        size = compressed_size(image, image.data)
    if size is not None and size != (camera.height, camera.width):
        raise InvalidArgument(
            f"the image of camera {camera.name!r} is {size[0]} x {size[1]}, expected {camera.height} x {camera.width} "
            "(height x width), as the session was opened with: resize it on the robot"
        )


def _vector(tensor: tensor_pb2.Tensor, name: str, region: SharedRegion | None) -> np.ndarray:
    if region is None or tensor.WhichOneof("content") != "shared":
        return vector(tensor, name)
    if tensor.shared.num_bytes > MAX_SHARED_STATE_BYTES:
        raise InvalidArgument(
            f"tensor {name!r} refers to {tensor.shared.num_bytes} bytes of shared memory, expected at most "
            f"{MAX_SHARED_STATE_BYTES}: no state is larger"
        )
    own = region.copied(array_from_tensor(tensor, name, region.view(tensor.shared, name)), "")
    region.check(tensor.shared, name)
    return own


def _check_cameras(message: wire.Observation, cameras: Sequence[CameraSpec]) -> None:
    known = {camera.name: camera for camera in cameras}
    for name in (*message.images, *message.masked_cameras):
        if name not in known:
            raise InvalidArgument(f"the session has no camera {name!r}, {nearest(name, known)}")
    for name in message.masked_cameras:
        if name in message.images:
            raise InvalidArgument(f"camera {name!r} is masked and has an image: expected one of the two")
        if not known[name].may_be_masked:
            raise InvalidArgument(f"camera {name!r} is masked, but the policy needs it")
    for name, image in message.images.items():
        _check_size(image, known[name])
    for name in known:
        if name not in message.images and name not in message.masked_cameras:
            raise InvalidArgument(
                f"camera {name!r} is missing: send its image"
                + (", or name it in masked_cameras" if known[name].may_be_masked else "")
            )
