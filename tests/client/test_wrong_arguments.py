"""Whatever the caller gives wrongly is one of our errors with one sentence, from both clients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from toy_runtime import PATCHES, SIZE, WIDTH, ToyRuntime

from mstar_rt.client import Client, connect, connect_async, messages
from mstar_rt.errors import FailedPrecondition, InvalidArgument, NotFound
from mstar_rt.message import Submit

FRAME = np.full((SIZE, SIZE, 3), 5, np.uint8)
STATE = np.zeros(7)
NAN = float("nan")
RIGHT = {"model": "toy", "frames": FRAME, "goal_frames": FRAME, "state": STATE}

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"model": 5}, "model is 5, expected text"),
    ({"model": "\ud800"}, "expected text"),
    ({"frames": 5}, "frames must be an array"),
    ({"frames": [FRAME]}, "frames must be an array"),
    ({"frames": {"a": b"b"}}, "frames must be an array"),
    ({"frames": np.array([[["a"]]])}, "dtype str32 cannot be sent"),
    ({"state": "abc"}, "state is 'abc', expected an array or nested sequences of numbers"),
    ({"state": [[1.0], [1.0, 2.0]]}, "state is .*, all rows of one length"),
    ({"state": [None] * 7}, "state is .* expected an array"),
    ({"state": np.zeros(7, complex)}, "state is an array of dtype complex128"),
    ({"state": [1e300] * 7}, "tensor 'state' holds"),
    ({"goal_frames": None, "goal_latents": {"a": 1}}, "goal_latents is {'a': 1}, expected an array"),
    ({"budget_ms": "5"}, "budget_ms is '5', expected a positive number of milliseconds, at most 1000000000"),
    ({"budget_ms": True}, "budget_ms is True"),
    ({"budget_ms": NAN}, "budget_ms is nan"),
    ({"budget_ms": 1e300}, "budget_ms is 1e\\+300"),
    ({"budget_ms": 10**400}, "budget_ms is 1000"),
    ({"budget_ms": -1}, "budget_ms is -1"),
    ({"timeout_s": NAN}, "timeout_s is nan, expected a number of seconds from 0 to 1000000"),
    ({"timeout_s": "5"}, "timeout_s is '5'"),
    ({"timeout_s": 1e7}, "timeout_s is 10000000.0"),
    ({"timeout_s": -1}, "timeout_s is -1"),
    ({"criticality": []}, r"criticality is \[\], expected one of"),
    ({"cost": "unspecified"}, "option 'cost' cannot be 'unspecified': no model has that choice, `describe` lists"),
    ({"cost": "x"}, "option 'cost' cannot be 'x': .* lists which of l1, l2, cosine yours has"),
    ({"planner": "x"}, "option 'planner' cannot be 'x': .* lists which of cem, mppi yours has"),
    ({"num_samples": 8.0}, r"option 'num_samples' cannot be 8\.0: a whole number is expected"),
    ({"num_samples": True}, "option 'num_samples' cannot be True: a whole number is expected"),
    ({"num_samples": None}, "option 'num_samples' is None, leave it out to get the default"),
    ({"num_samples": 2**40}, "a whole number from -2147483648 to 2147483647 is expected"),
    ({"seed": 2**63}, "option 'seed' cannot be 9223372036854775808: a whole number from 0 to 9223372036854775807"),
    ({"tree_branching": [2**31]}, r"\[2147483648\]: a whole number from -2147483648 to 2147483647 is expected"),
    ({"temperature": "hot"}, "option 'temperature' cannot be 'hot': a number is expected"),
    ({"pinned": 5}, "option 'pinned' cannot be 5: a mapping {dimension: value} is expected"),
    ({"pinned": [1]}, r"option 'pinned' cannot be \[1\]: a mapping {dimension: value} is expected"),
    ({"pinned": {"x": 0.0}}, "option 'pinned' cannot be {'x': 0.0}: a whole number is expected"),
    ({"pinned": {0: "x"}}, "option 'pinned' cannot be {0: 'x'}: a number is expected"),
    ({"pinned": {-1: 0.0}}, "option 'pinned' cannot be {-1: 0.0}: a whole number from 0 to 4294967295 is expected"),
    ({"pinned_dims": (), "pinned": {}}, "option 'pinned' cannot be {}: another option says the same"),
    ({"pinned": {}, "pinned_dims": ()}, r"option 'pinned_dims' cannot be \(\): another option says the same"),
    ({"tree_branching": None}, r"option 'tree_branching' is None, leave it out, or give \(\) for flat sampling"),
    ({"tree_branching": 4}, "option 'tree_branching' cannot be 4: a sequence of whole numbers is expected"),
    ({"tree_branching": [2.0]}, r"option 'tree_branching' cannot be \[2\.0\]: a whole number is expected"),
    ({"spice": 2**70}, "option 'spice' is"),
    ({"spice": [10**400]}, "option 'spice' is"),
]


@pytest.mark.parametrize(("wrong", "sentence"), WRONG, ids=[f"{i}-{next(iter(w))}" for i, (w, _) in enumerate(WRONG)])
def test_a_wrong_argument_is_one_sentence(client: Client, wrong: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidArgument, match=sentence) as failure:
        client.plan(**{**RIGHT, **wrong})
    assert "\n" not in str(failure.value)


async def test_the_asyncio_client_refuses_the_same(runtime: ToyRuntime) -> None:
    async with connect_async(runtime.address) as client:
        for wrong, sentence in WRONG:
            with pytest.raises(InvalidArgument, match=sentence):
                await client.plan(**{**RIGHT, **wrong})


def test_other_calls_check_too(client: Client) -> None:
    with pytest.raises(InvalidArgument, match="actions is 'go'"):
        client.rollout("toy", FRAME, "go", STATE)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="option 'spice' is"):
        client.rollout("toy", FRAME, np.ones((1, 7)), STATE, spice=2**70)
    with pytest.raises(InvalidArgument, match="walk is 3, expected text"):
        client.describe("toy", walk=3)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="model is None, expected text"):
        client.session(None)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="timeout_s is None, expected a number of seconds"):
        client.wait_until_serving(timeout_s=None)  # type: ignore[arg-type]


def test_latents_may_be_nested_lists(client: Client, runtime: ToyRuntime) -> None:
    latents = np.ones((1, PATCHES, WIDTH)).tolist()
    list(client.rollout("toy", None, [[0.0] * 7], STATE, latents=latents))
    (submit,) = runtime.wait_for(Submit)
    assert submit.inputs["context_latents"].dtype == "float32"


def test_no_pins_are_said_and_replace_those_of_the_session(client: Client, runtime: ToyRuntime) -> None:
    with client.session("toy", pinned={2: 0.5, 0: 1}) as session:
        session.observe(FRAME, STATE)
        session.plan(goal_frames=FRAME)
        session.plan(goal_frames=FRAME, pinned={})
    client.plan(**RIGHT, pinned={})
    pinned, *free = runtime.wait_for(Submit, 3)
    assert (pinned.params["pinned_dims"], pinned.params["pinned_values"]) == ([0.0, 2.0], [1.0, 0.5])
    for submit in free:
        assert (submit.params["pinned_dims"], submit.params["pinned_values"]) == ([], [])


def test_flat_sampling_is_said_and_not_left_out() -> None:
    assert messages.planner({"tree_branching": np.array([4, 2])}).tree_branching == [4, 2]
    flat = messages.planner({"tree_branching": ()})
    assert flat.model_options["tree_branching"].WhichOneof("kind") == "numbers"


ADDRESSES = [50051, "host:99999", "host:0", "host", "host:", ":50051", "", "::1:5", "http://host:80", "a b:80", None]


@pytest.mark.parametrize("address", ADDRESSES)
def test_an_address_is_host_and_port(address: Any) -> None:
    with pytest.raises(InvalidArgument, match='expected "host:port" with a port from 1 to 65535'):
        connect(address)


@pytest.mark.parametrize("address", ["127.0.0.1:1", "[::1]:65535", "robot.local:50051"])
def test_right_addresses(address: str) -> None:
    connect(address).close()


@pytest.mark.parametrize("address", ADDRESSES)
async def test_an_address_of_the_asyncio_client(address: Any) -> None:
    with pytest.raises(InvalidArgument, match="the address is"):
        connect_async(address)


def test_a_closed_client_says_so(client: Client) -> None:
    session = client.session("toy")
    client.close()
    client.close()
    calls = [
        client.models,
        lambda: client.plan(**RIGHT),
        lambda: client.rollout("toy", FRAME, np.ones((1, 7)), STATE),
        lambda: client.session("toy"),
        lambda: client.wait_until_serving(1.0),
        lambda: session.observe(FRAME, STATE),
    ]
    for call in calls:
        with pytest.raises(FailedPrecondition, match="is closed: connect again"):
            call()


async def test_a_closed_asyncio_client_says_so(runtime: ToyRuntime) -> None:
    client = connect_async(runtime.address)
    await client.close()
    for call in (client.models(), client.plan(**RIGHT), client.session("toy").__aenter__()):
        with pytest.raises(FailedPrecondition, match="is closed: connect again"):
            await call
    with pytest.raises(FailedPrecondition, match="is closed: connect again"):
        await client.wait_until_serving(1.0)


def test_a_closed_session_says_so(client: Client) -> None:
    with client.session("toy") as session:
        session.close()
        session.close()
        for call in (session.plan, lambda: session.observe(FRAME, STATE), lambda: session.set_goal(FRAME)):
            with pytest.raises(FailedPrecondition, match=r"this session at .* is closed: open another one"):
                call()


async def test_an_asyncio_session_is_used_while_it_is_open(runtime: ToyRuntime) -> None:
    async with connect_async(runtime.address) as client:
        unopened = client.session("toy")
        with pytest.raises(FailedPrecondition, match="the session is not open: use it inside `async with`"):
            await unopened.plan()
        async with client.session("toy") as session:
            await session.close()
            await session.close()
            with pytest.raises(FailedPrecondition, match=r"this session at .* is closed: open another one"):
                await session.observe(FRAME, STATE)


def test_waiting_for_a_model_that_is_not_served(client: Client) -> None:
    with pytest.raises(NotFound, match=r"no model 'nope' is served at 127\.0\.0\.1"):
        client.wait_until_serving(timeout_s=10, model="nope")


async def test_waiting_for_such_a_model_in_asyncio(runtime: ToyRuntime) -> None:
    async with connect_async(runtime.address) as client:
        with pytest.raises(NotFound, match="no model 'nope' is served at"):
            await client.wait_until_serving(timeout_s=10, model="nope")
