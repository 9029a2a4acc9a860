"""The client SDK: numpy and grpc, no torch.

from mstar_rt.client import connect

with connect("127.0.0.1:50051") as client:
    client.wait_until_serving(timeout_s=30)
    plan = client.plan("tabletop", frames, goal_frames, state, budget_ms=200)
    robot.move(plan.actions[0])
"""

from mstar_rt.client.asynchronous import AsyncClient, connect_async
from mstar_rt.client.asynchronous_session import AsyncWorldModelSession
from mstar_rt.client.asynchronous_tasks import AsyncTaskSession, AsyncTaskStream
from mstar_rt.client.blocking import Client, RolloutStream, connect
from mstar_rt.client.blocking_session import WorldModelSession
from mstar_rt.client.blocking_tasks import TaskSession, TaskStream
from mstar_rt.client.results import (
    Encoding,
    LoopTime,
    ModelDescription,
    ModelInfo,
    NodeTime,
    Observed,
    OptionInfo,
    Plan,
    PlanImprovement,
    RolloutDone,
    RolloutStep,
    RuntimeStats,
    ServerInfo,
    SessionEvent,
    TaskDone,
    TaskInfo,
    TaskOutput,
    TensorInfo,
    Timing,
    WalkInfo,
)

__all__ = [
    "AsyncClient",
    "AsyncTaskSession",
    "AsyncTaskStream",
    "AsyncWorldModelSession",
    "Client",
    "Encoding",
    "LoopTime",
    "ModelDescription",
    "ModelInfo",
    "NodeTime",
    "Observed",
    "OptionInfo",
    "Plan",
    "PlanImprovement",
    "RolloutDone",
    "RolloutStep",
    "RolloutStream",
    "RuntimeStats",
    "ServerInfo",
    "SessionEvent",
    "TaskDone",
    "TaskInfo",
    "TaskOutput",
    "TaskSession",
    "TaskStream",
    "TensorInfo",
    "Timing",
    "WalkInfo",
    "WorldModelSession",
    "connect",
    "connect_async",
]
