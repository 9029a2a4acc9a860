"""PNG files, for a client that has numpy and nothing that knows images."""

from __future__ import annotations

import struct
import zlib

import numpy as np

START = b"\x89PNG\r\n\x1a\n"
RGB, BITS = 2, 8
LEFT = 1
"""The filter that leaves of each pixel what differs from the one to its left, which is shorter when compressed."""


def png_file(pixels: np.ndarray) -> bytes:
    """pixels [H, W, 3] uint8 RGB.

    Source:  RFC 2083, "PNG (Portable Network Graphics) Specification".
    """
    height, width, channels = pixels.shape
    assert channels == 3, "images here are RGB"
    rows = pixels.reshape(height, 3 * width)
    lines = np.empty((height, 1 + 3 * width), np.uint8)
    lines[:, 0], lines[:, 1:4] = LEFT, rows[:, :3]
    np.subtract(rows[:, 3:], rows[:, :-3], out=lines[:, 4:])
    head = struct.pack(">IIBBBBB", width, height, BITS, RGB, 0, 0, 0)
    return START + _chunk(b"IHDR", head) + _chunk(b"IDAT", zlib.compress(lines.tobytes())) + _chunk(b"IEND", b"")


def _chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))
