"""What a careful user runs in one process: transformers' generate, then the `snac` package."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from benchmarks.speech.cases import Sampling
from benchmarks.speech.checkpoints import NUM_CODES, NUM_PLACES, Size
from benchmarks.speech.heard import Heard, Wave

VOICE = "tara"
OF_BOOK = ((0,), (1, 4), (2, 3, 5, 6))
"""The places of a frame that each codebook of the codec has, the slowest first."""

Text = torch.Tensor
"""The ids of a prompt, [N] int64."""


class TransformersModel:
    """`folder` has a published Llama. Batches are padded on the left, as generate wants them."""

    def __init__(self, folder: Path, pad: int) -> None:
        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        self.model = transformers.LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.model.generation_config = transformers.GenerationConfig()
        self._pad = pad

    def generate(self, prompts: Sequence[Text], num_tokens: int, sampling: Sampling) -> torch.Tensor:
        """So many ids for each prompt, [B, num_tokens], whatever ends a text."""
        longest = max(map(len, prompts))
        ids = torch.full((len(prompts), longest), self._pad)
        mask = torch.zeros_like(ids)
        for row, prompt in enumerate(prompts):
            ids[row, longest - len(prompt) :] = prompt
            mask[row, longest - len(prompt) :] = 1
        with torch.inference_mode():
            found = self.model.generate(
                ids, attention_mask=mask, max_new_tokens=num_tokens, pad_token_id=self._pad, eos_token_id=None,
                **_options(sampling),
            )  # fmt: skip
        made = found[:, longest:]
        assert made.shape == (len(prompts), num_tokens), f"generate made {made.shape}, asked for {num_tokens} tokens"
        return made


def _options(sampling: Sampling) -> dict[str, Any]:
    drawn: dict[str, Any] = {"do_sample": False}
    if sampling.temperature:
        drawn = {
            "do_sample": True, "temperature": sampling.temperature, "top_k": sampling.top_k, "top_p": sampling.top_p,
        }  # fmt: skip
    if sampling.repetition_penalty != 1:
        drawn["repetition_penalty"] = sampling.repetition_penalty
    return drawn


class NativeSpeech:
    """The published way from a text to its audio, whole."""

    def __init__(self, size: Size, folder: Path) -> None:
        from snac import SNAC

        self._ids = size.ids
        self.language = TransformersModel(folder, size.ids.pad)
        self.codec = SNAC.from_pretrained(str(folder / "snac")).eval()

    def one_after_the_other(self, texts: Sequence[str], num_tokens: int, sampling: Sampling) -> Wave:
        """The naive loop: each text is spoken before the next one is looked at."""
        start_s = time.perf_counter()
        wave = []
        for text in texts:
            tokens = self.language.generate([self.prompt(text)], num_tokens, sampling)
            (audio,) = self.decode(tokens)
            took_s = time.perf_counter() - start_s
            wave.append(Heard([(took_s, audio)], took_s, num_tokens))
        return wave

    def stage_by_stage(self, texts: Sequence[str], num_tokens: int, sampling: Sampling) -> Wave:
        """All tokens of all texts as one batch, then all audio as one batch."""
        start_s = time.perf_counter()
        tokens = self.language.generate([self.prompt(text) for text in texts], num_tokens, sampling)
        audio = self.decode(tokens)
        took_s = time.perf_counter() - start_s
        return [Heard([(took_s, each)], took_s, num_tokens) for each in audio]

    def prompt(self, text: str) -> Text:
        words = self.language.tokenizer(f"{VOICE}: {text}").input_ids
        return torch.tensor([*self._ids.before, *words, *self._ids.after])

    def decode(self, tokens: torch.Tensor) -> np.ndarray:
        """Samples [B, S] of tokens [B, N], all of them audio and in their places."""
        frames = (tokens - self._ids.first_audio).unflatten(-1, (-1, NUM_PLACES))
        places, codes = frames.div(NUM_CODES, rounding_mode="floor"), frames.remainder(NUM_CODES)
        assert bool((places == torch.arange(NUM_PLACES)).all()), "a token stands in a wrong place of its frame"
        with torch.inference_mode():
            audio = self.codec.decode([codes[..., list(of_frame)].flatten(1) for of_frame in OF_BOOK])
        return audio[:, 0].numpy()
