"""The golden BAGEL as a folder in the published layout, with a tokenizer of 200 words.

Its words are the bytes of ASCII and of accented letters, so that any English text can be written, and those that captions
need most.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

GOLDEN = Path(__file__).parents[1] / "golden"
SPECIAL = ("<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>")
IMAGE_IDS = (198, 199)
LETTERS = "".join(chr(code) for code in [*range(32, 127), 9, 10, *range(0xC0, 0x100)]) + "–"
MERGES = (
    "e d,r ed,e n,r e,re en,g reen,b l,u e,bl ue,g re,gre y,o n,t h,th e,Ġ a,Ġ the,Ġ on,Ġ red,Ġ green,Ġ blue,Ġ grey,"
    "s s,o ss,r oss,c ross,Ġ cross,a k,ak e,m ake,i t,Ġ it,a t,Ġ c"
)
NUM_WORDS = 196


def golden() -> dict[str, torch.Tensor]:
    """Inputs and outputs of the reference implementation, ByteDance-Seed/Bagel 056b5fd, in float32."""
    return load_file(GOLDEN / "bagel_tiny.io.safetensors")


def described() -> dict[str, Any]:
    """Dimensions and settings of the golden run."""
    values: dict[str, Any] = json.loads((GOLDEN / "bagel_tiny.json").read_text())
    return values


def write_folder(folder: Path, ours: Mapping[str, Any] | None = None) -> Path:
    """All files of a published folder, with the golden weights. Returns the folder.

    Args:  ours: entries of the object `mstar_rt` in config.json, over those that the golden run needs.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer().save(str(folder / "tokenizer.json"))
    for name, values in (("llm", language()), ("vit", vision()), ("", whole(ours or {}))):
        (folder / f"{name}_config.json".removeprefix("_")).write_text(json.dumps(values))
    for part in ("ema", "ae"):
        shutil.copyfile(GOLDEN / f"bagel_tiny.{part}.safetensors", folder / f"{part}.safetensors")
    return folder


def language() -> dict[str, Any]:
    given = described()["llm"]
    return {
        "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "vocab_size": given["vocab"],
        "hidden_size": given["hidden"], "intermediate_size": given["mlp"], "num_hidden_layers": given["layers"],
        "num_attention_heads": given["heads"], "num_key_value_heads": given["kv_heads"],
        "rms_norm_eps": given["rms_eps"], "rope_theta": given["rope_theta"], "hidden_act": "silu",
        "max_position_embeddings": 512, "tie_word_embeddings": False,
    }  # fmt: skip


def vision() -> dict[str, Any]:
    """The published file counts a last layer that is not there."""
    given = described()["vit"]
    return {
        "model_type": "siglip_vision_model", "hidden_size": given["hidden"], "intermediate_size": given["mlp"],
        "num_hidden_layers": given["layers"] + 1, "num_attention_heads": given["heads"],
        "patch_size": given["patch"], "image_size": given["image_size"],
    }  # fmt: skip


def whole(ours: Mapping[str, Any]) -> dict[str, Any]:
    given = described()
    autoencoder, vision_side = given["vae"], given["vit"]["max_patches_per_side"]
    return {
        "architectures": ["BagelForConditionalGeneration"],
        "mstar_rt": {
            "autoencoder": {
                "channels": autoencoder["ch"], "multipliers": autoencoder["ch_mult"],
                "num_blocks": autoencoder["num_res_blocks"], "latent_channels": autoencoder["z_channels"],
                "scale": autoencoder["scale"], "shift": autoencoder["shift"],
            },
            "latent_patch": given["latent_patch"],
            "max_latent_side": given["max_latent_size"],
            "max_vision_side": vision_side,
            "latent_size": {"max_side": 64, "min_side": 16, "multiple": 4},
            "vision_size": {"max_side": 14 * vision_side, "min_side": 28, "multiple": 14},
            "think_prompt": "Think first.",
            "defaults": {"height": 32, "width": 32, "num_denoise_steps": given["steps"] - 1},
            **ours,
        },
    }  # fmt: skip


def tokenizer() -> Tokenizer:
    """Ids from 0: bytes, joined bytes, then the special tokens from 196 on."""
    bytewise = pre_tokenizers.ByteLevel(add_prefix_space=False)
    letters = sorted({letter for part, _ in bytewise.pre_tokenize_str(LETTERS) for letter in part})
    merges = [(left, right) for left, right in (merge.split() for merge in MERGES.split(","))]
    words = [*letters, *(left + right for left, right in merges)]
    assert len(words) == NUM_WORDS, len(words)
    made = Tokenizer(models.BPE({word: index for index, word in enumerate(words)}, merges))
    made.pre_tokenizer, made.decoder = bytewise, decoders.ByteLevel()
    made.add_special_tokens(list(SPECIAL))
    return made
