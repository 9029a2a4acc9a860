"""The sequences that one request, or one session, owns in one cache."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator

from mstar_rt.cache.marks import PeerMarks
from mstar_rt.cache.page_table import PageTable
from mstar_rt.cache.pool import KVPool
from mstar_rt.errors import NotFound


class SequenceStore:
    """Page tables by label. A label is anything hashable: "context", ("candidate", 3).

    What other ranks know of a sequence goes with its label: a table that takes the place of another one inherits its
    marks as far as both read the same pages. A label that other ranks may have heard of is remembered when it is given
    up, for as long as the store lives: any of them may have it from any other, and is told when something goes there.
    """

    def __init__(self, pool: KVPool) -> None:
        self.pool = pool
        self._tables: dict[Hashable, PageTable] = {}
        self._given_up: dict[Hashable, PeerMarks] = {}

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
            if self._given_up:
                table.marks = self._taken_up(label)
        return table

    def put(self, label: Hashable, table: PageTable) -> None:
        """Own `table` under that label; what was there before is released."""
        previous = self._tables.get(label)
        if previous is table:
            return
        if previous is None:
            table.marks = self._taken_up(label)
        else:
            table.marks = _inherited(previous, table)
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

    def fork_all(self) -> SequenceStore:
        """A working copy: the same sequences under the same labels, known to the same peers. Takes no page.

        Either of the two can be given up, or take the place of the other.
        """
        copy = SequenceStore(self.pool)
        for label, table in self._tables.items():
            twin = copy._tables[label] = table.fork()
            marks = self.marks(label)
            marks.stamp(table.length)
            twin.marks = marks.copy()
        copy._given_up = {label: marks.copy() for label, marks in self._given_up.items()}
        return copy

    def release(self, label: Hashable) -> None:
        """Give back the pages of that sequence; a label without a sequence is none to release."""
        table = self._tables.pop(label, None)
        if table is not None:
            table.release()
            if table.marks:
                table.marks.begin_again()
                self._given_up[label] = table.marks

    def retain(self, labels: Collection[Hashable]) -> None:
        """Give back all others, and forget what peers know of them: for ranks that do so alike, as if they had never
        been."""
        for label in [label for label in self._tables if label not in labels]:
            self._tables.pop(label).release()
        for label in [label for label in self._given_up if label not in labels]:
            del self._given_up[label]

    def release_all(self) -> None:
        """Give back everything, and forget what peers know: the store is as new."""
        while self._tables:
            self._tables.popitem()[1].release()
        self._given_up.clear()

    def given_up(self) -> list[Hashable]:
        """Labels that have no sequence here any more, but may have one on another rank."""
        return list(self._given_up)

    def marks(self, label: Hashable) -> PeerMarks:
        """What peers know of the sequence of that label, which is here or was."""
        if label not in self._tables:
            return self._given_up.setdefault(label, PeerMarks())
        table = self._tables[label]
        if table.marks is None:
            table.marks = PeerMarks()
        return table.marks

    def _taken_up(self, label: Hashable) -> PeerMarks | None:
        """The marks of a sequence that is made under a label without one."""
        marks = self._given_up.pop(label, None)
        if marks is not None:
            marks.begin_again()
        return marks


def _inherited(previous: PageTable, table: PageTable) -> PeerMarks | None:
    """The marks of a table that takes the place of `previous`."""
    if previous.marks is None:
        return None
    marks = previous.marks.copy()
    marks.fall(previous.common_tokens(table))
    marks.version = 0
    return marks
