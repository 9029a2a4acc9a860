"""Dimensions of a Diffusion Policy, as `config.json` of the published layout has them. No torch."""

from __future__ import annotations

from dataclasses import dataclass

from mstar_rt.errors import ConfigError
from mstar_rt.model.policy import CameraSpec
from policies.lerobot.config_file import CONFIG_FILE, ConfigFile, Features, folder_of
from policies.lerobot.normalization import Normalization, read_normalization

DEFAULT_MODES = {"VISUAL": "MEAN_STD", "STATE": "MIN_MAX", "ACTION": "MIN_MAX"}
"""The layout's defaults, for a file that leaves its normalisation out; so are the numbers below."""


@dataclass(frozen=True)
class VisionConfig:
    """How one image is seen: resized, then cut out of its middle, each [height, width] or not at all."""

    resize: tuple[int, int] | None
    crop: tuple[int, int] | None
    num_keypoints: int
    has_group_norm: bool
    one_per_camera: bool

    def size_of(self, camera: CameraSpec) -> tuple[int, int]:
        """Height and width of what the image network sees of a camera."""
        return self.crop or self.resize or (camera.height, camera.width)

    @property
    def num_features(self) -> int:
        """Of one image: row and column of every keypoint."""
        return 2 * self.num_keypoints


@dataclass(frozen=True)
class UnetConfig:
    """The network that takes noise off a chunk. `widths` are published as `down_dims`; `step_dim` is that of the
    embedded diffusion step."""

    widths: tuple[int, ...]
    kernel_size: int
    num_groups: int
    step_dim: int
    scales: bool


@dataclass(frozen=True)
class ScheduleConfig:
    """The noise of training, and how it is taken off again. `num_steps` is how often if a request does not say."""

    kind: str
    num_train_steps: int
    num_steps: int
    betas: str
    beta_start: float
    beta_end: float
    predicts: str
    clip: float | None


@dataclass(frozen=True)
class DiffusionConfig:
    """One policy.

    `horizon` counts actions from the oldest observation on, of which those before the newest are over. `replan_every`
    (how many actions the robot executed of each chunk in evaluation) is published as `n_action_steps`.
    """

    name: str
    features: Features
    normalization: Normalization
    num_observations: int
    horizon: int
    replan_every: int
    vision: VisionConfig
    unet: UnetConfig
    schedule: ScheduleConfig

    def __post_init__(self) -> None:
        factor = 2 ** len(self.unet.widths)
        if self.horizon % factor:
            raise ConfigError(
                f"horizon {self.horizon} of {self.name!r} is not a multiple of {factor}, 2 ** len(down_dims)"
            )
        if self.replan_every > self.action_horizon:
            raise ConfigError(
                f"n_action_steps {self.replan_every} of {self.name!r} is over the {self.action_horizon} actions that "
                "horizon and n_obs_steps leave"
            )

    @property
    def cameras(self) -> tuple[CameraSpec, ...]:
        return self.features.cameras

    @property
    def state_size(self) -> int:
        assert self.features.state_size is not None, "it was read from a file with a state"
        return self.features.state_size

    @property
    def action_horizon(self) -> int:
        """Actions of a chunk, from the newest observation's on."""
        return self.horizon - self.num_observations + 1

    @property
    def condition_size(self) -> int:
        """Numbers that the observations come to."""
        return self.num_observations * (self.state_size + len(self.cameras) * self.vision.num_features)


def read_config(checkpoint: str) -> DiffusionConfig:
    """The policy whose folder, or whose weights file, `checkpoint` is.

    Raises: ConfigError: a file is missing, of another policy, or computes what is not served here.
    """
    folder = folder_of(checkpoint)
    file = ConfigFile(folder / CONFIG_FILE, "diffusion")
    file.choice("vision_backbone", "resnet18", ("resnet18",))
    features = file.features()
    if features.state_size is None:
        raise ConfigError(f"{file.path} reads no observation.state, which the policy needs")
    if len({(camera.height, camera.width) for camera in features.cameras}) > 1:
        raise ConfigError(f"{file.path} has cameras of several sizes, expected one for all")
    return DiffusionConfig(
        name=folder.name,
        features=features,
        normalization=read_normalization(folder, features, file.modes(DEFAULT_MODES)),
        num_observations=file.whole("n_obs_steps", 2),
        horizon=file.whole("horizon", 16),
        replan_every=file.whole("n_action_steps", 8),
        vision=_vision(file, features.cameras[0]),
        unet=_unet(file),
        schedule=_schedule(file),
    )


def _vision(file: ConfigFile, camera: CameraSpec) -> VisionConfig:
    resize, crop = _pair(file, "resize_shape"), _pair(file, "crop_shape")
    ratio = file.number("crop_ratio", 1.0)
    if not 0 < ratio <= 1:
        raise ConfigError(f"{file.path}: 'crop_ratio' is {ratio}, expected over 0 and at most 1")
    if resize is not None:
        crop = (int(resize[0] * ratio), int(resize[1] * ratio)) if ratio < 1 else None
    whole = resize or (camera.height, camera.width)
    if crop is not None and not (0 < crop[0] <= whole[0] and 0 < crop[1] <= whole[1]):
        raise ConfigError(f"{file.path} cuts {list(crop)} pixels out of images of {list(whole)}")
    return VisionConfig(
        resize=resize,
        crop=crop,
        num_keypoints=file.whole("spatial_softmax_num_keypoints", 32),
        has_group_norm=file.flag("use_group_norm", True),
        one_per_camera=file.flag("use_separate_rgb_encoder_per_camera", False),
    )


def _pair(file: ConfigFile, key: str) -> tuple[int, int] | None:
    numbers = file.wholes(key, None, length=2)
    return None if numbers is None else (numbers[0], numbers[1])


def _unet(file: ConfigFile) -> UnetConfig:
    widths, num_groups = file.wholes("down_dims", (512, 1024, 2048)), file.whole("n_groups", 8)
    if widths is None or any(width % num_groups or width % OUTPUT_GROUPS for width in widths):
        raise ConfigError(
            f"{file.path}: down_dims {widths} are not multiples of {num_groups} and {OUTPUT_GROUPS} groups"
        )
    step_dim, kernel_size = file.whole("diffusion_step_embed_dim", 128, minimum=4), file.whole("kernel_size", 5)
    if step_dim % 2:
        raise ConfigError(f"{file.path}: 'diffusion_step_embed_dim' is {step_dim}, expected an even number")
    if kernel_size % 2 == 0:
        raise ConfigError(
            f"{file.path}: 'kernel_size' is {kernel_size}, expected an odd number, which keeps the horizon"
        )
    return UnetConfig(
        widths=widths,
        kernel_size=kernel_size,
        num_groups=num_groups,
        step_dim=step_dim,
        scales=file.flag("use_film_scale_modulation", True),
    )


OUTPUT_GROUPS = 8
"""Of the norm before the last layer, whatever n_groups says."""


def _schedule(file: ConfigFile) -> ScheduleConfig:
    num_train_steps = file.whole("num_train_timesteps", 100)
    given = file.values.get("num_inference_steps")
    num_steps = num_train_steps if given is None else file.whole("num_inference_steps", num_train_steps)
    if num_steps > num_train_steps:
        raise ConfigError(f"{file.path}: num_inference_steps {num_steps} is over num_train_timesteps {num_train_steps}")
    return ScheduleConfig(
        kind=file.choice("noise_scheduler_type", "DDPM", ("DDPM", "DDIM")),
        num_train_steps=num_train_steps,
        num_steps=num_steps,
        betas=file.choice("beta_schedule", "squaredcos_cap_v2", ("squaredcos_cap_v2", "linear", "scaled_linear")),
        beta_start=file.number("beta_start", 0.0001),
        beta_end=file.number("beta_end", 0.02),
        predicts=file.choice("prediction_type", "epsilon", ("epsilon", "sample")),
        clip=file.number("clip_sample_range", 1.0) if file.flag("clip_sample", True) else None,
    )
