"""The dimensions of the shipped policy: pi0.5 with everything small."""

from __future__ import annotations

from policies.pi05.config import DecoderConfig, Pi05Config, VisionConfig
from policies.pi05.train.demonstrations import ACTION_HORIZON
from policies.pi05.train.vocabulary import VOCAB_SIZE
from sim_bridge.camera import IMAGE_SIZE_PX

TABLETOP_POLICY = Pi05Config(
    "tabletop_policy",
    VisionConfig(dim=128, depth=3, num_heads=4, mlp_dim=384, image_size=IMAGE_SIZE_PX, patch_size=16),
    language=DecoderConfig(width=128, mlp_dim=384),
    expert=DecoderConfig(width=128, mlp_dim=256),
    depth=4,
    num_heads=4,
    num_kv_heads=1,
    head_dim=32,
    vocab_size=VOCAB_SIZE,
    action_dim=2,
    action_horizon=ACTION_HORIZON,
)
