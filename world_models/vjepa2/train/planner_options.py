"""What the options of the planner buy: success on tabletop tasks, against how many steps a plan has to imagine.

python -m world_models.vjepa2.train.planner_options --weights world_models/vjepa2/weights/tabletop.safetensors
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mstar_rt.model.spec import check_params
from sim_bridge.camera import draw_tabletop
from sim_bridge.tasks import EPISODE_STEPS, SUCCESS_DISTANCE_M, sample_task
from world_models.planning import cem, cost
from world_models.planning.nodes import refitted
from world_models.planning.options import plan_params
from world_models.planning.settings import settings_from
from world_models.planning.tree import num_rows
from world_models.vjepa2.checkpoint import Networks, load_networks
from world_models.vjepa2.config import VJepa2Config
from world_models.vjepa2.train.evaluate import distances_of, encoded, worlds_of
from world_models.vjepa2.train.imagination import Imagination

ROWS_AT_ONCE = 512
BOTH = {"keep_elites": True, "include_mean": True}
FEW = {"num_samples": 32, "num_elites": 6, "num_iterations": 2}
CASES: dict[str, dict[str, dict[str, Any]]] = {
    "reach": {
        "32 x 3": {"num_samples": 32, "num_elites": 6},
        "16 x 2": {"num_samples": 16, "num_elites": 4, "num_iterations": 2},
        "16 x 2, keep_elites, include_mean": {"num_samples": 16, "num_elites": 4, "num_iterations": 2, **BOTH},
        "16 x 2, mppi": {"num_samples": 16, "num_elites": 4, "num_iterations": 2, "planner": "mppi"},
        "32 x 3, l2": {"num_samples": 32, "num_elites": 6, "cost": "l2"},
        "32 x 3, cosine": {"num_samples": 32, "num_elites": 6, "cost": "cosine"},
    },
    "push": {
        "64 x 3": {},
        "64 x 3, cold": {"warm_start": False},
        "64 x 3, tree 16 2 2": {"tree_branching": (16.0, 2.0, 2.0)},
        "64 x 3, mppi": {"planner": "mppi"},
        "32 x 2": FEW,
        "32 x 2, cold": {**FEW, "warm_start": False},
        "32 x 2, keep_elites, include_mean": {**FEW, **BOTH},
        "32 x 2, tree 8 2 2": {**FEW, "tree_branching": (8.0, 2.0, 2.0)},
        "32 x 2, mppi": {**FEW, "planner": "mppi"},
        "32 x 2, mppi, keep_elites, include_mean": {**FEW, **BOTH, "planner": "mppi"},
        "32 x 2, mppi, tree 8 2 2": {**FEW, "planner": "mppi", "tree_branching": (8.0, 2.0, 2.0)},
        "16 x 2, mppi": {"num_samples": 16, "num_elites": 6, "num_iterations": 2, "planner": "mppi"},
        "32 x 2, cosine": {**FEW, "cost": "cosine"},
    },
}
HORIZONS = {"reach": 1, "push": 3}


class ManyPlans:
    """The planner of the walk, for E episodes whose candidates are imagined in one batch."""

    def __init__(self, networks: Networks, config: VJepa2Config, options: Mapping[str, Any], num_episodes: int) -> None:
        self._predictor = networks.predictor
        params = plan_params(config.planner, config.predictor.max_frames)
        self._params: Mapping[str, Any] = check_params(params, {"warm_start": True, **options}, "plan")
        self._settings = settings_from(self._params)
        self._rng_states = [cem.seeded_rng_state(episode) for episode in range(num_episodes)]
        self._warm: list[torch.Tensor | None] = [None] * num_episodes

    @property
    def num_imagined(self) -> int:
        """Steps that one plan imagines."""
        rows = num_rows(self._params["rollout_horizon"], self._settings.num_samples, self._settings.branching)
        return rows * int(self._params["num_iterations"])

    @torch.inference_mode()
    def plan(self, latents: torch.Tensor, goals: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        """latents and goals [E, P, D], states [E, 7] -> actions [E, H, 7]."""
        horizon, settings = self._params["rollout_horizon"], self._settings
        gaussians = [cem.initial_gaussian(horizon, settings, warm) for warm in self._warm]
        kept = [(torch.zeros(0, horizon, 7), torch.zeros(0))] * len(latents)
        for _ in range(self._params["num_iterations"]):
            drawn = torch.stack([self._draw(episode, gaussian) for episode, gaussian in enumerate(gaussians)])
            costs = self._costs(latents, goals, states, drawn)
            for episode, gaussian in enumerate(gaussians):
                actions = torch.cat([drawn[episode], kept[episode][0]])
                all_costs = torch.cat([costs[episode], kept[episode][1]])
                elites = cem.elites_of(all_costs, settings)
                _, gaussians[episode] = refitted(gaussian, actions[elites], all_costs[elites], settings)
                if settings.keep_elites:
                    kept[episode] = (actions[elites], all_costs[elites])
        if self._params["warm_start"]:
            self._warm = [cem.shifted(gaussian.mean) for gaussian in gaussians]
        return torch.stack([cem.finished_plan(gaussian.mean) for gaussian in gaussians])

    def _draw(self, episode: int, gaussian: cem.Gaussian) -> torch.Tensor:
        settings = self._settings
        noise, self._rng_states[episode] = cem.draw_noise(
            self._rng_states[episode], settings.num_samples, len(gaussian.mean), settings.branching
        )
        return cem.candidates(gaussian, noise, settings)

    def _costs(
        self, latents: torch.Tensor, goals: torch.Tensor, states: torch.Tensor, actions: torch.Tensor
    ) -> torch.Tensor:
        """actions [E, N, H, 7] -> [E, N]."""
        num_samples, costs = actions.shape[1], []
        parts = zip(
            *(part.split(max(1, ROWS_AT_ONCE // num_samples)) for part in (latents, states, actions)), strict=True
        )
        for frames, poses, moves in parts:
            imagined, state = frames.repeat_interleave(num_samples, 0), poses.repeat_interleave(num_samples, 0)
            imagination = Imagination(self._predictor, len(imagined))
            for move in moves.flatten(0, 1).unbind(1):
                imagined, state = imagination.step(imagined, move, state), state + move
            costs.append(imagined.unflatten(0, (-1, num_samples)))
        ends = torch.cat(costs)
        return torch.stack(
            [cost.distance(end, goal, self._params["cost"]) for end, goal in zip(ends, goals, strict=True)]
        )


def final_distances_m(networks: Networks, plans: ManyPlans, kind: str, seeds: range) -> np.ndarray:
    """Distance to the goal at the end of each episode; every step plans anew and takes the plan's first action."""
    tasks = [sample_task(kind, seed) for seed in seeds]
    goals = encoded(networks.encoder, [task.goal_image for task in tasks])
    worlds = worlds_of(tasks)
    for _ in range(EPISODE_STEPS[tasks[0].kind]):
        latents = encoded(networks.encoder, [draw_tabletop(world.effector_xy, world.puck_xy) for world in worlds])
        states = torch.zeros(len(worlds), 7)
        states[:, :2] = torch.tensor(np.array([world.effector_xy for world in worlds]))
        actions = plans.plan(latents, goals, states)
        for world, action in zip(worlds, actions[:, 0, :2].numpy(), strict=True):
            world.move(action)
    return distances_of(tasks, worlds)


def main() -> None:
    arguments = _arguments()
    torch.set_num_threads(1)
    config = VJepa2Config.from_json(arguments.weights.with_suffix(".json"))
    networks = load_networks(config, arguments.weights)
    seeds = range(arguments.first_seed, arguments.first_seed + arguments.num_episodes)
    for kind in arguments.tasks:
        for name, options in CASES[kind].items():
            if arguments.only not in name:
                continue
            plans = ManyPlans(networks, config, {"rollout_horizon": HORIZONS[kind], **options}, len(seeds))
            final_m = final_distances_m(networks, plans, kind, seeds)
            row = {"task": kind, "case": name, "imagined_steps_per_plan": plans.num_imagined, **_described(final_m)}
            print(json.dumps(row), flush=True)


def _described(final_m: np.ndarray) -> dict[str, float]:
    return {
        "success_rate": round(float((final_m <= SUCCESS_DISTANCE_M).mean()), 3),
        "median_final_mm": round(float(np.median(final_m)) * 1000, 1),
        "mean_final_mm": round(float(final_m.mean()) * 1000, 1),
    }


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m world_models.vjepa2.train.planner_options")
    parser.add_argument("--weights", type=Path, required=True, help="a .safetensors with its .json beside it")
    parser.add_argument("--tasks", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--only", default="", help="cases whose name holds this")
    parser.add_argument("--num-episodes", type=int, default=32)
    parser.add_argument("--first-seed", type=int, default=40_000)
    return parser.parse_args()


if __name__ == "__main__":
    main()
