"""What a served model declares: torch-free, so that conductor, server and tools can read it without loading weights."""

from mstar_rt.model.generation import ChatSpec, GenerationSpec, ImageSpec, Reason, SpeechSpec
from mstar_rt.model.node import InParts, KVNode, NodeCall, NodeResources, NodeResult, OneByOne, StatelessNode, by_part
from mstar_rt.model.policy import CameraSpec, PolicySpec, VectorSpec
from mstar_rt.model.served import KVSpec, ServedModel, TaskSpec
from mstar_rt.model.spec import ParamSpec, ParamValue, TensorSpec

__all__ = [
    "CameraSpec", "ChatSpec", "GenerationSpec", "ImageSpec", "InParts", "KVNode", "KVSpec", "NodeCall", "NodeResources",
    "NodeResult", "OneByOne", "ParamSpec", "ParamValue", "PolicySpec", "Reason", "ServedModel", "SpeechSpec",
    "StatelessNode", "TaskSpec", "TensorSpec", "VectorSpec", "by_part",
]  # fmt: skip
