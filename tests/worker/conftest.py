"""What several tests of workers share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mstar_rt.transport import tensor_plane


@pytest.fixture(scope="module")
def through_shared_memory() -> Iterator[None]:
    """Nearly all tensors of the model are small: without this, nothing could be lost."""
    usual, tensor_plane.MAX_INLINE_BYTES = tensor_plane.MAX_INLINE_BYTES, 16
    yield
    tensor_plane.MAX_INLINE_BYTES = usual
