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
from mstar_rt.client.control.action_queue import ActionQueue, QueuedChunk, RobotAction
from mstar_rt.client.control.asynchronous_session import AsyncControlSession
from mstar_rt.client.control.delay_estimate import DelayEstimate
from mstar_rt.client.control.results import ActionChunk, ControlEvent, ControlStats
from mstar_rt.client.control.robot_schema import CameraSchema, PolicyInfo, RobotSchema, VectorSchema
from mstar_rt.client.control.session import ControlSession
from mstar_rt.client.generation.asynchronous_streams import AsyncChatStream, AsyncImageStream, AsyncSpeechStream
from mstar_rt.client.generation.results import (
    AudioPiece,
    GenerationDone,
    ImageProgress,
    ImageResult,
    Speech,
    TextPiece,
)
from mstar_rt.client.generation.streams import ChatStream, ImageStream, SpeechStream
from mstar_rt.client.recording.writer import Recording
from mstar_rt.client.results import (
    Encoding,
    Histogram,
    LoopTime,
    ModelDescription,
    ModelInfo,
    NodePlace,
    NodeTime,
    Observed,
    OptionInfo,
    Plan,
    PlanImprovement,
    RolloutDone,
    RolloutStep,
    RuntimeStats,
    RuntimeTrace,
    ServerInfo,
    SessionEvent,
    SessionInfo,
    TaskDone,
    TaskInfo,
    TaskOutput,
    TensorInfo,
    Timing,
    WalkInfo,
)
from mstar_rt.freed_memory import keep_freed_memory

__all__ = [
    "ActionChunk",
    "ActionQueue",
    "AsyncChatStream",
    "AsyncClient",
    "AsyncControlSession",
    "AsyncImageStream",
    "AsyncSpeechStream",
    "AsyncTaskSession",
    "AsyncTaskStream",
    "AsyncWorldModelSession",
    "AudioPiece",
    "CameraSchema",
    "ChatStream",
    "Client",
    "ControlEvent",
    "ControlSession",
    "ControlStats",
    "DelayEstimate",
    "Encoding",
    "GenerationDone",
    "Histogram",
    "ImageProgress",
    "ImageResult",
    "ImageStream",
    "LoopTime",
    "ModelDescription",
    "ModelInfo",
    "NodePlace",
    "NodeTime",
    "Observed",
    "OptionInfo",
    "Plan",
    "PlanImprovement",
    "PolicyInfo",
    "QueuedChunk",
    "Recording",
    "RobotAction",
    "RobotSchema",
    "RolloutDone",
    "RolloutStep",
    "RolloutStream",
    "RuntimeStats",
    "RuntimeTrace",
    "ServerInfo",
    "SessionEvent",
    "SessionInfo",
    "Speech",
    "SpeechStream",
    "TaskDone",
    "TaskInfo",
    "TaskOutput",
    "TaskSession",
    "TaskStream",
    "TensorInfo",
    "TextPiece",
    "Timing",
    "VectorSchema",
    "WalkInfo",
    "WorldModelSession",
    "connect",
    "connect_async",
    "keep_freed_memory",
]
