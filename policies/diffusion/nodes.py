"""What the nodes of a Diffusion Policy compute. Between nodes all is float32, whatever the weights are."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import torch

from mstar_rt.errors import ConfigError
from mstar_rt.model import NodeCall, NodeResources, NodeResult, ServedModel, by_part
from policies.anytime.pace import Pace, is_last_step, noise_generator
from policies.anytime.step_times import StepTimes
from policies.diffusion.checkpoint import load_eyes, load_unet, read_policy
from policies.diffusion.config import DiffusionConfig, read_config
from policies.diffusion.net import Between, Eye, Unet
from policies.diffusion.processor import prepared
from policies.diffusion.schedule import NoiseSchedule, Turn
from policies.lerobot.statistics import Processor
from policies.lerobot.walks import camera_of, features_of

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def build_nodes(model: ServedModel, resources: NodeResources) -> dict[str, Any]:
    """Make the code of the nodes asked for; keep the weights that they need, and no other.

    Raises: CheckpointError, ConfigError.
    """
    if resources.dtype not in DTYPES:
        raise ConfigError(f"dtype {resources.dtype!r} is not served by {model.name!r}, expected {' or '.join(DTYPES)}")
    config, dtype = read_config(model.checkpoint), DTYPES[resources.dtype]
    weights, processor = read_policy(config, model.checkpoint, resources.device)
    given = (config, weights, model.checkpoint, resources.device, dtype)
    schedule, step_times = NoiseSchedule(config.schedule), StepTimes()
    makers: dict[str, Callable[[], Any]] = {
        "see": lambda: See(load_eyes(*given), config, processor, dtype),
        "begin": lambda: Begin(config, processor, schedule),
        "pace": lambda: Pace(schedule.times, step_times),
        "denoise": lambda: Denoise(load_unet(*given), schedule, dtype, step_times),
        "finish": lambda: Finish(config, processor),
    }
    return {name: make() for name, make in makers.items() if name in resources.nodes or not resources.nodes}


class See:
    """Images uint8 [N, H, W, 3] of one camera, oldest first -> features [N, F].

    The layers of the network, through which all images of a call go together, are its items.
    """

    def __init__(
        self, eyes: Mapping[str, Eye], config: DiffusionConfig, processor: Processor, dtype: torch.dtype
    ) -> None:
        self._eyes, self._vision, self._processor, self._dtype = eyes, config.vision, processor, dtype

    def batch_key(self, call: NodeCall) -> Hashable:
        """Those share a step that are seen with one network."""
        return id(self._eyes[camera_of(call.node)])

    def num_items(self, call: NodeCall) -> int:
        return Eye.num_layers

    def run(self, calls: Sequence[NodeCall]) -> list[NodeResult]:
        groups = by_part(calls, Eye.num_layers)
        return [result for layers, group in groups for result in self._run_layers(group, layers)]

    def _run_layers(self, calls: Sequence[NodeCall], layers: range) -> list[NodeResult]:
        given = [call.progress if layers.start else self._images(call) for call in calls]
        seen = self._eyes[camera_of(calls[0].node)](torch.cat(given), layers)
        by_call = seen.split([len(part) for part in given])
        if layers.stop < Eye.num_layers:
            return [NodeResult({}, progress=part) for part in by_call]
        return [NodeResult({"features": part.float()}) for part in by_call]

    def _images(self, call: NodeCall) -> torch.Tensor:
        pixels = self._pixels(camera_of(call.node), call.inputs["image"])
        return pixels.to(self._dtype, memory_format=torch.channels_last)

    def _pixels(self, camera: str, images: torch.Tensor) -> torch.Tensor:
        pixels = self._processor.pixels(camera, images if images.dim() == 4 else images[None])
        return prepared(pixels, self._vision)


class Begin:
    """state [N, S], features of every camera [N, F], noise or none -> condition [C], latent [horizon, A], times [n]."""

    def __init__(self, config: DiffusionConfig, processor: Processor, schedule: NoiseSchedule) -> None:
        self._processor, self._schedule = processor, schedule
        self._slots = [features_of(camera.name) for camera in config.cameras]
        self._latent_shape = (config.horizon, config.features.action_size)

    def batch_key(self, call: NodeCall) -> Hashable:
        return None

    def run(self, calls: Sequence[NodeCall]) -> list[NodeResult]:
        return [self._begun(call) for call in calls]

    def _begun(self, call: NodeCall) -> NodeResult:
        times = self._schedule.times(call.params["num_denoise_steps"])
        return NodeResult({"condition": self._condition(call), "latent": self._latent(call), "times": times})

    def _condition(self, call: NodeCall) -> torch.Tensor:
        state = self._processor.state(call.inputs["state"])
        state = state if state.dim() == 2 else state[None]
        return torch.cat([state, *(call.inputs[slot] for slot in self._slots)], dim=-1).flatten()

    def _latent(self, call: NodeCall) -> torch.Tensor:
        noise = call.inputs["noise"]
        return drawn(call, self._latent_shape, call.inputs["state"].device) if noise is None else noise


class Denoise:
    """One turn of each request, whichever it is at: latent [horizon, A], condition [C] -> denoised [horizon, A].

    The blocks of the network are the items of a call.
    """

    def __init__(self, unet: Unet, schedule: NoiseSchedule, dtype: torch.dtype, step_times: StepTimes) -> None:
        self._unet, self._schedule, self._dtype, self._step_times = unet, schedule, dtype, step_times

    def batch_key(self, call: NodeCall) -> Hashable:
        return None

    def num_items(self, call: NodeCall) -> int:
        return self._unet.num_blocks

    def run(self, calls: Sequence[NodeCall]) -> list[NodeResult]:
        groups = by_part(calls, self._unet.num_blocks)
        return [result for blocks, group in groups for result in self._run_blocks(group, blocks)]

    def _run_blocks(self, calls: Sequence[NodeCall], blocks: range) -> list[NodeResult]:
        turns = [self._schedule.turns(len(call.inputs["times"]))[call.iteration[-1]] for call in calls]
        latents, conditions = (torch.stack([call.inputs[name] for call in calls]) for name in ("latent", "condition"))
        if blocks.start == 0:
            self._step_times.begin(calls)
            state = self._unet.begun(latents.to(self._dtype))
        else:
            state = Between.joined([call.progress for call in calls])
        steps = torch.tensor([turn.step for turn in turns], device=latents.device)
        state = self._unet.through(state, steps, conditions.to(self._dtype), blocks)
        if blocks.stop < self._unet.num_blocks:
            return [NodeResult({}, progress=of_call) for of_call in state.each()]
        return self._turned(calls, turns, latents, self._unet.predicted(state).float())

    def _turned(
        self, calls: Sequence[NodeCall], turns: list[Turn], latents: torch.Tensor, predicted: torch.Tensor
    ) -> list[NodeResult]:
        fresh = [
            self._fresh(call, latent, turn.fresh) for call, latent, turn in zip(calls, latents, turns, strict=True)
        ]
        denoised = self._schedule.denoised(turns, latents, predicted, torch.stack(fresh))
        return [
            NodeResult({"denoised": latent}, leave=is_last_step(call))
            for latent, call in zip(denoised, calls, strict=True)
        ]

    @staticmethod
    def _fresh(call: NodeCall, latent: torch.Tensor, weight: float) -> torch.Tensor:
        """New noise, where the turn mixes some in."""
        return drawn(call, latent.shape, latent.device) if weight else torch.zeros_like(latent)


class Finish:
    """denoised [horizon, A] -> actions from the newest observation's on, robot units, and how many turns there were."""

    def __init__(self, config: DiffusionConfig, processor: Processor) -> None:
        self._processor = processor
        self._first = config.num_observations - 1

    def batch_key(self, call: NodeCall) -> Hashable:
        return None

    def run(self, calls: Sequence[NodeCall]) -> list[NodeResult]:
        return [self._finish(call) for call in calls]

    def _finish(self, call: NodeCall) -> NodeResult:
        actions = self._processor.actions(call.inputs["denoised"][self._first :])
        return NodeResult({"actions": actions, "num_denoise_steps": torch.tensor(len(call.inputs["times"]))})


def drawn(call: NodeCall, shape: Sequence[int], device: torch.device) -> torch.Tensor:
    """Noise of this request, at this node and in this iteration."""
    return torch.randn(*shape, generator=noise_generator(call)).to(device)
