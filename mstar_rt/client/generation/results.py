"""What chat, speech and images give: plain values and numpy arrays, no protobuf."""

from __future__ import annotations

import os
import wave
from dataclasses import dataclass

import numpy as np

from mstar_rt.client.generation.png_file import png_file
from mstar_rt.client.results import Timing
from mstar_rt.errors import InvalidArgument

PCM16_PEAK = 32767
JPEG_SUFFIXES = (".jpg", ".jpeg")


@dataclass(frozen=True)
class TextPiece:
    """`thought`: part of the model's plan, not of its answer; of images `image_index` says of which one."""

    text: str
    num_tokens: int
    thought: bool = False
    image_index: int = 0


@dataclass(frozen=True)
class AudioPiece:
    """samples [S] float32, -1 to 1, mono; `first_sample` is the index of the first one in the utterance."""

    samples: np.ndarray
    first_sample: int
    sample_rate_hz: int

    def pcm16(self) -> bytes:
        """Signed 16-bit little-endian, as sound devices take it."""
        return _pcm16(self.samples)


@dataclass(frozen=True)
class ImageProgress:
    """`step` of `num_steps` denoise steps of image `index` are done; 0: the model does not say how many there are.
    preview [H, W, 3] uint8 RGB and latents [T, D] float32, where they were asked for and are due."""

    step: int
    num_steps: int
    index: int = 0
    preview: np.ndarray | None = None
    latents: np.ndarray | None = None


@dataclass(frozen=True)
class ImageResult:
    """image [H, W, 3] uint8 RGB, which a request with this seed alone makes again."""

    image: np.ndarray
    seed: int
    index: int = 0

    def save_png(self, path: str | os.PathLike[str]) -> None:
        """Raises:  InvalidArgument: the file has the name of a JPEG file."""
        if os.fsdecode(path).lower().endswith(JPEG_SUFFIXES):
            raise InvalidArgument(f"save_png writes PNG, but the file is {path}: use a name that ends in .png")
        with open(path, "wb") as file:
            file.write(png_file(self.image))


ImagePiece = TextPiece | ImageProgress | ImageResult


@dataclass(frozen=True)
class GenerationDone:
    """The end. `reason`: "end" (the model ended by itself, or the images are done), "stop" (a stop string),
    "max_tokens" or "deadline", of images those of a plan. Counts that the model does not give are 0."""

    reason: str
    num_input_tokens: int
    num_output_tokens: int
    num_samples: int
    timing: Timing
    request_id: str
    flags: tuple[str, ...] = ()


@dataclass(frozen=True)
class Speech:
    """A whole utterance: samples [S] float32, -1 to 1, mono."""

    samples: np.ndarray
    sample_rate_hz: int
    done: GenerationDone

    @property
    def duration_s(self) -> float:
        return len(self.samples) / self.sample_rate_hz

    def save_wav(self, path: str | os.PathLike[str]) -> None:
        """As 16-bit PCM."""
        with open(path, "wb") as raw, wave.open(raw, "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(self.sample_rate_hz)
            file.writeframes(_pcm16(self.samples))


def _pcm16(samples: np.ndarray) -> bytes:
    return np.rint(np.clip(samples, -1.0, 1.0) * PCM16_PEAK).astype("<i2").tobytes()
