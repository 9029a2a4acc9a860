"""Text, pictures and units, before and after the network."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models

sys.path.insert(0, str(Path(__file__).parents[1] / "models"))

import pi05_tiny as tiny

from mstar_rt.errors import ConfigError, InvalidArgument
from policies.pi05.images import network_pixels, resized
from policies.pi05.processor import processors_for
from policies.pi05.settings import settings_for
from policies.pi05.text import Prompter, load_tokenizer, prompt_with_state, state_bins


@pytest.mark.parametrize(
    ("value", "number"),
    [(-1.5, -1), (-1.0, 0), (-0.9999, 0), (0.0, 128), (-1e-9, 127), (0.99, 254), (0.9922, 255), (1.0, 255), (9.0, 255)],
)
def test_a_state_value_has_the_published_bin(value: float, number: int) -> None:
    assert state_bins(np.array([value])) == [number]


def test_the_bins_are_not_rounded_ones() -> None:
    """What another server does, and gets a quarter of the bins wrong."""
    values = np.random.default_rng(0).uniform(-1, 1, 1000)
    rounded = np.round((values + 1) / 2 * 255)
    assert (np.array(state_bins(values)) != rounded).mean() > 0.2


def test_the_prompt_keeps_capitals_and_loses_underscores_and_newlines() -> None:
    text = prompt_with_state("  Push_the\nRed Cup ", np.array([0.0, -2.0]))
    assert text == "Task: Push the Red Cup, State: 128 -1;\nAction: "


def test_a_prompt_begins_with_bos_and_is_never_cut(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(tiny.write_tokenizer(tmp_path / "t.json"), 512)
    prompter = Prompter(tokenizer, 14, state_as_text=True)
    ids = prompter.ids("push left", np.array([0.0, 0.0]))
    assert ids[0] == 2
    assert len(ids) == 13
    assert not prompter.has_unknown(ids)
    assert prompter.has_unknown(prompter.ids("Push", np.array([0.0])))
    with pytest.raises(InvalidArgument, match="the prompt has 15 tokens, this policy takes 14"):
        prompter.ids("push the red cup", np.array([0.0, 0.0]))


def test_a_text_that_no_prompt_can_be_is_not_even_read() -> None:
    class Unread:
        begin_id, unknown_id, vocab_size = 1, None, 256

        def encode(self, text: str) -> list[int]:
            raise AssertionError("read")

    with pytest.raises(InvalidArgument, match="has 1000000 characters, this policy 48 tokens"):
        Prompter(Unread(), 48, state_as_text=False).ids("a" * 1_000_000, None)


def test_names_of_special_tokens_are_text(tmp_path: Path) -> None:
    whole = Tokenizer(models.BPE({**{letter: 3 + index for index, letter in enumerate("<>eos")}, "<bos>": 0}, []))
    whole.add_special_tokens(["<bos>", "<eos>"])
    whole.save(str(tmp_path / "special.json"))
    assert load_tokenizer(str(tmp_path / "special.json"), 64).encode("<eos>") == [3, 5, 6, 7, 4]


def test_pi0_s_prompt_has_its_newline_encoded_alone(tmp_path: Path) -> None:
    class Letters:
        begin_id, unknown_id, vocab_size = 1, None, 256
        texts: list[str] = []  # noqa: RUF012

        def encode(self, text: str) -> list[int]:
            self.texts.append(text)
            return [ord(letter) for letter in text]

    assert Prompter(Letters(), 48, state_as_text=False).ids(" a_b\n", None) == [1, 97, 32, 98, 10]
    assert Letters.texts == ["a b", "\n"]


def test_sentencepiece_models_are_read(tmp_path: Path) -> None:
    sentencepiece = pytest.importorskip("sentencepiece")
    (tmp_path / "text").write_text("Task: push the cup, State: 1 2 3;\n" * 50)
    sentencepiece.SentencePieceTrainer.Train(
        input=str(tmp_path / "text"), model_prefix=str(tmp_path / "tiny"), vocab_size=290, model_type="bpe",
        byte_fallback=True, hard_vocab_limit=False, minloglevel=2,
    )  # fmt: skip
    tokenizer = load_tokenizer(str(tmp_path / "tiny.model"), 512)
    ids = Prompter(tokenizer, 48, state_as_text=True).ids("push the cup", np.array([0.0]))
    processor = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "tiny.model"))
    assert ids == [processor.bos_id(), *processor.encode("Task: push the cup, State: 128;\nAction: ")]
    assert tokenizer.unknown_id not in ids
    (tmp_path / "broken.model").write_bytes(b"no model")
    with pytest.raises(ConfigError, match="is not a SentencePiece model"):
        load_tokenizer(str(tmp_path / "broken.model"), 512)


def test_tokenizers_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    good = tiny.write_tokenizer(tmp_path / "t.json")
    (tmp_path / "broken.json").write_text("{}")
    renamed = json.loads(Path(good).read_text())
    renamed["model"]["vocab"]["begin"] = renamed["model"]["vocab"].pop("<bos>")
    (tmp_path / "nameless.json").write_text(json.dumps(renamed))
    for name, size, sentence in (
        ("t.txt", 512, "expected .model"),
        ("missing.json", 512, "there is no tokenizer at"),
        ("t.json", 100, "has 274 tokens, the network 100"),
        ("broken.json", 512, "is not a file of the library tokenizers"),
        ("nameless.json", 512, "no token to begin a prompt with, expected <bos> or <s>"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            load_tokenizer(str(tmp_path / name), size)


def test_pixels_are_scaled_and_laid_out() -> None:
    image = torch.randint(0, 256, (8, 8, 3), dtype=torch.uint8)
    got = network_pixels(image, 8)
    assert got.is_contiguous() or got.shape == (3, 8, 8)
    torch.testing.assert_close(got, image.permute(2, 0, 1).float() / 255 * 2 - 1)
    scaled = got.permute(1, 2, 0).contiguous()
    assert torch.equal(network_pixels(scaled, 8), got)


@pytest.mark.parametrize(("height", "width"), [(30, 40), (40, 30), (56, 20), (7, 7), (480, 640), (100, 56)])
def test_other_sizes_keep_their_aspect_on_black(height: int, width: int) -> None:
    image = torch.full((height, width, 3), 200, dtype=torch.uint8)
    got = resized(image.permute(2, 0, 1), 56)
    assert got.shape == (3, 56, 56)
    scale = 56 / max(height, width)
    rows, columns = (torch.where((got[0] > 0).any(dim))[0] for dim in (1, 0))
    for lit, size in ((rows, height), (columns, width)):
        assert abs(len(lit) - size * scale) <= 1
        before, after = int(lit[0]), 55 - int(lit[-1])
        assert 0 <= after - before <= 1
    assert set(got.unique().tolist()) <= {0, 200}
    as_float = network_pixels(image.float() / 127.5 - 1, 56)
    assert torch.allclose(as_float, network_pixels(image, 56), atol=1e-2)


def test_enlarging_is_bilinear() -> None:
    image = np.random.default_rng(0).integers(0, 256, (30, 40, 3), dtype=np.uint8)
    got = resized(torch.from_numpy(image).permute(2, 0, 1), 56)[:, 7:49].permute(1, 2, 0).numpy()
    want = cv2.resize(image, (56, 42), interpolation=cv2.INTER_LINEAR)
    assert np.abs(got.astype(int) - want.astype(int)).max() <= 1


def test_shrinking_looks_at_every_pixel() -> None:
    stripes = torch.zeros(3, 112, 112)
    stripes[:, :, ::2] = 1.0
    assert (resized(stripes, 56)[:, :, 2:-2] - 0.5).abs().max() < 0.02


@pytest.fixture
def processor(tmp_path: Path) -> object:
    settings = settings_for("robot", "pi05", "", tiny.robot_settings(tmp_path))
    return processors_for(settings, "cpu")["default"]


def test_actions_come_back_as_they_went(processor: object) -> None:
    state = torch.tensor([0.3, -0.2, 0.9])
    actions = torch.from_numpy(tiny.previous(1, 6))
    seen = processor.network_actions(actions, state)  # type: ignore[attr-defined]
    assert seen.shape == (6, tiny.DIM)
    assert (seen[:, tiny.ACTION_SIZE :] == 0).all()
    back = processor.robot_actions(seen, state)  # type: ignore[attr-defined]
    torch.testing.assert_close(back, actions, rtol=0, atol=1e-6)
    elsewhere = processor.robot_actions(seen, state + 1)  # type: ignore[attr-defined]
    moved = torch.tensor([1.0, 1.0, 0.0, 0.0, 1.0])
    torch.testing.assert_close(elsewhere - back, moved.expand(6, -1), rtol=0, atol=1e-6)


def test_nothing_is_clamped(processor: object) -> None:
    far = processor.normalised_state(torch.tensor([50.0, -50.0, 0.0]))  # type: ignore[attr-defined]
    assert far.dtype == torch.float64
    assert far[0] > 80
    assert far[1] < -40


@pytest.mark.parametrize("constant", [0.0, 0.7, 123.4567, -2000.1])
def test_a_chunk_is_seen_as_it_was_made_where_a_dimension_never_varied(tmp_path: Path, constant: float) -> None:
    """The statistics divide by 1e-6 there: what float32 rounds off 123.4567 would be seen as 5 deviations."""
    settings = tiny.robot_settings(tmp_path)
    file = Path(settings["norm_stats"])
    held = json.loads(file.read_text())
    for name in ("q01", "q99"):
        held["norm_stats"]["actions"][name][2] = constant
    file.write_text(json.dumps(held))
    made = processors_for(settings_for("robot", "pi05", "", settings), "cpu")["default"]
    state = torch.tensor([0.3, -0.2, 0.9])
    x = torch.randn(8, tiny.DIM, generator=torch.Generator().manual_seed(0))
    seen = made.network_actions(made.robot_actions(x, state), state)
    others = [0, 1, 3, 4]
    torch.testing.assert_close(seen[:, others], x[:, others], rtol=0, atol=1e-4)
    assert (seen[:, 2] - x[:, 2]).abs().max() < 4, "as it was, or as it was in training: -1"
    if abs(constant) > 100:
        assert (seen[:, 2] == -1).all()
    with pytest.raises(InvalidArgument, match="times the range of the policy's statistics in dimension 2, expected"):
        made.network_actions(made.robot_actions(x, state) + 0.01, state)


def test_previous_actions_in_other_units_are_refused(processor: object) -> None:
    """They are finite, and so would be the chunk, in which every dimension would be wrong."""
    actions = torch.from_numpy(tiny.previous(1, 6)) * 1e3
    with pytest.raises(InvalidArgument, match="are they in the policy's units"):
        processor.network_actions(actions, torch.tensor([0.3, -0.2, 0.9]))  # type: ignore[attr-defined]


def test_statistics_must_have_what_the_policy_reads(tmp_path: Path) -> None:
    settings = tiny.robot_settings(tmp_path)
    held = json.loads(Path(settings["norm_stats"]).read_text())["norm_stats"]
    for missing, sentence in (("state", "no statistics of the state"), ("actions", "no statistics of actions")):
        Path(settings["norm_stats"]).write_text(
            json.dumps({"norm_stats": {key: value for key, value in held.items() if key != missing}})
        )
        with pytest.raises(ConfigError, match=sentence):
            processors_for(settings_for("robot", "pi05", "", settings), "cpu")
