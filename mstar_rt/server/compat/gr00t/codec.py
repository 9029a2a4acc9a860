"""GR00T's messages: msgpack, with numpy arrays as maps that hold an .npy file.

Source:  gr00t/policy/server_client.py (N1.6). The header of a file is compared with what numpy writes; nothing of it is
evaluated.
"""

from __future__ import annotations

import io
import re
from typing import Any

import msgspec
import numpy as np

from mstar_rt.errors import InvalidArgument
from mstar_rt.server.compat.arrays import array_from, dtype_of
from mstar_rt.server.compat.msgpack_reader import unpacked

ARRAY, ARRAY_FILE = "__ndarray_class__", "as_npy"
MODALITY, MODALITY_FIELDS = "__ModalityConfig_class__", "as_json"
MAGIC = b"\x93NUMPY"
LENGTH_BYTES = {1: 2, 2: 4, 3: 4}
"""Of the header's length, by the version of the format."""
MAX_HEADER_BYTES = 512
HEADER = re.compile(
    r"\{'descr': '([^'\\]{2,8})', 'fortran_order': (True|False), 'shape': \(((?:\d{1,10}, ?)*(?:\d{1,10})?)\), \} *\n?"
)


def unpack(data: bytes) -> Any:
    """Arrays are read-only views of `data`.

    Raises:  InvalidArgument.
    """
    return unpacked(data, _revive)


def pack(message: Any) -> bytes:
    return msgspec.msgpack.encode(message, enc_hook=_packable)


def modality(keys: list[str], delta_indices: list[int]) -> dict[str, Any]:
    """What a client makes a ModalityConfig of."""
    return {MODALITY: True, MODALITY_FIELDS: {"delta_indices": delta_indices, "modality_keys": keys}}


def _revive(found: dict[Any, Any]) -> Any:
    if ARRAY not in found:
        return found
    if found.keys() != {ARRAY, ARRAY_FILE} or not isinstance(found[ARRAY_FILE], memoryview):
        raise InvalidArgument(f"a map with {ARRAY} has not just an .npy file besides, in {ARRAY_FILE}")
    return array_from_file(found[ARRAY_FILE])


def array_from_file(data: memoryview) -> np.ndarray:
    """Raises:  InvalidArgument."""
    version = data[6] if len(data) > 10 and data[:6] == MAGIC else 0
    if version not in LENGTH_BYTES:
        raise InvalidArgument("an array is no .npy file of version 1 to 3")
    start = 8 + LENGTH_BYTES[version]
    num_bytes = int.from_bytes(data[8:start], "little")
    if num_bytes > MAX_HEADER_BYTES:
        raise InvalidArgument(f"an .npy file has a header of {num_bytes} bytes, at most {MAX_HEADER_BYTES} are read")
    header = HEADER.fullmatch(bytes(data[start : start + num_bytes]).decode("latin-1"))
    if header is None:
        raise InvalidArgument("an .npy file has a header that numpy does not write for an array of numbers")
    shape = [int(size) for size in header[3].split(",") if size.strip()]
    return array_from(data[start + num_bytes :], dtype_of(header[1]), shape, header[2] == "True")


def _packable(value: Any) -> Any:
    if not isinstance(value, np.ndarray):
        raise TypeError(f"{type(value).__name__} is not packed")
    file = io.BytesIO()
    np.save(file, value, allow_pickle=False)
    return {ARRAY: True, ARRAY_FILE: file.getvalue()}
