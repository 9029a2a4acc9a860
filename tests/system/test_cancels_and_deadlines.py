"""Requests that are taken back, run out of time or are not read: what they held is free within a step."""

from __future__ import annotations

import asyncio
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from composite_serving import Values, ask, assert_equal, gathered, image
from serving import MAX_POLLS, Serving, assert_nothing_is_held, held

from mstar_rt.client import Client, connect_async
from mstar_rt.errors import Cancelled, DeadlineExceeded, ResourceExhausted
from mstar_rt.protos import task_pb2, task_pb2_grpc
from mstar_rt.protos.arrays import tensor_from_array

pytestmark = [pytest.mark.system, pytest.mark.timeout(90)]

NUM_ABORTS = 300
STEPS = 6
LONG = 60
"""Steps: most of a second where each is slow."""

WALKS = {"generate": ("decode", "next_token"), "speak": ("codec", "audio"), "denoise": ("uncond", "denoised")}


def units_total(client: Client) -> float:
    processes = client.stats().processes
    return sum(values.get("units_total", 0.0) for values in processes.values())


def slow(task: str, slow_ms: float = 15.0) -> dict[str, Any]:
    return {"steps": STEPS, "fault": "slow", "fault_node": WALKS[task][0], "slow_ms": slow_ms}


@pytest.mark.parametrize("model", ["one", "apart"])
@pytest.mark.parametrize("task", WALKS)
def test_a_cancel_at_any_step_ends_the_walk_on_all_ranks(composite_client: Client, model: str, task: str) -> None:
    """Within how many steps, tests/worker has exactly; here the word of it has to come through four processes."""
    tensors = {"image": image(1, 6)}
    before = units_total(composite_client)
    ask(composite_client, model, task, tensors, steps=LONG)
    of_a_whole_walk = units_total(composite_client) - before
    for step in range(STEPS - 1):
        before = units_total(composite_client)
        stream = composite_client.run(model, task, tensors, **slow(task) | {"steps": LONG})
        outputs = iter(stream)
        while next(outputs).iteration != (step,):
            pass
        stream.cancel()
        with pytest.raises(Cancelled):
            list(outputs)
        assert_nothing_is_held(composite_client)
        assert units_total(composite_client) - before < of_a_whole_walk / 2


@pytest.mark.parametrize("model", ["one", "apart"])
@pytest.mark.parametrize("task", WALKS)
def test_a_deadline_at_any_step_is_one_answer_in_time(composite_client: Client, model: str, task: str) -> None:
    def run(step: int) -> str:
        began = time.monotonic()
        try:
            ask(composite_client, model, task, {"image": image(1, 6)}, budget_ms=5 + 30.0 * step, **slow(task, 30))
        except (DeadlineExceeded, ResourceExhausted):  # the latter if it is late before it begins
            assert time.monotonic() - began < 5
            return "late"
        return "done"

    with ThreadPoolExecutor(STEPS) as pool:
        answers = list(pool.map(run, range(STEPS)))
    assert answers[0] == "late"
    assert_nothing_is_held(composite_client)
    assert len(ask(composite_client, model, task, {"image": image(1, 6)}, steps=2))


@pytest.mark.parametrize("model", ["one", "apart"])
def test_one_of_eight_is_aborted_and_seven_are_as_alone(composite_client: Client, model: str) -> None:
    def options(number: int) -> dict[str, Any]:
        return {"steps": 16, "temperature": 1.0, "seed": number}

    def tensors(number: int) -> dict[str, np.ndarray]:
        return {"image": image(number, 4 + number)}

    alone = [ask(composite_client, model, "speak", tensors(number), **options(number)) for number in range(8)]

    def run(number: int) -> Values | None:
        stream = composite_client.run(model, "speak", tensors(number), timeout_s=30, **options(number))
        if number != 3:
            return gathered(stream)
        next(iter(stream))
        stream.cancel()
        return None

    for _ in range(3):
        with ThreadPoolExecutor(8) as pool:
            for number, got in enumerate(pool.map(run, range(8))):
                if got is not None:
                    assert_equal(got, alone[number], 1e-5)
    assert_nothing_is_held(composite_client)


def test_many_aborts_leave_counters_and_memory_flat(composite_serving: Serving, composite_client: Client) -> None:
    tensors = {"image": image(1, 12)}

    def abort(number: int) -> None:
        task = ("generate", "speak", "denoise")[number % 3]
        stream = composite_client.run("apart", task, tensors, steps=64, timeout_s=30)
        for _ in range(number % 5):
            next(iter(stream))
        stream.cancel()

    def abort_all(count: int) -> dict[int, int]:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(abort, range(count)))
        assert_nothing_is_held(composite_client)
        return {pid: resident_kb(pid) for pid in pids}

    pids = [composite_serving.process.pid, *composite_serving.worker_pids().values()]
    before, after = abort_all(NUM_ABORTS // 3), abort_all(NUM_ABORTS)
    for pid in pids:
        assert after[pid] - before[pid] < 5_000, f"process {pid} grew from {before[pid]} to {after[pid]} kB"
    stats = composite_client.stats().processes["conductor"]
    assert stats["requests_running"] == 0


def resident_kb(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS:")).split()[1])


def test_a_client_that_stops_reading_costs_its_own_request_only(
    composite_serving: Serving, composite_client: Client
) -> None:
    """It may leave a megabyte unread; its pictures are sixteen."""
    canvas = tensor_from_array(np.zeros(1, np.float32))
    request = task_pb2.TaskRequest(model="one", task="paint", tensors={"canvas": canvas})
    request.model_options["steps"].integer = 64
    request.model_options["picture_kb"].integer = 256
    with grpc.insecure_channel(composite_serving.address) as channel:
        call = task_pb2_grpc.TasksStub(channel).Run(request, timeout=60)
        healthy = ask(composite_client, "one", "generate", {"image": image(1, 6)}, steps=8)
        for _ in range(MAX_POLLS):
            left = {name for name in held(composite_client) if not name.startswith("server")}
            if not left and composite_client.stats().processes["server"]["requests_running"] == 0:
                break
        assert not left
        assert_equal(ask(composite_client, "one", "generate", {"image": image(1, 6)}, steps=8), healthy)
        with pytest.raises(grpc.RpcError) as caught:
            list(call)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert_nothing_is_held(composite_client)


async def test_an_event_loop_that_waits_for_answers_is_never_blocked(composite_serving: Serving) -> None:
    """Neither while it waits for each of them, nor once for all."""
    lags_s: list[float] = []

    async def probe() -> None:
        while True:
            began = time.monotonic()
            await asyncio.sleep(0)
            lags_s.append(time.monotonic() - began)

    client = connect_async(composite_serving.address)
    probing = asyncio.create_task(probe())
    try:
        streams = [client.run("apart", "speak", {"image": image(1, 6)}, **slow("speak", 50)) for _ in range(4)]
        await asyncio.gather(*(stream.collect() for stream in streams))
    finally:
        probing.cancel()
        await client.close()
    assert statistics.quantiles(lags_s, n=100)[98] < 5e-3
    assert max(lags_s) < sum(lags_s) / 2
