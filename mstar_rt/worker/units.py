"""Makes units of firings: the call of the node's code, and what the scheduler has to know of it."""

from __future__ import annotations

from collections.abc import Callable

from mstar_rt.engine import checked_batch_key, checked_num_items
from mstar_rt.model import NodeCall
from mstar_rt.program import Firing
from mstar_rt.worker.active import ActiveWalk, Work
from mstar_rt.worker.cost_model import CostModel
from mstar_rt.worker.playback import Player
from mstar_rt.worker.unit import Unit

NOT_KNOWN = (None, 0)


class Units:
    """Numbers the units of a worker, and says until when each is worth running."""

    def __init__(self, now_ns: Callable[[], int], costs: CostModel) -> None:
        self._now_ns = now_ns
        self._costs = costs
        self._num_units = 0
        self._predicted_ns: dict[str, Callable[[str], int | None]] = {}

    def make(self, walk: ActiveWalk, firing: Firing, ready_ns: int) -> Unit[Work]:
        """The unit that runs the firing; it could run since `ready_ns`."""
        start, node = walk.start, firing.node
        model, engine = start.model, walk.loaded.engines[node.name]
        call = NodeCall(
            start.request_id,
            start.scope,
            start.walk,
            firing.iteration,
            firing.inputs,
            start.params,
            self._now_ns,
            start.deadline_ns,
            walk.memory.store(node.cache) if node.cache is not None else None,
            firing.name,
            walk.seed,
            self._predicted_ns.get(model) or self._step_times(model),
        )
        if engine.in_parts:
            call.num_items = checked_num_items(engine, call)
        self._num_units += 1
        unit = Unit(
            start.request_id,
            (model, node.name),
            checked_batch_key(engine, call),
            start.criticality,
            firing.order,
            self._num_units,
            ready_ns,
            Work(walk, firing, call, engine),
            start.deadline_ns,
            call.num_items,
            start.client,
            start.age,
            (model, start.walk),
        )
        if start.anytime:
            self._judge_anytime(walk, unit)
        else:
            unit.remaining_ns, least_ns = walk.pace.needed.get((firing.node_index, firing.iteration), NOT_KNOWN)
            if start.deadline_ns is not None:
                unit.drop_after_ns = start.deadline_ns - (1 if walk.is_trial else least_ns or 1)
        if walk.player is not None:
            self.judge_playback(walk.player, unit)
        return unit

    def judge_playback(self, player: Player, unit: Unit[Work]) -> None:
        """Unless the request itself is due before its listener needs more."""
        walk = unit.work.walk
        due_ns, deadline_ns = player.due_ns(unit.ready_ns, walk.ran_ns), walk.start.deadline_ns
        if deadline_ns is None or due_ns < deadline_ns:
            unit.deadline_ns, unit.is_soft = due_ns, True
            unit.remaining_ns = self._costs.predict_ns(unit.engine_id, unit.batch_key, unit.num_items)
        elif unit.is_soft:
            unit.deadline_ns, unit.is_soft = deadline_ns, False

    def _judge_anytime(self, walk: ActiveWalk, unit: Unit[Work]) -> None:
        """It can end after any step, and once it has begun it answers even if late."""
        if unit.deadline_ns is not None:
            unit.remaining_ns = self._costs.predict_ns(unit.engine_id, unit.batch_key, unit.num_items)
            if not walk.begun:
                unit.drop_after_ns = unit.deadline_ns - 1

    def _step_times(self, model: str) -> Callable[[str], int | None]:
        predicted_ns = self._predicted_ns[model] = lambda node: self._costs.lately_ns((model, node))
        return predicted_ns


def ready_after_part(unit: Unit[Work], now_ns: int, duration_ns: int) -> None:
    """A part of the unit is done, in so much time, and the next one could run since `now_ns`."""
    unit.ready_ns = now_ns
    if unit.work.walk.start.anytime:
        unit.drop_after_ns = None
    elif unit.drop_after_ns is not None and unit.work.walk.start.deadline_ns is not None:
        unit.drop_after_ns = min(unit.drop_after_ns + duration_ns, unit.work.walk.start.deadline_ns - 1)
    if unit.remaining_ns is not None:
        unit.remaining_ns = max(0, unit.remaining_ns - duration_ns)
