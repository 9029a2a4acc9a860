"""Dimensions of an ACT policy, as `config.json` of the published layout has them. No torch."""

from __future__ import annotations

from dataclasses import dataclass

from mstar_rt.errors import ConfigError
from mstar_rt.model.policy import CameraSpec
from policies.lerobot.config_file import CONFIG_FILE, ConfigFile, Features, folder_of
from policies.lerobot.normalization import Normalization, read_normalization

DEFAULT_MODES = {"VISUAL": "MEAN_STD", "STATE": "MEAN_STD", "ACTION": "MEAN_STD"}
"""The layout's defaults, for a file that leaves its normalisation out; so are the numbers in `read_config`."""


@dataclass(frozen=True)
class ActConfig:
    """One policy.

    `action_horizon` is published as `chunk_size`, `replan_every` (how many actions the robot executed of each in
    evaluation) as `n_action_steps`. `has_training_part`: the weights may hold the encoder of actions that training
    needs, whose latent is zero when the policy acts.
    """

    name: str
    features: Features
    normalization: Normalization
    action_horizon: int
    replan_every: int
    dim: int
    num_heads: int
    mlp_dim: int
    activation: str
    num_encoder_layers: int
    num_decoder_layers: int
    latent_dim: int
    pre_norm: bool
    has_training_part: bool

    def __post_init__(self) -> None:
        if self.dim % self.num_heads or self.dim % 4:
            raise ConfigError(
                f"dim_model {self.dim} of {self.name!r} is not a multiple of its {self.num_heads} heads and of 4"
            )
        if self.replan_every > self.action_horizon:
            raise ConfigError(
                f"n_action_steps {self.replan_every} of {self.name!r} is over its chunk_size {self.action_horizon}"
            )

    @property
    def cameras(self) -> tuple[CameraSpec, ...]:
        return self.features.cameras


def read_config(checkpoint: str) -> ActConfig:
    """The policy whose folder, or whose weights file, `checkpoint` is.

    Raises: ConfigError: a file is missing, of another policy, or computes what is not served here.
    """
    folder = folder_of(checkpoint)
    file = ConfigFile(folder / CONFIG_FILE, "act")
    file.choice("vision_backbone", "resnet18", ("resnet18",))
    _refuse(file, "n_obs_steps", file.whole("n_obs_steps", 1) != 1, "the layout knows 1 alone")
    dilated = file.flag("replace_final_stride_with_dilation", False)
    _refuse(file, "replace_final_stride_with_dilation", dilated, "which resnet18 cannot have")
    features = file.features()
    return ActConfig(
        name=folder.name,
        features=features,
        normalization=read_normalization(folder, features, file.modes(DEFAULT_MODES)),
        action_horizon=file.whole("chunk_size", 100),
        replan_every=file.whole("n_action_steps", 100),
        dim=file.whole("dim_model", 512),
        num_heads=file.whole("n_heads", 8),
        mlp_dim=file.whole("dim_feedforward", 3200),
        activation=file.choice("feedforward_activation", "relu", ("relu", "gelu")),
        num_encoder_layers=file.whole("n_encoder_layers", 4),
        num_decoder_layers=file.whole("n_decoder_layers", 1),
        latent_dim=file.whole("latent_dim", 32),
        pre_norm=file.flag("pre_norm", False),
        has_training_part=file.flag("use_vae", True),
    )


def _refuse(file: ConfigFile, key: str, is_wrong: bool, why: str) -> None:
    if is_wrong:
        raise ConfigError(f"{file.path} has {key} {file.values[key]!r}, which is not served: {why}")
