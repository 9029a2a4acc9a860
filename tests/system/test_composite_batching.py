"""Continuous batching of every kind of node: requests at mixed iterations, each with its own seed, equal those alone."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from composite_serving import Values, assert_equal, gathered, image
from serving import assert_nothing_is_held

from mstar_rt.client import Client

pytestmark = [pytest.mark.system, pytest.mark.timeout(90)]

NODES = {"encode", "prefill", "decode", "codec", "vocode", "understand", "cond", "uncond", "combine", "listen"}
TASKS = ("generate", "speak", "speak_offline", "denoise", "fill_and_tell", "listen")
MAX_ROUNDS = 12
"""Whether two requests meet at a node that each runs once is up to the threads that send them."""
BUSY = {"fault": "slow", "fault_node": "encode", "slow_ms": 300.0}


def asking(number: int) -> tuple[str, dict[str, np.ndarray], dict[str, Any]]:
    """Six of each task, of different lengths and seeds; equal numbers of rows now and then."""
    task = TASKS[number % len(TASKS)]
    options: dict[str, Any] = {} if task == "listen" else {"steps": 3 + number % 7, "seed": number}
    if task not in ("listen", "denoise"):
        options["temperature"] = 1.0
    return task, {"image": image(number, 4 + number // len(TASKS) % 3)}, options


def run(client: Client, model: str, number: int) -> tuple[Values, dict[str, Any]]:
    task, tensors, options = asking(number)
    stream = client.run(model, task, tensors, timeout_s=60, **options)
    values = gathered(stream)
    assert stream.done is not None
    return values, dict(stream.done.timing.nodes)


@pytest.mark.parametrize("model", ["one", "apart"])
def test_every_node_is_shared_and_nothing_changes(composite_client: Client, model: str) -> None:
    numbers = range(6 * len(TASKS))
    alone = [run(composite_client, model, number) for number in numbers]
    start = threading.Barrier(len(numbers))

    def together(number: int) -> tuple[Values, dict[str, Any]]:
        start.wait()
        return run(composite_client, model, number)

    shared: Counter[str] = Counter()
    for _ in range(MAX_ROUNDS):
        if {name for name, count in shared.items() if count > 0} == NODES:
            break
        busy = composite_client.run(model, "encode", {"image": image(0, 1)}, timeout_s=60, **BUSY)
        with ThreadPoolExecutor(len(numbers)) as pool:
            answers = list(pool.map(together, numbers))
        assert gathered(busy)
        for (values, nodes), (want, nodes_alone) in zip(answers, alone, strict=True):
            assert_equal(values, want, 1e-5)
            assert {name: node.num_steps for name, node in nodes.items()} == {
                name: node.num_steps for name, node in nodes_alone.items()
            }
            shared.update({name: node.batched_with - nodes_alone[name].batched_with for name, node in nodes.items()})
    assert {name for name, count in shared.items() if count > 0} == NODES
    assert_nothing_is_held(composite_client)


def test_equal_seeds_are_equal_and_others_differ(composite_client: Client) -> None:
    def talk(model: str, seed: int) -> Values:
        tensors = {"image": image(1, 5)}
        return gathered(composite_client.run(model, "generate", tensors, steps=12, temperature=1.5, seed=seed))

    first = talk("one", 1)
    for model in ("one", "apart", "small"):
        assert_equal(talk(model, 1), first, 1e-5)
    others = [talk("one", seed) for seed in (2, 3)]
    assert all(
        any(not np.array_equal(other[key], first[key]) for key in first if key[0] == "next_token") for other in others
    )
