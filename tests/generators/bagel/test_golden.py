"""The parts together against outputs of the reference implementation, by a loop that knows none of the nodes.

Tolerances: the reference ran in float32 and adds up in other orders. That makes 1e-6 of velocities, which guidance and
the steps multiply; measured are 5e-6 of latents and pixels that go up to 5. Four times that is allowed for other processors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from bagel_contexts import Context, Contexts
from bagel_tiny import IMAGE_IDS, described, golden, write_folder

from generators.bagel.autoencoder import Autoencoder, from_tokens, to_tokens
from generators.bagel.checkpoint import load_autoencoder, load_backbone, load_vision
from generators.bagel.config import read_config
from generators.bagel.vision import Vision

BOS, EOS = 196, 197
GRID = (8, 8)
TOLERANCE = 2e-5

Flow = Callable[[torch.Tensor, float], torch.Tensor]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("bagel") / "tiny")


@pytest.fixture(scope="module")
def contexts(folder: Path) -> Contexts:
    return Contexts(load_backbone(read_config(folder), folder, IMAGE_IDS))


@pytest.fixture(scope="module")
def vision(folder: Path) -> Vision:
    return load_vision(read_config(folder), folder)


@pytest.fixture(scope="module")
def autoencoder(folder: Path) -> Autoencoder:
    return load_autoencoder(read_config(folder), folder)


@pytest.fixture(autouse=True)
def inference() -> Any:
    with torch.inference_mode():
        yield


def wrapped(ids: torch.Tensor) -> list[int]:
    return [BOS, *ids.tolist(), EOS]


def length_ratio(v: torch.Tensor, guided: torch.Tensor, dims: tuple[int, ...], least: float) -> torch.Tensor:
    lengths = [torch.linalg.vector_norm(each, dim=dims, keepdim=True) for each in (v, guided)]
    return (lengths[0] / (lengths[1] + 1e-8)).clamp(least, 1.0)


def denoised(
    noise: torch.Tensor, flows: Mapping[str, Flow], settings: Mapping[str, Any], kind: str, least: float
) -> torch.Tensor:
    """Every branch at every step where there is guidance, as the reference does it."""
    whole = described()
    u = torch.linspace(1, 0, whole["steps"])
    times = (whole["timestep_shift"] * u / (1 + (whole["timestep_shift"] - 1) * u)).tolist()
    start, end = settings["cfg_interval"]
    a, b = settings["cfg_text_scale"], settings["cfg_img_scale"]
    x = noise
    for time, following in pairwise(times):
        v = flows["main"](x, time)
        if start < time <= end:
            without_text = flows["cfg_text"](x, time)
            guided = without_text + a * (v - without_text)
            if kind == "text_channel":
                guided = guided * length_ratio(v, guided, (-1,), least)
            if b > 1:
                without_image = flows["cfg_img"](x, time)
                guided = without_image + b * (guided - without_image)
            if kind != "text_channel":
                guided = guided * length_ratio(v, guided, (-1,) if kind == "channel" else (-2, -1), least)
            v = guided
        x = x - v * (time - following)
    return x


def flows_of(contexts: Contexts, branches: Mapping[str, Context]) -> dict[str, Flow]:
    def flow(context: Context) -> Flow:
        return lambda x, time: contexts.velocity([context], x[None], time, GRID)[0]

    return {name: flow(context) for name, context in branches.items()}


def test_text_to_image(contexts: Contexts, autoencoder: Autoencoder) -> None:
    io = golden()
    main, empty = contexts.new(), contexts.new()
    contexts.read_texts([main], [wrapped(io["t2i_prompt_ids"])])
    flows = flows_of(contexts, {"main": main, "cfg_text": empty})
    found = denoised(io["t2i_noise"], flows, described()["t2i"], "global", 0.0)
    torch.testing.assert_close(found, io["t2i_latents"], rtol=0, atol=TOLERANCE)
    image = autoencoder.decode(from_tokens(found[None], GRID, 2))
    torch.testing.assert_close(image, io["t2i_image"], rtol=0, atol=TOLERANCE)
    assert main.table.length == 7
    assert empty.table.length == 0


@pytest.mark.parametrize("kind", ["text_channel", "global", "channel"])
def test_image_editing(kind: str, contexts: Contexts, vision: Vision, autoencoder: Autoencoder) -> None:
    """The image is there twice, as latents and as it is looked at; both are one position each."""
    io, settings = golden(), described()["edit"]
    main, only_text = contexts.new(), contexts.new()
    latents = autoencoder.latents(autoencoder.encode(io["edit_image"][None]))
    contexts.read_latents(main, to_tokens(latents, 2)[0], GRID)
    contexts.read_image(main, vision(io["edit_vit_image"][None])[0])
    no_text = main.fork()
    prompt = wrapped(io["edit_prompt_ids"])
    contexts.read_texts([main, only_text], [prompt, prompt])
    assert (main.position, no_text.position, only_text.position) == (7, 2, 5)
    flows = flows_of(contexts, {"main": main, "cfg_text": no_text, "cfg_img": only_text})
    found = denoised(io["edit_noise"], flows, settings, kind, settings["renorm_min"][kind])
    torch.testing.assert_close(found, io[f"edit_latents_{kind}"], rtol=0, atol=TOLERANCE)


def test_an_answer_about_an_image(contexts: Contexts, vision: Vision) -> None:
    io = golden()
    main = contexts.new()
    contexts.read_image(main, vision(io["edit_vit_image"][None])[0])
    contexts.read_texts([main], [wrapped(io["question_ids"])])
    ids, margins = [BOS], []
    while len(ids) < len(io["answer_ids"]):
        best = contexts.read_texts([main], [ids[-1:]])[0].topk(2)
        ids.append(int(best.indices[0]))
        margins.append(float(best.values[0] - best.values[1]))
    assert min(margins) > 1e-3, "too close for two ways of adding up"
    assert ids == io["answer_ids"].tolist()
