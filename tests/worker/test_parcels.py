"""Values for other processes: packed and opened again, each tensor once, nothing held after a failure."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mstar_rt.cache.moving import Delta
from mstar_rt.errors import Internal, SharedMemoryExhausted
from mstar_rt.message import TokenValue
from mstar_rt.transport import InProcessHub, InProcessPlanes
from mstar_rt.worker.parcels import Parcels, open_delta, open_value
from mstar_rt.worker.tensors import receive_tensors

tensors = st.builds(
    lambda size, fill, dtype: torch.full((size,), fill).to(dtype),
    st.integers(0, 3),
    st.integers(0, 9),
    st.sampled_from([torch.float32, torch.int64, torch.bool, torch.bfloat16]),
)
values = st.none() | st.recursive(tensors, lambda inner: st.lists(inner, max_size=4), max_leaves=8)


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, list):
        return isinstance(other, list) and len(one) == len(other) and all(map(equal, one, other))
    return one is other if one is None else one.dtype == other.dtype and torch.equal(one, other)


@given(st.lists(values, max_size=5))
def test_what_is_opened_is_what_was_packed(packed: list[Any]) -> None:
    hub, planes = InProcessHub(), InProcessPlanes()
    plane, reader = planes.plane(hub.endpoint("worker/0")), planes.plane(hub.endpoint("worker/1"))
    parcels = Parcels(plane)
    letter = parcels.letter("worker/1")
    tokens = [letter.value(value) for value in packed]
    parcels.put()
    received = receive_tensors(reader, letter.refs(), "cpu")
    assert all(equal(open_value(token, received), value) for token, value in zip(tokens, packed, strict=True))


def test_a_tensor_goes_once_whoever_reads_it() -> None:
    hub, planes = InProcessHub(), InProcessPlanes()
    plane = planes.plane(hub.endpoint("worker/0"))
    large, several = torch.zeros(50_000), [torch.ones(50_000), torch.ones(50_000)]
    parcels = Parcels(plane)
    letters = [parcels.letter(f"worker/{rank}") for rank in (1, 2)]
    for letter in letters:
        assert letter.value(large) == letter.value(large)
        assert letter.value(several).kind == "stacked"
    index = parcels.add(large, "server")
    parcels.put()
    assert plane.num_held_bytes == 3 * 50_000 * 4
    assert letters[0].refs() == letters[1].refs()
    assert parcels.ref(index) in letters[0].refs()
    parcels.add(large, "server")
    letters[0].sent()
    parcels.take_back()
    assert plane.num_held_bytes == 3 * 50_000 * 4, "worker/1 still reads them"


def test_one_process_gets_a_tensor_of_its_own_in_every_message() -> None:
    plane = InProcessPlanes().plane(InProcessHub().endpoint("worker/0"))
    parcels, large = Parcels(plane), torch.zeros(50_000)
    first, second = parcels.add(large, "server"), parcels.add(large, "server")
    parcels.put()
    assert parcels.ref(first) != parcels.ref(second)


def test_a_failure_gives_back_what_was_put() -> None:
    plane = InProcessPlanes().plane(InProcessHub().endpoint("worker/0"), limit_bytes=300_000)
    parcels = Parcels(plane)
    for _ in range(3):
        parcels.letter("worker/1").value(torch.zeros(30_000))
    with pytest.raises(SharedMemoryExhausted):
        parcels.put()
    parcels.take_back()
    assert plane.num_held_bytes == 0


@pytest.mark.parametrize("value", [3, "text", [torch.zeros(1), 3], {"a": torch.zeros(1)}])
def test_what_is_no_tensor_is_refused(value: Any) -> None:
    plane = InProcessPlanes().plane(InProcessHub().endpoint("worker/0"))
    with pytest.raises(Internal, match="expected"):
        Parcels(plane).letter("worker/1").value(value)


@pytest.mark.parametrize(
    "packed",
    [
        TokenValue([1]),
        TokenValue([0, 3], "list"),
        TokenValue([], "tensor"),
        TokenValue([-3, 0], "nested"),
        TokenValue([0], "x"),
    ],
)
def test_a_value_that_contradicts_itself_is_refused(packed: TokenValue) -> None:
    with pytest.raises(Internal):
        open_value(packed, [torch.zeros(1)])


@pytest.mark.parametrize("label", ["text", 3, ("candidate", 3), ("text",)])
def test_sequences_travel_with_their_labels(label: Any) -> None:
    hub, planes = InProcessHub(), InProcessPlanes()
    plane, reader = planes.plane(hub.endpoint("worker/0")), planes.plane(hub.endpoint("worker/1"))
    parcels = Parcels(plane)
    letter = parcels.letter("worker/1")
    pages = torch.randn(2, 2, 3, 1, 4)
    packed = letter.delta("memory", [Delta(label, 4, 3, pages, (9, 2, 8)), Delta(("gone", 1), 0, -1, None, (7,))])
    parcels.put()
    kept, gone = open_delta(packed, receive_tensors(reader, letter.refs(), "cpu"))
    assert (kept.label, kept.start, kept.num_tokens, kept.history) == (label, 4, 3, (9, 2, 8))
    assert kept.pages is not None
    assert torch.equal(kept.pages, pages)
    assert gone == (("gone", 1), 0, -1, None, (7,))
