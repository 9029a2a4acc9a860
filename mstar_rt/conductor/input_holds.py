"""Blocks of inputs that the server holds for ranks which will never get them: they are let go in those ranks' names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from mstar_rt.message import Release, TensorRef


def releases(inputs: Mapping[str, TensorRef], holders: Mapping[str, Iterable[int]]) -> list[tuple[str, Release]]:
    """(owner, record) for the ranks named as holders of each input; tensors by value hold nothing."""
    block_ids: dict[tuple[str, int], list[int]] = {}
    for name, ref in inputs.items():
        if ref.segment is not None:
            for rank in holders.get(name, ()):
                block_ids.setdefault((ref.segment.owner, rank), []).append(ref.segment.block_id)
    return [(owner, Release(f"worker/{rank}", ids)) for (owner, rank), ids in block_ids.items()]
