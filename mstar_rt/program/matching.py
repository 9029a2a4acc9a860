"""Where values wait until a join has one in every slot, all under one tag."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mstar_rt.program.program import Join

Tag = tuple[int, ...]

_ABSENT: Any = object()
_NOTHING: dict[int, tuple[int, dict[Tag, Any]]] = {}


class Matching:
    """A row per join and tag that is incomplete, with a cell per slot; sticky values aside, for all rows to come."""

    def __init__(self, joins: Sequence[Join]) -> None:
        self._joins = joins
        self._rows: list[dict[Tag, list[Any]]] = [{} for _ in joins]
        # By slot: how deep its tags are, and its values.
        self._sticky: list[dict[int, tuple[int, dict[Tag, Any]]]] = [
            {slot: (depth, {}) for slot, depth in join.sticky} if join.sticky else _NOTHING for join in joins
        ]

    def put(self, index: int, slot: int, tag: Tag, value: Any) -> Sequence[tuple[Tag, list[Any]]]:
        """Put a value into a slot of a join; returns the rows that it completes, with their tags."""
        join = self._joins[index]
        if join.depths[slot] < join.depth:
            return self._put_sticky(index, slot, tag, value)
        rows = self._rows[index]
        row = rows.get(tag)
        is_new = row is None
        if row is None:
            row = self._new_row(index, tag)
        row[slot] = value
        row[-1] -= 1
        if row[-1]:
            if is_new:
                rows[tag] = row
            return ()
        if not is_new:
            del rows[tag]
        return ((tag, row),)

    def open(self, index: int, tag: Tag) -> Sequence[tuple[Tag, list[Any]]]:
        """Fill the slot that waits for iteration `tag` to begin."""
        return self.put(index, len(self._joins[index].depths) - 1, tag, None)

    def free(self, index: int, slot: int, prefix: Tag) -> None:
        """Nothing reads this sticky value any more."""
        self._sticky[index][slot][1].pop(prefix)

    @property
    def num_held(self) -> int:
        return sum(map(len, self._rows)) + sum(len(values) for sticky in self._sticky for _, values in sticky.values())

    def _new_row(self, index: int, tag: Tag) -> list[Any]:
        """One cell per slot, then the number of cells still empty; what is sticky may be there already."""
        num_empty = len(self._joins[index].depths)
        row: list[Any] = [None] * num_empty
        prefix: Tag = ()
        for slot, (depth, values) in self._sticky[index].items():
            if len(prefix) != depth:
                prefix = tag[:depth]
            value = values.get(prefix, _ABSENT)
            if value is not _ABSENT:
                row[slot] = value
                num_empty -= 1
        row.append(num_empty)
        return row

    def _put_sticky(self, index: int, slot: int, prefix: Tag, value: Any) -> Sequence[tuple[Tag, list[Any]]]:
        self._sticky[index][slot][1][prefix] = value
        rows, depth = self._rows[index], len(prefix)
        complete = []
        for tag in [tag for tag in rows if tag[:depth] == prefix]:
            row = rows[tag]
            row[slot] = value
            row[-1] -= 1
            if not row[-1]:
                complete.append((tag, rows.pop(tag)))
        return complete
