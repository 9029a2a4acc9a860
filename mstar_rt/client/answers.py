"""Wire answers to results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from mstar_rt.client import results
from mstar_rt.client.control.robot_schema import policy_info
from mstar_rt.protos import request_pb2, runtime_pb2, task_pb2, tensor_pb2, world_model_pb2
from mstar_rt.protos.arrays import array_from_tensor, dtype_name
from mstar_rt.trace import spans_of


def encoding(answer: world_model_pb2.EncodeResponse) -> results.Encoding:
    latents = _array(answer.latents, "latents")
    return results.Encoding(latents, timing(answer.timing), answer.request_id, tuple(answer.flags))


def rollout_step(step: world_model_pb2.RolloutStep) -> results.RolloutStep:
    return results.RolloutStep(
        step=step.step,
        latent=_array(step.latent, "latent") if step.HasField("latent") else None,
        pose=_array(step.pose, "pose") if step.HasField("pose") else None,
        goal_distance=_array(step.goal_distance, "goal_distance") if step.HasField("goal_distance") else None,
        extra=_arrays(step.extra),
    )


def rollout_done(done: world_model_pb2.RolloutDone) -> results.RolloutDone:
    return results.RolloutDone(done.num_steps, timing(done.timing), done.request_id, tuple(done.flags))


def improvement(answer: world_model_pb2.PlanImprovement) -> results.PlanImprovement:
    return results.PlanImprovement(
        iteration=answer.iteration,
        actions=_array(answer.actions, "actions"),
        cost=answer.best_cost,
        elite_mean_cost=answer.elite_mean_cost,
        elapsed_us=answer.elapsed_us,
        extra=_arrays(answer.extra),
        elite_std=_array(answer.elite_std, "elite_std") if answer.HasField("elite_std") else None,
    )


def plan(answer: world_model_pb2.Plan, improvements: Sequence[results.PlanImprovement]) -> results.Plan:
    return results.Plan(
        actions=_array(answer.actions, "actions"),
        cost=answer.best_cost,
        elite_mean_cost=answer.elite_mean_cost,
        num_iterations=answer.num_iterations,
        timing=timing(answer.timing),
        request_id=answer.request_id,
        improvements=tuple(improvements),
        flags=tuple(answer.flags),
        observation_id=answer.observation_id if answer.HasField("observation_id") else None,
        elite_std=_array(answer.elite_std, "elite_std") if answer.HasField("elite_std") else None,
    )


def observed(message_id: int, answer: world_model_pb2.Observed) -> results.Observed:
    return results.Observed(
        message_id, answer.decode_us, timing(answer.timing), answer.num_frames, tuple(answer.flags), answer.request_id
    )


def event(answers: int, wire: world_model_pb2.SessionEvent) -> results.SessionEvent:
    kind = world_model_pb2.SessionEvent.Kind.Name(wire.kind).removeprefix("KIND_").lower()
    replaced_by = wire.replaced_by if wire.HasField("replaced_by") else None
    return results.SessionEvent(kind, answers, wire.message, replaced_by)


def task_output(output: task_pb2.TaskOutput) -> results.TaskOutput:
    return results.TaskOutput(output.name, tuple(output.iteration), _array(output.tensor, output.name), output.walk)


def task_done(done: task_pb2.TaskDone) -> results.TaskDone:
    return results.TaskDone(timing(done.timing), done.request_id, tuple(done.flags))


def timing(wire: request_pb2.Timing) -> results.Timing:
    nodes = {n.name: results.NodeTime(n.num_steps, n.queue_us, n.run_us, n.batched_with) for n in wire.nodes}
    loops = {loop.name: results.LoopTime(loop.num_iterations, loop.run_us) for loop in wire.loops}
    return results.Timing(
        decode_us=wire.decode_us,
        queue_us=wire.queue_us,
        nodes=nodes,
        loops=loops,
        runtime_us=wire.runtime_us,
        encode_us=wire.encode_us,
        total_us=wire.total_us,
        transport_us=wire.transport_us,
        run_us=wire.run_us,
    )


def model_info(wire: runtime_pb2.ModelSummary) -> results.ModelInfo:
    return results.ModelInfo(wire.name, wire.family, wire.doc, wire.serving, wire.reason, tuple(wire.tasks))


def description(wire: runtime_pb2.DescribeModelResponse) -> results.ModelDescription:
    return results.ModelDescription(
        model=model_info(wire.summary),
        tasks={task.name: _task(task) for task in wire.tasks},
        walks={walk.walk: results.WalkInfo(walk.walk, walk.text, walk.mermaid) for walk in wire.walks},
        facts={name: _option_value(value) for name, value in wire.facts.items()},
        checkpoint=wire.checkpoint,
        policy=policy_info(wire.policy) if wire.HasField("policy") else None,
        places=tuple(
            results.NodePlace(place.node, tuple(place.walks), tuple(place.ranks), dtype_name(place.dtype))
            for place in wire.places
        ),
    )


def server_info(wire: runtime_pb2.ServerInfoResponse) -> results.ServerInfo:
    return results.ServerInfo(
        wire.version,
        wire.max_message_bytes,
        wire.uptime_s,
        wire.shared_memory,
        wire.draining,
        tuple(wire.services),
    )


def runtime_stats(wire: runtime_pb2.StatsResponse) -> results.RuntimeStats:
    values = {process: dict(stats.values) for process, stats in wire.processes.items()}
    histograms = {
        process: {name: _histogram(histogram) for name, histogram in stats.histograms.items()}
        for process, stats in wire.processes.items()
    }
    return results.RuntimeStats(values, tuple(wire.silent), histograms)


def _histogram(wire: runtime_pb2.Histogram) -> results.Histogram:
    return results.Histogram(tuple(wire.bounds), tuple(wire.counts), wire.total)


def session_info(wire: runtime_pb2.SessionInfo) -> results.SessionInfo:
    return results.SessionInfo(
        session_id=wire.session_id,
        kind=wire.kind,
        model=wire.model,
        client=wire.client,
        age_s=wire.age_s,
        asked_hz=wire.asked_hz,
        budget_ms=wire.budget_ms,
        answered_hz=wire.answered_hz,
        p50_ms=wire.p50_ms if wire.HasField("p50_ms") else None,
        p99_ms=wire.p99_ms if wire.HasField("p99_ms") else None,
        num_answered=wire.num_answered,
        num_missed=wire.num_missed,
        dropped=dict(wire.dropped),
        last=timing(wire.last) if wire.HasField("last") else None,
    )


def runtime_trace(wire: runtime_pb2.TraceResponse) -> results.RuntimeTrace:
    processes = {each.process: tuple(spans_of(each.rows)) for each in wire.processes}
    return results.RuntimeTrace(processes, tuple(wire.silent))


def _task(wire: runtime_pb2.TaskSchema) -> results.TaskInfo:
    return results.TaskInfo(
        name=wire.name,
        doc=wire.doc,
        inputs=tuple(_tensor_info(each) for each in wire.inputs),
        outputs=tuple(_tensor_info(each) for each in wire.outputs),
        options=tuple(_option_info(each) for each in wire.options),
        walks=tuple(wire.walks),
    )


def _tensor_info(wire: runtime_pb2.TensorSchema) -> results.TensorInfo:
    return results.TensorInfo(
        name=wire.name,
        shape=tuple(d.size if d.WhichOneof("kind") == "size" else d.symbol for d in wire.shape),
        dtypes=tuple(dtype_name(dtype) for dtype in wire.dtypes),
        units=wire.units,
        doc=wire.doc,
        optional=wire.optional,
        max_sizes={d.symbol: d.max_size for d in wire.shape if d.HasField("max_size")},
    )


def _option_info(wire: runtime_pb2.OptionSchema) -> results.OptionInfo:
    return results.OptionInfo(
        name=wire.name,
        kind=wire.kind,
        default=_option_value(wire.default_value) if wire.HasField("default_value") else None,
        required=wire.required,
        minimum=wire.minimum if wire.HasField("minimum") else None,
        maximum=wire.maximum if wire.HasField("maximum") else None,
        choices=tuple(wire.choices),
        length=wire.length if wire.HasField("length") else None,
        units=wire.units,
        doc=wire.doc,
    )


def _option_value(wire: request_pb2.OptionValue) -> results.OptionValue:
    kind = wire.WhichOneof("kind")
    assert kind is not None, "the server sets every value that it sends"
    value: results.OptionValue = tuple(wire.numbers.values) if kind == "numbers" else getattr(wire, kind)
    return value


def _array(tensor: tensor_pb2.Tensor, name: str) -> np.ndarray:
    return array_from_tensor(tensor, name)


def _arrays(tensors: Mapping[str, tensor_pb2.Tensor]) -> dict[str, np.ndarray]:
    return {name: _array(tensor, name) for name, tensor in tensors.items()}
