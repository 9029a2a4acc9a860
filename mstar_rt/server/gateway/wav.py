"""The header of a WAV file of 16-bit mono."""

from __future__ import annotations

import struct

CONTENT_TYPE = "audio/wav"
BYTES_PER_SAMPLE = 2
UNKNOWN = 0xFFFFFFFF
"""Both sizes of a file that is sent while it is made; players read such a file to its end."""
NUM_HEADER_BYTES = 44


def wav_header(sample_rate_hz: int, num_bytes: int | None = None) -> bytes:
    """`num_bytes` of samples follow; None: nobody knows yet."""
    riff_bytes, data_bytes = (UNKNOWN, UNKNOWN) if num_bytes is None else (NUM_HEADER_BYTES - 8 + num_bytes, num_bytes)
    format_chunk = struct.pack(
        "<4sIHHIIHH", b"fmt ", 16, 1, 1, sample_rate_hz, sample_rate_hz * BYTES_PER_SAMPLE, BYTES_PER_SAMPLE, 16
    )
    return struct.pack("<4sI4s", b"RIFF", riff_bytes, b"WAVE") + format_chunk + struct.pack("<4sI", b"data", data_bytes)
