"""Dimensions of the small model that ships: BAGEL, scaled down to pictures of 32 x 32 pixels."""

from __future__ import annotations

from generators.bagel.config import AutoencoderConfig, BagelConfig, Defaults, LanguageConfig, SizeRule, VisionConfig
from sim_bridge.shapes import SIDE_PX

THINK_PROMPT = "say what you will draw"
_TOKEN_PX = 8
_SIDE = SIDE_PX // _TOKEN_PX

AUTOENCODER = AutoencoderConfig(
    channels=32, multipliers=(1, 1, 2), num_blocks=1, latent_channels=6, num_groups=8, scale=1.0, shift=0.0
)
"""Scale and shift are measured when it is trained."""

SHAPES_MODEL = BagelConfig(
    "shapes",
    LanguageConfig(
        vocab_size=64, width=128, mlp_dim=384, depth=5, num_heads=4, num_kv_heads=2, head_dim=32, rope_base=10_000.0,
        max_positions=256,
    ),
    VisionConfig(width=64, mlp_dim=192, depth=2, num_heads=4, patch_size=_TOKEN_PX, table_side=_SIDE, max_side=_SIDE),
    AUTOENCODER,
    latent_patch=2,
    max_latent_side=_SIDE,
    latent_size=SizeRule(SIDE_PX, SIDE_PX, _TOKEN_PX),
    vision_size=SizeRule(SIDE_PX, SIDE_PX, _TOKEN_PX),
    think_prompt=THINK_PROMPT,
    defaults=Defaults(
        height=SIDE_PX, width=SIDE_PX, num_denoise_steps=24, timestep_shift=2.0, text_guidance=3.0, guidance_start=0.0,
        edit_text_guidance=3.0, edit_image_guidance=1.5,
    ),
)  # fmt: skip
