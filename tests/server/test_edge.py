"""Listening, health, reflection, what is not served, and the Runtime service."""

from __future__ import annotations

import socket
import threading
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from toy_runtime import SIZE, ToyRuntime, toy_runtime

import mstar_rt
from mstar_rt.errors import ConfigError, FailedPrecondition
from mstar_rt.message import Drain, Submit
from mstar_rt.protos import (
    request_pb2,
    runtime_pb2,
)  # fmt: skip
from mstar_rt.protos import world_model_pb2 as wire
from mstar_rt.server.edge import EdgeConfig, start_edge

SERVING, NOT_SERVING = (
    health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING,
)  # fmt: skip


def try_to_start(runtime: ToyRuntime, config: EdgeConfig) -> None:
    runtime.run(start_edge(config, {"toy": runtime.model}, runtime.dispatcher))


def test_a_port_in_use_is_an_error_that_names_it(runtime: ToyRuntime) -> None:
    port = runtime.edge.port
    with pytest.raises(FailedPrecondition, match=f"port {port} of 127.0.0.1 is in use: stop what listens there"):
        try_to_start(runtime, EdgeConfig(port=port))
    with socket.create_server(("127.0.0.1", 0)) as other, pytest.raises(FailedPrecondition, match="is in use"):
        try_to_start(runtime, EdgeConfig(port=other.getsockname()[1]))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "robot.example"])
def test_an_address_that_others_can_reach_is_refused(runtime: ToyRuntime, host: str) -> None:
    with pytest.raises(ConfigError, match="can be reached from other machines and the server has no TLS"):
        try_to_start(runtime, EdgeConfig(host=host, port=0))


def test_insecure_allows_it() -> None:
    config = EdgeConfig(host="0.0.0.0", port=0, insecure=True)
    with toy_runtime(config) as runtime, grpc.insecure_channel(f"127.0.0.1:{runtime.edge.port}") as channel:
        assert health(channel, "toy") == SERVING


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        (EdgeConfig(port=70000), "port is 70000, expected 0 .any free one. to 65535"),
        (EdgeConfig(port=0, max_message_bytes=10), "max_message_bytes is 10, expected at least 1024"),
        (EdgeConfig(host="300.1.1.1", port=0, insecure=True), "cannot listen on port 0 of 300.1.1.1"),
    ],
)
def test_an_impossible_configuration_is_refused(runtime: ToyRuntime, config: EdgeConfig, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        try_to_start(runtime, config)


# ---- health


def health(channel: grpc.Channel, service: str) -> int:
    stub = health_pb2_grpc.HealthStub(channel)
    return int(stub.Check(health_pb2.HealthCheckRequest(service=service)).status)


def test_health_follows_the_state_of_the_model() -> None:
    with toy_runtime(serving=False) as runtime, grpc.insecure_channel(runtime.address) as channel:
        assert (health(channel, "toy"), health(channel, "")) == (NOT_SERVING, NOT_SERVING)
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service="toy"))
        assert next(watch).status == NOT_SERVING
        runtime.set_serving(True)
        assert next(watch).status == SERVING
        runtime.set_serving(False, "worker/0 died")
        assert next(watch).status == NOT_SERVING
        assert health(channel, "") == NOT_SERVING
        watch.cancel()
        with pytest.raises(grpc.RpcError) as failure:
            health(channel, "toi")
        assert failure.value.code() == grpc.StatusCode.NOT_FOUND


def test_a_model_that_is_not_serving_refuses_with_the_reason(runtime: ToyRuntime, world_model: Any) -> None:
    runtime.set_serving(False, "worker/0 died and is starting again")
    with pytest.raises(grpc.RpcError) as failure:
        world_model.Encode(encode_request())
    assert failure.value.code() == grpc.StatusCode.UNAVAILABLE
    assert "model 'toy' is not serving: worker/0 died and is starting again" in failure.value.details()
    runtime.set_serving(True)
    assert world_model.Encode(encode_request()).request_id


def encode_request() -> wire.EncodeRequest:
    from mstar_rt.protos import tensor_pb2

    image = tensor_pb2.Image(
        encoding=tensor_pb2.Image.ENCODING_RAW,
        data=bytes(SIZE * SIZE * 3),
        height=SIZE,
        width=SIZE,
        channels=3,
    )
    images = tensor_pb2.ImageSequence(images=[image])
    return wire.EncodeRequest(model="toy", frames=tensor_pb2.Frames(images=images))


# ---- reflection and what is not served


@pytest.mark.parametrize("enabled", [False, True])
def test_reflection_only_with_its_flag(enabled: bool) -> None:
    config = EdgeConfig(port=0, reflection=enabled)
    with toy_runtime(config) as runtime, grpc.insecure_channel(runtime.address) as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        answers = stub.ServerReflectionInfo(iter([request]))
        if enabled:
            services = {service.name for service in next(answers).list_services_response.service}
            assert {"mstar.v1.WorldModel", "mstar.v1.Runtime", "grpc.health.v1.Health"} <= services
        else:
            with pytest.raises(grpc.RpcError) as failure:
                next(answers)
            assert failure.value.code() == grpc.StatusCode.UNIMPLEMENTED


# ---- Runtime


def test_server_info(runtime_stub: Any) -> None:
    info = runtime_stub.ServerInfo(runtime_pb2.ServerInfoRequest())
    assert info.version == mstar_rt.__version__
    assert info.max_message_bytes == 1 << 20
    assert (info.shared_memory, info.draining) == (True, False)
    assert info.uptime_s >= 0


def test_models_are_listed_with_their_state(runtime: ToyRuntime, runtime_stub: Any) -> None:
    (summary,) = runtime_stub.ListModels(runtime_pb2.ListModelsRequest()).models
    assert (summary.name, summary.family, summary.serving, summary.reason) == ("toy", "toy_family", True, "")
    assert list(summary.tasks) == ["encode", "rollout", "plan", "set_goal"]
    runtime.set_serving(False, "warming up")
    (summary,) = runtime_stub.ListModels(runtime_pb2.ListModelsRequest()).models
    assert (summary.serving, summary.reason) == (False, "warming up")


def test_a_model_is_described_with_its_schema_and_its_walks(runtime_stub: Any) -> None:
    description = runtime_stub.DescribeModel(runtime_pb2.DescribeModelRequest(model="toy"))
    tasks = {task.name: task for task in description.tasks}
    frames = tasks["encode"].inputs[0]
    assert (frames.name, frames.optional) == ("frames", False)
    assert (frames.shape[0].symbol, frames.shape[0].max_size) == ("T", 8)
    assert [dimension.size for dimension in frames.shape[1:]] == [SIZE, SIZE, 3]
    assert tasks["plan"].criticality == request_pb2.CRITICALITY_PLANNING
    options = {option.name: option for option in tasks["plan"].options}
    assert options["num_samples"].default_value.integer == 32
    assert (options["num_samples"].minimum, options["num_samples"].maximum) == (2, 256)
    assert list(options["cost"].choices) == ["l1", "l2"]
    assert [walk.walk for walk in description.walks] == ["encode", "rollout", "set_goal", "plan"]
    assert "predictor" in description.walks[1].text
    assert description.walks[1].mermaid.startswith("flowchart")
    assert description.facts["image_size"].integer == SIZE
    assert list(description.facts["trained_positions"].numbers.values) == [0, 6]
    assert description.checkpoint == "toy.bin"


def test_one_walk_is_drawn_and_unknown_names_are_refused(runtime_stub: Any) -> None:
    (walk,) = runtime_stub.DescribeModel(runtime_pb2.DescribeModelRequest(model="toy", walk="encode")).walks
    assert walk.walk == "encode"
    for request in (
        runtime_pb2.DescribeModelRequest(model="toy", walk="encoda"),
        runtime_pb2.DescribeModelRequest(model="toi"),
    ):
        with pytest.raises(grpc.RpcError, match="did you mean") as failure:
            runtime_stub.DescribeModel(request)
        assert failure.value.code() == grpc.StatusCode.NOT_FOUND


def test_stats_come_from_every_process(runtime: ToyRuntime, runtime_stub: Any, world_model: Any) -> None:
    world_model.Encode(encode_request())
    stats = runtime_stub.Stats(runtime_pb2.StatsRequest())
    assert set(stats.processes) == {"server", "conductor", "worker/0"}
    assert stats.processes["worker/0"].values["pages_free"] == 7
    assert stats.processes["server"].values["requests_submitted"] == 1
    assert not stats.silent


def test_draining_finishes_what_runs_and_takes_nothing_new(
    runtime: ToyRuntime, runtime_stub: Any, world_model: Any, channel: grpc.Channel
) -> None:
    import asyncio

    let_go, encode_script = asyncio.Event(), runtime.scripts["encode"]

    async def wait(job: Any) -> None:
        await let_go.wait()
        await encode_script(job)

    async def release() -> None:
        let_go.set()

    runtime.script("encode", wait)
    running = world_model.Encode.future(encode_request())
    runtime.wait_for(Submit)
    assert runtime_stub.Drain(runtime_pb2.DrainRequest()).num_running == 1
    runtime.wait_for(Drain)
    with pytest.raises(grpc.RpcError, match="this server is draining") as failure:
        world_model.Encode(encode_request())
    assert failure.value.code() == grpc.StatusCode.UNAVAILABLE
    assert health(channel, "toy") == NOT_SERVING
    assert runtime_stub.ServerInfo(runtime_pb2.ServerInfoRequest()).draining
    runtime.run(release())
    assert running.result().request_id


def test_stopping_ends_running_calls(runtime: ToyRuntime, world_model: Any) -> None:
    from toy_runtime import never

    runtime.script("encode", never)
    call = world_model.Encode.future(encode_request())
    runtime.wait_for(Submit)
    ended = threading.Event()
    call.add_done_callback(lambda _: ended.set())
    runtime.run(runtime.edge.stop())
    assert ended.wait(10)
    assert call.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
