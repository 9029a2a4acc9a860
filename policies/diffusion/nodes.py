"""What the nodes of a Diffusion Policy compute. Between nodes all is float32, whatever the weights are."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import torch

from mstar_rt.errors import ConfigError
from mstar_rt.model import NodeCall, NodeResources, NodeResult, ServedModel
from policies.anytime.pace import Pace, is_last_step, noise_generator
from policies.anytime.step_times import StepTimes
from policies.diffusion.checkpoint import load_eyes, load_unet, read_policy
from policies.diffusion.config import DiffusionConfig, read_config
from policies.diffusion.net import Eye, Unet
from policies.diffusion.processor import prepared
from policies.diffusion.schedule import NoiseSchedule
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
    """Images uint8 [N, H, W, 3] of one camera, oldest first -> features [N, F]."""

    def __init__(
        self, eyes: Mapping[str, Eye], config: DiffusionConfig, processor: Processor, dtype: torch.dtype
    ) -> None:
        self._eyes, self._vision, self._processor, self._dtype = eyes, config.vision, processor, dtype

    def batch_key(self, call: NodeCall) -> Hashable:
        """Those share a step that are seen with one network."""
        return id(self._eyes[camera_of(call.node)])

    def run(self, calls: Sequence[NodeCall]) -> list[NodeResult]:
        eye = self._eyes[camera_of(calls[0].node)]
        pixels = [self._pixels(camera_of(call.node), call.inputs["image"]) for call in calls]
        images = torch.cat(pixels).to(self._dtype, memory_format=torch.channels_last)
        features = eye(images).float().split([len(part) for part in pixels])
        return [NodeResult({"features": part}) for part in features]

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
    """One turn of each request, whichever it is at: latent [horizon, A], condition [C] -> denoised [horizon, A]."""

    def __init__(self, unet: Unet, schedule: NoiseSchedule, dtype: torch.dtype, step_times: StepTimes) -> None:
        self._unet, self._schedule, self._dtype, self._step_times = unet, schedule, dtype, step_times

    def batch_key(self, call: NodeCall) -> Hashable:
        return None

    def run(self, calls: Sequence[NodeCall]) -> list[NodeResult]:
        self._step_times.begin(calls)
        turns = [self._schedule.turns(len(call.inputs["times"]))[call.iteration[-1]] for call in calls]
        latents, conditions = (torch.stack([call.inputs[name] for call in calls]) for name in ("latent", "condition"))
        steps = torch.tensor([turn.step for turn in turns], device=latents.device)
        predicted = self._unet(latents.to(self._dtype), steps, conditions.to(self._dtype)).float()
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
