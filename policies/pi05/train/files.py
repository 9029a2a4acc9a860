"""The files of the trained policy, as a deployment reads them: weights, settings, statistics and tokenizer."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from policies.pi05.train.demonstrations import MAX_PREFIX_DELAY
from policies.pi05.train.network_config import TABLETOP_POLICY
from policies.pi05.train.vocabulary import write_tokenizer
from sim_bridge.camera import IMAGE_SIZE_PX
from sim_bridge.instruction_env import ACTION_NAMES, CAMERAS, STATE_NAMES, UNITS
from sim_bridge.instruction_tasks import TASKS

WEIGHTS = "tabletop_policy.safetensors"
SETTINGS = "tabletop_policy.json"
STATISTICS = "norm_stats.json"
TOKENIZER = "tokenizer.json"

NUM_DENOISE_STEPS = 5
_MAX_PROMPT_TOKENS = 48


def write_settings(folder: Path) -> None:
    """What a deployment is told besides the weights."""
    settings = {
        "name": TABLETOP_POLICY.name,
        "network": dataclasses.asdict(TABLETOP_POLICY),
        "cameras": [{"name": camera, "height": IMAGE_SIZE_PX, "width": IMAGE_SIZE_PX} for camera in CAMERAS],
        "state": {"size": len(STATE_NAMES), "names": STATE_NAMES, "units": UNITS},
        "action": {"size": len(ACTION_NAMES), "names": ACTION_NAMES, "units": UNITS, "relative_to": [0, 1]},
        "discrete_state_input": True,
        "normalization": "quantile",
        "norm_stats": STATISTICS,
        "tokenizer": TOKENIZER,
        "max_prompt_tokens": _MAX_PROMPT_TOKENS,
        "num_denoise_steps": NUM_DENOISE_STEPS,
        "max_prefix_delay": MAX_PREFIX_DELAY,
    }
    (folder / SETTINGS).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


def write_vocabulary(folder: Path) -> None:
    """A tokenizer that knows the words of all phrasings, those that are held out too."""
    texts = [text for task in TASKS.values() for text in (*task.phrasings, *task.held_out_phrasings)]
    write_tokenizer(folder / TOKENIZER, texts)
