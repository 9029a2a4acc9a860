"""Seeds of a session's chunks: equal observations and equal seeds give equal chunks."""

from __future__ import annotations

import hashlib
import secrets
import struct


def random_seed() -> int:
    return secrets.randbits(64)


def chunk_seed(seed: int, epoch: int, num_before: int, limit: int) -> int:
    """From 0 to `limit`, for the chunk of an epoch before which `num_before` were sent: the first eight bytes of the
    BLAKE2b hash of the three numbers (little-endian uint64), modulo limit + 1.
    """
    digest = hashlib.blake2b(struct.pack("<QQQ", seed, epoch, num_before), digest_size=8).digest()
    return int.from_bytes(digest, "little") % (limit + 1)
