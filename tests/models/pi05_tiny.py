"""The golden pi0.5 as deployments: as published, and as a robot's policy with statistics, text, state and two cameras."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file
from tokenizers import Regex, Tokenizer, models, pre_tokenizers

GOLDEN = Path(__file__).parents[1] / "golden"
CHECKPOINT = str(GOLDEN / "pi05_tiny.weights.safetensors")
HORIZON, DIM = 10, 8
STATE_SIZE, ACTION_SIZE, MAX_PREFIX_DELAY = 3, 5, 4
RELATIVE_TO = [0, 1, None, None, 2]
WORDS = ("push", "pull", "the", "red", "cup", "left", "right", "Task", "State", "Action", ":", ",", ";")

Arrays = dict[str, np.ndarray]


def golden() -> Arrays:
    return load_file(GOLDEN / "pi05_tiny.io.safetensors")


def network() -> dict[str, Any]:
    """The dimensions that came with the golden weights, in our keys."""
    given = json.loads((GOLDEN / "pi05_tiny.json").read_text())
    vision, language, expert = given["vision"], given["vlm"], given["expert"]
    return {
        "name": "tiny", "kind": "pi05", "depth": language["depth"], "num_heads": language["num_heads"],
        "num_kv_heads": language["num_kv_heads"], "head_dim": language["head_dim"], "vocab_size": given["vocab"],
        "action_dim": given["action_dim"], "action_horizon": given["chunk"], "min_period": given["min_period"],
        "max_period": given["max_period"],
        "vision": {
            "dim": vision["hidden"], "depth": vision["layers"], "num_heads": vision["heads"],
            "mlp_dim": vision["mlp"], "image_size": vision["image"], "patch_size": vision["patch"],
        },
        "language": {"width": language["width"], "mlp_dim": language["mlp_dim"]},
        "expert": {"width": expert["width"], "mlp_dim": expert["mlp_dim"]},
    }  # fmt: skip


def published_settings() -> dict[str, Any]:
    """As the golden run was: two cameras of the network's size, no state, no statistics, tokens given."""
    cameras = [{"name": name, "height": 56, "width": 56, "may_be_masked": True} for name in ("base", "wrist")]
    return {
        "network": network(), "cameras": cameras, "action": {"size": DIM}, "discrete_state_input": False,
        "normalization": "none",
    }  # fmt: skip


def robot_settings(folder: Path) -> dict[str, Any]:
    """A policy for a robot, and its files in `folder`."""
    return {
        "network": network(),
        "cameras": [
            {"name": "top", "height": 56, "width": 56},
            {"name": "wrist", "height": 30, "width": 40, "may_be_masked": True},
        ],
        "state": {"size": STATE_SIZE, "names": ["x", "y", "gripper"], "units": ["m", "m", "1"]},
        "action": {"size": ACTION_SIZE, "relative_to": RELATIVE_TO},
        "norm_stats": write_statistics(folder / "norm_stats.json"),
        "tokenizer": write_tokenizer(folder / "tokenizer.json"),
        "max_prompt_tokens": 24,
        "max_prefix_delay": MAX_PREFIX_DELAY,
    }


def pi0_settings(folder: Path) -> dict[str, Any]:
    settings = robot_settings(folder)
    return {**settings, "network": {**network(), "kind": "pi0"}, "normalization": "z_score"}


def write_statistics(path: Path, scale: float = 1.0) -> str:
    """openpi's layout: of the state, and of actions that are already relative."""

    def of(size: int) -> dict[str, list[float]]:
        rows = np.arange(1, size + 1) * scale
        return {
            "mean": (0.1 * rows).tolist(), "std": (0.5 + 0.1 * rows).tolist(), "q01": (-0.5 * rows).tolist(),
            "q99": (0.7 * rows).tolist(),
        }  # fmt: skip

    path.write_text(json.dumps({"norm_stats": {"state": of(STATE_SIZE), "actions": of(ACTION_SIZE)}}))
    return str(path)


def write_tokenizer(path: Path) -> str:
    """Words and the numbers of state bins, one token each."""
    names = ["<pad>", "<eos>", "<bos>", "<unk>", *WORDS, *(str(number) for number in range(-1, 256))]
    tokenizer = Tokenizer(models.WordLevel({name: index for index, name in enumerate(names)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Split(Regex("[:,;]"), "isolated")]
    )
    tokenizer.save(str(path))
    return str(path)


def observation(seed: int = 0, *, masked: bool = False) -> Arrays:
    """What a robot sends to the policy of `robot_settings`."""
    generator = np.random.default_rng(seed)
    images = {
        "image_top": generator.integers(0, 256, (56, 56, 3), dtype=np.uint8),
        "image_wrist": generator.integers(0, 256, (30, 40, 3), dtype=np.uint8),
    }
    if masked:
        del images["image_wrist"]
    return {**images, "state": generator.uniform(-0.4, 0.6, STATE_SIZE).astype(np.float32)}


def previous(seed: int, rows: int = 7) -> np.ndarray:
    """Actions that the robot has not executed yet, in its units."""
    return np.random.default_rng(seed).uniform(-1, 1, (rows, ACTION_SIZE)).astype(np.float32)


def published_inputs(arrays: Arrays, row: int) -> Arrays:
    """The golden run's inputs, its padding left out: the second camera is masked."""
    tokens = arrays["tokens"][row][arrays["token_mask"][row]]
    image = np.ascontiguousarray(arrays["image_0"][row].transpose(1, 2, 0))
    return {"image_base": image, "token_ids": tokens, "noise": arrays["noise"][row]}
