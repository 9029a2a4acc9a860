"""Train the small tabletop world model from nothing: simulate, pretrain the encoder, train the predictor, evaluate.

    python -m world_models.vjepa2.train --seed 0 --out out/train

One thread throughout: the same seed on the same machine and torch build gives the same weights. The stages have seeds
of their own, so a stopped run that is told to --resume ends with the same weights too.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from mstar_rt.nn.training import RunLog
from world_models.vjepa2.checkpoint import save_networks
from world_models.vjepa2.config import preset
from world_models.vjepa2.encoder import Encoder
from world_models.vjepa2.predictor import ActionPredictor
from world_models.vjepa2.train.encoder_training import train_encoder
from world_models.vjepa2.train.episodes import HELD_OUT_STREAM, TRAIN_STREAM, Episodes, record_episodes
from world_models.vjepa2.train.evaluate import imagination_errors, planning_result
from world_models.vjepa2.train.offline_planner import CemSettings
from world_models.vjepa2.train.predictor_training import WINDOW_FRAMES, Transitions, train_predictor
from world_models.vjepa2.train.probes import PositionProbe, encode_images

_PRESET = preset("tabletop")
CONFIG = dataclasses.replace(
    _PRESET, predictor=dataclasses.replace(_PRESET.predictor, trained_frames=WINDOW_FRAMES - 1)
)


def main() -> None:
    arguments = _arguments()
    torch.set_num_threads(1)
    arguments.out.mkdir(parents=True, exist_ok=True)
    run = RunLog(arguments.out)
    state_path = arguments.out / "predictor_state.safetensors"
    if not arguments.resume:
        state_path.unlink(missing_ok=True)
    train = record_episodes(arguments.seed, TRAIN_STREAM, arguments.num_episodes)
    held_out = record_episodes(arguments.seed, HELD_OUT_STREAM, max(1, arguments.num_episodes // 50))
    run.log(f"recorded {len(train.images)} episodes, the puck moves in {train.share_with_contact:.0%} of transitions")
    encoder = _encoder(arguments, train, run)
    latents = encode_images(encoder, _frames(train.images))
    held_out_latents = encode_images(encoder, _frames(held_out.images))
    _report_probe(latents, train, held_out_latents, held_out, run)
    transitions, held_out_transitions = (
        Transitions.of(train, latents),
        Transitions.of(held_out, held_out_latents),
    )
    del train

    def checkpoint(step: int, predictor: ActionPredictor) -> None:
        _write(arguments.out / "tabletop.safetensors", encoder, predictor)
        run.log(f"step {step} {_imagination_summary(predictor, held_out_transitions)}")

    predictor = train_predictor(
        CONFIG.predictor, transitions, arguments.predictor_steps, arguments.seed, run.log,
        state_path=state_path, checkpoint=checkpoint,
        checkpoint_every=arguments.checkpoint_every,
    )  # fmt: skip
    _write(arguments.out / "tabletop.safetensors", encoder, predictor)
    summary = _summary(encoder, predictor, held_out_transitions, arguments.num_tasks)
    (arguments.out / "summary.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    run.log(f"done: {summary}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m world_models.vjepa2.train", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True, help="folder for weights, log and summary")
    parser.add_argument("--num-episodes", type=int, default=8000)
    parser.add_argument("--encoder-steps", type=int, default=6000)
    parser.add_argument("--predictor-steps", type=int, default=12000)
    parser.add_argument("--checkpoint-every", type=int, default=2000)
    parser.add_argument("--num-tasks", type=int, default=50, help="planning tasks of each kind in the last evaluation")
    parser.add_argument("--resume", action="store_true", help="go on from the stages found in --out")
    return parser.parse_args()


def _encoder(arguments: argparse.Namespace, train: Episodes, run: RunLog) -> Encoder:
    path = arguments.out / "encoder.safetensors"
    if arguments.resume:
        encoder = Encoder(CONFIG.encoder)
        encoder.load_state_dict(load_file(str(path)))
        return encoder.eval()
    encoder = train_encoder(CONFIG.encoder, train, arguments.encoder_steps, arguments.seed, run.log)
    save_file(encoder.state_dict(), str(path))
    return encoder


def _report_probe(
    latents: torch.Tensor, train: Episodes, held_out_latents: torch.Tensor, held_out: Episodes, run: RunLog
) -> None:
    truth = _positions(held_out)
    probe = PositionProbe(latents[:8000], _positions(train)[:8000])
    error_mm = np.abs(probe(held_out_latents).numpy() - truth).mean(0) * 1000
    run.log("probe, mean absolute error in mm, rod x y, puck x y: " + " ".join(f"{value:.1f}" for value in error_mm))


def _write(path: Path, encoder: Encoder, predictor: ActionPredictor) -> None:
    save_networks(encoder, predictor, path)
    CONFIG.to_json(path.with_suffix(".json"))


def _imagination_summary(predictor: ActionPredictor, held_out: Transitions) -> dict[str, dict[str, float]]:
    return {
        f"imagination_{step}": {"latent_l1": round(error, 4), "persistence_l1": round(persistence, 4)}
        for step, (error, persistence) in imagination_errors(predictor, held_out).items()
    }


def _summary(
    encoder: Encoder, predictor: ActionPredictor, held_out: Transitions, num_tasks: int
) -> dict[str, dict[str, float]]:
    summary = _imagination_summary(predictor, held_out)
    for kind, horizon in (("reach", 1), ("push", 3)):
        result = planning_result(
            encoder, predictor, kind, CemSettings(rollout_horizon=horizon), range(10_000, 10_000 + num_tasks)
        )
        summary[kind] = {
            "num_episodes": num_tasks,
            "success_rate": result.success_rate,
            "random_policy_success_rate": result.random_success_rate,
            "median_final_mm": round(float(np.median(result.planned_m)) * 1000, 1),
        }
    return summary


def _frames(images: np.ndarray) -> np.ndarray:
    return images.reshape(-1, *images.shape[2:])


def _positions(episodes: Episodes) -> np.ndarray:
    return np.concatenate((episodes.effector, episodes.puck), -1).reshape(-1, 4)


if __name__ == "__main__":
    main()
