"""The task of pi0.5 and pi0: what an observation is, and what comes back. No torch."""

from __future__ import annotations

from mstar_rt.model import ParamSpec, TaskSpec, TensorSpec
from mstar_rt.model.policy import PolicySpec
from policies.anytime.walks import ANYTIME_TASK
from policies.chunking.options import chunking_params
from policies.pi05.settings import MAX_DENOISE_STEPS, PolicySettings

IMAGE_DTYPES = ("uint8", "float32")
GUIDED = ("guided", "guided_identity")
"""Any flow can be guided; a hard prefix needs training."""
MAX_VALUE = 1e6
"""In robot units, of states and actions; beyond is no robot."""
MAX_NOISE = 100.0


def policy_for(settings: PolicySettings) -> PolicySpec:
    """What Robot.Control reads, if the policy has a tokenizer: a robot has no tokens to give."""
    return PolicySpec(
        action=settings.action,
        action_horizon=settings.network.action_horizon,
        cameras=settings.cameras,
        state=settings.state,
        takes_instruction=True,
        normalizations=tuple(settings.norm_stats),
        chunking=GUIDED if settings.max_prefix_delay is None else (*GUIDED, "prefix"),
        max_prefix_delay=settings.max_prefix_delay,
        anytime_task=ANYTIME_TASK if settings.min_denoise_steps < settings.num_denoise_steps else None,
    )


def act_task(settings: PolicySettings) -> TaskSpec:
    policy = policy_for(settings)
    horizon, size, units = policy.action_horizon, policy.action.size, _units(settings)
    return TaskSpec(
        "act",
        "one observation to a chunk of actions",
        (*_observation(settings), *_continuation(settings)),
        (
            TensorSpec("actions", (horizon, size), ("float32",), "row 0 is for the observation's tick", units),
            TensorSpec("num_denoise_steps", (), ("int64",), "steps of the flow that were run"),
        ),
        ("act",),
        params=(
            *_instruction(settings),
            ParamSpec("seed", "int", 0, "equal seeds draw equal noise", minimum=0),
            ParamSpec(
                "num_denoise_steps", "int", settings.num_denoise_steps, "Euler steps from noise to actions", "steps",
                minimum=1, maximum=MAX_DENOISE_STEPS,
            ),
            *_normalization(policy),
            *chunking_params(policy.chunking, horizon),
        ),
        criticality="control",
    )  # fmt: skip


def _observation(settings: PolicySettings) -> tuple[TensorSpec, ...]:
    images = tuple(
        TensorSpec(
            camera.tensor, (camera.height, camera.width, 3), IMAGE_DTYPES, f"camera {camera.name!r}, RGB",
            "uint8: 0 to 255; float32: -1 to 1", optional=camera.may_be_masked, max_abs=1.0,
        )
        for camera in settings.cameras
    )  # fmt: skip
    limit = settings.max_prompt_tokens
    ids = TensorSpec(
        "token_ids", ("L",), ("int64",), "the whole prompt in the policy's tokens, in place of the instruction",
        optional=bool(settings.tokenizer), max_sizes=(("L", limit),),
    )  # fmt: skip
    if settings.state is None:
        return (*images, ids)
    units = ", ".join(settings.state.units)
    state = TensorSpec("state", (settings.state.size,), ("float32",), "of the robot", units, max_abs=MAX_VALUE)
    return (*images, state, ids)


def _continuation(settings: PolicySettings) -> tuple[TensorSpec, ...]:
    network = settings.network
    return (
        TensorSpec(
            "previous_actions", ("K", settings.action.size), ("float32",),
            "what the robot has not executed yet, row 0 for the observation's tick; the last row is held",
            _units(settings), optional=True, max_sizes=(("K", network.action_horizon),), max_abs=MAX_VALUE,
        ),
        TensorSpec(
            "noise", (network.action_horizon, network.action_dim), ("float32",),
            "what the flow starts from; unset: drawn by the seed", optional=True, max_abs=MAX_NOISE,
        ),
    )  # fmt: skip


def _instruction(settings: PolicySettings) -> tuple[ParamSpec, ...]:
    if not settings.tokenizer:
        return ()
    return (ParamSpec("instruction", "str", None, "what to do, in words; empty with token_ids"),)


def _normalization(policy: PolicySpec) -> tuple[ParamSpec, ...]:
    if len(policy.normalizations) < 2:
        return ()
    doc = "statistics of the robot that acts"
    return (ParamSpec("normalization", "str", None, doc, choices=policy.normalizations),)


def _units(settings: PolicySettings) -> str:
    return ", ".join(settings.action.units)
