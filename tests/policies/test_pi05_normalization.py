"""Published statistics, both layouts, and the numbers that their own code makes of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from mstar_rt.errors import ConfigError
from policies.pi05.normalization import Normalizer, Statistics, read_norm_stats

STATE = {"mean": [0.5, -2.0, 3.0], "std": [2.0, 0.1, 0.0], "q01": [-1.0, -2.5, 3.0], "q99": [1.0, -1.5, 3.0]}
ACTIONS = {"mean": [0.0, 1.0], "std": [1.0, 2.0], "q01": [-2.0, -1.0], "q99": [2.0, 3.0]}


def openpi(folder: Path, **vectors: Any) -> Path:
    path = folder / "norm_stats.json"
    path.write_text(json.dumps({"norm_stats": vectors}))
    return path


def lerobot(folder: Path, **vectors: Any) -> Path:
    path = folder / "policy_preprocessor_step_5_normalizer_processor.safetensors"
    names = {"state": "observation.state", "actions": "action"}
    save_file(
        {
            f"{names.get(vector, vector)}.{name}": torch.tensor(values)
            for vector, held in vectors.items()
            for name, values in held.items()
        },
        path,
    )
    return path


def statistics(folder: Path, layout: str = "openpi") -> Statistics:
    write = openpi if layout == "openpi" else lerobot
    read = read_norm_stats(write(folder, state=STATE, actions=ACTIONS))
    assert read.state is not None
    assert read.actions is not None
    return read.state


X = torch.tensor([[0.7, -1.8, 3.0], [9.0, -9.0, 3.5]], dtype=torch.float64)


@pytest.mark.parametrize(
    ("layout", "mode", "expected"),
    [
        ("openpi", "z_score", lambda x, s: (x - s["mean"]) / (s["std"] + 1e-6)),
        ("openpi", "quantile", lambda x, s: (x - s["q01"]) / (s["q99"] - s["q01"] + 1e-6) * 2 - 1),
        ("lerobot", "z_score", lambda x, s: (x - s["mean"]) / (s["std"] + 1e-8)),
        (
            "lerobot", "quantile",
            lambda x, s: 2 * (x - s["q01"]) / np.where(s["q99"] == s["q01"], 1e-8, s["q99"] - s["q01"]) - 1,
        ),
    ],
)  # fmt: skip
def test_numbers(layout: str, mode: str, expected: Any, tmp_path: Path) -> None:
    """Nothing is clamped, whatever lies outside of the quantiles."""
    normalizer = Normalizer(statistics(tmp_path, layout), mode)
    held = {
        name: np.array(values, np.float32 if layout == "lerobot" else np.float64).astype(float)
        for name, values in STATE.items()
    }
    torch.testing.assert_close(normalizer.normalise(X), torch.from_numpy(expected(X.numpy(), held)), rtol=1e-12, atol=0)


def test_deviations_are_padded_on_the_way_back_by_openpi_only(tmp_path: Path) -> None:
    y = torch.tensor([[2.0, 2.0, 2.0]], dtype=torch.float64)
    padded = Normalizer(statistics(tmp_path), "z_score").unnormalise(y)
    torch.testing.assert_close(padded, torch.tensor([[4.500002, -1.799998, 3.000002]], dtype=torch.float64))
    plain = Normalizer(statistics(tmp_path, "lerobot"), "z_score").unnormalise(y)
    torch.testing.assert_close(plain, torch.tensor([[4.5, -1.8, 3.0]], dtype=torch.float64), rtol=0, atol=1e-8)


@given(
    low=st.floats(-100, 100, width=32),
    width=st.floats(0, 100, width=32),
    steps=st.lists(st.floats(-3, 3), min_size=1, max_size=4),
)
def test_there_and_back_and_the_lower_quantile_is_minus_one(low: float, width: float, steps: list[float]) -> None:
    for is_lerobot in (False, True):
        values = {
            "q01": torch.tensor([low], dtype=torch.float64),
            "q99": torch.tensor([low + width], dtype=torch.float64),
        }
        normalizer = Normalizer(Statistics(values, "here", is_lerobot), "quantile")
        assert normalizer.normalise(values["q01"]).item() == -1.0
        x = torch.tensor(steps, dtype=torch.float64)[:, None] * width + low
        torch.testing.assert_close(normalizer.unnormalise(normalizer.normalise(x)), x, rtol=0, atol=1e-9)


def test_dimensions_beyond_either_side(tmp_path: Path) -> None:
    for mode in ("quantile", "z_score"):
        normalizer = Normalizer(statistics(tmp_path), mode)
        more = torch.cat([X, torch.tensor([[7.0, 8.0], [9.0, 10.0]], dtype=torch.float64)], dim=1)
        for convert in (normalizer.normalise, normalizer.unnormalise):
            torch.testing.assert_close(convert(more), torch.cat([convert(X), more[:, 3:]], dim=1))
            torch.testing.assert_close(convert(X[:, :2]), convert(X)[:, :2])
            assert convert(X.float()).dtype is torch.float32


def test_a_file_may_lack_what_is_not_asked_for(tmp_path: Path) -> None:
    only_moments = {name: STATE[name] for name in ("mean", "std")} | {"q01": None}
    read = read_norm_stats(openpi(tmp_path, state=only_moments))
    assert read.actions is None
    assert read.state is not None
    Normalizer(read.state, "z_score")
    with pytest.raises(ConfigError, match="'state' has no q01 and no q99, which normalization 'quantile' needs"):
        Normalizer(read.state, "quantile")


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({**STATE, "std": [1.0]}, "different sizes: .*std 1"),
        ({**STATE, "std": [1.0, -1.0, 1.0]}, "std has a number below 0"),
        ({**STATE, "q99": [1.0, -3.0, 3.0]}, "q99 is below q01"),
        ({**STATE, "mean": [0.0, float("nan"), 1.0]}, "mean holds NaN"),
        ({**STATE, "mean": [[0.0]]}, r"mean has shape \[1, 1\]"),
        ({**STATE, "mean": "many"}, "mean is not a list of numbers"),
        ({**STATE, "mean": [[0.0], [1.0, 2.0]]}, "mean is not a list of numbers"),
    ],
)
def test_impossible_statistics_are_refused(state: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        read_norm_stats(openpi(tmp_path, state=state))


def test_files_of_another_layout_are_refused(tmp_path: Path) -> None:
    for text, message in (
        ("{", "not valid JSON"),
        ('{"state": {}}', "expected 'norm_stats'"),
        ('{"norm_stats": {"state": [1]}}', "expected 'norm_stats' with a mapping for each vector"),
        ('{"norm_stats": {"left_arm": {"mean": [1]}}}', "no statistics of 'state' or 'actions'"),
    ):
        (tmp_path / "norm_stats.json").write_text(text)
        with pytest.raises(ConfigError, match=message):
            read_norm_stats(tmp_path / "norm_stats.json")
    with pytest.raises(ConfigError, match=r"no statistics of 'observation\.state' or 'action'"):
        read_norm_stats(lerobot(tmp_path, other=STATE))
    for name in ("none.json", "none.safetensors"):
        with pytest.raises(ConfigError, match=name):
            read_norm_stats(tmp_path / name)
