"""A node of any kind that fails in any way fails its own request, with a typed answer that leaks nothing, at once."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import numpy as np
import pytest
from composite_serving import ask, ask_in, assert_equal, image
from serving import Serving, assert_nothing_is_held

from mstar_rt.client import Client
from mstar_rt.errors import FailedPrecondition, Internal, InvalidArgument, MstarError, NotFound, ResourceExhausted
from mstar_rt.protos import task_pb2, task_pb2_grpc, tensor_pb2

pytestmark = [pytest.mark.system, pytest.mark.timeout(90)]

NODES = {
    "encode": "generate",
    "prefill": "generate",
    "decode": "speak",
    "codec": "speak",
    "vocode": "speak_offline",
    "understand": "denoise",
    "cond": "denoise",
    "uncond": "denoise",
    "combine": "denoise",
    "listen": "listen",
}
ANSWERS: dict[str, tuple[tuple[type[MstarError], ...], str]] = {
    "raise": ((Internal,), r"node '{kind}' failed \(RuntimeError\)"),
    "own_error": ((FailedPrecondition,), "node {use} refuses this"),
    "out_of_memory": ((Internal, ResourceExhausted), "node '{kind}'"),
    "wrong_outputs": ((Internal,), "node '{kind}' gave outputs .*it declares"),
    "too_few": ((Internal,), "node '{kind}' gave 0 results for 1 calls"),
    "bad_key": ((Internal,), "failed|could not start"),
    "wrong_shape": ((Internal,), "{kind}.*shape"),
    "nan": ((Internal,), "{kind}.*(NaN|finite)"),
}
AT_ONCE_S = 3.0
"""In fact milliseconds, on a machine that does nothing else."""


def options_for(task: str) -> dict[str, Any]:
    return {} if task == "listen" else {"steps": 3}


@pytest.mark.parametrize("fault", ANSWERS)
@pytest.mark.parametrize("model", ["one", "apart"])
def test_every_fault_in_every_node_is_one_typed_answer(composite_client: Client, model: str, fault: str) -> None:
    for use, task in NODES.items():
        kind = "velocity" if use in ("cond", "uncond") else use
        kinds, sentence = ANSWERS[fault]
        tensors, options = {"image": image(1, 5)}, options_for(task)
        want = ask(composite_client, model, task, tensors, **options)
        for at in (0, 1) if use in ("decode", "cond", "combine") else (-1,):
            began = time.monotonic()
            with pytest.raises(kinds, match=sentence.format(kind=kind, use=use)) as caught:
                ask(composite_client, model, task, tensors, fault=fault, fault_node=use, fault_at=at, **options)
            assert time.monotonic() - began < AT_ONCE_S
            assert "secret" not in str(caught.value)
        assert_equal(ask(composite_client, model, task, tensors, **options), want)
    assert_nothing_is_held(composite_client)


@pytest.mark.parametrize("model", ["one", "apart"])
def test_who_shared_the_step_does_not_share_the_fault(composite_client: Client, model: str) -> None:
    tensors = {"image": image(2, 5)}
    want = ask(composite_client, model, "generate", tensors, steps=12)

    def run(number: int) -> Any:
        options: dict[str, Any] = {"fault": "raise", "fault_node": "decode", "fault_at": 6} if number % 4 == 0 else {}
        try:
            return ask(composite_client, model, "generate", tensors, steps=12, **options)
        except Internal as error:
            return error

    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(run, range(12)))
    for number, answer in enumerate(answers):
        if number % 4 == 0:
            assert isinstance(answer, Internal)
        else:
            assert_equal(answer, want, 1e-5)
    assert_nothing_is_held(composite_client)


@pytest.mark.parametrize("model", ["one", "apart"])
def test_a_failed_request_leaves_its_session_as_it_was(composite_client: Client, model: str) -> None:
    first, second = {"image": image(3, 6)}, {"image": image(4, 7)}
    with composite_client.task_session(model) as undisturbed:
        want = [ask_in(undisturbed, "listen", tensors) for tensors in (first, second)]
    with composite_client.task_session(model) as session:
        assert_equal(ask_in(session, "listen", first), want[0])
        for fault in ("raise", "nan"):
            with pytest.raises(Internal):
                ask_in(session, "listen", second, fault=fault, fault_node="listen")
        assert_equal(ask_in(session, "listen", second), want[1])
    assert_nothing_is_held(composite_client)


def test_malformed_requests_of_all_kinds_then_a_healthy_one(
    composite_serving: Serving, composite_client: Client
) -> None:
    good = image(5, 4)
    want = ask(composite_client, "apart", "generate", {"image": good})
    cases: list[tuple[type[MstarError], str, dict[str, np.ndarray], dict[str, Any]]] = [
        (InvalidArgument, "generate", {}, {}),
        (InvalidArgument, "generate", {"picture": good}, {}),
        (InvalidArgument, "generate", {"image": good.astype(np.int32)}, {}),
        (InvalidArgument, "generate", {"image": good[None]}, {}),
        (InvalidArgument, "generate", {"image": image(5, 25)}, {}),
        (InvalidArgument, "generate", {"image": np.full_like(good, np.nan)}, {}),
        (InvalidArgument, "generate", {"image": good}, {"steps": 0}),
        (InvalidArgument, "generate", {"image": good}, {"steps": 65}),
        (InvalidArgument, "generate", {"image": good}, {"step": 3}),
        (InvalidArgument, "generate", {"image": good}, {"steps": "three"}),
        (InvalidArgument, "generate", {"image": good}, {"budget_ms": -1.0}),
        (NotFound, "generates", {"image": good}, {}),
        (FailedPrecondition, "answer", {}, {}),
    ]
    for kind, task, tensors, options in cases:
        with pytest.raises(kind):
            ask(composite_client, "apart", task, tensors, **options)
    with pytest.raises(NotFound, match="did you mean 'apart'"):
        ask(composite_client, "apartt", "generate", {"image": good})
    send_raw_nonsense(composite_serving.address)
    assert_equal(ask(composite_client, "apart", "generate", {"image": good}), want)
    assert_nothing_is_held(composite_client)


def send_raw_nonsense(address: str) -> None:
    """What no client of ours would send: tensors whose bytes do not fit, and bytes that are no message at all."""
    short = tensor_pb2.Tensor(dtype=tensor_pb2.DTYPE_FLOAT32, shape=[4, 8], data=b"123")
    huge = tensor_pb2.Tensor(dtype=tensor_pb2.DTYPE_FLOAT32, shape=[1 << 62, 8], data=b"123")
    untyped = tensor_pb2.Tensor(shape=[1], data=b"1234")
    with grpc.insecure_channel(address) as channel:
        for tensor in (short, huge, untyped):
            request = task_pb2.TaskRequest(model="apart", task="generate", tensors={"image": tensor})
            with pytest.raises(grpc.RpcError) as caught:
                list(task_pb2_grpc.TasksStub(channel).Run(request, timeout=20))
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        for path in ("/mstar.v1.Tasks/Run", "/mstar.v1.Tasks/Session"):
            send = channel.stream_stream(path) if path.endswith("Session") else channel.unary_stream(path)
            garbage = b"\xff\x00garbage"
            with pytest.raises(grpc.RpcError):
                list(send(iter([garbage]) if path.endswith("Session") else garbage, timeout=20))
