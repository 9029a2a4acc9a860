"""The policy without a server, which the served one is compared with. Many robots at once: evaluation is quick."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.utils.rnn import pad_sequence

from policies.pi05.checkpoint import load_network
from policies.pi05.images import network_pixels
from policies.pi05.network import Pi05Network
from policies.pi05.processor import ONLY_STATISTICS, processors_for
from policies.pi05.settings import PolicySettings, settings_for
from policies.pi05.text import Prompter, load_tokenizer
from policies.pi05.train.batches import Context
from policies.pi05.train.files import WEIGHTS
from policies.pi05.train.sampling import sample_actions
from policies.pi05.train.vocabulary import PAD_ID

Chunks = NDArray[np.float32]


class InProcessPolicy:
    """From observations to chunks of actions in robot units."""

    def __init__(
        self, network: Pi05Network, settings: PolicySettings, num_denoise_steps: int | None = None, seed: int = 0
    ) -> None:
        tokenizer = load_tokenizer(settings.tokenizer, network.config.vocab_size)
        self.settings = settings
        self.network = network
        self._prompter = Prompter(tokenizer, settings.max_prompt_tokens, state_as_text=True)
        self._processor = processors_for(settings, "cpu")[ONLY_STATISTICS]
        self._num_denoise_steps = num_denoise_steps or settings.num_denoise_steps
        self._noise = torch.Generator().manual_seed(seed)

    @classmethod
    def load(cls, folder: Path, num_denoise_steps: int | None = None, seed: int = 0) -> InProcessPolicy:
        settings = settings_for("tabletop_policy", "pi05", str(folder / WEIGHTS), {})
        return cls(load_network(settings.network, folder / WEIGHTS), settings, num_denoise_steps, seed)

    def chunks(
        self,
        observations: Sequence[dict[str, Any]],
        instructions: Sequence[str],
        given: Chunks | None = None,
        noise: Chunks | None = None,
    ) -> Chunks:
        """One chunk for each of N robots, [N, H, A].

        Args:  observations: {"images": {camera: [H, W, 3] uint8}, "state": [S]}.
               given [N, d, A]: the first actions of the chunks, where they are settled.
               noise [N, H, action_dim] in place of what is drawn.
        """
        states = [torch.as_tensor(observation["state"]) for observation in observations]
        config = self.network.config
        shape = (len(states), config.action_horizon, config.action_dim)
        start = torch.randn(shape, generator=self._noise) if noise is None else torch.from_numpy(noise)
        settled = None
        if given is not None:
            pairs = zip(given, states, strict=True)
            settled = torch.stack([self._processor.network_actions(torch.from_numpy(own), at) for own, at in pairs])
        context = self.context(observations, instructions, states)
        x = sample_actions(self.network, context, start, self._num_denoise_steps, settled)
        return np.stack([self._processor.robot_actions(*one).numpy() for one in zip(x, states, strict=True)])

    def context(
        self, observations: Sequence[dict[str, Any]], instructions: Sequence[str], states: list[torch.Tensor]
    ) -> Context:
        size = self.network.config.vision.image_size
        cameras = [camera.name for camera in self.settings.cameras]
        pixels = [
            torch.stack([network_pixels(torch.from_numpy(observation["images"][name]), size) for name in cameras])
            for observation in observations
        ]
        prompts = [
            torch.tensor(self._prompter.ids(text, self._processor.normalised_state(state).numpy()))
            for text, state in zip(instructions, states, strict=True)
        ]
        lengths = torch.tensor([len(prompt) for prompt in prompts])
        ids = pad_sequence(prompts, batch_first=True, padding_value=PAD_ID)
        return Context(torch.stack(pixels), ids, torch.arange(ids.shape[1]) < lengths[:, None])
