"""Encoder and predictor against the published implementation, against equations written out, and against each other."""

from __future__ import annotations

import copy
import dataclasses
import math
from typing import Any

import pytest
import torch

from mstar_rt.cache.pool import KVPool
from mstar_rt.errors import InvalidArgument
from mstar_rt.model import KVSpec
from mstar_rt.nn import attention_dense
from mstar_rt.nn.attention import AttentionStep, StepKind, select_backend
from mstar_rt.nn.linear import Linear, pack
from mstar_rt.nn.norms import normalise_latents
from mstar_rt.nn.vit import ROWS_AT_ONCE
from world_models.vjepa2.config import PredictorConfig
from world_models.vjepa2.predictor import ActionPredictor
from world_models.vjepa2.processor import normalise_frames

Tensors = dict[str, torch.Tensor]


@pytest.fixture(autouse=True)
def _without_gradients() -> Any:
    with torch.no_grad():
        yield


@pytest.fixture(params=["fused attention", "attention by products"])
def either_attention(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """In bfloat16 the number of scores decides which; networks as small as these have few."""
    if request.param == "attention by products":
        monkeypatch.setattr(attention_dense, "MIN_SCORES", 0)


def frames_of(golden: Tensors) -> torch.Tensor:
    return golden["video"].transpose(1, 2).flatten(0, 1)


def test_single_frames_are_encoded_as_published(tiny: Any, golden: Tensors) -> None:
    frames = frames_of(golden)
    raw, normed = tiny.encoder.frame_latents(frames), tiny.encoder.encode_frames(frames)
    torch.testing.assert_close(raw.unflatten(0, (2, 2)), golden["frame_latents"], rtol=0, atol=1e-5)
    torch.testing.assert_close(normed.unflatten(0, (2, 2)), golden["frame_latents_normed"], rtol=0, atol=1e-5)


def test_a_frame_alone_is_a_clip_of_it_twice(tiny: Any, golden: Tensors) -> None:
    frames = frames_of(golden)
    clip = frames[:, :, None].repeat(1, 1, 2, 1, 1)
    torch.testing.assert_close(tiny.encoder(clip), tiny.encoder.frame_latents(frames), rtol=0, atol=1e-5)


def test_clips_are_encoded_as_published(tiny: Any, golden: Tensors) -> None:
    clip = torch.randn(2, 3, 32, 64, 64, generator=torch.Generator().manual_seed(15))
    torch.testing.assert_close(tiny.encoder(clip), golden["clip_latents"], rtol=0, atol=1e-5)


def test_the_predictor_predicts_as_published(tiny: Any, golden: Tensors) -> None:
    got = tiny.predictor(golden["frame_latents_normed"], golden["actions"][:, :2], golden["states"][:, :2])
    torch.testing.assert_close(got, golden["predictor_once"], rtol=0, atol=1e-5)


def test_dense_rollout_is_as_published(tiny: Any, golden: Tensors) -> None:
    latents = golden["frame_latents_normed"]
    for _ in range(6):
        seen = latents.shape[1]
        raw = tiny.predictor(latents, golden["actions"][:, :seen], golden["states"][:, :seen])
        latents = torch.cat([latents, normalise_latents(raw[:, -1:])], dim=1)
    torch.testing.assert_close(latents[:, 2:], golden["rollout"], rtol=0, atol=1e-5)


def test_the_predictor_follows_its_equations_in_float64(tiny: Any, golden: Tensors) -> None:
    """A second implementation, token by token where that is clearer than fast."""
    latents, actions, states = golden["frame_latents_normed"], golden["actions"][:, :2], golden["states"][:, :2]
    got = tiny.predictor(latents, actions, states)
    reference = _Float64Predictor(tiny.predictor)
    for row in range(2):
        expected = reference(latents[row].double(), actions[row].double(), states[row].double())
        torch.testing.assert_close(got[row].double(), expected, rtol=0, atol=1e-5)


def test_later_frames_do_not_change_earlier_predictions(tiny: Any) -> None:
    latents, actions = torch.randn(1, 6, 16, 64), torch.randn(1, 6, 7)
    before = tiny.predictor(latents, actions, actions)
    changed = latents.clone()
    changed[:, 4] += 1.0
    after = tiny.predictor(changed, actions, actions)
    torch.testing.assert_close(after[:, :4], before[:, :4], rtol=0, atol=1e-6)
    assert (after[:, 4] - before[:, 4]).abs().max() > 1e-2


@pytest.mark.usefixtures("either_attention")
@pytest.mark.parametrize("use_extrinsics", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_cached_steps_equal_the_dense_forward(dtype: torch.dtype, use_extrinsics: bool) -> None:
    """Head size 32 leaves two channels unrotated; two sequences are two frames ahead of the third."""
    torch.manual_seed(3)
    config = dataclasses.replace(_small(), use_extrinsics=use_extrinsics)
    predictor = ActionPredictor(config).to(dtype).eval()
    frames, count = config.frame_tokens, 5
    spec = KVSpec(config.depth, config.num_heads, config.head_dim, frames, config.max_frames * frames)
    pool = KVPool(spec, 32, dtype=dtype)
    backend = select_backend("cpu", pool)
    latents = torch.randn(3, count, 16, 32, dtype=dtype)
    actions, states = torch.randn(2, 3, count, 7, dtype=dtype)
    extrinsics = torch.randn(3, count, 6, dtype=dtype) if use_extrinsics else None
    dense = predictor(latents, actions, states, extrinsics)
    tables = [pool.new_table() for _ in range(3)]
    starts = [0, 0, 2]
    tolerance = 1e-5 if dtype is torch.float32 else 0.05
    for tick in range(count + 2):
        rows = [row for row in range(3) if 0 <= tick - starts[row] < count]
        at = [tick - starts[row] for row in rows]
        plan = backend.plan([AttentionStep(tables[row], frames, StepKind.BLOCK_APPEND) for row in rows])
        given = [x[rows, at] for x in (latents, actions, states)]
        got = predictor.step(*given, plan, extrinsics[rows, at] if extrinsics is not None else None)
        torch.testing.assert_close(got, dense[rows, at], rtol=0, atol=tolerance)


@pytest.mark.usefixtures("either_attention")
@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("max_blocks", [1, 3, 100])
def test_several_frames_at_once_of_which_some_are_read(
    max_blocks: int, dtype: torch.dtype, is_packed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three sequences take 3, 1 and 2 frames after their first 1, 0 and 2, in parts of the batch or in one."""
    torch.manual_seed(3)
    config = _small()
    predictor = ActionPredictor(config).to(dtype).eval()
    frames = config.frame_tokens
    monkeypatch.setitem(ROWS_AT_ONCE, "cpu", max_blocks * frames)
    pool = KVPool(KVSpec(config.depth, config.num_heads, config.head_dim, frames, 8 * frames), 32, dtype=dtype)
    backend = select_backend("cpu", pool)
    latents = torch.randn(3, 5, 16, 32, dtype=dtype)
    actions, states = torch.randn(2, 3, 5, 7, dtype=dtype)
    dense = predictor(latents, actions, states)
    if is_packed:
        pack(predictor)
    before, new = (1, 0, 2), (3, 1, 2)
    tables = [pool.new_table() for _ in range(3)]

    def step(counts: tuple[int, ...], starts: tuple[int, ...], read: list[int] | None) -> tuple[torch.Tensor, ...]:
        taking = [row for row in range(3) if counts[row]]
        at = [(row, starts[row] + index) for row in taking for index in range(counts[row])]
        steps = [AttentionStep(tables[r], counts[r] * frames, StepKind.BLOCK_APPEND, frames) for r in taking]
        plan = backend.plan(steps)
        assert list(plan.positions) == [frame * frames for _, frame in at]
        rows, frame = zip(*at, strict=True)
        given = [x[rows, frame] for x in (latents, actions, states)]
        expected = dense[rows, frame]
        return predictor.step(*given, plan, read=read), expected if read is None else expected[read]

    tolerance = 1e-5 if dtype is torch.float32 else 0.05
    filled, _ = step(before, (0, 0, 0), [])
    assert filled.shape == (0, 16, 32)
    got, expected = step(new, before, [2, 3])
    torch.testing.assert_close(got, expected, rtol=0, atol=tolerance)
    got, expected = step((1, 1, 1), (4, 1, 4), None)
    torch.testing.assert_close(got, expected, rtol=0, atol=tolerance)


def test_the_encoder_gives_the_same_in_parts(tiny: Any, golden: Tensors, monkeypatch: pytest.MonkeyPatch) -> None:
    frames = frames_of(golden)
    whole = tiny.encoder.frame_latents(frames)
    monkeypatch.setitem(ROWS_AT_ONCE, "cpu", 3 * whole.shape[1])
    torch.testing.assert_close(tiny.encoder.frame_latents(frames), whole, rtol=1e-6, atol=1e-6)


def test_the_encoder_gives_the_same_once_it_is_packed(tiny: Any, golden: Tensors) -> None:
    encoder = copy.deepcopy(tiny.encoder)
    assert not any(isinstance(part, Linear) and part._packed is not None for part in encoder.modules())
    torch.testing.assert_close(
        encoder.frame_latents(frames_of(golden)), tiny.encoder.frame_latents(frames_of(golden)), rtol=0, atol=1e-5
    )


def test_gradients_reach_every_weight_but_the_unused_one() -> None:
    with torch.enable_grad():
        predictor = ActionPredictor(_small())
        predictor(torch.randn(2, 3, 16, 32), torch.randn(2, 3, 7), torch.randn(2, 3, 7)).square().mean().backward()
    without = {name for name, weight in predictor.named_parameters() if weight.grad is None}
    assert without == {"extrinsics_encoder.weight", "extrinsics_encoder.bias"}


def test_too_many_frames_and_stray_extrinsics_are_refused() -> None:
    predictor = ActionPredictor(_small())
    many = torch.zeros(1, 9, 16, 32), torch.zeros(1, 9, 7), torch.zeros(1, 9, 7)
    with pytest.raises(InvalidArgument, match=r"9 frames are more than .* 8"):
        predictor(*many)
    with pytest.raises(InvalidArgument, match="takes no extrinsics"):
        predictor(*(x[:, :1] for x in many), extrinsics=torch.zeros(1, 1, 6))


def test_frames_are_normalised_per_channel() -> None:
    frames = torch.tensor([[[[0, 128, 255]]]], dtype=torch.uint8)
    expected = [(0 - 0.485) / 0.229, (128 / 255 - 0.456) / 0.224, (1 - 0.406) / 0.225]
    torch.testing.assert_close(normalise_frames(frames), torch.tensor(expected).reshape(1, 3, 1, 1))


def test_float_frames_are_taken_as_normalised() -> None:
    frames = torch.tensor([[[[-2.1, 0.0, 2.7]]]])
    torch.testing.assert_close(normalise_frames(frames), frames.permute(0, 3, 1, 2), rtol=0, atol=0)
    with pytest.raises(InvalidArgument, match="values up to 255, expected normalised ones"):
        normalise_frames(frames * 0 + 255)


def _small() -> PredictorConfig:
    return PredictorConfig(
        latent_dim=32, dim=64, depth=3, num_heads=2, mlp_dim=128, grid_rows=4, grid_columns=4, max_frames=8
    )


class _Float64Predictor:
    def __init__(self, predictor: ActionPredictor) -> None:
        self.config = predictor.config
        self.weights = {name: weight.double() for name, weight in predictor.state_dict().items()}

    def __call__(self, latents: torch.Tensor, actions: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        tokens, places = [], []
        for frame in range(len(latents)):
            tokens += [self.linear("action_encoder", actions[frame]), self.linear("state_encoder", states[frame])]
            places += [(frame, 0, 0)] * 2
            for patch, latent in enumerate(latents[frame]):
                tokens.append(self.linear("predictor_embed", latent))
                places.append((frame, *divmod(patch, self.config.grid_columns)))
        x = torch.stack(tokens)
        for layer in range(self.config.depth):
            name = f"predictor_blocks.{layer}"
            x = x + self.attention(f"{name}.attn", self.norm(f"{name}.norm1", x), places)
            hidden = self.linear(f"{name}.mlp.fc1", self.norm(f"{name}.norm2", x))
            x = x + self.linear(f"{name}.mlp.fc2", hidden * (1 + torch.erf(hidden / math.sqrt(2))) / 2)
        patches = x.reshape(len(latents), -1, self.config.dim)[:, 2:]
        return self.linear("predictor_proj", self.norm("predictor_norm", patches))

    def linear(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"]

    def norm(self, name: str, x: torch.Tensor) -> torch.Tensor:
        centred = x - x.mean(-1, keepdim=True)
        scaled = centred / torch.sqrt(centred.square().mean(-1, keepdim=True) + 1e-6)
        return scaled * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]

    def attention(self, name: str, x: torch.Tensor, places: list[tuple[int, int, int]]) -> torch.Tensor:
        size = self.config.head_dim
        q, k, v = self.linear(f"{name}.qkv", x).chunk(3, dim=-1)
        frame = torch.tensor([place[0] for place in places])
        out = []
        for head in range(self.config.num_heads):
            part = slice(head * size, (head + 1) * size)
            turned_q = torch.stack([_turned(row, place) for row, place in zip(q[:, part], places, strict=True)])
            turned_k = torch.stack([_turned(row, place) for row, place in zip(k[:, part], places, strict=True)])
            scores = turned_q @ turned_k.T / math.sqrt(size)
            scores = scores.masked_fill(frame[None, :] > frame[:, None], -math.inf)
            out.append(scores.softmax(-1) @ v[:, part])
        return self.linear(f"{name}.proj", torch.cat(out, dim=-1))


def _turned(row: torch.Tensor, place: tuple[int, int, int]) -> torch.Tensor:
    """Each axis has D channels; c turns with its neighbour by position * 10000 ** (-(c mod D/2) / (D/2))."""
    turned = row.clone()
    size = 2 * ((len(row) // 3) // 2)
    for axis, position in enumerate(place):
        for c in range(size):
            angle = position * 10000 ** (-(c % (size // 2)) / (size / 2))
            own, other = axis * size + c, axis * size + (c ^ 1)
            sign = -1 if c % 2 == 0 else 1
            turned[own] = row[own] * math.cos(angle) + sign * row[other] * math.sin(angle)
    return turned
