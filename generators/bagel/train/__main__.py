"""Train the small model that draws shapes: first its autoencoder, then everything else at once, and evaluate it.

    python -m generators.bagel.train --seed 0 --out out/shapes
    python -m generators.bagel.train.evaluate --weights out/shapes/published

One thread throughout. The stages leave files in --out: a stopped run that is told to --resume goes on from them.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file

from generators.bagel.autoencoder import Autoencoder, to_tokens
from generators.bagel.train.autoencoder_training import AutoencoderSettings, train_autoencoder
from generators.bagel.train.bank import Bank
from generators.bagel.train.batches import Batches, BatchSizes
from generators.bagel.train.dimensions import SHAPES_MODEL
from generators.bagel.train.evaluate import OFF, Evaluation, accuracy, drawing_params, editing_params, summary
from generators.bagel.train.files import read_scale, save_scale, save_shapes, write_vocabulary
from generators.bagel.train.flow_training import BothNetworks, FlowSettings, train_flow
from generators.bagel.train.pictures import to_pictures, to_pixels
from generators.bagel.train.sampling import Painter
from mstar_rt.nn.training import RunLog
from sim_bridge.shapes import draw, held_out_scenes, judge

_CHECKED = 40
"""Scenes of the short evaluation at a checkpoint."""


def main() -> None:
    arguments = _arguments()
    torch.set_num_threads(1)
    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    run = RunLog(out)
    states = {stage: out / f"{stage}_state.safetensors" for stage in ("autoencoder", "flow")}
    latents = out / "latents.safetensors"
    if not arguments.resume:
        for file in (*states.values(), latents):
            file.unlink(missing_ok=True)
    autoencoder = _autoencoder(arguments, states["autoencoder"], run)
    config = dataclasses.replace(SHAPES_MODEL, autoencoder=autoencoder.config)
    vocabulary = write_vocabulary(out)

    @torch.no_grad()
    def encode(pictures: NDArray[np.uint8]) -> torch.Tensor:
        return to_tokens(autoencoder.latents(autoencoder.encode(to_pixels(pictures))), config.latent_patch)

    bank = Bank(encode, arguments.seed, latents)
    run.log(f"{len(bank.scenes)} pictures are encoded")
    batches = Batches(bank, vocabulary, config.max_latent_side**2, BatchSizes())

    def checkpoint(step: int, both: BothNetworks) -> None:
        save_shapes(out / "published", config, both, autoencoder)
        evaluation = Evaluation(Painter(both, autoencoder, vocabulary), config)
        drawing = drawing_params(config)
        run.log(f"step {step} drawing without guidance {evaluation.drawing(drawing | OFF, _CHECKED)}")
        run.log(f"step {step} drawing {evaluation.drawing(drawing, _CHECKED)}")
        run.log(f"step {step} editing {evaluation.editing(editing_params(config), _CHECKED)}")
        run.log(f"step {step} describing {evaluation.describing(_CHECKED)}")

    settings = FlowSettings(arguments.num_steps, checkpoint_every=arguments.checkpoint_every)
    both = train_flow(config, batches, settings, arguments.seed, states["flow"], run.log, checkpoint)
    results = summary(Painter(both, autoencoder, vocabulary), config, run.log)
    (out / "summary.json").write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    run.log("done")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m generators.bagel.train", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True, help="folder for weights, tokenizer, log and summary")
    parser.add_argument("--autoencoder-steps", type=int, default=3000)
    parser.add_argument("--num-steps", type=int, default=6000, help="of everything but the autoencoder")
    parser.add_argument("--checkpoint-every", type=int, default=500)
    parser.add_argument(
        "--bfloat16", action="store_true",
        help="multiply in it while the autoencoder is trained: 1.6 times as fast on processors that can",
    )  # fmt: skip
    parser.add_argument("--resume", action="store_true", help="go on from the stages found in --out")
    return parser.parse_args()


def _autoencoder(arguments: argparse.Namespace, state: Path, run: RunLog) -> Autoencoder:
    weights, scale = arguments.out / "autoencoder.safetensors", arguments.out / "autoencoder.json"
    if arguments.resume and weights.exists() and scale.exists():
        autoencoder = Autoencoder(read_scale(scale, SHAPES_MODEL.autoencoder))
        autoencoder.load_state_dict(load_file(str(weights)))
        return autoencoder.half().float().requires_grad_(False)
    settings = AutoencoderSettings(arguments.autoencoder_steps, is_bfloat16=arguments.bfloat16)
    autoencoder = train_autoencoder(SHAPES_MODEL.autoencoder, settings, arguments.seed, state, run.log)
    save_file(autoencoder.state_dict(), str(weights))
    save_scale(scale, autoencoder.config)
    scenes = held_out_scenes()
    before = np.array([draw(scene) for scene in scenes])
    with torch.no_grad():
        after = to_pictures(autoencoder.decode(autoencoder.latents(autoencoder.encode(to_pixels(before)))))
    error = np.abs(after.astype(float) - before).mean()
    seen = accuracy([judge(picture) for picture in after], scenes)
    run.log(f"autoencoder done, mean error {error:.2f} of 255, the judge sees {seen}")
    return autoencoder


if __name__ == "__main__":
    main()
