"""One running request as its handler sees it: emissions as they arrive, then exactly one end."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from types import TracebackType

from mstar_rt.errors import Cancelled, MstarError, Unavailable
from mstar_rt.message import Finished, TensorRef
from mstar_rt.server.tensor_port import Readers

EMISSION_BYTES = 512
"""What an emission takes besides its data: a million small ones that nobody reads are not small."""


@dataclass(frozen=True, slots=True)
class Emission:
    """One tensor of an answer, copied out of shared memory: `data` is little-endian and row-major."""

    walk: str
    name: str
    iteration: tuple[int, ...]
    dtype: str
    shape: tuple[int, ...]
    data: bytes

    @property
    def num_bytes(self) -> int:
        return len(self.data) + EMISSION_BYTES


class RequestStream:
    """Iterate over it to get the emissions in order of arrival; iteration ends when the request is complete,
    or raises what it failed with. As a context manager it takes the request back when the block ends before
    the request did. `on_leave` is called when the handler is through with it, whichever way.

    The end and the emissions travel different ways: the request is complete once `finished.num_emitted` have
    arrived. `submitted_ns` and `ended_ns`, on the server's clock, are 0 before that.
    """

    def __init__(
        self,
        request_id: str,
        model: str,
        inputs: Mapping[str, TensorRef],
        readers: Readers,
        on_leave: Callable[[RequestStream], None],
        task: str = "",
        criticality: str = "",
    ) -> None:
        self.request_id = request_id
        self.model = model
        self.task = task
        self.criticality = criticality
        self.is_warmup = False
        self.submitted_ns = 0
        self.ended_ns = 0
        self.inputs = inputs
        self.readers = readers
        self.finished: Finished | None = None
        self.num_unread_bytes = 0
        self.num_read = 0
        self._on_leave = on_leave
        self._emissions: deque[Emission] = deque()
        self._num_received = 0
        self.failure: MstarError | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._collects = False

    # ---- the handler's side

    async def __aiter__(self) -> AsyncIterator[Emission]:
        while True:
            while self._emissions:
                emission = self._emissions.popleft()
                self.num_unread_bytes -= emission.num_bytes
                self.num_read += 1
                yield emission
            if self.failure is not None:
                raise self.failure
            if self.complete:
                return
            await self._news()

    async def collect(self) -> list[Emission]:
        """All emissions, once the request is complete. Meanwhile they count as read, and wake nobody."""
        self._collects, self.num_unread_bytes = True, 0
        while not self.ended:
            await self._news()
        if self.failure is not None:
            raise self.failure
        emissions = list(self._emissions)
        self._emissions.clear()
        return emissions

    async def _news(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def cancel(self) -> None:
        """Take the request back; nothing more arrives. Without effect on a request that has ended."""
        self._on_leave(self)
        self.drop_unread()

    def take_back(self) -> None:
        """Cancel it from another task than the one that iterates, which gets Cancelled."""
        self.cancel()
        self.fail(Cancelled("the request was taken back while it ran"))

    async def __aenter__(self) -> RequestStream:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()

    # ---- the dispatcher's side

    @property
    def num_unread(self) -> int:
        """Emissions that wait for the handler."""
        return 0 if self._collects else len(self._emissions)

    @property
    def complete(self) -> bool:
        return self.finished is not None and self._num_received >= self.finished.num_emitted

    @property
    def ended(self) -> bool:
        """Nothing more will arrive."""
        return self.failure is not None or self.complete

    @property
    def elapsed_us(self) -> float:
        """From its submission to its end."""
        return (self.ended_ns - self.submitted_ns) / 1e3

    def add(self, emission: Emission) -> None:
        self._num_received += 1
        if not self._collects:
            self.num_unread_bytes += emission.num_bytes
        self._emissions.append(emission)
        self._wake()

    def finish(self, finished: Finished) -> None:
        self.finished = finished
        self._wake()

    def fail(self, error: MstarError) -> None:
        self.failure = error
        self._wake()

    def drop_unread(self) -> None:
        self._emissions.clear()
        self.num_unread_bytes = 0

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done() and (self.ended or not self._collects):
            self._waiter.set_result(None)

    def lose_sender(self, address: str) -> None:
        """A worker is gone: what it emitted last will not arrive any more."""
        if self.finished is None or self.complete:
            return
        if address in [f"worker/{rank}" for rank in self.finished.ranks]:
            self.fail(Unavailable(f"{address} was lost after it finished this request: send it again"))
