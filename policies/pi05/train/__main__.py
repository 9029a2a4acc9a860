"""Train the small tabletop policy from nothing: simulate demonstrations and learn from them.

    python -m policies.pi05.train --seed 0 --out out/policy
    python -m policies.pi05.train.evaluate --weights out/policy

One thread throughout. The stages leave files in --out: a stopped run that is told to --resume goes on from them.
"""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

import numpy as np
import torch

from mstar_rt.nn.training import RunLog
from policies.pi05.checkpoint import save_network
from policies.pi05.network import Pi05Network
from policies.pi05.train.batches import Batch, Batches
from policies.pi05.train.demonstrations import HELD_OUT_STREAM, TRAIN_STREAM, Demonstrations, record_demonstrations
from policies.pi05.train.files import STATISTICS, WEIGHTS, write_settings, write_vocabulary
from policies.pi05.train.flow_training import TrainingSettings, chunk_error, train_policy
from policies.pi05.train.network_config import TABLETOP_POLICY
from policies.pi05.train.statistics import write_statistics

_PART = 20_000
_HELD_OUT = 200
_CHECKED = 96


def main() -> None:
    arguments = _arguments()
    torch.set_num_threads(1)
    arguments.out.mkdir(parents=True, exist_ok=True)
    run = RunLog(arguments.out)
    state_path = arguments.out / "training_state.safetensors"
    if not arguments.resume:
        state_path.unlink(missing_ok=True)
    demonstrations = _demonstrations(arguments, run)
    if not (arguments.resume and state_path.exists()):
        write_statistics(arguments.out / STATISTICS, demonstrations)
        write_vocabulary(arguments.out)
    write_settings(arguments.out)
    held_out = _held_out(arguments)

    def checkpoint(step: int, network: Pi05Network) -> None:
        save_network(network, arguments.out / WEIGHTS)
        error, first = chunk_error(network, held_out, num_steps=5)
        run.log(f"step {step} error of held-out chunks, normalised: all rows {error:.4f}, first row {first:.4f}")

    settings = TrainingSettings(arguments.num_steps, checkpoint_every=arguments.checkpoint_every)
    batches = Batches(demonstrations, arguments.out)
    train_policy(TABLETOP_POLICY, batches, settings, arguments.seed, state_path, run.log, checkpoint)
    run.log("done")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m policies.pi05.train", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True, help="folder for weights, statistics, tokenizer and log")
    parser.add_argument("--num-samples", type=int, default=7 * _PART, help="labelled states to simulate")
    parser.add_argument("--num-steps", type=int, default=8000)
    parser.add_argument("--checkpoint-every", type=int, default=500)
    parser.add_argument("--resume", action="store_true", help="go on from the stages found in --out")
    return parser.parse_args()


def _demonstrations(arguments: argparse.Namespace, run: RunLog) -> Demonstrations:
    """In parts with a seed each, so that a stopped run keeps those that it has."""
    parts = []
    for part, first in enumerate(range(0, arguments.num_samples, _PART)):
        path = arguments.out / f"demonstrations_{part}.npz"
        if not (arguments.resume and path.exists()):
            size = min(_PART, arguments.num_samples - first)
            record_demonstrations(arguments.seed + part, TRAIN_STREAM, size).save(path)
            run.log(f"simulated {first + size} samples")
        parts.append(Demonstrations.load(path))
    return Demonstrations.joined(parts)


def _held_out(arguments: argparse.Namespace) -> Batch:
    """Samples without a given prefix."""
    demonstrations = record_demonstrations(arguments.seed, HELD_OUT_STREAM, _HELD_OUT)
    index = np.flatnonzero(demonstrations.prefix == 0)[:_CHECKED]
    batch = Batches(demonstrations, arguments.out).of(index, np.random.default_rng([arguments.seed, 30]))
    return dataclasses.replace(batch, prefix=torch.zeros_like(batch.prefix))


if __name__ == "__main__":
    main()
