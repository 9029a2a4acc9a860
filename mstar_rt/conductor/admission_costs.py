"""What requests of each kind cost, as measured: pure objects, no clock."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from mstar_rt.conductor.admission_samples import ENOUGH, FEW, Place, Samples, Use, sample_of, together
from mstar_rt.message import ParamField, WalkDone
from mstar_rt.model import ParamSpec, ServedModel, TaskSpec
from mstar_rt.model.anytime import MIN_DENOISE_STEPS
from mstar_rt.placement import Placement
from mstar_rt.program import Program, ProgramLoop

REFRESH = 4
"""Further samples after which an estimate is made anew; the first ones change much."""
REFRESH_NS = 2_000_000_000
"""And the first one after so long: the machine may have been busy then."""
MAX_VARIANTS = 32
MAX_ESTIMATES = 512

Estimate = Mapping[Use, Mapping[int, float]]
"""Microseconds of one request, by use and rank; of the ranks where that was measured."""


class Kind(NamedTuple):
    """What the cost of a request depends on: how often its loops run, and its other options but for free text and the
    seed."""

    variant: tuple[object, ...]
    times: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class _Cached:
    source: Samples
    num_taken: int
    newest_ns: int
    estimate: Estimate

    def is_good(self, source: Samples) -> bool:
        further, later_ns = source.num_taken - self.num_taken, source.newest_ns - self.newest_ns
        is_settled = source.num_taken > FEW and later_ns < REFRESH_NS
        return self.source is source and further < (REFRESH if is_settled else 1)


class TaskCosts:
    """One task of one model. `programs` are those of its walks. `may_do_less`: where time presses it costs less."""

    def __init__(self, task: TaskSpec, programs: Iterable[Program]) -> None:
        self._loops = {
            (program.walk, node.name): loops
            for program in programs
            for node in program.nodes
            if (loops := _loops_with_param(program, node.loops))
        }
        names = {loop.param for loops in self._loops.values() for loop, _ in loops if loop.param is not None}
        self._loop_params = {name: index for index, name in enumerate(sorted(names))}
        self._defaults = {spec.name: spec.default for spec in task.params}
        self._options = [spec.name for spec in task.params if self._makes_a_variant(spec)]
        # A robot is promised what it asked for, also while time presses and fewer iterations are run.
        self._as_asked = task.criticality == "control"
        self.may_do_less = any(spec.name == MIN_DENOISE_STEPS for spec in task.params)
        self._samples: OrderedDict[tuple[object, ...], Samples] = OrderedDict()
        self._default: Samples | None = None
        self._estimates: dict[tuple[Kind, int], _Cached] = {}

    def kind(self, params: Mapping[str, ParamField]) -> Kind:
        """Of a request with these options; those that it does not give have their defaults."""
        variant = tuple(_hashable(params.get(name, self._defaults[name])) for name in self._options)
        return Kind(variant, tuple(_number(params.get(name, self._defaults.get(name))) for name in self._loop_params))

    def note(self, kind: Kind, parts: Sequence[tuple[str, WalkDone]], now_ns: int) -> None:
        """A request has finished; `parts` are what each rank told of each walk. The first one that ever did is the
        warm-up's, with the defaults."""
        samples = self._samples.get(kind.variant)
        if samples is None:
            samples = self._samples[kind.variant] = Samples()
            if len(self._samples) > MAX_VARIANTS:
                self._samples.popitem(last=False)
        if self._default is None:
            self._default = samples
        if samples.wants(now_ns, together(parts)):
            samples.add(sample_of(parts, self._iterations(kind, parts), now_ns))

    def estimate(self, kind: Kind, num_together: int = 1) -> Estimate:
        """Of one of so many that share steps where they can. Of a variant that has never run: as if it were the
        warm-up's; of one that has hardly run at least as much. Empty: nothing has been measured."""
        source = self._samples.get(kind.variant)
        if self._default is None:
            return {}
        if source is None:
            return self._known(self._default, kind, num_together)
        if source.num_taken >= ENOUGH or source is self._default:
            return self._known(source, kind, num_together)
        return _larger(self._worked_out(source, kind, num_together), self._known(self._default, kind, num_together))

    def longest_step_us(self) -> Mapping[int, float]:
        """By rank, of those that were measured."""
        longest_us: dict[int, float] = {}
        for samples in self._samples.values():
            for rank, step_us in samples.longest_step_us().items():
                longest_us[rank] = max(longest_us.get(rank, 0.0), step_us)
        return longest_us

    def _known(self, source: Samples, kind: Kind, num_together: int) -> Estimate:
        cached = self._estimates.get((kind, num_together))
        if cached is None or not cached.is_good(source):
            if len(self._estimates) >= MAX_ESTIMATES:
                self._estimates.clear()
            worked_out = self._worked_out(source, kind, num_together)
            cached = _Cached(source, source.num_taken, source.newest_ns, worked_out)
            self._estimates[kind, num_together] = cached
        return cached.estimate

    def _makes_a_variant(self, spec: ParamSpec) -> bool:
        is_choice = spec.kind in ("bool", "int", "float") or bool(spec.choices)
        return is_choice and spec.name != "seed" and spec.name not in self._loop_params

    def _iterations(self, kind: Kind, parts: Iterable[tuple[str, WalkDone]]) -> dict[Place, float]:
        """How often options made each use run, of those in loops that options turn."""
        iterations: dict[Place, float] = {}
        for walk, part in parts:
            for name in part.node_times:
                times = 1.0
                for loop, parent in self._loops.get((walk, name), ()):
                    did = self._times(kind, loop)
                    if self._as_asked and loop.name in part.num_iterations:
                        around = 1 if parent is None else part.num_iterations.get(parent.name, 1)
                        did = part.num_iterations[loop.name] / max(1, around)
                    times *= max(did, 1.0)
                iterations[(walk, name), part.rank] = times
        return iterations

    def _worked_out(self, samples: Samples, kind: Kind, num_together: int) -> Estimate:
        estimate: dict[Use, dict[int, float]] = {}
        for (use, rank), cost_us in samples.typical_us(num_together).items():
            for loop, _ in self._loops.get(use, ()):
                cost_us *= self._times(kind, loop)
            estimate.setdefault(use, {})[rank] = cost_us
        return estimate

    def _times(self, kind: Kind, loop: ProgramLoop) -> float:
        assert loop.param is not None
        return kind.times[self._loop_params[loop.param]]


class CostBook:
    """Of all tasks of all models."""

    def __init__(self, models: Mapping[str, ServedModel], placement: Placement) -> None:
        self._tasks = {
            (model.name, task.name): TaskCosts(task, [placement.program(model.name, walk) for walk in task.walks])
            for model in models.values()
            for task in model.tasks
        }

    def of(self, model: str, task: str) -> TaskCosts:
        return self._tasks[model, task]


def _larger(one: Estimate, other: Estimate) -> Estimate:
    """Of both, at each place."""
    return {
        use: {
            rank: max(one.get(use, {}).get(rank, 0.0), other.get(use, {}).get(rank, 0.0))
            for rank in {*one.get(use, ()), *other.get(use, ())}
        }
        for use in {*one, *other}
    }


def _loops_with_param(program: Program, indices: Iterable[int]) -> tuple[tuple[ProgramLoop, ProgramLoop | None], ...]:
    """Those around a use that an option turns, each with the loop around it."""
    loops = [program.loops[index] for index in indices]
    return tuple(
        (loop, program.loops[loop.parent] if loop.parent >= 0 else None) for loop in loops if loop.param is not None
    )


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 1.0


def _hashable(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value
