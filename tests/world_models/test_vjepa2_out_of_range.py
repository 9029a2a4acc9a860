"""Numbers without meaning are refused, going in and coming out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mstar_rt.errors import FailedPrecondition, InvalidArgument
from mstar_rt.server.warmup import zeros
from world_models.planning.settings import settings_from
from world_models.vjepa2.checkpoint import random_networks, save_networks
from world_models.vjepa2.config import preset
from world_models.vjepa2.model import declare


@pytest.mark.parametrize(
    ("tensor", "value", "sentence"),
    [
        ("state", np.full(7, 1e30, np.float32), r"'state' holds values up to 1e\+30, expected at most 10 m, rad"),
        ("context_latents", np.full((1, 4, 128), 3e38, np.float32), r"up to 3e\+38, expected at most 1000"),
        ("goal_latents", np.full((1, 4, 128), -1e30, np.float32), r"up to 1e\+30"),
    ],
)
def test_values_far_out_of_range_are_refused(tensor: str, value: np.ndarray, sentence: str) -> None:
    model = declare("m", "", {})
    good = {
        "context_latents": np.zeros((1, 4, 128), np.float32),
        "goal_latents": np.zeros((1, 4, 128), np.float32),
        "state": np.zeros(7, np.float32),
    }
    model.check_request("plan", good, {})
    with pytest.raises(InvalidArgument, match=sentence):
        model.check_request("plan", good | {tensor: value}, {})


@pytest.mark.parametrize(("dimension", "value"), [(0, 5.0), (2, -0.06), (3, 1.1)])
def test_a_pin_beyond_what_a_candidate_may_move_is_refused(dimension: int, value: float) -> None:
    params = declare("m", "", {}).check_request(
        "plan",
        {"context_latents": np.zeros((1, 4, 128), np.float32), "state": np.zeros(7, np.float32)},
        {"pinned_dims": [float(dimension)], "pinned_values": [value]},
    )
    with pytest.raises(InvalidArgument, match=f"dimension {dimension} is pinned to {value:g}, expected at most"):
        settings_from(params)


@pytest.mark.parametrize("network", ["encoder", "predictor"])
def test_weights_that_overflow_do_not_get_through_warm_up(
    network: str, tmp_path: Path, make_driver: Callable[..., Any]
) -> None:
    """With the inputs that the server warms up with, every symbol of a shape being 1."""
    networks = random_networks(preset("tabletop"), seed=0)
    poisoned = getattr(networks, network)
    next(p for name, p in poisoned.named_parameters() if name.endswith("norm.weight")).data.fill_(3e38)
    file = tmp_path / "tabletop.safetensors"
    save_networks(networks.encoder, networks.predictor, file, dtype=torch.float32)
    driver = make_driver({"preset": "tabletop"}, file)

    def warm_up() -> None:
        for name in ("observe", "rollout"):
            given = zeros(driver.loaded.model.task(name))
            driver.run_in("warm-up", name, {slot: torch.from_numpy(array) for slot, array in given.items()})

    with pytest.raises(FailedPrecondition, match=f"the {network} gives NaN or infinity"):
        warm_up()
