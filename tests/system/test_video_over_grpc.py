"""V-JEPA 2 without actions over gRPC: what transformers computes, from both published layouts, on one rank and on two."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "models"))

from reference_video import IMAGE, PATCHES, published, reference, saved, some_patches, video
from serving import Serving, assert_nothing_is_held, serving_of, write_deployment

from mstar_rt.client import Client
from mstar_rt.errors import InvalidArgument

pytestmark = [pytest.mark.system, pytest.mark.timeout(90)]
MODELS = ["folder", "published"]
NUM_PATCHES = 2 * PATCHES


@pytest.fixture(scope="module")
def theirs() -> Any:
    return reference()


@pytest.fixture(scope="module")
def video_serving(theirs: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """`folder` is the Hugging Face layout on rank 0, `published` a `.pt` with its predictor on rank 1."""
    folder = tmp_path_factory.mktemp("video")
    saved(theirs, folder / "tiny")
    torch.save(published(theirs), folder / "tiny.pt")
    told = {"image_size": IMAGE, "encoder_heads": 3, "predictor_heads": 2}
    deployment = {
        "name": "video",
        "server": {"port": 0},
        "models": [
            {"name": "folder", "family": "vjepa2", "checkpoint": "tiny"},
            {"name": "published", "family": "vjepa2", "checkpoint": "tiny.pt", "options": told},
        ],
        "workers": [{"rank": rank, "check_outputs": True} for rank in range(2)],
        "placement": [
            {"model": "folder", "ranks": [0]}, {"model": "published", "ranks": [0]},
            {"model": "published", "nodes": ["predict"], "ranks": [1]},
        ],
    }  # fmt: skip
    with serving_of(write_deployment(folder, deployment)) as running:
        yield running


@pytest.fixture
def video_client(video_serving: Serving) -> Iterator[Client]:
    with video_serving.connect() as connected:
        yield connected
        assert_nothing_is_held(connected)


def frames_of(clip: torch.Tensor) -> np.ndarray:
    """[T, 3, H, W] as transformers takes it -> [T, H, W, 3] as the service does."""
    return np.ascontiguousarray(clip.permute(0, 2, 3, 1).numpy())


def run(client: Client, model: str, task: str, tensors: dict[str, Any], **options: Any) -> np.ndarray:
    (output,) = client.run(model, task, tensors, **options)
    return output.value


def close(got: np.ndarray, expected: torch.Tensor) -> None:
    assert got.shape == tuple(expected.shape)
    assert np.abs(got - expected.numpy()).max() <= 1e-5 * max(1.0, float(expected.abs().max()))


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("num_frames", [1, 4, 8])
def test_clips_are_encoded_as_transformers_does(video_client: Client, theirs: Any, model: str, num_frames: int) -> None:
    (clip,) = video(1, num_frames)
    latents = run(video_client, model, "encode", {"frames": frames_of(clip)})
    close(latents, theirs(clip[None], skip_predictor=True).last_hidden_state[0])


def test_pixels_are_normalised_on_the_server(video_client: Client, theirs: Any) -> None:
    pixels = np.random.default_rng(3).integers(0, 256, (2, IMAGE, IMAGE, 3), np.uint8)
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    clip = ((torch.from_numpy(pixels) / 255 - mean) / std).permute(0, 3, 1, 2)
    close(run(video_client, "folder", "encode", {"frames": pixels}), theirs(clip[None]).last_hidden_state[0])


@pytest.mark.parametrize("model", MODELS)
def test_hidden_patches_are_predicted_as_transformers_does(video_client: Client, theirs: Any, model: str) -> None:
    (clip,) = video(1, 4)
    context, targets = some_patches(1, NUM_PATCHES, 12, 4), some_patches(1, NUM_PATCHES, 9, 5)
    answer = theirs(clip[None], context_mask=[context], target_mask=[targets])
    chosen = {"context_patches": context[0].numpy(), "target_patches": targets[0].numpy()}
    for seen in ({"frames": frames_of(clip)}, {"latents": answer.last_hidden_state[0].numpy()}):
        predicted = run(video_client, model, "predict", {**seen, **chosen})
        close(predicted, answer.predictor_output.last_hidden_state[0])


def test_without_context_all_other_patches_are_it(video_client: Client, theirs: Any) -> None:
    (clip,) = video(1, 4)
    targets = some_patches(1, NUM_PATCHES, 10, 6)
    rest = torch.tensor([sorted(set(range(NUM_PATCHES)) - set(targets[0].tolist()))])
    expected = theirs(clip[None], context_mask=[rest], target_mask=[targets]).predictor_output.last_hidden_state[0]
    given = {"frames": frames_of(clip), "target_patches": targets[0].numpy()}
    close(run(video_client, "folder", "predict", given), expected)


@pytest.mark.parametrize("model", MODELS)
def test_the_encoder_may_see_the_context_alone(video_client: Client, theirs: Any, model: str) -> None:
    (clip,) = video(1, 4)
    context, targets = some_patches(1, NUM_PATCHES, 12, 7), some_patches(1, NUM_PATCHES, 9, 8)
    with torch.no_grad():
        tokens = theirs.encoder.embeddings(clip[None])[:, context[0]]
        for layer in theirs.encoder.layer:
            tokens = layer(tokens, context)[0]
        whole = torch.zeros(1, NUM_PATCHES, 96).index_copy(1, context[0], theirs.encoder.layernorm(tokens))
        expected = theirs.predictor(whole, [context], [targets]).last_hidden_state[0]
    given = {"context_patches": context[0].numpy(), "target_patches": targets[0].numpy(), "frames": frames_of(clip)}
    alone = run(video_client, model, "predict", given, encode_context_only=True)
    close(alone, expected)
    assert np.abs(alone - run(video_client, model, "predict", given)).max() > 1e-2
    assert (
        np.abs(alone - run(video_client, model, "predict", given, encode_context_only=True, mask_token=0)).max() > 1e-3
    )


def test_many_requests_at_once_equal_each_alone(video_client: Client, theirs: Any) -> None:
    """Clips of three lengths, with and without frames, at different blocks of the encoder, in one queue."""
    clips = [video(1, (2, 4, 8)[index % 3], index)[0] for index in range(12)]
    targets = [some_patches(1, PATCHES, 5 + index % 2, index) for index in range(12)]
    every = [torch.arange(len(clip) // 2 * PATCHES)[None] for clip in clips]

    def ask(index: int) -> np.ndarray:
        given = {"frames": frames_of(clips[index]), "target_patches": targets[index][0].numpy()}
        return run(video_client, "folder", "predict", {**given, "context_patches": every[index][0].numpy()})

    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(ask, range(12)))
    for clip, context, target, answer in zip(clips, every, targets, answers, strict=True):
        expected = theirs(clip[None], context_mask=[context], target_mask=[target])
        close(answer, expected.predictor_output.last_hidden_state[0])


def test_what_makes_no_sense_is_refused_with_advice(video_client: Client) -> None:
    frames, latents = frames_of(video(1, 4)[0]), np.zeros((NUM_PATCHES, 96), np.float32)
    some, every = np.arange(3), np.arange(NUM_PATCHES)
    cases: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
        ("encode", {"frames": frames[:3]}, {}, "3 frames, expected one or a multiple of 2"),
        ("encode", {"frames": np.tile(frames, (3, 1, 1, 1))}, {}, "T = 12, the limit of this model is 8"),
        ("encode", {"frames": 30 * frames}, {}, "expected normalised ones"),
        ("predict", {"frames": frames, "target_patches": some + 30}, {}, "holds 32, expected indices from 0 to 31"),
        ("predict", {"frames": frames, "target_patches": some - 1}, {}, "holds -1, expected indices from 0"),
        ("predict", {"frames": frames, "target_patches": some // 2}, {}, "target_patches holds an index twice"),
        (
            "predict",
            {"frames": frames, "target_patches": some, "context_patches": some // 2},
            {},
            "context_patches holds",
        ),
        ("predict", {"frames": frames, "target_patches": every}, {}, "leaves none to predict them from"),
        (
            "predict",
            {"latents": latents[:20], "target_patches": some},
            {},
            "20 patches, expected those of a whole clip",
        ),
        ("predict", {"latents": latents, "frames": frames, "target_patches": some}, {}, "both given"),
        ("predict", {"target_patches": some}, {}, "expected one of the tensors frames, latents"),
        ("predict", {"frames": frames}, {}, "tensor 'target_patches' is missing"),
        ("predict", {"latents": latents, "target_patches": some}, {"encode_context_only": True}, "give frames and no"),
        (
            "predict",
            {"frames": frames, "target_patches": some},
            {"mask_token": 3},
            "'mask_token' is 3, expected 0 to 2",
        ),
    ]
    for task, tensors, options, message in cases:
        with pytest.raises(InvalidArgument, match=message):
            run(video_client, "folder", task, tensors, **options)
