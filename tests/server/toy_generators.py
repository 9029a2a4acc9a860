"""A model that writes and speaks, for the toy runtime: its answers can be told from what it was asked. One that draws is
in `toy_painter`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
from toy_runtime import Job, Script, ToyRuntime, toy_runtime

from mstar_rt.graph import GraphNode, Walk, WalkGraph
from mstar_rt.model import (
    ChatSpec,
    GenerationSpec,
    ParamSpec,
    Reason,
    ServedModel,
    SpeechSpec,
    TaskSpec,
    TensorSpec,
)
from mstar_rt.server.dispatch import MAX_UNREAD_BYTES
from mstar_rt.server.edge import EdgeConfig

NAME = "talker"
SAMPLE_RATE_HZ = 8000
CHUNK_SAMPLES = 800  # a word takes a tenth of a second
VOICES = ("amy", "bob")
MAX_TOKENS = 64
COUNT = TensorSpec("reason", (), ("int64",), "see Reason")

SEED = ParamSpec("seed", "int", None, "fresh without one", minimum=0, maximum=2**63 - 1, optional=True)
LIMIT = ParamSpec("max_tokens", "int", MAX_TOKENS, "tokens written at most", minimum=1, maximum=MAX_TOKENS)
TEMPERATURE = ParamSpec("temperature", "float", 0.7, "0: greedy", minimum=0.0, maximum=2.0)
TOP_P = ParamSpec("top_p", "float", 1.0, "part of the probability", minimum=0.0, maximum=1.0)
STOP = ParamSpec("stop", "str", None, "JSON list of strings", optional=True)
VOICE = ParamSpec("voice", "str", VOICES[0], "who speaks", choices=VOICES)
SPEED = ParamSpec("speed", "float", 1.0, "1: normal", minimum=0.5, maximum=2.0)


def talker(name: str = NAME, chats: bool = True, speaks: bool = True) -> ServedModel:
    """Chat has seed, max_tokens, temperature, top_p and stop; speech seed, voice and speed."""
    written = ("text", "token", "reason", "num_input_tokens")
    spoken = ("audio", "reason", "num_input_tokens", "num_output_tokens")
    writer = GraphNode("writer", inputs=("conversation",), outputs=written)
    speaker = GraphNode("speaker", inputs=("text",), outputs=spoken)
    walks = [Walk("chat", writer, emit=written)] if chats else []
    walks += [Walk("speech", speaker, emit=spoken)] if speaks else []
    nodes = [node for node, is_there in ((writer, chats), (speaker, speaks)) if is_there]
    chat = TaskSpec(
        "chat", "an answer to a conversation",
        (TensorSpec("conversation", ("N",), ("uint8",), "UTF-8 JSON", max_sizes=(("N", 4096),)),),
        (
            TensorSpec("text", ("B",), ("uint8",), "UTF-8", optional=True),
            TensorSpec("token", (1,), ("int64",), "what was sampled"),
            COUNT, TensorSpec("num_input_tokens", (), ("int64",), "tokens of the prompt"),
        ),
        ("chat",), (SEED, LIMIT, TEMPERATURE, TOP_P, STOP), criticality="generation",
    )  # fmt: skip
    speech = TaskSpec(
        "speech", "a text, spoken",
        (TensorSpec("text", ("N",), ("uint8",), "UTF-8", max_sizes=(("N", 4096),)),),
        (
            TensorSpec("audio", ("S",), ("float32",), "samples", max_abs=1.0), COUNT,
            TensorSpec("num_input_tokens", (), ("int64",), "words"),
            TensorSpec("num_output_tokens", (), ("int64",), "chunks"),
        ),
        ("speech",), (SEED, VOICE, SPEED), criticality="generation",
    )  # fmt: skip
    generation = GenerationSpec(
        chat=ChatSpec() if chats else None,
        speech=SpeechSpec("speech", SAMPLE_RATE_HZ, VOICES, VOICES[0]) if speaks else None,
    )
    tasks = tuple(task for task, is_there in ((chat, chats), (speech, speaks)) if is_there)
    return ServedModel(
        name, "talker", "A model for tests.", WalkGraph(tuple(nodes), tuple(walks)), tasks, "nowhere:nodes",
        generation=generation,
    )  # fmt: skip


# ---- what its worker computes


def answer_to(conversation: list[dict[str, str]], params: dict[str, object]) -> str:
    """The last turn, after how many there are and the seed that was given."""
    return f"{len(conversation)} turns, seed {params.get('seed')}: {conversation[-1]['content']}"


async def chat(job: Job) -> None:
    """One character is one token, as long as no stop string came and there are tokens left."""
    conversation = json.loads(job.inputs["conversation"].tobytes())
    params = job.submit.params
    text, reason = answer_to(conversation, params), Reason.END
    for stop in json.loads(str(params.get("stop", "[]"))):
        if stop in text:
            text, reason = text[: text.index(stop)], Reason.STOP
    limit = params["max_tokens"]
    assert isinstance(limit, int)
    if len(text) > limit:
        text, reason = text[:limit], Reason.MAX_TOKENS
    for i, character in enumerate(text):
        write(job, character, i)
    end(job, reason, num_input_tokens=sum(len(turn["content"]) for turn in conversation))


def write(job: Job, text: str, step: int) -> None:
    """What one decode step emits."""
    job.emit("text", np.frombuffer(text.encode(), np.uint8).copy(), (step,))
    job.emit("token", np.array([step], np.int64), (step,))


async def speech(job: Job) -> None:
    """A word is a chunk of one value: `sample_of` it."""
    words = job.inputs["text"].tobytes().decode().split()
    for i, word in enumerate(words):
        speak(job, word, i)
    end(job, Reason.END, num_input_tokens=len(words), num_output_tokens=len(words))


def speak(job: Job, word: str, step: int) -> None:
    job.emit("audio", np.full(CHUNK_SAMPLES, sample_of(word), np.float32), (step,))


def sample_of(word: str) -> float:
    return len(word) / 100


def end(job: Job, reason: Reason, flags: tuple[str, ...] = (), **counts: int) -> None:
    for name, value in {"reason": int(reason), **counts}.items():
        job.emit(name, np.array(value, np.int64))
    job.finish(flags)


def endless(emit: Callable[[Job, str, int], None], first: int = 1) -> Script:
    """Emits so many pieces, `emit(job, "word", i)`, and nothing more until the client takes the request back."""

    async def run(job: Job) -> None:
        for i in range(first):
            emit(job, "word", i)
        await asyncio.Event().wait()

    return run


@contextmanager
def talking_runtime(
    config: EdgeConfig | None = None, model: ServedModel | None = None, max_unread_bytes: int = MAX_UNREAD_BYTES
) -> Iterator[ToyRuntime]:
    """A running edge of a talker; at the end nothing may be held any more."""
    scripts = {"chat": chat, "speech": speech}
    with toy_runtime(config, True, max_unread_bytes, model or talker(), scripts) as running:
        yield running
