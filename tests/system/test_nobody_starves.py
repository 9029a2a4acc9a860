"""A short request ends while long ones run, whichever of its nodes stands last: nobody waits for others to end."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from composite_serving import ask, assert_equal, image
from serving import assert_nothing_is_held

from mstar_rt.client import Client

pytestmark = [pytest.mark.system, pytest.mark.timeout(90)]

SLOW = {"fault": "slow", "fault_node": "decode", "slow_ms": 10.0}
SHORT = {"speak": {"steps": 3}, "speak_offline": {"steps": 3}, "denoise": {"steps": 3}, "fill_and_tell": {"steps": 3}}


@pytest.mark.parametrize("task", SHORT)
def test_a_short_request_ends_before_long_ones(composite_client: Client, task: str) -> None:
    """On rank 0, where tokens of three long ones are always ready."""
    tensors = {"image": image(1, 6)}
    want = ask(composite_client, "one", task, tensors, **SHORT[task])
    with ThreadPoolExecutor(3) as pool:
        long: list[Future[int]] = []
        streams = [composite_client.run("one", "generate", tensors, steps=64, **SLOW) for _ in range(3)]
        for stream in streams:
            next(iter(stream))
            long.append(pool.submit(lambda rest: len(list(rest)), stream))
        got = ask(composite_client, "one", task, tensors, **SHORT[task])
        assert not any(call.done() for call in long)
        assert_equal(got, want, 1e-5)
    assert_nothing_is_held(composite_client)
