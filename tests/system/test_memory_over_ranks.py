"""Tensors that are larger than the shared memory between processes has room for."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from composite_serving import ask, image, series
from serving import assert_nothing_is_held

from mstar_rt.client import Client
from mstar_rt.errors import ResourceExhausted

pytestmark = [pytest.mark.system, pytest.mark.timeout(90)]

CANVAS = {"canvas": np.full(1, 5, np.float32)}
MEMORY_MB = 64
PICTURE_KB = 16 * 1024


def test_more_between_two_ranks_than_fits_ends_in_results_or_refusals(composite_client: Client) -> None:
    """Twelve requests whose pictures of 16 MB go from rank 0 to rank 2, through 64 MB."""

    def run(_: int, steps: int = 4) -> list[float] | str:
        try:
            values = ask(composite_client, "apart", "shrink", CANVAS, steps=steps, picture_kb=PICTURE_KB, timeout_s=60)
        except ResourceExhausted as error:
            return str(error)
        return [float(mean[0]) for mean in series(values, "mean")]

    # Four of one request alone do not fit either, if rank 2 has not read the first before rank 0 has made the last.
    assert run(0, steps=3) == [5, 6, 7]
    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(run, range(12)))
    for answer in answers:
        assert answer == [5, 6, 7, 8] or "shared" in answer, answer
    assert_nothing_is_held(composite_client)
    assert run(0, steps=3) == [5, 6, 7]
    assert_nothing_is_held(composite_client)


def test_what_could_never_fit_is_refused_and_the_next_request_served(composite_client: Client) -> None:
    with ThreadPoolExecutor(4) as pool:
        asked = [
            pool.submit(ask, composite_client, "one", "paint", CANVAS, steps=64, picture_kb=1 << 15) for _ in range(4)
        ]
        for call in asked:
            with pytest.raises(ResourceExhausted):
                call.result()
    assert len(ask(composite_client, "one", "generate", {"image": image(1, 4)}))
    assert_nothing_is_held(composite_client)
