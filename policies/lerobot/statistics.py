"""Statistics of a published policy, and numbers between robot units and what its network was trained on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from mstar_rt.errors import CheckpointError, FailedPrecondition
from mstar_rt.nn.checkpoint import Weights, read_safetensors, read_safetensors_sections
from mstar_rt.nn.weight_shapes import shown
from policies.lerobot.config_file import ACTION, CONFIG_FILE, STATE, Features
from policies.lerobot.normalization import BUFFERS, POSTPROCESSOR, PREPROCESSOR, Normalization, Side

STATISTICS = {
    "MEAN_STD": ("mean", "std"), "MIN_MAX": ("min", "max"), "QUANTILES": ("q01", "q99"), "QUANTILE10": ("q10", "q90"),
}  # fmt: skip
"""What is read for each way to normalise. The first leads to mean 0 and deviation 1, the others to -1 to 1."""


@dataclass(frozen=True)
class Normaliser:
    """One feature's way, along the last dimension. `divisor` and `factor` differ where a deviation is padded against
    zero on the way in, and not on the way out."""

    offset: torch.Tensor
    divisor: torch.Tensor
    factor: torch.Tensor
    to_range: bool

    def normalise(self, values: torch.Tensor) -> torch.Tensor:
        shifted = (values - self.offset) / self.divisor
        return 2 * shifted - 1 if self.to_range else shifted

    def unnormalise(self, values: torch.Tensor) -> torch.Tensor:
        return ((values + 1) / 2 if self.to_range else values) * self.factor + self.offset


class Processor:
    """Raw inputs to what the network takes, and back. Everything is float32."""

    def __init__(self, features: Features, normalisers: Mapping[str, Normaliser]) -> None:
        self._key_of = features.key_of
        self._normalisers = normalisers

    def pixels(self, camera: str, images: torch.Tensor) -> torch.Tensor:
        """RGB images of one camera, uint8 [..., H, W, 3] -> [..., 3, H, W]."""
        return self._normalised(self._key_of[camera], images.float() / 255).movedim(-1, -3)

    def state(self, state: torch.Tensor) -> torch.Tensor:
        """Robot units [..., S] -> the same, normalised."""
        return self._normalised(STATE, state)

    def actions(self, actions: torch.Tensor) -> torch.Tensor:
        """What the network gives [..., A] -> robot units.

        Raises: FailedPrecondition: NaN or infinity, which must not reach a robot.
        """
        normaliser = self._normalisers.get(ACTION)
        known = actions if normaliser is None else normaliser.unnormalise(actions)
        if not torch.isfinite(known).all():
            raise FailedPrecondition(
                "the policy gives NaN or infinity; check its weights, its statistics, and that the state is in the "
                "units that it was trained with"
            )
        return known

    def _normalised(self, key: str, values: torch.Tensor) -> torch.Tensor:
        normaliser = self._normalisers.get(key)
        return values if normaliser is None else normaliser.normalise(values)


def load_policy(
    path: Path, section: str, features: Features, normalization: Normalization, device: str
) -> tuple[Weights, Processor]:
    """The weights of `section`, without its name, and the processor with the policy's statistics.

    Raises: CheckpointError: a file is missing or damaged, a statistic is missing, of another shape or not finite, or
            there are two sets of them.
    """
    sections = read_safetensors_sections(path, (section, *BUFFERS))
    beside = {f"{name}.{key}": tensor for name in BUFFERS for key, tensor in sections[name].items()}
    if beside and not normalization.in_weights:
        raise CheckpointError(
            f"{path} has statistics {shown(list(beside))}, and so have the processor files beside it; keep one of the "
            "two sets"
        )
    _check_all_known(beside, features, path)
    normalisers = {}
    for key, shape in features.shapes.items():
        side = normalization.outputs if key == ACTION else normalization.inputs
        mode = side.mode(key)
        if mode == "IDENTITY":
            continue
        held, where = (beside, path) if normalization.in_weights else (_of_file(side), side.file or path)
        names = [f"{key}.{statistic}" for statistic in STATISTICS[mode]]
        names = [buffer_name(name) for name in names] if normalization.in_weights else names
        low, high = (_statistic(held, name, shape, where).to(device) for name in names)
        normalisers[key] = _normaliser(
            low, high, side.eps, to_range=mode != "MEAN_STD", is_old=normalization.in_weights
        )
    return sections[section], Processor(features, normalisers)


def buffer_name(name: str) -> str:
    """The key under which an older policy has the statistic `name` beside its weights."""
    key, _, statistic = name.rpartition(".")
    return f"{BUFFERS[1] if key == ACTION else BUFFERS[0]}.buffer_{key.replace('.', '_')}.{statistic}"


def _of_file(side: Side) -> Weights:
    return {} if side.file is None else read_safetensors(side.file)


def _check_all_known(beside: Weights, features: Features, path: Path) -> None:
    kinds = {statistic for pair in STATISTICS.values() for statistic in pair}
    known = {buffer_name(f"{key}.{statistic}") for key in features.shapes for statistic in kinds}
    known |= {f"{BUFFERS[2]}.buffer_action.{statistic}" for statistic in kinds}
    unknown = [name for name in beside if name not in known]
    if unknown:
        raise CheckpointError(f"{path} has statistics {shown(unknown)} of what its {CONFIG_FILE} does not name")


def _statistic(held: Weights, name: str, shape: tuple[int, ...], where: Path) -> torch.Tensor:
    """float32 of `shape`; those of images are also published as [3, 1, 1]."""
    if name not in held:
        raise CheckpointError(
            f"{where} lacks the statistic {name!r}; a policy has them beside its weights, or in files that "
            f"{PREPROCESSOR} and {POSTPROCESSOR} name"
        )
    value = held[name].float()
    if value.shape not in ((*shape,), (*shape, 1, 1)):
        raise CheckpointError(f"{where}: {name!r} has shape {list(value.shape)}, expected {list(shape)}")
    if not torch.isfinite(value).all():
        raise CheckpointError(f"{where}: {name!r} holds NaN or infinity; the policy was saved without its statistics")
    return value.reshape(shape)


def _normaliser(low: torch.Tensor, high: torch.Tensor, eps: float, *, to_range: bool, is_old: bool) -> Normaliser:
    """`low` and `high` are mean and deviation unless it leads `to_range`. Older policies widen every range by `eps`,
    newer ones only an empty one."""
    if not to_range:
        return Normaliser(low, high + eps, high, to_range)
    width = high - low
    if is_old:
        return Normaliser(low, width + eps, width, to_range)
    width = torch.where(width == 0, eps, width)
    return Normaliser(low, width, width, to_range)
