"""The camera over the table, drawn with OpenCV: needs no GPU, no display and no system package.

Image rows run from the far side of the table (large y) to the near side, columns from left to right; the picture shows
exactly the square table. Edges are anti-aliased, so that motion of a tenth of a pixel changes the image.
"""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray

from sim_bridge.tabletop_physics import EFFECTOR_RADIUS_M, PUCK_RADIUS_M, TABLE_HALF_M

IMAGE_SIZE_PX = 64
WRIST_VIEW_M = 0.30
"""Side of the square that the wrist camera sees."""

_FLOOR_RGB = (66, 60, 56)
_TABLE_RGB = (214, 208, 196)
_LINE_RGB = (194, 188, 176)
_PUCK_RGB = (28, 76, 216)
_EFFECTOR_RGB = (222, 38, 30)
_GOAL_RGB = (30, 150, 60)
_FRACTION_BITS = 10
_ONE_PX = 1 << _FRACTION_BITS


def draw_tabletop(
    effector_xy: NDArray[np.floating], puck_xy: NDArray[np.floating], size_px: int = IMAGE_SIZE_PX
) -> NDArray[np.uint8]:
    """Top-down picture of the table.

    Args:    effector_xy, puck_xy [2], metres, world frame.
    Returns: [size_px, size_px, 3] uint8, RGB.
    """
    image = _empty_table(size_px)
    _fill_disc(image, puck_xy, PUCK_RADIUS_M, _PUCK_RGB)
    _fill_disc(image, effector_xy, EFFECTOR_RADIUS_M, _EFFECTOR_RGB)
    return image


def draw_wrist_view(
    effector_xy: NDArray[np.floating], puck_xy: NDArray[np.floating], size_px: int = IMAGE_SIZE_PX
) -> NDArray[np.uint8]:
    """What a camera over the rod sees, looking down and moving with it: a square of 0.30 m with the rod in the middle.

    Beside the table it sees the floor. Arguments and result as of `draw_tabletop`.
    """
    table_px = round(size_px * 2 * TABLE_HALF_M / WRIST_VIEW_M)
    table = draw_tabletop(effector_xy, puck_xy, table_px)
    column, row = (coordinate / _ONE_PX for coordinate in _pixel(effector_xy, table_px))
    middle = (size_px - 1) / 2
    shift = np.array([[1.0, 0.0, middle - column], [0.0, 1.0, middle - row]])
    view = cv2.warpAffine(table, shift, (size_px, size_px), borderMode=cv2.BORDER_CONSTANT, borderValue=_FLOOR_RGB)
    return np.asarray(view, np.uint8)


def mark_goal(image: NDArray[np.uint8], goal_xy: NDArray[np.floating], radius_m: float) -> None:
    """Draw the outline of a goal into a picture (for people; no camera image that a policy sees has one)."""
    scale = image.shape[0] / (2 * TABLE_HALF_M)
    cv2.circle(
        image, _pixel(goal_xy, image.shape[0]), round(radius_m * scale * _ONE_PX), _GOAL_RGB,
        thickness=max(1, image.shape[0] // 128), lineType=cv2.LINE_AA, shift=_FRACTION_BITS,
    )  # fmt: skip


def _empty_table(size_px: int) -> NDArray[np.uint8]:
    image = np.empty((size_px, size_px, 3), np.uint8)
    image[:] = _TABLE_RGB
    for quarter in (1, 2, 3):
        at = size_px * quarter // 4
        image[at, :] = _LINE_RGB
        image[:, at] = _LINE_RGB
    return image


def _fill_disc(
    image: NDArray[np.uint8], centre_xy: NDArray[np.floating], radius_m: float, rgb: tuple[int, int, int]
) -> None:
    # An anti-aliased OpenCV disc covers half a pixel more than its radius.
    radius_px = radius_m * image.shape[0] / (2 * TABLE_HALF_M) - 0.5
    cv2.circle(
        image, _pixel(centre_xy, image.shape[0]), round(radius_px * _ONE_PX), rgb,
        thickness=cv2.FILLED, lineType=cv2.LINE_AA, shift=_FRACTION_BITS,
    )  # fmt: skip


def _pixel(xy: NDArray[np.floating], size_px: int) -> tuple[int, int]:
    """Fixed-point (column, row) of a place; OpenCV's pixel centres lie on whole numbers, hence the half."""
    scale = size_px / (2 * TABLE_HALF_M)
    column = (float(xy[0]) + TABLE_HALF_M) * scale - 0.5
    row = (TABLE_HALF_M - float(xy[1])) * scale - 0.5
    return round(column * _ONE_PX), round(row * _ONE_PX)
