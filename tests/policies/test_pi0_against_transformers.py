"""pi0 with the weights of transformers' PI0ForConditionalGeneration gives its velocities and its actions."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import save_file

from mstar_rt.nn.flow import euler_times
from policies.pi05.checkpoint import load_network
from policies.pi05.config import DecoderConfig, Pi05Config, VisionConfig
from policies.pi05.network import Pi05Network
from tests.policies.pi05_paged import Observations, PagedContexts

IMAGE_TOKEN = 90
TOLERANCE = 1e-5
"""Relative; its sines of the time are float32, ours float64."""

CONFIG = Pi05Config(
    "tiny", VisionConfig(dim=32, depth=2, num_heads=4, mlp_dim=48, image_size=32, patch_size=8),
    DecoderConfig(width=48, mlp_dim=64), DecoderConfig(width=32, mlp_dim=40), depth=2, num_heads=4, num_kv_heads=1,
    head_dim=12, vocab_size=IMAGE_TOKEN + 1, action_dim=6, action_horizon=8, kind="pi0",
)  # fmt: skip


@pytest.fixture(scope="module")
def reference():  # type: ignore[no-untyped-def]
    from transformers import PI0Config, PI0ForConditionalGeneration

    vision = CONFIG.vision
    heads = {
        "num_hidden_layers": CONFIG.depth, "num_attention_heads": CONFIG.num_heads,
        "num_key_value_heads": CONFIG.num_kv_heads, "head_dim": CONFIG.head_dim, "vocab_size": CONFIG.vocab_size,
    }  # fmt: skip
    config = PI0Config(
        vlm_config={
            "model_type": "paligemma",
            "text_config": {
                "model_type": "gemma", "hidden_size": CONFIG.language.width,
                "intermediate_size": CONFIG.language.mlp_dim, **heads,
            },
            "vision_config": {
                "model_type": "siglip_vision_model", "hidden_size": vision.dim, "intermediate_size": vision.mlp_dim,
                "num_hidden_layers": vision.depth, "num_attention_heads": vision.num_heads,
                "image_size": vision.image_size, "patch_size": vision.patch_size, "vision_use_head": False,
            },
            "projection_dim": CONFIG.language.width, "image_token_id": IMAGE_TOKEN,
        },
        dit_config={
            "model_type": "gemma", "hidden_size": CONFIG.expert.width, "intermediate_size": CONFIG.expert.mlp_dim, **heads,
        },
        chunk_size=CONFIG.action_horizon, max_state_dim=CONFIG.action_dim, max_action_dim=CONFIG.action_dim,
        attn_implementation="sdpa",
    )  # fmt: skip
    torch.manual_seed(0)
    model = PI0ForConditionalGeneration(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


@pytest.fixture(scope="module")
def network(reference, tmp_path_factory: pytest.TempPathFactory) -> Pi05Network:  # type: ignore[no-untyped-def]
    """Ours, from the weights of the reference in openpi's layout."""
    beginnings = {
        "model.vlm.vision_tower.": "paligemma_with_expert.paligemma.model.vision_tower.vision_model.",
        "model.vlm.": "paligemma_with_expert.paligemma.model.",
        "model.dit.": "paligemma_with_expert.gemma_expert.model.",
        "embed_action_time.": "",
        "action_out_proj.": "action_out_proj.",
    }
    weights = {}
    for key, tensor in reference.state_dict().items():
        ours = next(beginning for beginning in beginnings if key.startswith(beginning))
        weights[beginnings[ours] + key.removeprefix(ours).replace("vision_model.", "")] = tensor.clone()
    weights.pop("paligemma_with_expert.gemma_expert.model.embed_tokens.weight")  # published files leave it out
    path = tmp_path_factory.mktemp("pi0") / "model.safetensors"
    save_file(weights, path)
    return load_network(CONFIG, path)


@pytest.fixture(scope="module")
def given() -> Observations:
    generator = torch.Generator().manual_seed(1)
    size = CONFIG.vision.image_size
    return Observations(
        images=torch.rand(2, 2, 3, size, size, generator=generator) * 2 - 1,
        image_mask=torch.ones(2, 2, dtype=torch.bool),
        ids=torch.randint(IMAGE_TOKEN, (2, 5), generator=generator),
        id_mask=torch.tensor([[True] * 5, [True] * 3 + [False] * 2]),
        state=torch.randn(2, CONFIG.action_dim, generator=generator),
    )


def as_the_reference_takes_it(given: Observations) -> dict[str, torch.Tensor | None]:
    num_image_tokens = given.images.shape[1] * CONFIG.vision.num_patches
    places = torch.full((2, num_image_tokens), IMAGE_TOKEN)
    return {
        "state": given.state,
        "pixel_values": given.images,
        "pixel_attention_mask": given.image_mask,
        "input_ids": torch.cat([places, given.ids], dim=1),
        "attention_mask": torch.cat([torch.ones_like(places), given.id_mask.long()], dim=1),
    }


def relatively_close(got: torch.Tensor, expected: torch.Tensor) -> None:
    assert (got - expected).norm() <= TOLERANCE * expected.norm()


@torch.no_grad()
def test_velocity_and_actions(reference, network: Pi05Network, given: Observations) -> None:  # type: ignore[no-untyped-def]
    noise = torch.randn(2, CONFIG.action_horizon, CONFIG.action_dim, generator=torch.Generator().manual_seed(2))
    inputs, times = as_the_reference_takes_it(given), torch.tensor([0.7, 0.2])
    paged = PagedContexts(network, given)
    expected = reference(**inputs, noise=noise, timestep=times).logits
    relatively_close(network.forward_dense(*given.dense, given.state, noise, times), expected)
    relatively_close(paged.velocity(noise, network.modulation(times)), expected)

    schedule, x = network.modulation(euler_times(10)), noise
    for step in range(10):
        x = x - paged.velocity(x, schedule.rows(step)) / 10
    relatively_close(x, reference.sample_actions(**inputs, noise=noise, num_steps=10))
