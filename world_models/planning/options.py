"""What a client may choose about a plan, and the defaults that a model declares. No torch."""

from __future__ import annotations

from dataclasses import dataclass

from mstar_rt.errors import ConfigError
from mstar_rt.model import ParamSpec

MAX_SAMPLES = 4096
MAX_ITERATIONS = 100
NUM_SEARCH_DIMS = 4
"""x, y, z, gripper: the planner leaves rotation at zero."""
PLANNERS = ("cem", "mppi")
COST_KINDS = ("l1", "l2", "cosine")
DEFAULT_COST = "l1"
GOAL_USES = ("last", "per_step", "nearest")
DEFAULT_TEMPERATURE = 0.005
"""Among the best of 0.003 to 0.03 on the shipped model. Latents are layer-normed: other models cost alike."""


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
    planner: str = "cem"
    cost: str = "l1"
    keep_elites: bool = False
    include_mean: bool = False

    def __post_init__(self) -> None:
        pairs = self.pinned
        if not isinstance(pairs, list | tuple) or not all(isinstance(p, list | tuple) and len(p) == 2 for p in pairs):
            raise ConfigError(f"planner.pinned is {pairs!r}, expected pairs of a dimension 0 to 3 and its value")
        object.__setattr__(self, "pinned", tuple((int(dimension), float(value)) for dimension, value in pairs))


def plan_params(defaults: PlannerDefaults, max_frames: int) -> tuple[ParamSpec, ...]:
    """The options of a `plan` task; a context and what is imagined from it have at most `max_frames` frames."""
    return (
        *_search_params(defaults, max_frames),
        *_space_params(defaults, max_frames),
        cost_param(defaults.cost),
        goal_use_param(),
        *window_params(max_frames),
        ParamSpec("seed", "int", 0, "equal seeds and inputs give equal plans", minimum=0, maximum=2**63 - 1),
        ParamSpec(
            "warm_start", "bool", False,
            "start from the session's last plan, one step on and within the bounds; cold if there is none",
        ),
        ParamSpec(
            "convergence_tolerance", "float", 0.0,
            "stop when the std of x, y and z is below (mppi: that of the weighted candidates); 0 never stops early",
            units="m", minimum=0.0,
        ),
    )  # fmt: skip


def cost_param(default: str = DEFAULT_COST) -> ParamSpec:
    """How latents are compared, in `plan` and in `rollout`; cost.py has the formulas."""
    doc = (
        "distance of latents: l1 mean absolute difference; l2 root mean square of each patch, mean over patches; "
        "cosine 1 less the cosine of each patch, mean over patches"
    )
    return ParamSpec("cost", "str", default, doc, choices=COST_KINDS)


def goal_use_param() -> ParamSpec:
    doc = (
        "last: one goal, for the last step; per_step: goal h is for step h, weighted distances add up; nearest: of "
        "several goals the one whose weighted distance to the last step is least"
    )
    return ParamSpec("goal_use", "str", "last", doc, choices=GOAL_USES)


def window_params(max_frames: int) -> tuple[ParamSpec, ...]:
    """How many frames the predictor sees at once, wherever frames are imagined or remembered."""
    return (
        _count("context_window", max_frames, 1, max_frames, "frames seen at once; over it the oldest are left out"),
        ParamSpec(
            "window_stride", "int", None, "so many frames are left out at a time; unset: half of context_window",
            minimum=1, maximum=max_frames, optional=True,
        ),
    )  # fmt: skip


def _search_params(defaults: PlannerDefaults, max_frames: int) -> tuple[ParamSpec, ...]:
    return (
        ParamSpec(
            "planner", "str", defaults.planner,
            "cem: refit to the elites, narrower each time; mppi: mean of the elites weighted by "
            "exp(-cost / temperature), as wide each time (momentum_std has no part in it)",
            choices=PLANNERS,
        ),
        ParamSpec(
            "temperature", "float", None, f"of mppi alone, in units of the cost; unset: {DEFAULT_TEMPERATURE}",
            minimum=1e-6, maximum=1e6, optional=True,
        ),
        _count("rollout_horizon", defaults.rollout_horizon, 1, max_frames, "steps imagined per candidate"),
        _count("num_samples", defaults.num_samples, 2, MAX_SAMPLES, "candidates per iteration"),
        _count("num_elites", defaults.num_elites, 2, MAX_SAMPLES, "best candidates, to which the search is refitted"),
        _count("num_iterations", defaults.num_iterations, 1, MAX_ITERATIONS, "sample, imagine, refit: so many times"),
        ParamSpec(
            "keep_elites", "bool", defaults.keep_elites,
            "elites are candidates of the next iteration too, at the cost they have: they are not imagined again",
        ),
        ParamSpec(
            "include_mean", "bool", defaults.include_mean, "the first candidate is the mean, in place of a drawn one"
        ),
        ParamSpec(
            "tree_branching", "floats", (),
            "candidates as a tree: branches per step, their product is num_samples; the first steps that candidates "
            "share are imagined once. None: every candidate is drawn on its own",
            minimum=1, maximum=MAX_SAMPLES,
        ),
        _share("momentum_mean", defaults.momentum_mean, "share of the old mean kept, x y z"),
        _share("momentum_std", defaults.momentum_std, "share of the old std kept, x y z"),
        _share("momentum_mean_gripper", defaults.momentum_mean_gripper, "share of the old mean kept, gripper"),
        _share("momentum_std_gripper", defaults.momentum_std_gripper, "share of the old std kept, gripper"),
    )  # fmt: skip


def _space_params(defaults: PlannerDefaults, max_frames: int) -> tuple[ParamSpec, ...]:
    """What is searched; the tensors action_low and action_high narrow it further."""
    return (
        ParamSpec(
            "max_displacement", "float", defaults.max_displacement, "candidates move at most so far per step and axis",
            units="m", minimum=1e-4, maximum=1.0,
        ),
        ParamSpec(
            "pinned_dims", "floats", tuple(float(dimension) for dimension, _ in defaults.pinned),
            "search dimensions with one value in all candidates: 0 x, 1 y, 2 z, 3 gripper",
            minimum=0, maximum=NUM_SEARCH_DIMS - 1,
        ),
        ParamSpec(
            "pinned_values", "floats", tuple(value for _, value in defaults.pinned),
            "their values, as many as pinned_dims", units="m (gripper: closedness)",
        ),
        ParamSpec(
            "close_gripper_step", "int", None, "from this step on the gripper closes", minimum=0, maximum=max_frames,
            optional=True,
        ),
    )  # fmt: skip


def _count(name: str, default: int, least: int, most: int, doc: str) -> ParamSpec:
    return ParamSpec(name, "int", default, doc, minimum=least, maximum=most)


def _share(name: str, default: float, doc: str) -> ParamSpec:
    return ParamSpec(name, "float", default, doc, minimum=0.0, maximum=1.0)
