"""What a client may choose about a plan, and the defaults that a model declares. No torch."""

from __future__ import annotations

from dataclasses import dataclass

from mstar_rt.errors import ConfigError
from mstar_rt.model import ParamSpec

MAX_SAMPLES = 4096
MAX_ITERATIONS = 100
NUM_SEARCH_DIMS = 4
"""x, y, z, gripper: the planner leaves rotation at zero."""


@dataclass(frozen=True)
class PlannerDefaults:
    """A model's defaults for the options of `plan`; the values here are those of the published world model.

    `pinned` are (dimension, value) of search dimensions that the robot does not have.
    """

    rollout_horizon: int = 2
    num_samples: int = 400
    num_elites: int = 10
    num_iterations: int = 10
    momentum_mean: float = 0.15
    momentum_std: float = 0.15
    momentum_mean_gripper: float = 0.15
    momentum_std_gripper: float = 0.15
    max_displacement: float = 0.05
    pinned: tuple[tuple[int, float], ...] = ()

    def __post_init__(self) -> None:
        pairs = self.pinned
        if not isinstance(pairs, list | tuple) or not all(isinstance(p, list | tuple) and len(p) == 2 for p in pairs):
            raise ConfigError(f"planner.pinned is {pairs!r}, expected pairs of a dimension 0 to 3 and its value")
        object.__setattr__(self, "pinned", tuple((int(dimension), float(value)) for dimension, value in pairs))


def plan_params(defaults: PlannerDefaults, max_horizon: int) -> tuple[ParamSpec, ...]:
    """The options of a `plan` task."""
    pinned_dims = tuple(float(dimension) for dimension, _ in defaults.pinned)
    pinned_values = tuple(value for _, value in defaults.pinned)
    return (
        _count("rollout_horizon", defaults.rollout_horizon, 1, max_horizon, "steps imagined per candidate"),
        _count("num_samples", defaults.num_samples, 2, MAX_SAMPLES, "candidates per iteration"),
        _count("num_elites", defaults.num_elites, 2, MAX_SAMPLES, "best candidates, to which the search is refitted"),
        _count("num_iterations", defaults.num_iterations, 1, MAX_ITERATIONS, "sample, imagine, refit: so many times"),
        _share("momentum_mean", defaults.momentum_mean, "share of the old mean kept, x y z"),
        _share("momentum_std", defaults.momentum_std, "share of the old std kept, x y z"),
        _share("momentum_mean_gripper", defaults.momentum_mean_gripper, "share of the old mean kept, gripper"),
        _share("momentum_std_gripper", defaults.momentum_std_gripper, "share of the old std kept, gripper"),
        ParamSpec(
            "max_displacement", "float", defaults.max_displacement, "candidates move at most so far per step and axis",
            units="m", minimum=1e-4, maximum=1.0,
        ),
        ParamSpec(
            "pinned_dims", "floats", pinned_dims,
            "search dimensions with one value in all candidates: 0 x, 1 y, 2 z, 3 gripper",
            minimum=0, maximum=NUM_SEARCH_DIMS - 1,
        ),
        ParamSpec(
            "pinned_values", "floats", pinned_values, "their values, as many as pinned_dims",
            units="m (gripper: closedness)",
        ),
        ParamSpec(
            "close_gripper_step", "int", None, "from this step on the gripper closes", minimum=0, maximum=max_horizon,
            optional=True,
        ),
        ParamSpec("seed", "int", 0, "equal seeds and inputs give equal plans", minimum=0, maximum=2**63 - 1),
        ParamSpec(
            "warm_start", "bool", False,
            "start from the session's last plan, one step on and within max_displacement; cold if there is none",
        ),
        ParamSpec(
            "convergence_tolerance", "float", 0.0, "stop when the std of x, y and z is below; 0 never stops early",
            units="m", minimum=0.0,
        ),
    )  # fmt: skip


def _count(name: str, default: int, least: int, most: int, doc: str) -> ParamSpec:
    return ParamSpec(name, "int", default, doc, minimum=least, maximum=most)


def _share(name: str, default: float, doc: str) -> ParamSpec:
    return ParamSpec(name, "float", default, doc, minimum=0.0, maximum=1.0)
