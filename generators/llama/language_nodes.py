"""Reading a prompt and writing on, token by token: nodes of every model that has a Llama in it.

What is the model's own, what ends a text and what goes out with each token, is its Ending.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from functools import partial
from typing import NamedTuple, Protocol

import torch

from generators.llama.network import Llama
from generators.llama.walks import TEXT
from mstar_rt.model import NodeCall, NodeResult, Reason
from mstar_rt.nn.attention import AttentionPlan, AttentionStep, StepKind
from mstar_rt.nn.sampling import Row, Sampling, draw, uniform_of

GOES_ON = 0


class Written(NamedTuple):
    """What came of a token: `outputs` of the node decode besides the usual ones, what the Ending remembers, and why it
    was the last one, None if it was not."""

    outputs: dict[str, torch.Tensor]
    state: torch.Tensor
    reason: Reason | None


class Reader(Protocol):
    """The network; see network.Llama."""

    @property
    def device(self) -> torch.device: ...

    def read(self, ids: torch.Tensor, positions: torch.Tensor, last: int, attention: AttentionPlan) -> torch.Tensor: ...

    def scores(self, x: torch.Tensor) -> torch.Tensor: ...


class Ending(Protocol):
    """What ends a text, and what goes out with each token."""

    def begin(self, call: NodeCall, num_prompt_tokens: int) -> torch.Tensor:
        """What is remembered before the first token, int64 of any shape."""
        ...

    def after(
        self, call: NodeCall, token: int, history: torch.Tensor, state: torch.Tensor, due: Reason | None
    ) -> Written:
        """`history` int64 [T] are all tokens, this one included. `due`: it is the last in any case, and why."""
        ...


class EndIds:
    """The plain Ending: some tokens end a text, and nothing goes out but the tokens."""

    def __init__(self, end_ids: Collection[int]) -> None:
        self._end_ids = frozenset(end_ids)
        self._nothing = torch.empty(0, dtype=torch.int64)

    def begin(self, call: NodeCall, num_prompt_tokens: int) -> torch.Tensor:
        return self._nothing

    def after(
        self, call: NodeCall, token: int, history: torch.Tensor, state: torch.Tensor, due: Reason | None
    ) -> Written:
        return Written({}, state, Reason.END if self.ends(call, token) else due)

    def ends(self, call: NodeCall, token: int) -> bool:
        return token in self._end_ids and not call.params["ignore_end"]


class Prefill:
    """The prompt, whose tokens are the items of a call; with the last of them the first token is drawn."""

    def __init__(self, llama: Llama, ending: Ending) -> None:
        self._llama = llama
        self._ending = ending

    def batch_key(self, call: NodeCall) -> Hashable:
        return None

    def num_items(self, call: NodeCall) -> int:
        return len(call.inputs["ids"])

    def attention_steps(self, call: NodeCall) -> list[AttentionStep]:
        return [AttentionStep(call.sequences.get(TEXT), len(_part(call)), StepKind.CAUSAL_APPEND)]

    def run(self, calls: Sequence[NodeCall], attention: AttentionPlan) -> list[NodeResult]:
        parts = [_part(call) for call in calls]
        counts = [len(part) for part in parts]
        firsts = attention.positions
        positions = [torch.arange(first, first + count) for first, count in zip(firsts, counts, strict=True)]
        last = max(first + count for first, count in zip(firsts, counts, strict=True)) - 1
        device = self._llama.device
        hidden = self._llama.read(torch.cat(parts).to(device), torch.cat(positions).to(device), last, attention)
        ends = [end for call, end in zip(calls, torch.tensor(counts).cumsum(0) - 1) if call.is_last_part]
        done = [call for call in calls if call.is_last_part]
        if not done:
            return [NodeResult({}) for _ in calls]
        tokens = draw_tokens(done, self._llama.scores(hidden[torch.stack(ends).to(device)]), "ids")
        drawn = iter(tokens)
        return [self._begun(call, next(drawn)) if call.is_last_part else NodeResult({}) for call in calls]

    def _begun(self, call: NodeCall, token: int) -> NodeResult:
        ids, drawn = call.inputs["ids"], torch.tensor([token])
        history = torch.cat([ids.cpu(), drawn])
        return NodeResult({"token": drawn, "history": history, "state": self._ending.begin(call, len(ids))})


class Decode:
    """The next token. In iteration 0 that is the one which came with the prompt: it goes out, and nothing is run."""

    def __init__(self, llama: Reader, ending: Ending) -> None:
        self._llama = llama
        self._ending = ending
        self._reasons = {reason: torch.tensor(reason) for reason in (GOES_ON, *map(int, Reason))}

    def batch_key(self, call: NodeCall) -> Hashable:
        return _is_first(call)

    def attention_steps(self, call: NodeCall) -> list[AttentionStep]:
        if _is_first(call):
            return []
        return [AttentionStep(call.sequences.get(TEXT), 1, StepKind.CAUSAL_APPEND)]

    def run(self, calls: Sequence[NodeCall], attention: AttentionPlan) -> list[NodeResult]:
        if _is_first(calls[0]):
            return [self._written(call, call.inputs["token"], call.inputs["history"]) for call in calls]
        return self.draw_next(calls, attention.positions, attention)

    def draw_next(
        self, calls: Sequence[NodeCall], positions: Sequence[int], attention: AttentionPlan
    ) -> list[NodeResult]:
        """What comes behind the token of each call, which stands at these positions."""
        device = self._llama.device
        ids = torch.cat([call.inputs["token"] for call in calls]).to(device)
        hidden = self._llama.read(ids, torch.tensor(list(positions), device=device), max(positions), attention)
        drawn = torch.tensor(draw_tokens(calls, self._llama.scores(hidden), "history")).split(1)
        return [
            self._written(call, token, torch.cat([call.inputs["history"].cpu(), token]))
            for call, token in zip(calls, drawn, strict=True)
        ]

    def _written(self, call: NodeCall, token: torch.Tensor, history: torch.Tensor) -> NodeResult:
        outputs, state, reason = self._ending.after(call, int(token), history, call.inputs["state"], _due(call))
        given = {"token": token, "history": history, "state": state, "reason": self._reasons[int(reason or GOES_ON)]}
        return NodeResult({**given, **outputs}, leave=reason is not None)


def draw_tokens(calls: Sequence[NodeCall], scores: torch.Tensor, seen: str) -> list[int]:
    """scores float32 [B, V], which are changed; `seen` names the input that has the tokens so far."""
    rows = [
        Row(
            Sampling(
                params["temperature"], params["top_k"], params["top_p"], params["repetition_penalty"],
            ),
            call.inputs[seen].to(scores.device),
            partial(_uniform, call),
        )
        for call in calls
        for params in (call.params,)
    ]  # fmt: skip
    return draw(scores, rows)


def _uniform(call: NodeCall) -> float:
    return uniform_of(call.generator())


def _part(call: NodeCall) -> torch.Tensor:
    ids = call.inputs["ids"]
    return ids if call.part is None else ids[call.part.start : call.part.stop]


def _is_first(call: NodeCall) -> bool:
    return call.iteration[-1] == 0


def _due(call: NodeCall) -> Reason | None:
    """Why this token is the last one in any case."""
    if call.iteration[-1] + 1 == call.params["max_tokens"]:
        return Reason.MAX_TOKENS
    if call.deadline_ns is not None and call.now_ns() >= call.deadline_ns:
        return Reason.DEADLINE
    return None
