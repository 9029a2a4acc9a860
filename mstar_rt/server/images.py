"""Images off the wire. Nothing is resized or padded: what does not fit is refused. A JPEG file is turned as its Exif
orientation says.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterable

import cv2
import numpy as np

from mstar_rt.errors import InvalidArgument
from mstar_rt.protos import tensor_pb2
from mstar_rt.protos.arrays import array_from_tensor, refuse_shared_memory
from mstar_rt.server.exif import EXIF_START, UPRIGHT, orientation_of, turned, turned_size

OFF_LOOP_BYTES = 32 << 10
"""Compressed images of more bytes are decoded on another thread (measured: 224x224 JPEG, 15 kB, 0.3 ms)."""
OFF_LOOP_PIXELS = 1 << 18
"""So are those of more pixels, however few bytes they take (measured: a black PNG, 5 kB, 1024x1024, 20 ms)."""

MAX_IMAGES = 1024
MAX_PIXELS = 1 << 24
MAX_REQUEST_PIXELS = 1 << 26
"""A few kilobytes of PNG can hold many million pixels, which nobody has compared with the model's frames yet."""

_PNG_START, _PNG_END = b"\x89PNG\r\n\x1a\n", b"IEND"
_PNG_CHUNK = struct.Struct(">I4s")
_PNG_CHUNK_REST = 12
"""Bytes of a chunk beside its content: length, name and check sum."""
MAX_JPEG_STEPS = 4096
"""Segments and fill bytes before the frame header, of which files have some ten: megabytes of fill are no picture."""
MAX_PNG_CHUNKS = 8192
"""Of 8 KiB each, as most encoders make them, they are longer than any message."""
_JPEG_START, _JPEG_END, _JPEG_APP1 = b"\xff\xd8\xff", b"\xff\xd9", 0xE1
_STARTS = {"PNG": _PNG_START, "JPEG": _JPEG_START}
_JPEG_FRAME_MARKERS = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}


async def decode_frames(frames: tensor_pb2.Frames, name: str) -> np.ndarray:
    """The frames as one array, [T, H, W, 3] uint8 RGB if they came as images, as sent if they came as a
    tensor.

    Raises:  InvalidArgument: no frames, sizes that differ from one another, data that is no image.
             Unimplemented: a shared-memory reference.
    """
    content = frames.WhichOneof("content")
    if content is None:
        raise InvalidArgument(f"{name!r} is empty, expected at least one frame as a tensor or as images")
    if content == "tensor":
        return array_from_tensor(frames.tensor, name)
    images = frames.images.images
    if not 1 <= len(images) <= MAX_IMAGES:
        raise InvalidArgument(f"{name!r} holds {len(images)} images, expected 1 to {MAX_IMAGES}")
    if takes_long(images):
        return await asyncio.to_thread(_decode_all, list(images), name)
    return _decode_all(list(images), name)


async def decode_one(image: tensor_pb2.Image, name: str) -> np.ndarray:
    """See `decode_image`; what takes long is done on another thread."""
    if takes_long([image]):
        return await asyncio.to_thread(decode_image, image, name)
    return decode_image(image, name)


def takes_long(images: Iterable[tensor_pb2.Image]) -> bool:
    """Is to decompress these too much for an event loop? Raw images take nothing."""
    num_bytes = num_pixels = 0
    for image in images:
        if image.encoding == tensor_pb2.Image.ENCODING_RAW:
            continue
        data = image.data
        height, width = compressed_size(image, data) or (0, 0)
        num_bytes += len(data)
        num_pixels += height * width
        if num_bytes > OFF_LOOP_BYTES or num_pixels > OFF_LOOP_PIXELS:
            return True
    return False


def compressed_size(image: tensor_pb2.Image, data: bytes) -> tuple[int, int] | None:
    """(height, width) of the decoded image, as the header of the JPEG or PNG file `data` says; None: it is none, or it
    is cut off.
    """
    head = _head(image, data)
    return None if head is None else turned_size(*head)


def _head(image: tensor_pb2.Image, data: bytes) -> tuple[tuple[int, int], int] | None:
    """(height, width) in the file, and the orientation."""
    if image.encoding == tensor_pb2.Image.ENCODING_JPEG:
        return _jpeg_head(data)
    if image.encoding == tensor_pb2.Image.ENCODING_PNG:
        size = _png_size(data)
        return None if size is None else (size, UPRIGHT)
    return None


def _decode_all(images: list[tensor_pb2.Image], name: str) -> np.ndarray:
    arrays: list[np.ndarray] = []
    for i, image in enumerate(images):
        array = decode_image(image, f"{name}[{i}]")
        arrays.append(array)
        if array.shape != arrays[0].shape:
            raise InvalidArgument(
                f"'{name}[{i}]' is {_size_text(array.shape)}, '{name}[0]' is {_size_text(arrays[0].shape)}: "
                "all frames of a request must have one size"
            )
        if (i + 1) * array.shape[0] * array.shape[1] > MAX_REQUEST_PIXELS:
            raise InvalidArgument(
                f"the {len(images)} images of {name!r} are {_size_text(array.shape)} each, together at most "
                f"{MAX_REQUEST_PIXELS} pixels are decoded"
            )
    return np.stack(arrays)


def decode_image(image: tensor_pb2.Image, name: str) -> np.ndarray:
    """[height, width, channels] uint8 (RGB). See `decode_frames` for the errors."""
    refuse_shared_memory(image, name)
    data = image.data  # a copy each time that it is read
    if not data:
        raise InvalidArgument(f"image {name!r} is empty, expected its bytes in `data`")
    if image.encoding == tensor_pb2.Image.ENCODING_RAW:
        return raw_image(image, data, name)
    if image.encoding == tensor_pb2.Image.ENCODING_JPEG:
        return _compressed(image, data, name, "JPEG")
    if image.encoding == tensor_pb2.Image.ENCODING_PNG:
        return _compressed(image, data, name, "PNG")
    raise InvalidArgument(f"image {name!r} has no known encoding, expected raw, JPEG or PNG")


def raw_image(image: tensor_pb2.Image, data: bytes | memoryview, name: str) -> np.ndarray:
    """Over `data`, which the image has or refers to."""
    shape = (image.height, image.width, image.channels)
    if 0 in shape:
        raise InvalidArgument(f"raw image {name!r} needs height, width and channels, got {list(shape)}")
    expected = shape[0] * shape[1] * shape[2]
    if len(data) != expected:
        raise InvalidArgument(f"raw image {name!r} has {len(data)} bytes, expected {expected} for {list(shape)}")
    return np.frombuffer(data, np.uint8).reshape(shape)


def _compressed(image: tensor_pb2.Image, data: bytes, name: str, kind: str) -> np.ndarray:
    """A header that tells of a large image is refused before any pixel is made."""
    head = _head(image, data)
    if head is None:
        begun = next((other for other, start in _STARTS.items() if data.startswith(start)), kind)
        if begun != kind:
            raise InvalidArgument(f"image {name!r} is declared as {kind}, but is a {begun} file: declare it as {begun}")
        raise InvalidArgument(f"image {name!r} is not a complete {kind} file: {len(data)} bytes cannot be decoded")
    height, width = turned_size(*head)
    if height * width > MAX_PIXELS:
        raise InvalidArgument(f"image {name!r} is {height} x {width}, at most {MAX_PIXELS} pixels are decoded")
    for label, declared, actual in (("height", image.height, height), ("width", image.width, width)):
        if image.HasField(label) and declared != actual:
            raise InvalidArgument(f"image {name!r} is declared with {label} {declared}, its {kind} data has {actual}")
    if image.HasField("channels") and image.channels != 3:
        raise InvalidArgument(f"image {name!r} is declared with {image.channels} channels, expected 3")
    # All is left as it is but for a palette and CMYK, which become three channels.
    pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
    if pixels is None:
        raise InvalidArgument(f"image {name!r} is not a complete {kind} file: {len(data)} bytes cannot be decoded")
    if unlike := _unlike_rgb(pixels):
        raise InvalidArgument(f"image {name!r} has {unlike}, expected 3 channels (RGB) of uint8: convert it to RGB")
    return cv2.cvtColor(turned(pixels, head[1]), cv2.COLOR_BGR2RGB)


def _unlike_rgb(pixels: np.ndarray) -> str:
    """What a decoded picture has that RGB of 8 bits has not; "": nothing. OpenCV makes four channels of grey with alpha
    and of a transparent colour too.
    """
    if pixels.dtype != np.uint8:
        return f"{8 * pixels.itemsize} bits in each channel"
    if pixels.ndim != 3 or pixels.shape[2] == 1:
        return "1 channel (grey)"
    return "" if pixels.shape[2] == 3 else "an alpha channel or a transparent colour"


def _png_size(data: bytes) -> tuple[int, int] | None:
    """None too if its chunks do not fill it up to the last one: OpenCV takes as much memory as a chunk says to be long,
    before it looks for its bytes (measured: 852 bytes that say 1 GB, half a second).
    """
    if not data.startswith(_PNG_START) or len(data) < 24:
        return None
    position = len(_PNG_START)
    for _ in range(MAX_PNG_CHUNKS):
        if position + _PNG_CHUNK_REST > len(data):
            return None
        length, name = _PNG_CHUNK.unpack_from(data, position)
        position += _PNG_CHUNK_REST + length
        if name == _PNG_END:
            width, height = struct.unpack(">II", data[16:24])
            return (height, width) if position <= len(data) else None
    return None


def _jpeg_head(data: bytes) -> tuple[tuple[int, int], int] | None:
    """From the frame header, and the first Exif segment before it. None if it has none or the end marker is missing:
    decoders fill a cut image with grey.
    """
    if not data.startswith(_JPEG_START) or _JPEG_END not in data[-64:]:
        return None
    position, exif = 2, b""
    for _ in range(MAX_JPEG_STEPS):
        if position + 9 > len(data) or data[position] != 0xFF:
            return None
        marker = data[position + 1]
        if marker == 0xFF:
            position += 1
        elif marker in _JPEG_FRAME_MARKERS:
            height, width = struct.unpack(">HH", data[position + 5 : position + 9])
            return (height, width), orientation_of(exif)
        else:
            end = position + 2 + int(struct.unpack(">H", data[position + 2 : position + 4])[0])
            if marker == _JPEG_APP1 and not exif and data.startswith(EXIF_START, position + 4):
                exif = data[position + 4 + len(EXIF_START) : end]
            position = end
    return None


def _size_text(shape: tuple[int, ...]) -> str:
    return " x ".join(str(size) for size in shape)
