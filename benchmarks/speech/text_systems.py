"""Text: transformers' generate against served chats, with the same weights and the same prompts."""

from __future__ import annotations

import asyncio
from pathlib import Path

import torch

from benchmarks.speech.cases import GREEDY
from benchmarks.speech.native import TransformersModel
from mstar_rt.client import AsyncClient
from mstar_rt.model.conversation import write_conversation

SYSTEM = "You answer in whole sentences."
QUESTIONS = (
    "What is the capital of France?",
    "Name three animals that live in the sea.",
    "Why is the sky blue?",
    "Write a short story about a robot that waters plants.",
    "How do I boil an egg?",
    "What is the difference between a violin and a viola?",
    "Tell me about the city of Rome, its river and its hills.",
    "What comes after Tuesday?",
)


class TextSystems:
    """`folder` has the checkpoint that the server serves as `name`."""

    def __init__(self, name: str, folder: Path, client: AsyncClient) -> None:
        self._name = name
        self._client = client
        self.native_model = TransformersModel(folder, pad=0)

    def native(self, batch: int, num_tokens: int) -> torch.Tensor:
        """Ids [batch, num_tokens]."""
        return self.native_model.generate([self._prompt(turns) for turns in conversations(batch)], num_tokens, GREEDY)

    async def served(self, batch: int, num_tokens: int) -> list[str]:
        return await asyncio.gather(*(self._chat(turns, num_tokens) for turns in conversations(batch)))

    async def served_ids(self, batch: int, num_tokens: int) -> list[list[int]]:
        """The ids of each answer, from the task that chats are made of."""
        return await asyncio.gather(*(self._ids(turns, num_tokens) for turns in conversations(batch)))

    def _prompt(self, turns: list[dict[str, str]]) -> torch.Tensor:
        tokenizer = self.native_model.tokenizer
        return torch.tensor(tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_dict=False))

    async def _chat(self, turns: list[dict[str, str]], num_tokens: int) -> str:
        stream = self._client.chat(self._name, turns, max_tokens=num_tokens, temperature=0.0, ignore_end=True)
        text = await stream.text()
        assert stream.done is not None
        assert stream.done.num_output_tokens == num_tokens, f"{stream.done.num_output_tokens} tokens, not {num_tokens}"
        return text

    async def _ids(self, turns: list[dict[str, str]], num_tokens: int) -> list[int]:
        conversation = {"conversation": write_conversation(turns)}
        outputs = self._client.run(
            self._name, "chat", conversation, max_tokens=num_tokens, temperature=0.0, ignore_end=True
        )
        return [int(output.value[0]) async for output in outputs if output.name == "token"]


def conversations(batch: int) -> list[list[dict[str, str]]]:
    return [
        [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}] for question in QUESTIONS[:batch]
    ]
