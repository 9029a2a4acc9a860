"""Values on their way to other processes: each tensor is put once, for all who read it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from mstar_rt.cache.moving import Delta, label_from_list, label_to_list
from mstar_rt.errors import Internal
from mstar_rt.message import CacheDelta, SequenceDelta, TensorRef, TokenValue
from mstar_rt.transport import TensorPlane
from mstar_rt.worker.tensors import send_tensor, take_back


class Parcels:
    """What one step sends. Fill the letters, `put` the tensors, send the messages; `take_back` whatever a failure left.

    A message that was sent owns the references in it; `sent` says so.
    """

    def __init__(self, plane: TensorPlane) -> None:
        self._plane = plane
        self._tensors: list[torch.Tensor] = []
        self._consumers: list[list[str]] = []
        self._refs: list[TensorRef] = []
        self._index_of: dict[int, int] = {}
        self._stacked: dict[int, tuple[list[Any], torch.Tensor]] = {}
        self._letters: dict[str, Letter] = {}

    def letter(self, consumer: str) -> Letter:
        """The one message to `consumer`."""
        letter = self._letters.get(consumer)
        if letter is None:
            letter = self._letters[consumer] = Letter(self, consumer)
        return letter

    def add(self, tensor: torch.Tensor, consumer: str) -> int:
        index = self._index_of.get(id(tensor))
        # A reference that one consumer got in two messages would be released twice.
        if index is None or consumer in self._consumers[index]:
            index = self._index_of[id(tensor)] = len(self._tensors)
            self._tensors.append(tensor)
            self._consumers.append([])
        self._consumers[index].append(consumer)
        return index

    def stacked(self, values: list[torch.Tensor]) -> torch.Tensor:
        """The same tensor whenever the same list is asked for."""
        known = self._stacked.get(id(values))
        if known is None:
            known = self._stacked[id(values)] = (values, torch.stack(values))
        return known[1]

    def put(self) -> None:
        """All or none.

        Raises: SharedMemoryExhausted: may be tried again.  Internal: not a tensor.
        """
        try:
            for tensor, consumers in zip(self._tensors, self._consumers, strict=True):
                self._refs.append(send_tensor(self._plane, tensor, consumers))
        except BaseException:
            for ref, consumers in zip(self._refs, self._consumers, strict=False):
                take_back(self._plane, ref, consumers)
            self._refs.clear()
            raise

    def ref(self, index: int) -> TensorRef:
        return self._refs[index]

    def sent(self, index: int, consumer: str) -> None:
        self._consumers[index].remove(consumer)

    def take_back(self) -> None:
        """Let go of what nobody was told about, for good."""
        for ref, consumers in zip(self._refs, self._consumers, strict=False):
            take_back(self._plane, ref, consumers)
            consumers.clear()


class Letter:
    """The tensors of one message, by their index in it."""

    def __init__(self, parcels: Parcels, consumer: str) -> None:
        self.consumer = consumer
        self._parcels = parcels
        self._entries: list[int] = []
        self._index_of: dict[int, int] = {}

    def value(self, value: Any) -> TokenValue:
        """Raises: Internal: neither a tensor, nor a list of such, nor nothing."""
        if isinstance(value, torch.Tensor):
            return TokenValue([self._tensor(value)])
        if value is None:
            return TokenValue([], "none")
        if not isinstance(value, list):
            raise Internal(f"a value for another rank is a {type(value).__name__}, expected a tensor")
        if all(isinstance(item, torch.Tensor) for item in value):
            if len(value) > 1 and len({(item.shape, item.dtype) for item in value}) == 1:
                return TokenValue([self._tensor(self._parcels.stacked(value))], "stacked")
            return TokenValue([self._tensor(item) for item in value], "list")
        return TokenValue(self._nested(value), "nested")

    def delta(self, cache: str, deltas: Sequence[Delta]) -> CacheDelta:
        return CacheDelta(
            cache,
            [
                SequenceDelta(
                    label_to_list(delta.label),
                    delta.start,
                    delta.num_tokens,
                    -1 if delta.pages is None else self._tensor(delta.pages),
                    list(delta.history),
                )
                for delta in deltas
            ],
        )

    def refs(self) -> list[TensorRef]:
        return [self._parcels.ref(entry) for entry in self._entries]

    def sent(self) -> None:
        for entry in self._entries:
            self._parcels.sent(entry, self.consumer)

    def _tensor(self, tensor: torch.Tensor) -> int:
        index = self._index_of.get(id(tensor))
        if index is None:
            index = self._index_of[id(tensor)] = len(self._entries)
            self._entries.append(self._parcels.add(tensor, self.consumer))
        return index

    def _nested(self, value: Any) -> list[int]:
        """In the order of writing: a tensor as its index, a list as -1 - its length before its items."""
        if isinstance(value, torch.Tensor):
            return [self._tensor(value)]
        if not isinstance(value, list):
            raise Internal(f"a value for another rank holds a {type(value).__name__}, expected tensors")
        return [-1 - len(value), *(index for item in value for index in self._nested(item))]


def open_value(packed: TokenValue, tensors: Sequence[torch.Tensor]) -> Any:
    """What `Letter.value` packed. Raises: Internal: an unknown kind or an index without a tensor."""
    try:
        if packed.kind == "tensor":
            return tensors[packed.indices[0]]
        if packed.kind == "none":
            return None
        if packed.kind == "stacked":
            return list(tensors[packed.indices[0]].unbind(0))
        if packed.kind == "list":
            return [tensors[index] for index in packed.indices]
        if packed.kind == "nested":
            return _open_nested(iter(packed.indices), tensors)
    except (IndexError, StopIteration):
        raise Internal("a value from another rank names a tensor that did not come with it") from None
    raise Internal(f"a value from another rank is of the unknown kind {packed.kind!r}")


def _open_nested(indices: Any, tensors: Sequence[torch.Tensor]) -> Any:
    index = next(indices)
    return tensors[index] if index >= 0 else [_open_nested(indices, tensors) for _ in range(-1 - index)]


def open_delta(packed: CacheDelta, tensors: Sequence[torch.Tensor]) -> list[Delta]:
    """What `Letter.delta` packed."""
    return [
        Delta(
            label_from_list(s.label),
            s.start,
            s.num_tokens,
            None if s.pages < 0 else tensors[s.pages],
            tuple(s.history),
        )
        for s in packed.sequences
    ]
