"""The drawn camera image: where things appear, and that motion well below a pixel shows."""

from __future__ import annotations

import itertools

import numpy as np

from sim_bridge.camera import draw_tabletop

AWAY = np.array([5.0, 5.0])


def _red_centroid_m(image: np.ndarray) -> np.ndarray:
    empty = draw_tabletop(AWAY, AWAY, image.shape[0]).astype(float)
    weight = np.abs(image.astype(float) - empty).sum(-1)
    size = image.shape[0]
    rows, columns = np.mgrid[0:size, 0:size] + 0.5
    metres = 0.6 / size
    return np.array(
        [
            (weight * columns).sum() / weight.sum() * metres - 0.3,
            0.3 - (weight * rows).sum() / weight.sum() * metres,
        ]
    )


def test_things_are_drawn_where_they_are() -> None:
    for place in ([0.0, 0.0], [0.1234, -0.2], [-0.25, 0.19]):
        image = draw_tabletop(np.array(place), AWAY)
        np.testing.assert_allclose(_red_centroid_m(image), place, atol=0.001)


def test_a_tenth_of_a_pixel_changes_the_image() -> None:
    step_m = 0.6 / 64 / 10
    images = [draw_tabletop(np.array([i * step_m, 0.1]), AWAY) for i in range(10)]
    assert all(not np.array_equal(a, b) for a, b in itertools.pairwise(images))


def test_colours_and_format() -> None:
    image = draw_tabletop(np.array([-0.15, 0.15]), np.array([0.15, -0.15]))
    assert image.shape == (64, 64, 3)
    assert image.dtype == np.uint8
    red, blue = image[16, 16].astype(int), image[48, 48].astype(int)
    assert red[0] > 200
    assert red[1] < 60
    assert blue[2] > 200
    assert blue[0] < 60
