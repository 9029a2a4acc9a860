"""What decoded PNG and JPEG files look like: turned as their Exif says, and which of them are taken."""

from __future__ import annotations

import io
import struct
from typing import Any

import cv2
import numpy as np
import pytest

from mstar_rt.errors import InvalidArgument
from mstar_rt.protos import tensor_pb2
from mstar_rt.server.exif import MAX_ENTRIES
from mstar_rt.server.gateway.data_url import image_of_file
from mstar_rt.server.images import compressed_size, decode_image

RAMP = np.linspace(0, 255, 24 * 40 * 3).reshape(24, 40, 3).astype(np.uint8)
PNG, JPEG = tensor_pb2.Image.ENCODING_PNG, tensor_pb2.Image.ENCODING_JPEG
DATA = cv2.imencode(".jpg", RAMP, [cv2.IMWRITE_JPEG_QUALITY, 100])[1].tobytes()


def exif(orientation: int, order: str = "<", num_before: int = 1) -> bytes:
    """A segment of a JPEG file, whose tag of the orientation has others before it."""
    entries = [(271, 3, 1, 7, 0)] * num_before + [(274, 3, 1, orientation, 0)]
    tiff = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(f"{order}IH", 8, len(entries))
    content = b"Exif\0\0" + tiff + b"".join(struct.pack(f"{order}HHIHH", *entry) for entry in entries) + bytes(4)
    return segment(content)


def segment(content: bytes) -> bytes:
    return b"\xff\xe1" + struct.pack(">H", len(content) + 2) + content


def jpeg(*segments: bytes, **declared: int) -> tensor_pb2.Image:
    return tensor_pb2.Image(encoding=JPEG, data=DATA[:2] + b"".join(segments) + DATA[2:], **declared)


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("orientation", range(1, 9))
async def test_a_jpeg_is_turned_as_its_exif_says(orientation: int, order: str) -> None:
    images, ops = pytest.importorskip("PIL.Image"), pytest.importorskip("PIL.ImageOps")
    image = jpeg(exif(orientation, order))
    expected = np.asarray(ops.exif_transpose(images.open(io.BytesIO(image.data))))
    decoded = decode_image(image, "image")
    assert decoded.shape == expected.shape == ((24, 40, 3) if orientation < 5 else (40, 24, 3))
    assert np.abs(decoded.astype(int) - expected).max() <= 4
    assert compressed_size(image, image.data) == decoded.shape[:2]
    np.testing.assert_array_equal(await image_of_file(image.data, "image"), decoded)
    assert decode_image(jpeg(exif(6), height=40, width=24), "image").shape == (40, 24, 3)
    with pytest.raises(InvalidArgument, match="declared with height 24, its JPEG data has 40"):
        decode_image(jpeg(exif(6), height=24, width=40), "image")


@pytest.mark.parametrize(
    "segments",
    [
        (),
        (exif(0),),
        (exif(9),),
        (exif(1), exif(6)),
        (segment(b"Exif\0\0"),),
        (segment(b"Exif\0\0II*\0" + bytes(2)),),
        (segment(b"Exif\0\0XX*\0" + bytes(20)),),
        (segment(b"Exif\0\0II*\0" + b"\xff" * 20),),
        (segment(exif(6)[4:-14]),),
        (segment(b"http://ns.adobe.com/xap/1.0/\0"),),
    ],
)
def test_what_says_no_orientation_is_upright(segments: tuple[bytes, ...]) -> None:
    np.testing.assert_array_equal(decode_image(jpeg(*segments), "image"), decode_image(jpeg(), "image"))


def test_as_many_entries_are_looked_at_as_files_may_have() -> None:
    for num_before, size in ((MAX_ENTRIES - 1, (40, 24)), (MAX_ENTRIES, (24, 40))):
        image = jpeg(exif(6, num_before=num_before))
        assert compressed_size(image, image.data) == size


def saved(image: Any, kind: str, **options: Any) -> tensor_pb2.Image:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return tensor_pb2.Image(encoding=PNG if kind == "PNG" else JPEG, data=file.getvalue())


def test_which_kinds_of_pictures_are_taken() -> None:
    """Of one colour each."""
    image = pytest.importorskip("PIL.Image").fromarray(np.full((8, 8, 3), (200, 30, 60), np.uint8))
    palette = image.quantize(2)
    for taken in (saved(image, "PNG"), saved(palette, "PNG", bits=1), saved(image.convert("CMYK"), "JPEG")):
        decoded = decode_image(taken, "image").astype(int)
        assert decoded.shape == (8, 8, 3)
        assert np.abs(decoded - (200, 30, 60)).max() <= 3
    transparent = saved(palette, "PNG", transparency=0)
    for refused, said in (
        (saved(image.convert("RGBA"), "PNG"), "an alpha channel or a transparent colour"),
        (saved(image.convert("LA"), "PNG"), "an alpha channel or a transparent colour"),
        (transparent, "an alpha channel or a transparent colour"),
        (saved(image.convert("L"), "PNG"), r"1 channel \(grey\)"),
        (saved(image.convert("L"), "JPEG"), r"1 channel \(grey\)"),
        (saved(image.convert("I;16"), "PNG"), "16 bits in each channel"),
    ):
        said = f"'image' has {said}, expected 3 channels \\(RGB\\) of uint8: convert it to RGB"
        with pytest.raises(InvalidArgument, match=said):
            decode_image(refused, "image")


def test_the_label_of_another_kind_is_told() -> None:
    png = cv2.imencode(".png", RAMP)[1].tobytes()
    for encoding, data, said in ((PNG, DATA, "as PNG, but is a JPEG"), (JPEG, png, "as JPEG, but is a PNG")):
        with pytest.raises(InvalidArgument, match=f"image 'image' is declared {said} file: declare it as "):
            decode_image(tensor_pb2.Image(encoding=encoding, data=data), "image")
