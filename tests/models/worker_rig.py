"""One worker in this process, with any model, and the server and conductor that it talks to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from mstar_rt.clock import Clock
from mstar_rt.config import WorkerConfig
from mstar_rt.message import Emitted, EmittedGroup, ReleaseScope, StartWalk, WalkDone, WalkFailed
from mstar_rt.model import ServedModel
from mstar_rt.transport import InProcessHub, InProcessPlanes
from mstar_rt.worker.loaded import load_model
from mstar_rt.worker.worker import Worker


class WorkerRig:
    """`given` are the values that each request emitted, by name; `order` are the requests as they ended.

    Args: spare_all_but: take all pages of the first cache but so many.
    """

    def __init__(
        self, model: ServedModel, clock: Clock, max_step_ms: float | None = None, spare_all_but: int | None = None
    ) -> None:
        self.model, self.clock = model, clock
        self.loaded = load_model(model, WorkerConfig(rank=0, kv_memory_mb=16))
        allocator = next(iter(self.loaded.pools.values())).allocator
        self._spare = [] if spare_all_but is None else allocator.allocate(allocator.num_free - spare_all_but)
        hub, planes = InProcessHub(), InProcessPlanes()
        self.server, self.conductor, endpoint = (hub.endpoint(name) for name in ("server", "conductor", "worker/0"))
        self.plane = planes.plane(self.server)
        self.worker = Worker(
            {model.name: self.loaded}, endpoint, planes.plane(endpoint), clock, max_step_ms=max_step_ms
        )
        self.given: dict[str, dict[str, list[np.ndarray]]] = {}
        self.ends: dict[str, WalkDone | WalkFailed] = {}
        self.order: list[str] = []
        self._num_walks = 0

    def start_walk(
        self, request: str, walk: str, tensors: Mapping[str, np.ndarray], params: Mapping[str, Any], **fields: Any
    ) -> None:
        refs = {
            name: self.plane.put(array.dtype.name, array.shape, array, ["worker/0"]) for name, array in tensors.items()
        }
        self._num_walks += 1
        fields = {"deadline_ns": None, "criticality": "planning", "anytime": False} | fields
        self.conductor.send(
            "worker/0",
            StartWalk(
                request, self.model.name, walk, inputs=refs, params=dict(params), walk_id=self._num_walks,
                age=self._num_walks, node_ranks=[0] * len(self.loaded.programs[walk].nodes), scope=request,
                reply_to="server", **fields,
            ),
        )  # fmt: skip

    def turn(self, count: int = 1) -> None:
        for _ in range(count):
            self.worker.turn(0.0)
            self._collect()

    def run(self, limit: int = 1000) -> None:
        """Until every request has ended; nothing is held then."""
        for _ in range(limit):
            self.turn()
            stats = self.worker.stats()
            if not stats["active_walks"] and not stats["ready_units"]:
                self.turn(2)
                assert sum(pool.allocator.num_held for pool in self.loaded.pools.values()) == len(self._spare)
                return
        raise AssertionError(f"still busy: {self.worker.stats()}")

    def num_steps(self, request: str) -> int:
        end = self.ends[request]
        assert isinstance(end, WalkDone), end
        return sum(time.num_steps for time in end.node_times.values())

    def _collect(self) -> None:
        for envelope in self.server.receive(0.0):
            message = envelope.message
            if isinstance(message, Emitted | EmittedGroup):
                for record in message.records if isinstance(message, EmittedGroup) else [message]:
                    of_request = self.given.setdefault(record.request_id, {})
                    of_request.setdefault(record.name, []).append(np.array(self.plane.view(record.tensor)))
                    self.plane.release(record.tensor)
            else:
                self.plane.on_release(message)  # type: ignore[arg-type]
        for envelope in self.conductor.receive(0.0):
            end = envelope.message
            assert isinstance(end, WalkDone | WalkFailed)
            assert end.request_id not in self.ends, "a request ended twice"
            self.ends[end.request_id] = end
            self.order.append(end.request_id)
            self.conductor.send("worker/0", ReleaseScope(end.request_id))
