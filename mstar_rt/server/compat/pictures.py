"""A foreign client's image as the policy's camera has it. Layout, values and resizing are declared, never guessed."""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np

from mstar_rt.config_dialects import CameraSource
from mstar_rt.errors import InvalidArgument
from mstar_rt.model import CameraSpec


def picture(value: Any, source: CameraSource, camera: CameraSpec, batch_dims: int = 0) -> np.ndarray:
    """[height, width, 3] uint8, RGB. `batch_dims` leading dimensions of size 1 are taken off.

    Raises:  InvalidArgument.
    """
    if not isinstance(value, np.ndarray):
        raise InvalidArgument(f"{source.key!r} is {_kind(value)}, expected an image as an array")
    image = _layout(without_batch(value, batch_dims, source.key), source)
    image = _values(image, source)
    wanted = (camera.height, camera.width)
    if image.shape[:2] == wanted:
        return image
    if source.resize == "none":
        raise InvalidArgument(
            f"{source.key!r} is {image.shape[0]} x {image.shape[1]}, expected {camera.height} x {camera.width} "
            f"(height x width) for camera {camera.name!r}; resize it, or declare resize: pad or stretch"
        )
    return _padded(image, wanted) if source.resize == "pad" else _resized(image, wanted)


def without_batch(value: np.ndarray, batch_dims: int, key: str) -> np.ndarray:
    if value.shape[:batch_dims] != (1,) * batch_dims:
        raise InvalidArgument(f"{key!r} has shape {list(value.shape)}, expected {batch_dims} leading sizes of 1")
    return value.reshape(value.shape[batch_dims:])


def _layout(image: np.ndarray, source: CameraSource) -> np.ndarray:
    channels = 0 if source.layout == "chw" else 2
    if image.ndim != 3 or image.shape[channels] != 3 or 0 in image.shape:
        expected = "[3, height, width]" if source.layout == "chw" else "[height, width, 3]"
        raise InvalidArgument(
            f"{source.key!r} has shape {list(image.shape)}, expected {expected} as the declared layout {source.layout}"
        )
    return image.transpose(1, 2, 0) if source.layout == "chw" else image


def _values(image: np.ndarray, source: CameraSource) -> np.ndarray:
    if source.values == "uint8":
        if image.dtype != np.uint8:
            raise InvalidArgument(f"{source.key!r} is {image.dtype}, expected uint8 (declare values: unit for 0 to 1)")
        return image
    if image.dtype.kind != "f":
        raise InvalidArgument(f"{source.key!r} is {image.dtype}, expected floats in [0, 1] as declared (values: unit)")
    if not (image.min() >= 0 and image.max() <= 1):  # also false for NaN
        raise InvalidArgument(f"{source.key!r} has values outside [0, 1], expected floats in [0, 1] as declared")
    return np.rint(image.astype(np.float32) * 255).astype(np.uint8)


def _resized(image: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    shrinks = size[0] < image.shape[0] or size[1] < image.shape[1]
    how = cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR
    return cv2.resize(np.ascontiguousarray(image), (size[1], size[0]), interpolation=how)


def _padded(image: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    scale = min(size[0] / image.shape[0], size[1] / image.shape[1])
    inner = (max(round(image.shape[0] * scale), 1), max(round(image.shape[1] * scale), 1))
    top, left = (size[0] - inner[0]) // 2, (size[1] - inner[1]) // 2
    padded = np.zeros((*size, 3), np.uint8)
    padded[top : top + inner[0], left : left + inner[1]] = _resized(image, inner)
    return padded


def _kind(value: Any) -> str:
    return "nothing" if value is None else f"a {type(value).__name__}"
