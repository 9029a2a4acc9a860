"""The noise of a codec's layers, as a function of where it is: of the seed, the layer and the absolute position.

So it is the same however a sound is cut up, alone or beside others. It is drawn on the CPU, in blocks of one frame.
"""

from __future__ import annotations

import hashlib

import torch


class Noise:
    """Standard normal numbers of one request."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def span(self, layer: int, start: int, length: int, block: int) -> torch.Tensor:
        """[length, 1] float32 at the positions from `start`, perhaps negative, of a layer with `block` positions in
        a frame."""
        first, last = start // block, (start + length - 1) // block
        drawn = torch.cat([self._block(layer, index, block) for index in range(first, last + 1)])
        offset = start - first * block
        return drawn[offset : offset + length, None]

    def _block(self, layer: int, index: int, size: int) -> torch.Tensor:
        key = repr((self._seed, "snac noise", layer, index)).encode()
        seed = int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little")
        return torch.randn(size, generator=torch.Generator().manual_seed(seed))
