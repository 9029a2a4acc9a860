"""A walk in which a script stands for the language model: it says given ids, one per iteration."""

from __future__ import annotations

import random
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import torch

from generators.orpheus.codec_nodes import Codec, nothing_heard
from generators.orpheus.frames import AudioIds, Frame
from generators.orpheus.snac_config import SnacConfig
from generators.orpheus.snac_net import SnacNet
from generators.orpheus.sound import Sounds
from generators.orpheus.walks import CODEC, SOUNDING, Strides, codec_edge
from mstar_rt.graph import DynamicLoop, GraphNode, Sequential, Walk, WalkGraph
from mstar_rt.model import NodeCall, NodeResources, NodeResult, ParamSpec, ServedModel, TaskSpec, TensorSpec

AUDIO_BASE = 7
SMALL = SnacConfig(
    encoder_dim=2, encoder_rates=(2, 2, 2, 4), decoder_dim=32, decoder_rates=(4, 2, 2, 2), codebook_size=16
)
BEGIN = GraphNode("begin", ("text",), ("heard", "kept"))
SPELL = GraphNode("spell", ("text",), ("id",))


def sounds_of(config: SnacConfig, seed: int = 0) -> Sounds:
    """A codec with random weights, loud enough to be heard."""
    generator = torch.Generator().manual_seed(seed)
    net = SnacNet(config).requires_grad_(False)
    for name, parameter in net.named_parameters():
        spread = 1.0 if "codebook" in name else 0.1 if "bias" in name else 0.5 * parameter[0].numel() ** -0.5
        drawn = torch.randn(parameter.shape, generator=generator) * spread
        parameter.data = drawn.abs() + 0.5 if "alpha" in name else drawn
    return Sounds(net.settle())


def random_frames(num_frames: int, seed: int = 0, config: SnacConfig = SMALL) -> list[Frame]:
    draw = random.Random(seed)
    return [tuple(draw.randrange(config.codebook_size) for _ in config.slots) for _ in range(num_frames)]


def ids_of(config: SnacConfig) -> AudioIds:
    return AudioIds(AUDIO_BASE, config.codebook_size, config.num_slots)


def speech_model(config: SnacConfig, strides: Strides) -> ServedModel:
    spelling = DynamicLoop("spelling", SPELL, "length", 4000, leave="spell", carry={})
    walk = Walk(
        "speech",
        Sequential(BEGIN, spelling, SOUNDING),
        emit=("audio",),
        edges=(codec_edge("spell.id", config, strides),),
    )
    task = TaskSpec(
        "speech", "says given ids",
        inputs=(TensorSpec("text", ("N",), ("int64",), "ids"),),
        outputs=(TensorSpec("audio", ("S",), ("float32",), "samples", optional=True),),
        walks=("speech",),
        params=(ParamSpec("length", "int", 4000, "", minimum=1, maximum=4000), ParamSpec("seed", "int", 0, "", minimum=0)),
    )  # fmt: skip
    return ServedModel(
        "voice", "spelled", "says ids", WalkGraph((BEGIN, SPELL, CODEC), (walk,)), (task,),
        nodes_factory="tests.generators.orpheus.spelled_speech:build_nodes", facts={"config": config},
    )  # fmt: skip


def build_nodes(model: ServedModel, resources: NodeResources) -> Mapping[str, Any]:
    config = model.facts["config"]
    return {"begin": Begin(), "spell": Spell(), "codec": Codec(sounds_of(config), ids_of(config))}


class Begin:
    def batch_key(self, call: NodeCall) -> Hashable:
        return None

    def run(self, calls: Sequence[NodeCall]) -> list[NodeResult]:
        return [NodeResult(nothing_heard()) for _ in calls]


class Spell:
    def batch_key(self, call: NodeCall) -> Hashable:
        return None

    def run(self, calls: Sequence[NodeCall]) -> list[NodeResult]:
        results = []
        for call in calls:
            index, ids = call.iteration[-1], call.inputs["text"]
            results.append(NodeResult({"id": ids[index : index + 1]}, leave=index + 1 == len(ids)))
        return results
