"""`PolicySpec`: what a model that drives a robot declares, so that one control session serves every kind of policy.

The policy's task takes, by these names:

    image_<camera>     uint8 [height, width, 3], RGB; optional exactly where the camera may be masked
    state              float32 [S], robot units
    previous_actions   optional float32 [K, A], robot units: what the robot has not executed yet of its last chunk,
                       row 0 belonging to the observation's tick
    noise              optional float32, the initial noise of a flow or diffusion, to reproduce a motion

With `num_observations` N > 1 images are [N, height, width, 3] and the state is [N, S], oldest first. Options, each only
where the policy has a use for it:

    instruction, normalization, seed, num_denoise_steps, min_denoise_steps
    chunking, delay, prefix_attention_horizon, schedule, max_guidance_weight     real-time chunking, see `chunking`

It emits `actions`, float32 [action_horizon, A], robot units, row 0 belonging to the observation's tick, and may emit
`num_denoise_steps`, int64 [].
"""

from __future__ import annotations

from dataclasses import dataclass

CHUNKING_MODES = ("guided", "guided_identity", "prefix")
"""Continuity between chunks that the model itself makes; temporal ensembling is the session's."""
NO_CHUNKING = "none"
SCHEDULES = ("linear", "exponential", "ones", "zeros")
CHUNKING_OPTIONS = ("chunking", "delay")
"""What the task of a policy with chunking modes has at least."""


@dataclass(frozen=True)
class CameraSpec:
    """One camera, in pixels. `may_be_masked`: observations without it are served, and see nothing in its place."""

    name: str
    height: int
    width: int
    may_be_masked: bool = False

    @property
    def tensor(self) -> str:
        """The task's input that takes its image."""
        return f"image_{self.name}"


@dataclass(frozen=True)
class VectorSpec:
    """A state or an action: its size, and the name and unit of each dimension, where they are known."""

    size: int
    names: tuple[str, ...] = ()
    units: tuple[str, ...] = ()


@dataclass(frozen=True)
class PolicySpec:
    """`chunking` are those of CHUNKING_MODES that the model knows, `max_prefix_delay` the largest delay of mode
    "prefix" that it was trained for. `normalizations` are the names of its statistics: of one or none a session needs
    not speak. `anytime_task` is run in place of `task` where a session allows fewer denoise steps: it takes and gives
    the same, and has the option `min_denoise_steps` besides.
    """

    action: VectorSpec
    action_horizon: int
    cameras: tuple[CameraSpec, ...] = ()
    state: VectorSpec | None = None
    task: str = "act"
    takes_instruction: bool = False
    num_observations: int = 1
    normalizations: tuple[str, ...] = ()
    chunking: tuple[str, ...] = ()
    max_prefix_delay: int | None = None
    anytime_task: str | None = None
