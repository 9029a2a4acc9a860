"""The encoder's targets: distances between pictures must grow with displacement over the whole table."""

from __future__ import annotations

import numpy as np
import torch

from sim_bridge.camera import draw_tabletop
from world_models.vjepa2.train.episodes import TRAIN_STREAM, record_episodes
from world_models.vjepa2.train.targets import ChromaMaps, normalise_images, picture_distance


def _maps() -> ChromaMaps:
    return ChromaMaps(torch.from_numpy(record_episodes(0, TRAIN_STREAM, 12).images[:, ::4].reshape(-1, 64, 64, 3)))


def _distances_from_first(maps: ChromaMaps, places: list[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    images = np.stack([draw_tabletop(effector, puck) for effector, puck in places])
    return picture_distance(maps(torch.from_numpy(images)))[0].numpy()


def test_maps_have_unit_variance_over_the_data() -> None:
    images = torch.from_numpy(record_episodes(0, TRAIN_STREAM, 12).images[:, ::4].reshape(-1, 64, 64, 3))
    maps = ChromaMaps(images)
    scales = maps(images)
    assert sum(scale[0].numel() for scale in scales) == maps.num_values
    for scale in scales:
        assert torch.allclose(scale.std((0, 2, 3)), torch.ones(2), atol=0.01)


def test_distance_grows_with_the_displacement_of_either_object() -> None:
    maps = _maps()
    still = np.array([0.2, 0.2])
    steps_m = (0.0, 0.005, 0.01, 0.03, 0.06, 0.12, 0.2, 0.3)
    rod = _distances_from_first(maps, [(np.array([-0.2 + step, -0.1]), still) for step in steps_m])
    puck = _distances_from_first(maps, [(still, np.array([-0.2 + step, -0.1])) for step in steps_m])
    assert (np.diff(rod) > 0).all()
    assert (np.diff(puck) > 0).all()
    assert (puck[1:] > rod[1:]).all(), "the puck weighs more"


def test_images_are_normalised_as_published() -> None:
    grey = torch.full((1, 2, 2, 3), 124, dtype=torch.uint8)
    expected = (124 / 255 - torch.tensor([0.485, 0.456, 0.406])) / torch.tensor([0.229, 0.224, 0.225])
    assert torch.allclose(normalise_images(grey)[0, :, 1, 1], expected)
