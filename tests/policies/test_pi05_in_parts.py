"""A policy that sees its cameras one after the other acts as if it saw them at once."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "models"))

import pi05_tiny as tiny
from walk_driver import Request, drive

from policies.pi05.model import declare


def test_cameras_seen_one_by_one_lead_to_the_same_actions(tmp_path: Path) -> None:
    driver = drive(declare("robot", tiny.CHECKPOINT, tiny.robot_settings(tmp_path)))
    draw = np.random.default_rng(0)
    top, wrist = (torch.from_numpy(draw.integers(0, 256, size, np.uint8)) for size in ((56, 56, 3), (30, 40, 3)))
    both = {"image_top": top, "image_wrist": wrist, "state": torch.zeros(tiny.STATE_SIZE)}
    one = {name: tensor for name, tensor in both.items() if name != "image_wrist"}
    requests = [Request("act", given, {"instruction": "push the red cup", "seed": 1}) for given in (both, one, both)]
    whole = driver.run(*requests)
    assert ("see", 3) in driver.batches
    driver.batches.clear()
    driver.share_of = lambda num_left: 1
    parts = driver.run(*requests)
    assert [size for name, size in driver.batches if name == "see"] == [3, 2]
    for given, wanted in zip(parts, whole, strict=True):
        torch.testing.assert_close(given.emitted["actions"], wanted.emitted["actions"], rtol=0, atol=1e-5)
    assert driver.num_pages_held == 0
