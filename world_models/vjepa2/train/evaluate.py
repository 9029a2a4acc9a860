"""How good a trained model is: imagination error against doing nothing, planning success against a random policy.

python -m world_models.vjepa2.train.evaluate --weights world_models/vjepa2/weights/tabletop.safetensors
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from pathlib import Path

import numpy as np
import torch

from sim_bridge.camera import draw_tabletop
from sim_bridge.tabletop_physics import MAX_DISPLACEMENT_M, TabletopPhysics
from sim_bridge.tasks import EPISODE_STEPS, SUCCESS_DISTANCE_M, Task, sample_task
from world_models.vjepa2.checkpoint import load_networks
from world_models.vjepa2.config import VJepa2Config
from world_models.vjepa2.encoder import Encoder
from world_models.vjepa2.predictor import ActionPredictor
from world_models.vjepa2.train.imagination import Imagination
from world_models.vjepa2.train.offline_planner import CemSettings, OfflinePlanner
from world_models.vjepa2.train.predictor_training import Transitions
from world_models.vjepa2.train.targets import normalise_images


@torch.no_grad()
def imagination_errors(
    predictor: ActionPredictor, held_out: Transitions, steps: tuple[int, ...] = (1, 3, 5)
) -> dict[int, tuple[float, float]]:
    """For each rollout length: mean latent L1 of the imagined frame, and of the first frame left as it is."""
    starts = range(0, held_out.states.shape[1] - max(steps), 3)
    errors: dict[int, list[tuple[float, float]]] = {step: [] for step in steps}
    for start in starts:
        first = imagined = held_out.latents[:, start].float()
        state = held_out.states[:, start]
        imagination = Imagination(predictor, len(state))
        for step in range(1, max(steps) + 1):
            action = held_out.actions[:, start + step - 1]
            imagined = imagination.step(imagined, action, state)
            state = state + action
            if step in errors:
                truth = held_out.latents[:, start + step].float()
                errors[step].append(((imagined - truth).abs().mean().item(), (first - truth).abs().mean().item()))
    means = {step: np.mean(values, axis=0) for step, values in errors.items()}
    return {step: (float(error), float(persistence)) for step, (error, persistence) in means.items()}


@dataclasses.dataclass(frozen=True)
class PlanningResult:
    """Final distances to the goals, metres, of the planner and of the random policy, one for each task."""

    tasks: list[Task]
    planned_m: np.ndarray
    random_m: np.ndarray

    @property
    def success_rate(self) -> float:
        return float((self.planned_m <= SUCCESS_DISTANCE_M).mean())

    @property
    def random_success_rate(self) -> float:
        return float((self.random_m <= SUCCESS_DISTANCE_M).mean())


def planning_result(
    encoder: Encoder, predictor: ActionPredictor, kind: str, settings: CemSettings, seeds: range
) -> PlanningResult:
    tasks = [sample_task(kind, seed) for seed in seeds]
    planner = OfflinePlanner(predictor, settings, len(tasks), seed=seeds.start)
    goals = encoded(encoder, [task.goal_image for task in tasks])
    worlds = worlds_of(tasks)
    for _ in range(EPISODE_STEPS[tasks[0].kind]):
        latents = encoded(encoder, [draw_tabletop(world.effector_xy, world.puck_xy) for world in worlds])
        positions = torch.tensor(np.array([world.effector_xy for world in worlds]), dtype=torch.float32)
        plans = planner.plan(latents, goals, positions)
        for world, plan in zip(worlds, plans[:, 0].numpy(), strict=True):
            world.move(plan)
    return PlanningResult(tasks, distances_of(tasks, worlds), _random_distances(tasks))


def _random_distances(tasks: list[Task]) -> np.ndarray:
    worlds = worlds_of(tasks)
    for task, world in zip(tasks, worlds, strict=True):
        rng = np.random.default_rng(task.seed)
        for _ in range(task.num_steps):
            world.move(rng.uniform(-MAX_DISPLACEMENT_M, MAX_DISPLACEMENT_M, 2))
    return distances_of(tasks, worlds)


def worlds_of(tasks: list[Task]) -> list[TabletopPhysics]:
    worlds = [TabletopPhysics() for _ in tasks]
    for task, world in zip(tasks, worlds, strict=True):
        world.place(task.start_effector_xy, task.start_puck_xy)
    return worlds


def distances_of(tasks: list[Task], worlds: list[TabletopPhysics]) -> np.ndarray:
    return np.array([t.distance_m(w.effector_xy, w.puck_xy) for t, w in zip(tasks, worlds, strict=True)])


@torch.no_grad()
def encoded(encoder: Encoder, images: list[np.ndarray]) -> torch.Tensor:
    return encoder.encode_frames(normalise_images(torch.from_numpy(np.stack(images))))


def main() -> None:
    arguments = _arguments()
    torch.set_num_threads(1)
    config = VJepa2Config.from_json(arguments.weights.with_suffix(".json"))
    encoder, predictor = load_networks(config, arguments.weights)
    settings = CemSettings(
        arguments.rollout_horizon, arguments.num_samples, arguments.num_elites, arguments.num_iterations
    )
    for kind in arguments.tasks:
        started = time.process_time()
        seeds = range(arguments.first_seed, arguments.first_seed + arguments.num_episodes)
        result = planning_result(encoder, predictor, kind, settings, seeds)
        print(json.dumps({"task": kind, **_described(result), "cpu_s": round(time.process_time() - started, 1)}))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m world_models.vjepa2.train.evaluate")
    parser.add_argument("--weights", type=Path, required=True, help="a .safetensors with its .json beside it")
    parser.add_argument("--tasks", nargs="+", default=["reach", "push"])
    parser.add_argument("--rollout-horizon", type=int, default=CemSettings.rollout_horizon)
    parser.add_argument("--num-samples", type=int, default=CemSettings.num_samples)
    parser.add_argument("--num-elites", type=int, default=CemSettings.num_elites)
    parser.add_argument("--num-iterations", type=int, default=CemSettings.num_iterations)
    parser.add_argument("--num-episodes", type=int, default=50)
    parser.add_argument("--first-seed", type=int, default=10_000)
    return parser.parse_args()


def _described(result: PlanningResult) -> dict[str, float]:
    return {
        "num_episodes": len(result.tasks),
        "success_rate": result.success_rate,
        "random_policy_success_rate": result.random_success_rate,
        "median_final_mm": round(float(np.median(result.planned_m)) * 1000, 1),
        "mean_final_mm": round(float(np.mean(result.planned_m)) * 1000, 1),
    }


if __name__ == "__main__":
    main()
