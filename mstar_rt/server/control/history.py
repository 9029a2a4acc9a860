"""The observations that a policy sees at once."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

from mstar_rt.model import CameraSpec
from mstar_rt.server.control.decoding import Seen

Window = tuple[Seen, ...]
"""Oldest first."""


class History:
    """The newest observations of an episode, as many as the policy sees at once."""

    def __init__(self, num_observations: int) -> None:
        self._num_observations = num_observations
        self._newest: deque[Seen] = deque(maxlen=num_observations)

    def add(self, seen: Seen) -> Window:
        """The window that ends with `seen`: complete from the first observation on, which is repeated."""
        self._newest.append(seen)
        missing = self._num_observations - len(self._newest)
        return (*[self._newest[0]] * missing, *self._newest)


def tensors_of(window: Window, cameras: Sequence[CameraSpec]) -> dict[str, np.ndarray]:
    """The policy's inputs. A camera that is masked now is left out; where it was masked before, the next newer image
    stands in.
    """
    newest = window[-1]
    tensors = {
        camera.tensor: _stacked(_images_of(window, camera.name)) for camera in cameras if camera.name in newest.images
    }
    if newest.state is not None:
        tensors["state"] = _stacked([seen.state for seen in window if seen.state is not None])
    return tensors


def _images_of(window: Window, camera: str) -> list[np.ndarray]:
    images: list[np.ndarray] = []
    for seen in reversed(window):
        images.append(seen.images[camera] if camera in seen.images else images[-1])
    return images[::-1]


def _stacked(arrays: Sequence[np.ndarray]) -> np.ndarray:
    return arrays[0] if len(arrays) == 1 else np.stack(arrays)
