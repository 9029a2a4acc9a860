"""Tiny random V-JEPA 2 models as transformers makes them, and their weights in the layouts that are published."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from transformers import VJEPA2Config, VJEPA2Model

IMAGE, PATCH, TUBELET, GRID = 64, 16, 2, 4
PATCHES = GRID**2
SIZES: dict[str, Any] = {
    "crop_size": IMAGE, "patch_size": PATCH, "tubelet_size": TUBELET, "frames_per_clip": 8, "hidden_size": 96,
    "num_attention_heads": 3, "num_hidden_layers": 5, "mlp_ratio": 48 / 11, "pred_hidden_size": 48,
    "pred_num_attention_heads": 2, "pred_num_hidden_layers": 2, "pred_num_mask_tokens": 3,
}  # fmt: skip


def reference(seed: int = 0, **sizes: Any) -> VJEPA2Model:
    """A model with no weight at its initial value, so that each of them counts."""
    torch.manual_seed(seed)
    model = VJEPA2Model(VJEPA2Config(**{**SIZES, **sizes})).eval().requires_grad_(False)
    for weight in model.parameters():
        weight += 0.05 * torch.randn_like(weight)
    return model


def saved(model: VJEPA2Model, folder: Path, **options: Any) -> Path:
    model.save_pretrained(folder, **options)
    return folder


def published(
    model: VJEPA2Model, encoder_prefix: str = "module.backbone.", predictor_prefix: str = "module.backbone."
) -> dict[str, Any]:
    """What a published `.pt` holds: queries, keys and values in one tensor, mask tokens one by one, training state."""
    sections: dict[str, Any] = {"encoder": {}, "predictor": {}}
    state = model.state_dict()
    for key, tensor in state.items():
        section, _, rest = key.partition(".")
        if ".attention.query." in rest:
            tensor = torch.cat([state[key.replace("query", part)] for part in ("query", "key", "value")])
            rest = rest.replace("attention.query", "attention.qkv")
        elif ".attention.key." in rest or ".attention.value." in rest:
            continue
        sections[section][_published_name(section, rest)] = tensor.clone()
    tokens = sections["predictor"].pop("mask_tokens")
    sections["predictor"] |= {f"mask_tokens.{index}": token.clone() for index, token in enumerate(tokens)}
    encoder = {f"{encoder_prefix}{key}": tensor for key, tensor in sections["encoder"].items()}
    predictor = {f"{predictor_prefix}{key}": tensor for key, tensor in sections["predictor"].items()}
    return {
        "encoder": encoder,
        "predictor": predictor,
        "target_encoder": {key: 1.01 * tensor for key, tensor in encoder.items()},
        "opt": {"state": {0: {"step": torch.tensor(3.0), "exp_avg": torch.zeros(2)}}, "param_groups": [{"lr": 1e-4}]},
        "scaler": None, "epoch": 240, "loss": 0.25, "batch_size": 8, "world_size": 16, "lr": 1e-4,
    }  # fmt: skip


def _published_name(section: str, key: str) -> str:
    before = "predictor_" if section == "predictor" else ""
    replacements = (
        ("embeddings.patch_embeddings.", "patch_embed."), ("embeddings.predictor_embeddings.", "predictor_embed."),
        ("embeddings.", ""), ("layernorm.", f"{before}norm."), ("layer.", f"{before}blocks."), (".attention.", ".attn."),
    )  # fmt: skip
    for theirs, published_as in replacements:
        key = key.replace(theirs, published_as)
    return f"predictor_{key}" if key.startswith("proj.") else key


def video(num_clips: int, num_frames: int, seed: int = 1) -> torch.Tensor:
    """Normalised clips [B, T, 3, H, W], as transformers takes them."""
    return torch.randn(num_clips, num_frames, 3, IMAGE, IMAGE, generator=torch.Generator().manual_seed(seed))


def some_patches(num_clips: int, num_patches: int, count: int, seed: int) -> torch.Tensor:
    """Different patches of each clip, in no order: [B, count]."""
    generator = torch.Generator().manual_seed(seed)
    return torch.stack([torch.randperm(num_patches, generator=generator)[:count] for _ in range(num_clips)])
