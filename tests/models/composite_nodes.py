"""What the nodes of the composite model compute: fixed random weights, every step a pure function of its inputs."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Hashable, Sequence
from typing import Any

import composite_faults as faults
import torch
from composite_model import FRAME, HOP, IMAGE, LATENT_ROWS, LEFT, RIGHT, VOCABULARY, WIDTH

from mstar_rt.graph import StreamChunk
from mstar_rt.model import NodeCall, NodeResources, NodeResult, ServedModel
from mstar_rt.nn.attention import AttentionPlan, AttentionStep, StepKind


def build_nodes(model: ServedModel, resources: NodeResources) -> dict[str, Any]:
    """Only those that are placed here. `load_delay_s` makes workers ready in any order."""
    time.sleep(random.Random(os.getpid()).random() * model.options.get("load_delay_s", 0.0))
    kinds = {
        "encode": Encode, "prefill": Prefill, "decode": Decode, "codec": Codec, "vocode": Vocode,
        "understand": Understand, "velocity": Velocity, "combine": Combine, "listen": Listen,
        "paint": Paint, "shrink": Shrink,
    }  # fmt: skip
    return {name: kind() for name, kind in kinds.items() if not resources.nodes or name in resources.nodes}


def weights(name: str, rows: int, columns: int) -> torch.Tensor:
    """The same in every process."""
    generator = torch.Generator().manual_seed(sum(name.encode()) * 7919)
    return torch.randn(rows, columns, generator=generator) * rows**-0.5


class Stateless:
    """A node whose calls are computed one by one, so that results are equal bit by bit whoever shares the step."""

    def batch_key(self, call: NodeCall) -> Hashable:
        faults.check_key(call)
        return None

    def run(self, calls: Sequence[NodeCall]) -> list[NodeResult]:
        faults.before(calls)
        return faults.after(calls, [NodeResult(self.compute(call)) for call in calls])

    def compute(self, call: NodeCall) -> dict[str, torch.Tensor]:
        raise AssertionError("every node computes something")


class Encode:
    """image [N, 8] -> context [N, 16]; the rows of all calls make one batch."""

    def __init__(self) -> None:
        self._first, self._second = weights("first", IMAGE, WIDTH), weights("second", WIDTH, WIDTH)

    def batch_key(self, call: NodeCall) -> Hashable:
        faults.check_key(call)
        return None

    def run(self, calls: Sequence[NodeCall]) -> list[NodeResult]:
        faults.before(calls)
        images = [call.inputs["image"] for call in calls]
        contexts = torch.tanh(torch.cat(images) @ self._first) @ self._second
        parts = contexts.split([len(image) for image in images])
        return faults.after(calls, [NodeResult({"context": part}) for part in parts])


class OverMemory:
    """One attention layer over a cache; subclasses say which sequences, which tokens and what to make of the result."""

    kind = StepKind.CAUSAL_APPEND

    def __init__(self) -> None:
        self._q, self._k, self._v, self._out = (weights(name, WIDTH, WIDTH) for name in ("q", "k", "v", "out"))

    def batch_key(self, call: NodeCall) -> Hashable:
        faults.check_key(call)
        return None

    def attention_steps(self, call: NodeCall) -> list[AttentionStep]:
        return [AttentionStep(self.table(call), len(self.tokens(call)), self.kind)]

    def run(self, calls: Sequence[NodeCall], attention: AttentionPlan) -> list[NodeResult]:
        faults.before(calls)
        tokens = [self.tokens(call) for call in calls]
        starts = attention.positions
        placed = [x + positions(start, len(x)) for x, start in zip(tokens, starts, strict=True)]
        x = torch.cat(placed)
        q, k, v = ((x @ matrix)[:, None] for matrix in (self._q, self._k, self._v))
        attended = x + attention.run(0, q, k, v)[:, 0] @ self._out
        parts = attended.split([len(x) for x in tokens])
        return faults.after(calls, [self.result(call, part) for call, part in zip(calls, parts, strict=True)])

    def table(self, call: NodeCall) -> Any:
        raise AssertionError("every node has a sequence")

    def tokens(self, call: NodeCall) -> torch.Tensor:
        raise AssertionError("every node has tokens")

    def result(self, call: NodeCall, attended: torch.Tensor) -> NodeResult:
        raise AssertionError("every node gives something")


def positions(start: int, count: int) -> torch.Tensor:
    """[count, 16]: sines of the absolute positions."""
    at = torch.arange(start, start + count, dtype=torch.float32)
    return torch.sin(at[:, None] * torch.logspace(0, -2, WIDTH)[None])


class Prefill(OverMemory):
    """context [N, 16] -> the first token, with its logits; the context stays in memory."""

    def __init__(self) -> None:
        super().__init__()
        self._head = weights("head", WIDTH, VOCABULARY)

    def table(self, call: NodeCall) -> Any:
        return call.sequences.get("text")

    def tokens(self, call: NodeCall) -> torch.Tensor:
        return call.inputs["context"]

    def result(self, call: NodeCall, attended: torch.Tensor) -> NodeResult:
        logits = attended[-1] @ self._head * 4
        return NodeResult({"token": choose(call, logits), "logits": logits})


class Decode(OverMemory):
    """token -> the next one, and a frame of sound [4]."""

    def __init__(self) -> None:
        super().__init__()
        self._words, self._head = weights("words", VOCABULARY, WIDTH) * 4, weights("head", WIDTH, VOCABULARY)
        self._frame = weights("frame", WIDTH, FRAME)

    def table(self, call: NodeCall) -> Any:
        return call.sequences.get("text")

    def tokens(self, call: NodeCall) -> torch.Tensor:
        return self._words[call.inputs["token"]]

    def result(self, call: NodeCall, attended: torch.Tensor) -> NodeResult:
        token = choose(call, attended[-1] @ self._head * 4)
        frame = torch.tanh(attended[-1] @ self._frame)
        return NodeResult({"next_token": token, "frame": frame}, leave=int(token) == call.params["end_token"])


def choose(call: NodeCall, logits: torch.Tensor) -> torch.Tensor:
    """int64 [1]."""
    temperature = call.params["temperature"]
    if temperature == 0:
        return logits.argmax(keepdim=True)
    return torch.multinomial(torch.softmax(logits / temperature, dim=-1), 1, generator=call.generator())


class Sound:
    """Frames to samples: sample group t depends on frames t - 2 to t + 1, zeros beyond both ends."""

    def __init__(self) -> None:
        self._kernel = weights("kernel", (LEFT + 1 + RIGHT) * FRAME, HOP)

    def samples(self, frames: Sequence[torch.Tensor], first: int, count: int) -> torch.Tensor:
        """[count * 3]: those of frames[first : first + count], window by window, so that chunks do not matter."""
        silence = torch.zeros(FRAME)
        groups = []
        for centre in range(first, first + count):
            window = [
                frames[index] if 0 <= index < len(frames) else silence
                for index in range(centre - LEFT, centre + RIGHT + 1)
            ]
            groups.append(torch.tanh(torch.cat(window) @ self._kernel))
        return torch.cat(groups) if groups else torch.zeros(0)


class Codec(Stateless):
    """A chunk of frames -> the samples of its new ones."""

    def __init__(self) -> None:
        self._sound = Sound()

    def compute(self, call: NodeCall) -> dict[str, torch.Tensor]:
        chunk = call.inputs["frames"]
        assert isinstance(chunk, StreamChunk)
        assert len(chunk.items) == chunk.num_context + chunk.num_new + chunk.num_lookahead
        return {"audio": self._sound.samples(chunk.items, chunk.num_context, chunk.num_new)}


class Vocode(Stateless):
    """All frames -> all samples."""

    def __init__(self) -> None:
        self._sound = Sound()

    def compute(self, call: NodeCall) -> dict[str, torch.Tensor]:
        frames: Any = call.inputs["frames"]
        return {"audio": self._sound.samples(frames, 0, len(frames))}


class Understand(OverMemory):
    """context [N, 16] -> memory, the number of tokens in it, and noise to start from."""

    kind = StepKind.BLOCK_APPEND

    def table(self, call: NodeCall) -> Any:
        return call.sequences.get("seen")

    def tokens(self, call: NodeCall) -> torch.Tensor:
        return call.inputs["context"]

    def result(self, call: NodeCall, attended: torch.Tensor) -> NodeResult:
        noise = torch.randn(LATENT_ROWS, WIDTH, generator=call.generator())
        return NodeResult({"primed": torch.tensor([len(attended)]), "latent": noise})


class Velocity(OverMemory):
    """latent [3, 16] -> velocity [3, 16], seen from a fork of the context; without the condition from its first token."""

    kind = StepKind.TRANSIENT_BLOCK

    def table(self, call: NodeCall) -> Any:
        if call.node not in call.sequences:
            length = int(call.inputs["primed"]) if call.node == "cond" else 1
            call.sequences.fork("seen", call.node).truncate(length)
        return call.sequences.get(call.node)

    def tokens(self, call: NodeCall) -> torch.Tensor:
        return call.inputs["latent"]

    def result(self, call: NodeCall, attended: torch.Tensor) -> NodeResult:
        return NodeResult({"velocity": torch.tanh(attended)})


class Combine(Stateless):
    """Classifier-free guidance: one Euler step along uncond + scale * (cond - uncond)."""

    def compute(self, call: NodeCall) -> dict[str, torch.Tensor]:
        cond, uncond = call.inputs["v_cond"], call.inputs["v_uncond"]
        velocity = uncond + call.params["guidance"] * (cond - uncond)
        return {"denoised": call.inputs["latent"] + velocity / call.params["steps"]}


class Listen(OverMemory):
    """context [N, 16] -> an impression [16] of this and all that the session heard before."""

    def table(self, call: NodeCall) -> Any:
        return call.sequences.get("heard")

    def tokens(self, call: NodeCall) -> torch.Tensor:
        return call.inputs["context"]

    def result(self, call: NodeCall, attended: torch.Tensor) -> NodeResult:
        return NodeResult({"impression": attended[-1]})


class Paint(Stateless):
    """canvas [1] -> the next one, one more, and a picture full of it."""

    def compute(self, call: NodeCall) -> dict[str, torch.Tensor]:
        canvas = call.inputs["canvas"]
        return {"picture": canvas.repeat(call.params["picture_kb"] * 256), "next_canvas": canvas + 1}


class Shrink(Stateless):
    """picture -> its mean [1]."""

    def compute(self, call: NodeCall) -> dict[str, torch.Tensor]:
        return {"mean": call.inputs["picture"].mean(dim=0, keepdim=True)}
