"""The backbone against transformers' Qwen3, whose layers are those of either set of weights, and paged against dense."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from bagel_contexts import Contexts
from bagel_tiny import GOLDEN, IMAGE_IDS, write_folder
from safetensors.torch import load_file

from generators.bagel.checkpoint import load_backbone
from generators.bagel.config import BagelConfig, read_config
from generators.bagel.network import MotNetwork, published
from mstar_rt.nn.checkpoint import load_strict

GRID = (2, 3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("bagel") / "tiny")


@pytest.fixture(scope="module")
def config(folder: Path) -> BagelConfig:
    return read_config(folder)


def golden_weights() -> dict[str, torch.Tensor]:
    outside = ("vit_model.", "connector.", "vit_pos_embed.")
    weights = load_file(GOLDEN / "bagel_tiny.ema.safetensors")
    return {key: value for key, value in weights.items() if not key.startswith(outside)}


def dense_network(config: BagelConfig, weights: dict[str, torch.Tensor]) -> MotNetwork:
    network = MotNetwork(config)
    return load_strict(
        network, weights, where="golden", device="cpu", dtype=torch.float32, spelling=lambda key: published(key, config)
    )


@pytest.fixture(scope="module")
def network(config: BagelConfig) -> MotNetwork:
    return dense_network(config, golden_weights())


@pytest.fixture(scope="module")
def contexts(config: BagelConfig, folder: Path) -> Contexts:
    return Contexts(load_backbone(config, folder, IMAGE_IDS))


@pytest.fixture(scope="module")
def qwen() -> Any:
    """Qwen3 with the usual weights. It has a bias behind its attention if it has one before, which is zero here."""
    transformers = pytest.importorskip("transformers")
    oracle = transformers.Qwen3ForCausalLM(
        transformers.Qwen3Config(
            vocab_size=200, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, head_dim=16, rms_norm_eps=1e-6, rope_parameters={"rope_type": "default", "rope_theta": 1e6},
            attention_bias=True, tie_word_embeddings=False, attn_implementation="eager",
        )
    )  # fmt: skip
    weights = {
        key.removeprefix("language_model."): value
        for key, value in golden_weights().items()
        if key.startswith("language_model.") and "_moe_gen" not in key
    }
    zeros = {f"model.layers.{layer}.self_attn.o_proj.bias": torch.zeros(64) for layer in range(2)}
    oracle.load_state_dict({**weights, **zeros})
    return oracle.eval()


def random_ids(count: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 196, (count,), generator=torch.Generator().manual_seed(seed))


def random_rows(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("is_paged", [False, True])
def test_text_is_read_as_by_qwen(is_paged: bool, network: MotNetwork, contexts: Contexts, qwen: Any) -> None:
    """Scores around 1, sums of at most 96 products in another order."""
    ids = random_ids(60)
    with torch.no_grad():
        expected = qwen(ids[None]).logits[0]
        if is_paged:
            context = contexts.new()
            found = torch.cat([contexts.read_texts([context], [part.tolist()]) for part in ids.split([1, 40, 1, 18])])
        else:
            mask = torch.ones(60, 60, dtype=torch.bool).tril()[None, None]
            hidden, _ = network.forward_dense(network.embed(ids)[None], None, torch.arange(60)[None], None, mask)
            found = network.scores(hidden[0])
    assert expected.std() > 0.3
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-5)


class Block(NamedTuple):
    """Tokens [N, W] in a row, at one position or at consecutive ones. Either each sees the ones up to itself, or all see
    all. `is_gen` [N]: which of them are latents."""

    tokens: torch.Tensor
    positions: Sequence[int]
    is_causal: bool
    is_gen: Sequence[bool]


def text(tokens: torch.Tensor, first: int) -> Block:
    return Block(tokens, range(first, first + len(tokens)), True, [False] * len(tokens))


def image(tokens: torch.Tensor, place: int) -> Block:
    return Block(tokens, [place] * len(tokens), False, [False] * len(tokens))


def latents(begin: torch.Tensor, tokens: torch.Tensor, end: torch.Tensor, place: int) -> Block:
    """Between the two tokens that are not latents."""
    count = len(tokens)
    return Block(torch.cat([begin, tokens, end]), [place] * (count + 2), False, [False, *[True] * count, False])


def mask_of(blocks: Sequence[Block]) -> torch.Tensor:
    """bool [1, 1, N, N]: what is seen by whom."""
    number = torch.tensor([index for index, each in enumerate(blocks) for _ in each.tokens])
    is_causal = torch.tensor([each.is_causal for each in blocks])[number]
    place = torch.arange(len(number))
    is_before = place <= place[:, None]
    return (is_before | ((number == number[:, None]) & ~is_causal))[None, None]


def positions_of(blocks: Sequence[Block]) -> torch.Tensor:
    return torch.tensor([[place for each in blocks for place in each.positions]])


def dense(network: MotNetwork, blocks: Sequence[Block]) -> torch.Tensor:
    """[N, W] behind the layers, in the order of the blocks."""
    tokens, positions = torch.cat([each.tokens for each in blocks])[None], positions_of(blocks)
    is_gen = torch.tensor([each for block in blocks for each in block.is_gen])
    order = torch.cat([(~is_gen).nonzero()[:, 0], is_gen.nonzero()[:, 0]])
    und, gen = network.forward_dense(
        tokens[:, ~is_gen],
        tokens[:, is_gen],
        positions[:, ~is_gen],
        positions[:, is_gen],
        mask_of(blocks)[:, :, order][..., order],
    )
    assert gen is not None
    hidden = torch.empty_like(tokens)
    hidden[:, ~is_gen], hidden[:, is_gen] = und, gen
    return hidden[0]


def test_generation_twins_that_are_copies_are_qwen(config: BagelConfig, qwen: Any) -> None:
    """Whichever tokens go through them, under the mask of blocks and with one position to a block."""
    weights = golden_weights()
    for key in weights:
        if "_moe_gen" in key:
            weights[key] = weights[key.replace("_moe_gen", "")]
    network = dense_network(config, weights)
    rows = random_rows(28, 64).split([5, 1, 6, 1, 4, 3, 1, 6, 1])
    blocks = [text(rows[0], 0), latents(*rows[1:4], 5), image(rows[4], 6), text(rows[5], 7), latents(*rows[6:9], 10)]
    hidden_pairs = torch.zeros(1, 1, 28, 28).masked_fill(~mask_of(blocks), torch.finfo(torch.float32).min)
    with torch.no_grad():
        expected = qwen.model(
            inputs_embeds=torch.cat(rows)[None], attention_mask=hidden_pairs, position_ids=positions_of(blocks)
        ).last_hidden_state[0]
        found = dense(network, blocks)
        torch.testing.assert_close(network.norm(found), expected, rtol=0, atol=2e-5)
        torch.testing.assert_close(network.norm_moe_gen(found), expected, rtol=0, atol=2e-5)


def test_paged_is_dense(network: MotNetwork, contexts: Contexts) -> None:
    """Text, latents of an image that is there, the image as it is looked at, more text, and latents that are drawn. The
    golden twins are other weights than the usual ones."""
    first, second, looked_at = random_ids(7), random_ids(9, seed=1), random_rows(5, 64)
    given, drawn = random_rows(2, 6, 16, seed=1)
    with torch.inference_mode():
        context = contexts.new()
        contexts.read_texts([context], [first.tolist()])
        contexts.read_latents(context, given, GRID)
        contexts.read_image(context, looked_at)
        scores = contexts.read_texts([context], [second.tolist()])
        velocity = contexts.velocity([context], drawn[None], 0.75, GRID)[0]
        assert (context.table.length, context.position) == (7 + 8 + 7 + 9, 18)
        again = contexts.velocity([context], drawn[None], 0.75, GRID)[0]
        assert torch.equal(velocity, again), "latents that are drawn leave something behind"

        begin, end = network.embed(torch.tensor(IMAGE_IDS))[:, None]
        blocks = [
            text(network.embed(first), 0),
            latents(begin, network.latents_in(given[None], torch.zeros(1), GRID)[0], end, 7),
            image(torch.cat([begin, looked_at, end]), 8),
            text(network.embed(second), 9),
            latents(begin, network.latents_in(drawn[None], torch.tensor([0.75]), GRID)[0], end, 18),
        ]
        hidden = dense(network, blocks)
        torch.testing.assert_close(scores, network.scores(hidden[22:31]), rtol=0, atol=2e-5)
        torch.testing.assert_close(velocity, network.velocity(hidden[32:38]), rtol=0, atol=2e-5)


def test_contexts_do_not_see_who_shares_their_step(contexts: Contexts) -> None:
    """Scores of text are the same bits. Latents are images, so a rounding of velocities around 1 is nothing."""
    lengths = (1, 12, 5)
    texts = [random_ids(length, seed=length).tolist() for length in lengths]
    x = random_rows(3, 6, 16)
    with torch.inference_mode():
        together, alone = ([contexts.new() for _ in lengths] for _ in range(2))
        beside = contexts.read_texts(together, texts).split(lengths)
        velocities = contexts.velocity(together, x, 0.5, GRID)
        following = contexts.read_texts(together, [[3], [4], [5]])
        for index, context in enumerate(alone):
            own = contexts.read_texts([context], [texts[index]])
            assert torch.equal(own[-1], beside[index][-1])
            velocity = contexts.velocity([context], x[index : index + 1], 0.5, GRID)[0]
            torch.testing.assert_close(velocities[index], velocity, rtol=0, atol=5e-6)
            assert torch.equal(contexts.read_texts([context], [[3 + index]])[0], following[index])


def test_forks_share_a_past_and_go_on_apart(contexts: Contexts) -> None:
    """A branch without the last text is what it was before that text was read."""
    x = random_rows(1, 6, 16)
    with torch.inference_mode():
        main, untouched = contexts.new(), contexts.new()
        for context in (main, untouched):
            contexts.read_texts([context], [[1, 2, 3]])
        branch = main.fork()
        contexts.read_texts([main], [[4, 5]])
        expected = contexts.velocity([untouched], x, 0.5, GRID)
        assert torch.equal(contexts.velocity([branch], x, 0.5, GRID), expected)
        assert (contexts.velocity([main], x, 0.5, GRID) - expected).abs().max() > 1e-2


def test_every_weight_is_trained(network: MotNetwork) -> None:
    trained = copy.deepcopy(network)
    begin, end = trained.embed(torch.tensor(IMAGE_IDS))[:, None]
    drawn = trained.latents_in(random_rows(1, 6, 16), torch.tensor([0.5]), GRID)[0]
    hidden = dense(trained, [text(trained.embed(random_ids(4)), 0), latents(begin, drawn, end, 4)])
    (trained.scores(hidden[:4]).square().mean() + trained.velocity(hidden[5:11]).square().mean()).backward()
    untrained = [name for name, each in trained.named_parameters() if each.grad is None or not each.grad.any()]
    assert untrained == ["latent_pos_embed.pos_embed"]
