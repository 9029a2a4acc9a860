"""How a camera was held when it took a JPEG file: the orientation of its Exif segment.

Source:  Exif 2.32, tag 274; TIFF 6.0.
"""

from __future__ import annotations

import struct

import cv2
import numpy as np

UPRIGHT = 1
EXIF_START = b"Exif\0\0"
_BYTE_ORDERS = {b"II*\0": "<", b"MM\0*": ">"}
_ORIENTATION = 274
MAX_ENTRIES = 256
"""That are looked at: files have some twenty, and this is done on the event loop."""
_FIRST_TRANSPOSED = 5
_FLIPS = {2: 1, 3: -1, 4: 0, 6: 1, 7: -1, 8: 0}
"""What OpenCV flips, after rows and columns were exchanged: 0 the rows, 1 the columns, -1 both."""


def orientation_of(exif: bytes) -> int:
    """1 to 8 as `exif`, what follows on EXIF_START, says; UPRIGHT where it says nothing, or is cut off."""
    order = _BYTE_ORDERS.get(exif[:4])
    if order is None:
        return UPRIGHT
    try:
        (start,) = struct.unpack_from(f"{order}I", exif, 4)
        (num_entries,) = struct.unpack_from(f"{order}H", exif, start)
        for index in range(min(num_entries, MAX_ENTRIES)):
            tag, value = struct.unpack_from(f"{order}H6xH", exif, start + 2 + 12 * index)
            if tag == _ORIENTATION:
                return value if UPRIGHT <= value <= 8 else UPRIGHT
    except struct.error:
        pass
    return UPRIGHT


def turned_size(size: tuple[int, int], orientation: int) -> tuple[int, int]:
    """(height, width) of what is `size` in the file."""
    return size if orientation < _FIRST_TRANSPOSED else (size[1], size[0])


def turned(pixels: np.ndarray, orientation: int) -> np.ndarray:
    """pixels [H, W, 3] as they are in the file, to how they are to be seen."""
    if orientation >= _FIRST_TRANSPOSED:
        pixels = cv2.transpose(pixels)
    return cv2.flip(pixels, _FLIPS[orientation]) if orientation in _FLIPS else pixels
