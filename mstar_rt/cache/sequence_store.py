"""The sequences that one request, or one session, owns in one cache."""

from __future__ import annotations

from collections.abc import Hashable, Iterator

from mstar_rt.cache.page_table import PageTable
from mstar_rt.cache.pool import KVPool
from mstar_rt.errors import NotFound


class SequenceStore:
    """Page tables by label. A label is anything hashable: "context", ("candidate", 3)."""

    def __init__(self, pool: KVPool) -> None:
        self.pool = pool
        self._tables: dict[Hashable, PageTable] = {}

    def __len__(self) -> int:
        return len(self._tables)

    def __iter__(self) -> Iterator[Hashable]:
        return iter(self._tables)

    def __contains__(self, label: Hashable) -> bool:
        return label in self._tables

    @property
    def num_page_holds(self) -> int:
        """Pages over all sequences; one that is shared counts once for each sequence that holds it."""
        return sum(len(table.pages) for table in self._tables.values())

    def get(self, label: Hashable) -> PageTable:
        """The sequence of that label; an empty one is made if there is none."""
        table = self._tables.get(label)
        if table is None:
            table = self._tables[label] = self.pool.new_table()
        return table

    def put(self, label: Hashable, table: PageTable) -> None:
        """Own `table` under that label; what was there before is released."""
        previous = self._tables.get(label)
        if previous is not None and previous is not table:
            previous.release()
        self._tables[label] = table

    def fork(self, source: Hashable, destination: Hashable) -> PageTable:
        """Make `destination` a fork of `source`; what was there before is released.

        Raises: NotFound: there is no sequence `source`.
        """
        if source not in self._tables:
            raise NotFound(f"there is no sequence {source!r} to fork; there are {list(self._tables)}")
        if source != destination:
            self.put(destination, self._tables[source].fork())
        return self._tables[destination]

    def release(self, label: Hashable) -> None:
        """Give back the pages of that sequence; a label without a sequence is none to release."""
        table = self._tables.pop(label, None)
        if table is not None:
            table.release()

    def release_all(self) -> None:
        """Give back everything."""
        while self._tables:
            self._tables.popitem()[1].release()
