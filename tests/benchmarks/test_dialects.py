"""What the benchmark of dialects says on the wire is what its own server pattern and LeRobot's names need."""

from __future__ import annotations

import pickle
import sys

import numpy as np

from benchmarks.control.scene import noise_scenes
from benchmarks.dialects.foreign import openpi_message
from benchmarks.dialects.lerobot_classes import LEROBOT_MODULE, TimedObservation, lerobot_classes
from benchmarks.dialects.openpi import packed, unpacked


def test_an_openpi_message_comes_back() -> None:
    message = openpi_message(noise_scenes()[0])
    again = unpacked(packed(message))
    assert again.keys() == message.keys()
    for key, value in message.items():
        np.testing.assert_array_equal(again[key], value)
    assert b"__ndarray__" in packed(message)


def test_lerobot_names_are_there_for_a_while() -> None:
    with lerobot_classes():
        data = pickle.dumps(TimedObservation(0.0, 1, {}, True))
        assert f"c{LEROBOT_MODULE}".encode()[1:] in data
        assert pickle.loads(data).timestep == 1
    assert LEROBOT_MODULE not in sys.modules
