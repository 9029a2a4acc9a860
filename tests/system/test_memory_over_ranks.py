"""Tensors that are larger than the shared memory between processes has room for."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from composite_serving import ask, image, series
from serving import assert_nothing_is_held

from mstar_rt.client import Client
from mstar_rt.errors import InvalidArgument

pytestmark = [pytest.mark.system, pytest.mark.timeout(90)]

CANVAS = {"canvas": np.full(1, 5, np.float32)}
MEMORY_MB = 64
PICTURE_KB = 16 * 1024


def shrink(client: Client) -> list[float]:
    """Pictures go from rank 0 to rank 2, which tells their means."""
    values = ask(client, "apart", "shrink", CANVAS, steps=4, picture_kb=PICTURE_KB, timeout_s=60)
    return [float(mean[0]) for mean in series(values, "mean")]


def test_more_between_two_ranks_than_fits_waits_for_room(composite_client: Client) -> None:
    """Twelve requests whose pictures of 16 MB go from rank 0 to rank 2, through 64 MB."""

    # Four of one request alone do not fit either, if rank 2 has not read the first before rank 0 has made the last.
    for _ in range(4):
        assert shrink(composite_client) == [5, 6, 7, 8]
    with ThreadPoolExecutor(12) as pool:
        assert list(pool.map(lambda _: shrink(composite_client), range(12))) == [[5, 6, 7, 8]] * 12
    assert_nothing_is_held(composite_client)


def test_what_could_never_fit_is_refused_and_the_next_request_served(composite_client: Client) -> None:
    """Beside others on the same rank that do fit, and wait for one another."""
    too_large = {"steps": 2, "picture_kb": (MEMORY_MB + 1) * 1024}

    def paint(_: int) -> None:
        with pytest.raises(InvalidArgument, match="does not fit into this worker's shared memory, even alone"):
            ask(composite_client, "apart", "paint", CANVAS, timeout_s=60, **too_large)

    with ThreadPoolExecutor(8) as pool:
        refused = [pool.submit(paint, number) for number in range(4)]
        assert list(pool.map(lambda _: shrink(composite_client), range(8))) == [[5, 6, 7, 8]] * 8
        for call in refused:
            call.result()
    assert len(ask(composite_client, "one", "generate", {"image": image(1, 4)}))
    assert_nothing_is_held(composite_client)
