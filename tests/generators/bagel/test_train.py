"""Training of the small model: layouts are those of requests, losses fall, and a stopped run goes on the same."""

from __future__ import annotations

import dataclasses
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from generators.bagel.autoencoder import Autoencoder
from generators.bagel.config import read_config
from generators.bagel.train import lessons
from generators.bagel.train.autoencoder_training import AutoencoderSettings, train_autoencoder
from generators.bagel.train.bank import Bank
from generators.bagel.train.batches import Batches, BatchSizes
from generators.bagel.train.dimensions import SHAPES_MODEL, THINK_PROMPT
from generators.bagel.train.evaluate import OFF, Evaluation, accuracy, drawing_params, editing_params
from generators.bagel.train.files import load_shapes, save_shapes, write_vocabulary
from generators.bagel.train.flow_training import BothNetworks, FlowSettings, losses, train_flow
from generators.bagel.train.pictures import to_pictures, to_pixels
from generators.bagel.train.sampling import Painter, noise_of
from generators.bagel.train.sequences import NO_LABEL, Row, batched
from generators.bagel.train.vocabulary import SPECIAL, Vocabulary
from sim_bridge.shapes import Scene, draw, draw_scene

TINY = dataclasses.replace(
    SHAPES_MODEL,
    language=dataclasses.replace(SHAPES_MODEL.language, width=32, mlp_dim=32, depth=2, num_heads=2, num_kv_heads=1, head_dim=16),
    vision=dataclasses.replace(SHAPES_MODEL.vision, width=16, mlp_dim=16, depth=1, num_heads=2),
    autoencoder=dataclasses.replace(SHAPES_MODEL.autoencoder, channels=8, num_groups=2),
    defaults=dataclasses.replace(SHAPES_MODEL.defaults, num_denoise_steps=4),
)  # fmt: skip
SIZES = BatchSizes(
    prompts=2, prompt_draws=2, thoughts=1, thought_draws=2, edits=2, edit_draws=2, pictures=2, questions=1, chats=1
)
NUM_TOKENS = 16


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Vocabulary:
    return write_vocabulary(tmp_path_factory.mktemp("vocabulary"))


@pytest.fixture(scope="module")
def bank(tmp_path_factory: pytest.TempPathFactory) -> Bank:
    """Mean colours of patches, in place of latents."""

    def encode(pictures: np.ndarray) -> torch.Tensor:
        means = (
            torch.from_numpy(pictures).float().div(127.5).sub(1).unflatten(2, (4, 8)).unflatten(1, (4, 8)).mean((2, 4))
        )
        return means.flatten(1, 2).repeat(1, 1, 8)

    return Bank(encode, 0, tmp_path_factory.mktemp("bank") / "latents", num_shifts=1)


@pytest.fixture
def batches(bank: Bank, vocabulary: Vocabulary) -> Batches:
    return Batches(bank, vocabulary, NUM_TOKENS, SIZES)


def test_the_tokenizer_knows_every_word(vocabulary: Vocabulary) -> None:
    rng = np.random.default_rng(0)
    for _ in range(300):
        scene = draw_scene(rng)
        texts = [lessons.prompt(scene, rng)[1], lessons.vague_prompt(scene, rng)[1], lessons.edit(scene, rng).text]
        answers = [lessons.answer(question, scene) for question in lessons.QUESTIONS]
        for text in [*texts, *answers, lessons.thought(scene)]:
            assert vocabulary.unknown not in vocabulary.wrapped(text), text
            assert vocabulary.text(vocabulary.wrapped(text)) == text
    assert vocabulary.size <= SHAPES_MODEL.language.vocab_size
    assert vocabulary.wrapped("A Gray circle, in COLOR!") == vocabulary.wrapped("a grey circle in colour")
    assert vocabulary.wrapped("a horse")[2] == vocabulary.unknown
    assert (vocabulary.begin, vocabulary.end, vocabulary.begin_image, vocabulary.end_image) == (0, 1, 2, 3)
    assert len(SPECIAL) == 5


def test_a_row_is_what_a_request_reads(vocabulary: Vocabulary) -> None:
    """[latents][vision][text], then noise twice: positions, and who sees whom."""
    row = Row(vocabulary, NUM_TOKENS).latents(0).look(0).text("make it red")
    row.latents(1, branch=1).latents(2, branch=2)
    sequences = batched([row], NUM_TOKENS)
    und, gen = sequences.und_positions[0], sequences.gen_positions[0]
    assert und.tolist() == [0, 0, *[1] * 18, 2, 3, 4, 5, 6, *[7] * 4]
    assert gen.tolist() == [*[0] * 16, *[7] * 32]
    assert sequences.is_noise[0].tolist() == [False] * 16 + [True] * 32
    assert sequences.latents[0].tolist() == list(range(48))
    assert sequences.looks[0, 4:20].tolist() == list(range(16))
    num_und = len(und)
    sees = sequences.mask[0, 0]
    begin_latents, look, text, end_text, first_end = 0, 3, 20, 24, 25
    clean, noise, other = num_und, num_und + 16, num_und + 32
    assert sees[clean].nonzero().flatten().tolist() == [0, 1, *range(clean, clean + 16)]
    assert sees[look, [begin_latents, look + 10, clean]].all()
    assert not sees[look, [text, noise]].any()
    assert sees[text + 1, [look, text, text + 1, clean]].all()
    assert not sees[text + 1, [text + 2, noise]].any()
    assert sees[noise, [begin_latents, look, text, end_text, first_end, clean, noise, noise + 15]].all()
    assert not sees[noise, other]
    assert not sees[noise, first_end + 2]


def test_nothing_is_before_the_noise_where_guidance_leaves_the_text_out(vocabulary: Vocabulary) -> None:
    alone = Row(vocabulary, NUM_TOKENS).latents(0, branch=1)
    longer = Row(vocabulary, NUM_TOKENS).text("a red ring on blue").latents(1, branch=1)
    sequences = batched([alone, longer], NUM_TOKENS)
    assert sequences.gen_positions[:, 0].tolist() == [0, 7]
    num_und = sequences.ids.shape[1]
    assert sequences.mask[0, 0, num_und].nonzero().flatten().tolist() == [0, 1, *range(num_und, num_und + 16)]
    assert sequences.mask[0, 0].any(-1).all()  # padding, too, sees something: itself


def test_only_answers_are_learned(vocabulary: Vocabulary) -> None:
    row = Row(vocabulary, NUM_TOKENS).look(0).text("what shape is it?", 1).text("ring", 1, is_learned=True)
    labels = batched([row], NUM_TOKENS).labels[0]
    assert labels[labels != NO_LABEL].tolist() == vocabulary.wrapped("ring")[1:]
    assert labels[-1] == NO_LABEL


def test_branches_are_as_good_as_rows(batches: Batches, vocabulary: Vocabulary) -> None:
    """What a branch computes is what it would compute alone."""
    torch.manual_seed(0)
    both = BothNetworks(TINY)
    torch.nn.init.normal_(both.network.llm2vae.weight)
    noise = torch.randn(2, NUM_TOKENS, TINY.latent_dim)

    def velocities(rows: list[Row]) -> torch.Tensor:
        sequences = batched(rows, NUM_TOKENS)
        gen = both.network.latents_in(noise, torch.full((2,), 0.7), (4, 4)).flatten(0, 1)[sequences.latents]
        und = both.network.embed(sequences.ids)
        positions = sequences.und_positions, sequences.gen_positions
        _, out = both.network.forward_dense(und, gen, *positions, sequences.mask)
        assert out is not None
        return both.network.velocity(out[sequences.is_noise])

    trunk = Row(vocabulary, NUM_TOKENS).text("a red ring on blue")
    together = velocities([trunk.copy().latents(0, 1).latents(1, 2)])
    alone = velocities([trunk.copy().latents(0, 1), trunk.copy().latents(1, 1)])
    torch.testing.assert_close(together, alone)


def test_a_step_learns_everything(batches: Batches) -> None:
    torch.manual_seed(0)
    both = BothNetworks(TINY)
    for step in range(2):
        for batch in batches.draw(np.random.default_rng(step)):
            flow, words = losses(both, batch)
            (flow + words).backward()
            both.network.llm2vae.weight.data.normal_()  # it starts at zero, which lets no gradient through
    frozen = {"network.latent_pos_embed.pos_embed", "vision.vit_pos_embed.pos_embed"}
    without = {name for name, value in both.named_parameters() if value.grad is None or not value.grad.any()}
    assert without == frozen
    batch = batches.draw(np.random.default_rng(3))[1]
    assert set(batch.is_noise.tolist()) == {True, False}
    assert batch.pixels is not None


def test_where_no_word_is_learned_nothing_is_lost(bank: Bank, vocabulary: Vocabulary) -> None:
    no_thoughts = Batches(bank, vocabulary, NUM_TOKENS, dataclasses.replace(SIZES, thoughts=0))
    flow, words = losses(BothNetworks(TINY), no_thoughts.draw(np.random.default_rng(0))[0])
    assert flow > 0
    assert words == 0


def test_it_learns(batches: Batches, tmp_path: Path) -> None:
    lines: list[str] = []
    settings = FlowSettings(20, peak_rate=1e-2, num_warm_up_steps=1, log_every=4, checkpoint_every=20)
    train_flow(TINY, batches, settings, 0, tmp_path / "state", lines.append, lambda step, both: None)
    flow, words = ([float(line.split()[index]) for line in lines] for index in (4, 7))
    assert flow[-1] < 0.9 * flow[0]
    assert words[-1] < 0.8 * words[0]


def test_a_stopped_run_goes_on_the_same(batches: Batches, tmp_path: Path) -> None:
    def train(state: str, *, until: int) -> dict[str, torch.Tensor]:
        def checkpoint(step: int, both: BothNetworks) -> None:
            if step == until:
                raise KeyboardInterrupt

        settings = FlowSettings(4, checkpoint_every=2)
        try:
            return train_flow(TINY, batches, settings, 0, tmp_path / state, _silent, checkpoint).state_dict()
        except KeyboardInterrupt:
            return {}

    whole = train("whole", until=-1)
    train("parts", until=2)
    parts = train("parts", until=-1)
    for name, value in whole.items():
        torch.testing.assert_close(parts[name], value, rtol=0, atol=0)


def test_the_autoencoder_learns_and_goes_on_the_same(tmp_path: Path) -> None:
    lines: list[str] = []

    def train(state: str, num_steps: int) -> Autoencoder:
        settings = AutoencoderSettings(num_steps, 4, 1e-2, num_warm_up_steps=1, log_every=5, checkpoint_every=10)
        return train_autoencoder(TINY.autoencoder, settings, 0, tmp_path / state, lines.append)

    whole = train("whole", 20)
    losses = [float(line.split()[4]) for line in lines]
    assert losses[-1] < 0.8 * losses[0]
    again = train("whole", 20)  # nothing is left to do
    for name, value in whole.state_dict().items():
        torch.testing.assert_close(again.state_dict()[name], value, rtol=0, atol=0)
    rng = np.random.default_rng(1)
    latents = whole.latents(whole.encode(to_pixels(np.array([draw(draw_scene(rng)) for _ in range(64)]))))
    assert latents.mean().abs() < 0.2
    assert latents.std() == pytest.approx(1.0, abs=0.2)


def test_pictures_come_back() -> None:
    pictures = np.random.default_rng(0).integers(0, 256, (2, 8, 8, 3)).astype(np.uint8)
    np.testing.assert_array_equal(to_pictures(to_pixels(pictures)), pictures)


def test_accuracy_counts_what_was_wanted() -> None:
    wanted = Scene("red", "ring", "blue", "", "")
    seen = [Scene("red", "ring", "blue", "left", "small"), Scene("red", "cross", "blue", "top", "large")]
    shares = accuracy(seen, [wanted, wanted])
    assert shares == {"colour": 1, "shape": 0.5, "background": 1, "position": 1, "size": 1, "all": 0.5}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    both = BothNetworks(TINY)
    torch.nn.init.normal_(both.network.llm2vae.weight, std=0.1)
    folder = tmp_path_factory.mktemp("published")
    save_shapes(folder, TINY, both, Autoencoder(TINY.autoencoder))
    return folder


def test_it_is_saved_as_a_deployment_reads_it(folder: Path) -> None:
    assert read_config(folder) == dataclasses.replace(TINY, name=folder.name)
    again = load_shapes(folder)
    torch.manual_seed(0)
    for (name, value), loaded in zip(
        BothNetworks(TINY).state_dict().items(), again.both.state_dict().values(), strict=True
    ):
        if "llm2vae" not in name:
            torch.testing.assert_close(loaded, value.half().float(), msg=name)


def test_everything_is_evaluated_and_guidance_counts(folder: Path) -> None:
    config, both, autoencoder, vocabulary = load_shapes(folder)
    painter = Painter(both, autoencoder, vocabulary)
    evaluation = Evaluation(painter, config)
    drawing, editing = drawing_params(config), editing_params(config)
    for shares in (evaluation.drawing(drawing, 2), evaluation.editing(editing, 2), evaluation.thinking(drawing, 2)):
        assert all(0 <= share <= 1 for share in shares.values())
    assert set(evaluation.describing(2)) == set(lessons.QUESTIONS)
    assert set(evaluation.chatting()) == {"chat"}
    noise = noise_of(config, 2, 0)
    before = np.array([draw(Scene("red", "ring", "blue"))] * 2)
    ways = [
        painter.draw(["a red ring on blue", "a black cross on white"], drawing, noise),
        painter.draw(["a red ring on blue", "a black cross on white"], drawing | OFF, noise),
        painter.edit(before, ["make it black", "make it a cross"], editing, noise),
        painter.edit(before, ["make it black", "make it a cross"], editing | {"image_guidance": 1.0}, noise),
    ]
    for one, other in pairwise(ways):
        assert (one != other).any()
    assert (ways[0][0] != ways[0][1]).any()


def test_requests_of_a_batch_do_not_mix(folder: Path) -> None:
    config, both, autoencoder, vocabulary = load_shapes(folder)
    painter = Painter(both, autoencoder, vocabulary)
    noise, params = noise_of(config, 2, 0), editing_params(config)
    pictures = np.array([draw(Scene("red", "ring", "blue")), draw(Scene("black", "cross", "white"))])
    texts = ["make it green", "make the background green"]
    together = painter.edit(pictures, texts, params, noise)
    alone = [painter.edit(pictures[i : i + 1], texts[i : i + 1], params, noise[i : i + 1])[0] for i in range(2)]
    np.testing.assert_allclose(together, np.array(alone), atol=1)
    assert (
        painter.describe(pictures, ["what shape is it?"] * 2)[1]
        == painter.describe(pictures[1:], ["what shape is it?"])[0]
    )


def test_a_thought_is_of_the_think_prompt() -> None:
    assert SHAPES_MODEL.think_prompt == THINK_PROMPT


def _silent(line: str) -> None:
    pass
