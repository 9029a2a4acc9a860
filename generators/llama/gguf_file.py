"""Reading GGUF files: numbers and texts about a model, and its tensors, of which the quantised ones are expanded.

The Python package of that name takes half a minute for what this does in half a second: it makes an array of every
string of the vocabulary. No torch.
Source: the format's specification, version 3, little endian; block layouts of ggml.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mstar_rt.errors import CheckpointError

MAGIC, VERSIONS = b"GGUF", (2, 3)
STRING, ARRAY = 8, 9
NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""How struct calls the types of plain values."""
BLOCK = 32
"""Weights of one scale."""


class StoredTensor(NamedTuple):
    """`shape` as numpy has it, the last dimension being the one that lies together; `kind` is ggml's number."""

    shape: tuple[int, ...]
    kind: int
    offset: int


class GgufFile:
    """One opened file. `values` are what it says about the model, `tensors` what it holds."""

    def __init__(self, path: Path) -> None:
        """Raises:  CheckpointError: it is no GGUF file, or a damaged one."""
        self.path = path
        try:
            with path.open("rb") as opened:
                self._data = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
            self._read_header()
        except (OSError, ValueError, KeyError, struct.error) as error:
            raise CheckpointError(f"{path} is not a readable GGUF file: {error}") from error

    def weights(self, name: str) -> np.ndarray:
        """float32, in the shape of the file.

        Raises:  CheckpointError: there is no such tensor, or it is of a kind that is not read here.
        """
        if name not in self.tensors:
            raise CheckpointError(f"{self.path} has no tensor {name!r}")
        tensor = self.tensors[name]
        if tensor.kind not in READERS:
            raise CheckpointError(f"{self.path}: {name!r} is of ggml kind {tensor.kind}, read are {sorted(READERS)}")
        dtype, expand = READERS[tensor.kind]
        per_item = 1 if dtype.names is None else BLOCK
        count = int(np.prod(tensor.shape)) // per_item
        stored = np.frombuffer(self._data, dtype, count, self._start + tensor.offset)
        return expand(stored).reshape(tensor.shape)

    def _read_header(self) -> None:
        if self._data[:4] != MAGIC:
            raise ValueError("it does not begin with GGUF")
        self._at = 4
        version = self._number("I")
        if version not in VERSIONS:
            raise ValueError(f"its version is {version}")
        num_tensors, num_values = self._number("Q"), self._number("Q")
        self.values: dict[str, Any] = {}
        for _ in range(num_values):
            key = self._string()
            self.values[key] = self._value(self._number("I"))
        self.tensors: dict[str, StoredTensor] = {}
        for _ in range(num_tensors):
            name = self._string()
            shape = [self._number("Q") for _ in range(self._number("I"))]
            self.tensors[name] = StoredTensor(tuple(reversed(shape)), self._number("I"), self._number("Q"))
        alignment = self.values.get("general.alignment", 32)
        self._start = -(-self._at // alignment) * alignment

    def _value(self, kind: int) -> Any:
        if kind == STRING:
            return self._string()
        if kind != ARRAY:
            return self._number(NUMBERS[kind])
        inner, count = self._number("I"), self._number("Q")
        return [self._value(inner) for _ in range(count)]

    def _number(self, kind: str) -> Any:
        (value,) = struct.unpack_from(f"<{kind}", self._data, self._at)
        self._at += struct.calcsize(f"<{kind}")
        return value

    def _string(self) -> str:
        size = self._number("Q")
        self._at += size
        return self._data[self._at - size : self._at].decode("utf-8")


def _four_bits(blocks: np.ndarray) -> np.ndarray:
    """Of a block's 32 weights the first 16 are the low halves of its bytes."""
    halves = np.concatenate([blocks["q"] & 15, blocks["q"] >> 4], axis=1).astype(np.float32)
    return blocks["scale"].astype(np.float32)[:, None] * halves + blocks["least"].astype(np.float32)[:, None]


def _eight_bits(blocks: np.ndarray) -> np.ndarray:
    return blocks["scale"].astype(np.float32)[:, None] * blocks["q"].astype(np.float32)


def _plain(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float32)


READERS: dict[int, tuple[np.dtype[Any], Callable[[np.ndarray], np.ndarray]]] = {
    0: (np.dtype("<f4"), _plain),
    1: (np.dtype("<f2"), _plain),
    3: (np.dtype([("scale", "<f2"), ("least", "<f2"), ("q", "u1", (BLOCK // 2,))]), _four_bits),
    8: (np.dtype([("scale", "<f2"), ("q", "i1", (BLOCK,))]), _eight_bits),
}
"""By ggml's kind: F32, F16, Q4_1, Q8_0."""
