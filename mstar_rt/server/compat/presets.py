"""What a dialect's clients send and take, with what its preset adds to what the deployment file says.

Source:  openpi's clients for DROID, LIBERO and ALOHA, and what SGLang and vLLM-Omni take on the same protocol. The
policy's cameras have the names of openpi's models.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mstar_rt.config_dialects import ActionTarget, CameraSource, DialectConfig, InstructionSource, StateSource
from mstar_rt.model import PolicySpec


@dataclass(frozen=True)
class Layout:
    """`cameras` by the policy's names. `ignore` are keys that are sent and not used."""

    cameras: Mapping[str, CameraSource] = field(default_factory=dict)
    mask: tuple[str, ...] = ()
    state: tuple[StateSource, ...] = ()
    instruction: InstructionSource | None = None
    actions: ActionTarget = field(default_factory=ActionTarget)
    ignore: tuple[str, ...] = ()


PROMPT = InstructionSource("prompt")

DROID = Layout(
    cameras={
        "base_0_rgb": CameraSource("observation/exterior_image_1_left"),
        "left_wrist_0_rgb": CameraSource("observation/wrist_image_left"),
    },
    mask=("right_wrist_0_rgb",),
    state=(StateSource("observation/joint_position", 7), StateSource("observation/gripper_position", 1)),
    instruction=PROMPT,
    actions=ActionTarget(size=8),
)
LIBERO = Layout(
    cameras={
        "base_0_rgb": CameraSource("observation/image"),
        "left_wrist_0_rgb": CameraSource("observation/wrist_image"),
    },
    mask=("right_wrist_0_rgb",),
    state=(StateSource("observation/state", 8),),
    instruction=PROMPT,
    actions=ActionTarget(size=7),
)
ALOHA = Layout(
    cameras={
        "base_0_rgb": CameraSource("images/cam_high", layout="chw"),
        "left_wrist_0_rgb": CameraSource("images/cam_left_wrist", layout="chw"),
        "right_wrist_0_rgb": CameraSource("images/cam_right_wrist", layout="chw"),
    },
    state=(StateSource("state", 14),),
    instruction=PROMPT,
    actions=ActionTarget(size=14),
    ignore=("images/cam_low",),
)
VLLM_OMNI = Layout(
    cameras=DROID.cameras,
    mask=DROID.mask,
    state=DROID.state,
    instruction=PROMPT,
    actions=ActionTarget(key="", size=8),
    ignore=("embodiment", "observation/exterior_image_2_left"),
)
FIXED = {"none": Layout(), "droid": DROID, "libero": LIBERO, "aloha": ALOHA, "vllm_omni": VLLM_OMNI}


def layout_of(dialect: DialectConfig, policy: PolicySpec) -> Layout:
    """What the file gives replaces what the preset has; cameras that it masks are not the preset's any more."""
    preset = _sglang(policy, dialect.mask) if dialect.preset == "sglang" else FIXED[dialect.preset]
    preset_cameras = {name: source for name, source in preset.cameras.items() if name not in dialect.mask}
    instruction = dialect.instruction or (preset.instruction if policy.takes_instruction else None)
    return Layout(
        cameras=preset_cameras if dialect.cameras is None else dialect.cameras,
        mask=dialect.mask or (preset.mask if dialect.cameras is None else ()),
        state=preset.state if dialect.state is None else dialect.state,
        instruction=instruction,
        actions=dialect.actions or preset.actions,
        ignore=(*preset.ignore, *dialect.ignore),
    )


def _sglang(policy: PolicySpec, mask: tuple[str, ...]) -> Layout:
    """The policy's own names, as LeRobot writes them."""
    names = [camera.name for camera in policy.cameras if camera.name not in mask]
    return Layout(
        cameras={name: CameraSource(f"observation.images.{name}") for name in names},
        state=() if policy.state is None else (StateSource("observation.state", policy.state.size),),
        instruction=InstructionSource("task"),
    )
