"""Imagination by the dense predictor: all frames that are seen go through it again at every step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

import torch

from mstar_rt.nn.norms import normalise_latents
from world_models.planning.pose import integrate_all
from world_models.vjepa2.predictor import ActionPredictor

Tensors = dict[str, torch.Tensor]


@dataclass
class Scene:
    """A context of T frames with what belongs to it, and action sequences [N, H, 7] that start from it."""

    latents: torch.Tensor
    past_actions: torch.Tensor
    states: torch.Tensor
    actions: torch.Tensor
    extrinsics: torch.Tensor | None = None

    @property
    def context(self) -> Tensors:
        """The tensors of a request."""
        tensors = {"context_latents": self.latents, "context_states": self.states, "state": self.states[-1]}
        if len(self.latents) > 1:
            tensors["context_actions"] = self.past_actions
        if self.extrinsics is not None:
            tensors["extrinsics"] = self.extrinsics
        return tensors

    @property
    def rollout(self) -> Tensors:
        return self.context | {"actions": self.actions}

    def observation(self, frame: int) -> Tensors:
        """Of a session that comes to know the context frame by frame."""
        tensors = {"context_latents": self.latents[frame : frame + 1], "state": self.states[frame]}
        if frame:
            tensors["executed_action"] = self.past_actions[frame - 1]
        if self.extrinsics is not None:
            tensors["extrinsics"] = self.extrinsics[frame : frame + 1]
        return tensors

    def from_frame(self, start: int) -> Scene:
        """The same without its first frames."""
        extrinsics = None if self.extrinsics is None else self.extrinsics[start:]
        return Scene(self.latents[start:], self.past_actions[start:], self.states[start:], self.actions, extrinsics)


def random_scene(
    num_frames: int, num_sequences: int, horizon: int, shape: tuple[int, int], seed: int, extrinsics: bool = False
) -> Scene:
    """`shape` is that of a frame's latents."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*sizes: int, scale: float = 0.05) -> torch.Tensor:
        return torch.randn(*sizes, generator=generator) * scale

    actions = draw(num_sequences, horizon, 7)
    actions[..., 3:6] = 0  # poses by hand below
    states = torch.tensor([0.4, 0.0, 0.3, 0.1, -0.2, 0.3, 0.5]) + draw(num_frames, 7)
    return Scene(
        normalise_latents(draw(num_frames, *shape, scale=1.0)),
        draw(num_frames - 1, 7),
        states,
        actions,
        draw(num_frames, 6, scale=0.3) if extrinsics else None,
    )


def first_seen(num_frames: int, window: Mapping[str, int]) -> int:
    """By the words of the contract: S * ceil((F - W) / S) once there are more than W frames."""
    size = window["context_window"]
    stride = window.get("window_stride", max(1, size // 2))
    return 0 if num_frames <= size else stride * ceil((num_frames - size) / stride)


def imagine(predictor: ActionPredictor, scene: Scene, window: Mapping[str, int] | None = None) -> torch.Tensor:
    """The latents after each step [H, N, P, D]."""
    num_sequences, horizon = scene.actions.shape[:2]
    poses = integrate_all(scene.states[-1], scene.actions)
    latents, actions, states, extrinsics = (
        part.expand(num_sequences, *part.shape) if part is not None else None
        for part in (scene.latents, scene.past_actions, scene.states[:-1], scene.extrinsics)
    )
    assert latents is not None
    assert actions is not None
    assert states is not None
    actions, states = torch.cat([actions, scene.actions], dim=1), torch.cat([states, poses], dim=1)
    steps = []
    with torch.no_grad():
        for _ in range(horizon):
            num_frames = latents.shape[1]
            seen = slice(0 if window is None else first_seen(num_frames, window), num_frames)
            cameras = None
            if extrinsics is not None:
                still = extrinsics[:, -1:].expand(-1, num_frames - extrinsics.shape[1], -1)
                cameras = torch.cat([extrinsics, still], dim=1)[:, seen]
            raw = predictor(latents[:, seen], actions[:, seen], states[:, seen], cameras)
            steps.append(normalise_latents(raw[:, -1]))
            latents = torch.cat([latents, steps[-1][:, None]], dim=1)
    return torch.stack(steps)
