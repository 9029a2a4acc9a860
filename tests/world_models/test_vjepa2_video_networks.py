"""Encoder and masked predictor against transformers' VJEPA2Model, on the same random weights."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "models"))

from reference_video import GRID, IMAGE, PATCHES, reference, saved, some_patches, video

from world_models.vjepa2.checkpoint import Networks
from world_models.vjepa2_video.checkpoint import load_network
from world_models.vjepa2_video.config import VideoConfig
from world_models.vjepa2_video.dimensions import config_for
from world_models.vjepa2_video.net import encode_blocks

TOLERANCE = 1e-5


def close(got: torch.Tensor, expected: torch.Tensor, tolerance: float = TOLERANCE) -> None:
    assert got.shape == expected.shape
    assert float((got - expected).abs().max()) <= tolerance * max(1.0, float(expected.abs().max()))


@pytest.fixture(scope="module", autouse=True)
def _no_gradients() -> Any:
    with torch.no_grad():
        yield


@pytest.fixture(scope="module")
def theirs() -> Any:
    return reference()


@pytest.fixture(scope="module")
def ours(theirs: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[VideoConfig, Any, Any]:
    folder = saved(theirs, tmp_path_factory.mktemp("model"))
    config = config_for(str(folder), {})
    return config, load_network(config, folder, "encoder"), load_network(config, folder, "predictor")


@pytest.mark.parametrize("num_frames", [2, 8])
def test_the_encoder_equals_transformers(theirs: Any, ours: Any, num_frames: int) -> None:
    clips = video(2, num_frames)
    expected = theirs(clips, skip_predictor=True).last_hidden_state
    close(ours[1](clips.transpose(1, 2)), expected)


def test_blocks_in_steps_equal_the_whole_encoder(ours: Any) -> None:
    _, encoder, _ = ours
    clips = video(2, 4).transpose(1, 2)
    tokens = encoder.patch_embed(clips)
    places = torch.arange(tokens.shape[1]).expand(2, -1)
    for first in range(0, 5, 2):
        tokens = encode_blocks(encoder, tokens, places, first, 2)
    close(encoder.norm(tokens), encoder(clips))


@pytest.mark.parametrize(("num_context", "num_targets"), [(20, 12), (1, 1), (3, 29)])
def test_the_masked_predictor_equals_transformers(theirs: Any, ours: Any, num_context: int, num_targets: int) -> None:
    clips = video(2, 4)
    context, targets = some_patches(2, 2 * PATCHES, num_context, 2), some_patches(2, 2 * PATCHES, num_targets, 3)
    answer = theirs(clips, context_mask=[context], target_mask=[targets])
    latents = torch.gather(answer.last_hidden_state, 1, context[..., None].expand(-1, -1, 96))
    predicted = ours[2](latents, context, targets, torch.tensor([1, 1]))
    close(predicted, answer.predictor_output.last_hidden_state)


def test_every_mask_token_is_its_own(theirs: Any, ours: Any) -> None:
    """transformers' model always takes token 1, its predictor's embeddings any."""
    latents = torch.randn(3, 5, 96, generator=torch.Generator().manual_seed(4))
    context, targets = some_patches(3, PATCHES, 5, 5), some_patches(3, PATCHES, 4, 6)
    tokens = torch.tensor([2, 0, 1])
    predicted = ours[2](latents, context, targets, tokens)
    embeddings = theirs.predictor.embeddings
    embed = type(embeddings).forward
    try:
        for row, token in enumerate(tokens.tolist()):
            chosen = slice(row, row + 1)
            embeddings.forward = lambda *given, token=token: embed(embeddings, *given, mask_index=token)
            whole = torch.zeros(1, PATCHES, 96).index_copy(1, context[row], latents[chosen])
            expected = theirs.predictor(whole, [context[chosen]], [targets[chosen]]).last_hidden_state
            close(predicted[chosen], expected)
    finally:
        del embeddings.forward


def test_encoding_the_context_alone_equals_transformers_layers_on_masked_positions(theirs: Any, ours: Any) -> None:
    _, encoder, _ = ours
    clips, context = video(2, 4), some_patches(2, 2 * PATCHES, 9, 7)
    tokens = torch.gather(theirs.encoder.embeddings(clips), 1, context[..., None].expand(-1, -1, 96))
    expected = tokens
    for layer in theirs.encoder.layer:
        expected = layer(expected, context)[0]
    close(encoder.norm(encode_blocks(encoder, tokens, context, 0, 5)), theirs.encoder.layernorm(expected))


@pytest.mark.parametrize(
    "sizes",
    [
        {"crop_size": 96, "hidden_size": 64, "num_attention_heads": 4},
        {"tubelet_size": 4, "num_hidden_layers": 1},
        {"patch_size": 32, "hidden_size": 88, "num_attention_heads": 2, "pred_num_mask_tokens": 1},
    ],
)
def test_other_dimensions_are_read_from_config_json(sizes: dict[str, int], tmp_path: Path) -> None:
    model = reference(8, **sizes)
    folder = saved(model, tmp_path / "other")
    config = config_for(str(folder), {})
    size = sizes.get("crop_size", IMAGE)
    clips = torch.randn(1, 4, 3, size, size, generator=torch.Generator().manual_seed(9))
    expected = model(clips)
    latents = load_network(config, folder, "encoder")(clips.transpose(1, 2))
    close(latents, expected.last_hidden_state)
    every = torch.arange(latents.shape[1])[None]
    token = torch.tensor([1 % config.predictor.num_mask_tokens])
    predicted = load_network(config, folder, "predictor")(latents, every, every, token)
    close(predicted, expected.predictor_output.last_hidden_state)


def test_the_encoder_of_the_action_conditioned_model_equals_transformers(tiny: Networks) -> None:
    """Its weights, renamed, in their model: whole clips, and single frames, which both double."""
    names = (
        ("patch_embed.", "embeddings.patch_embeddings."), ("blocks.", "layer."), ("norm.", "layernorm."),
    )  # fmt: skip
    model = reference(
        hidden_size=64,
        num_attention_heads=2,
        num_hidden_layers=2,
        mlp_ratio=4.0,
        crop_size=16 * GRID,
        pred_hidden_size=48,
    )
    state: dict[str, torch.Tensor] = {}
    for key, tensor in tiny.encoder.state_dict().items():
        ours, name = next((ours, theirs) for ours, theirs in names if key.startswith(ours))
        renamed = (name + key.removeprefix(ours)).replace(".attn.", ".attention.")
        parts = (
            dict(zip(("query", "key", "value"), tensor.chunk(3), strict=True))
            if ".qkv." in renamed
            else {"qkv": tensor}
        )
        state |= {renamed.replace(".qkv.", f".{part}."): value for part, value in parts.items()}
    model.encoder.load_state_dict(state, strict=True)
    clips = video(2, 4)
    close(tiny.encoder(clips.transpose(1, 2)), model(clips, skip_predictor=True).last_hidden_state)
    frame = clips[:, :1]
    close(tiny.encoder.frame_latents(frame[:, 0]), model(frame, skip_predictor=True).last_hidden_state)
