"""What a request to the policy of `pi05_tiny.robot_settings` should be answered with, by the dense network and plain
numpy: of the code that serves it only the resizing of images, which has a test of its own."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pi05_tiny as tiny
import torch

from policies.pi05.checkpoint import load_network
from policies.pi05.config import Pi05Config
from policies.pi05.images import resized
from policies.pi05.network import Pi05Network

VOCABULARY = {
    name: index
    for index, name in enumerate(
        ["<pad>", "<eos>", "<bos>", "<unk>", *tiny.WORDS, *(str(number) for number in range(-1, 256))]
    )
}
STATE_ROWS, ACTION_ROWS = np.arange(1.0, tiny.STATE_SIZE + 1), np.arange(1.0, tiny.ACTION_SIZE + 1)


class Oracle:
    """`network`: the dense one, pi0.5's or pi0's."""

    def __init__(self, network: Pi05Network) -> None:
        self.network = network
        self.is_pi0 = network.config.kind == "pi0"

    def context(self, arrays: tiny.Arrays, instruction: str) -> Any:
        frames = [pixels(arrays["image_top"])]
        if "image_wrist" in arrays:
            fitted = resized(torch.from_numpy(arrays["image_wrist"]).permute(2, 0, 1), 56)
            frames.append(pixels(fitted.permute(1, 2, 0).numpy()))
        images = torch.stack(frames)[None]
        ids = torch.tensor([self.prompt(arrays["state"], instruction)])
        state = None
        if self.is_pi0:
            given = (arrays["state"].astype(np.float64) - 0.1 * STATE_ROWS) / (0.5 + 0.1 * STATE_ROWS + 1e-6)
            state = torch.from_numpy(np.pad(given, (0, tiny.DIM - tiny.STATE_SIZE))[None]).float()
        masks = torch.ones(images.shape[:2], dtype=torch.bool), torch.ones(ids.shape, dtype=torch.bool)
        return self.network.dense_context(images, masks[0], ids, masks[1], state)

    def prompt(self, state: np.ndarray, instruction: str) -> list[int]:
        words = ["<bos>", *instruction.split()]
        if not self.is_pi0:
            scaled = (state.astype(np.float64) + 0.5 * STATE_ROWS) / (1.2 * STATE_ROWS + 1e-6) * 2 - 1
            bins = [str(min(255, math.floor((value + 1) * 128)) if value >= -1 else -1) for value in scaled]
            words = ["<bos>", "Task", ":", *instruction.split(), ",", "State", ":", *bins, ";", "Action", ":"]
        return [VOCABULARY[word] for word in words]

    def velocity(self, context: Any, x: torch.Tensor, time: float | torch.Tensor) -> torch.Tensor:
        """x [H, D], time a number or [H]."""
        times = torch.as_tensor(time, dtype=torch.float32)[None]
        return self.network.dense_velocity(x[None], self.network.modulation(times), context)[0]

    def network_actions(self, previous: np.ndarray, state: np.ndarray) -> torch.Tensor:
        """[K, A] robot units -> [H, D]: relative, normalised, padded, held."""
        relative = previous.astype(np.float64) - anchor(state)
        if self.is_pi0:
            normal = (relative - 0.1 * ACTION_ROWS) / (0.5 + 0.1 * ACTION_ROWS + 1e-6)
        else:
            normal = (relative + 0.5 * ACTION_ROWS) / (1.2 * ACTION_ROWS + 1e-6) * 2 - 1
        normal = np.concatenate([normal, np.repeat(normal[-1:], tiny.HORIZON - len(normal), axis=0)])
        return torch.from_numpy(np.pad(normal, ((0, 0), (0, tiny.DIM - tiny.ACTION_SIZE)))).float()

    def robot_actions(self, x: torch.Tensor, state: np.ndarray) -> torch.Tensor:
        values = x[:, : tiny.ACTION_SIZE].double().numpy()
        if self.is_pi0:
            values = values * (0.5 + 0.1 * ACTION_ROWS + 1e-6) + 0.1 * ACTION_ROWS
        else:
            values = (values + 1) / 2 * (1.2 * ACTION_ROWS + 1e-6) - 0.5 * ACTION_ROWS
        return torch.from_numpy(values + anchor(state)).float()


def anchor(state: np.ndarray) -> np.ndarray:
    x, y, gripper = state.astype(np.float64)
    return np.array([x, y, 0, 0, gripper])


def pixels(image: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(image.transpose(2, 0, 1) / 127.5 - 1).float()


def golden_oracle() -> Oracle:
    return Oracle(load_network(Pi05Config.from_dict(tiny.network()), Path(tiny.CHECKPOINT)))
