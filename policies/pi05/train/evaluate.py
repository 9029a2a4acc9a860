"""Success of the policy per instruction, in a plain loop in process, against the scripted expert and random targets.

    python -m policies.pi05.train.evaluate --weights policies/pi05/weights --episodes 50

A robot executes `--replan-every` actions of a chunk before it takes the next. With `--delay d` the next chunk comes d
ticks late, and the last one's actions are executed until then; with `--chunking prefix` they are given to the policy.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from policies.pi05.train.in_process import Chunks, InProcessPolicy
from sim_bridge.instruction_env import InstructionEnv
from sim_bridge.instruction_tasks import TASKS, InstructionTask
from sim_bridge.policy_baselines import expert_success_rate, random_success_rate

FIRST_SEED = 10_000


@dataclass(frozen=True)
class LoopSettings:
    replan_every: int = 8
    delay: int = 0
    chunking: str = "none"


@dataclass(frozen=True)
class TaskResult:
    """`reached`: share of episodes in whose last tick each task's goal was reached, whatever was asked for."""

    num_episodes: int
    num_solved: int
    ticks_to_success: list[int]
    reached: dict[str, float]
    seam_m: float = float("nan")

    @property
    def success_rate(self) -> float:
        return self.num_solved / self.num_episodes


class Episodes:
    """Episodes of one task side by side; those that have ended are left alone."""

    def __init__(self, task: InstructionTask, seeds: Sequence[int], instruction: str | None = None) -> None:
        self.task = task
        self.envs = [InstructionEnv(task.name, instruction) for _ in seeds]
        starts = [env.reset(seed=seed) for env, seed in zip(self.envs, seeds, strict=True)]
        self.observations = [observation for observation, _ in starts]
        self.infos = [info for _, info in starts]
        self.ticks: list[int | None] = [None] * len(self.envs)
        self._over = [False] * len(self.envs)
        self._tick = 0

    @property
    def running(self) -> list[int]:
        return [index for index, over in enumerate(self._over) if not over]

    def step(self, targets: dict[int, NDArray[np.floating]]) -> None:
        """One tick of the episodes that are running: a target [2] for each."""
        self._tick += 1
        for index, target in targets.items():
            if self._over[index]:
                continue
            self.observations[index], _, solved, truncated, self.infos[index] = self.envs[index].step(target)
            self._over[index] = solved or truncated
            if solved:
                self.ticks[index] = self._tick

    def result(self, seams: Sequence[float] = ()) -> TaskResult:
        solved = [ticks for ticks in self.ticks if ticks is not None]
        places = [(info["effector_xy"], info["puck_xy"], info["puck_start_xy"]) for info in self.infos]
        reached = {name: float(np.mean([task.reached(*episode) for episode in places])) for name, task in TASKS.items()}
        return TaskResult(
            len(self.envs), len(solved), solved, reached, float(np.mean(seams)) if seams else float("nan")
        )


def run_policy(policy: InProcessPolicy, episodes: Episodes, settings: LoopSettings) -> TaskResult:
    """Run episodes to their end. A seam is how far apart the last chunk and the next are at the tick of the change."""
    last: dict[int, Chunks] = {}
    seams: list[float] = []
    while running := episodes.running:
        chunks = _next_chunks(policy, episodes, running, last, settings)
        for index, chunk in zip(running, chunks, strict=True):
            if index in last:
                rest = last[index][settings.replan_every :]
                seams += [float(np.linalg.norm(row - chunk[settings.delay])) for row in rest[settings.delay :][:1]]
                chunk[: settings.delay] = rest[: settings.delay]
            last[index] = chunk
        for tick in range(settings.replan_every):
            episodes.step({index: last[index][tick] for index in running})
    return episodes.result(seams)


def _next_chunks(
    policy: InProcessPolicy, episodes: Episodes, running: list[int], last: dict[int, Chunks], settings: LoopSettings
) -> Chunks:
    observations = [episodes.observations[index] for index in running]
    instructions = [episodes.envs[index].instruction for index in running]
    given = None
    if settings.chunking == "prefix" and settings.delay and last:
        rest = slice(settings.replan_every, settings.replan_every + settings.delay)
        given = np.array([last[index][rest] for index in running])
    return policy.chunks(observations, instructions, given)


def main() -> None:
    arguments = _arguments()
    torch.set_num_threads(1)
    policy = InProcessPolicy.load(arguments.weights, arguments.num_denoise_steps)
    settings = LoopSettings(arguments.replan_every, arguments.delay, arguments.chunking)
    seeds = range(FIRST_SEED, FIRST_SEED + arguments.episodes)
    rows = []
    for task in TASKS.values():
        for instruction in (*task.held_out_phrasings,) if arguments.held_out else (task.instruction,):
            rows.append(_row(policy, task, instruction, seeds, settings, baselines=not arguments.no_baselines))
            print(_line(rows[-1]), flush=True)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m policies.pi05.train.evaluate", description=__doc__)
    parser.add_argument("--weights", type=Path, required=True, help="folder with weights, statistics and tokenizer")
    parser.add_argument("--episodes", type=int, default=50, help="of each instruction")
    parser.add_argument("--num-denoise-steps", type=int, help="instead of the policy's own")
    parser.add_argument("--replan-every", type=int, default=8)
    parser.add_argument("--delay", type=int, default=0, help="ticks")
    parser.add_argument("--chunking", choices=("none", "prefix"), default="none")
    parser.add_argument("--held-out", action="store_true", help="phrasings that were not trained on")
    parser.add_argument("--no-baselines", action="store_true")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if arguments.replan_every + arguments.delay > 16:
        parser.error("--replan-every and --delay together must not exceed the 16 actions of a chunk")
    return arguments


def _row(
    policy: InProcessPolicy,
    task: InstructionTask,
    instruction: str,
    seeds: Sequence[int],
    settings: LoopSettings,
    baselines: bool,
) -> dict[str, Any]:
    result = run_policy(policy, Episodes(task, seeds, instruction), settings)
    row = {
        "instruction": instruction,
        "task": task.name,
        "num_episodes": result.num_episodes,
        "success_rate": result.success_rate,
        "median_s": float(np.median(result.ticks_to_success)) / 20 if result.ticks_to_success else None,
        "seam_mm": round(result.seam_m * 1e3, 2),
        "reached": result.reached,
    }
    if baselines:
        same = [(task.name, seed) for seed in seeds]
        row["expert_success_rate"] = expert_success_rate(same)
        row["random_success_rate"] = random_success_rate(same)
    return row


def _line(row: dict[str, Any]) -> str:
    line = f"{row['instruction']:36} {row['success_rate']:6.1%} of {row['num_episodes']}"
    line += f"  {row['median_s'] or float('nan'):4.1f} s  seam {row['seam_mm']:5.2f} mm"
    if "expert_success_rate" in row:
        line += f"  expert {row['expert_success_rate']:.0%}  random {row['random_success_rate']:.0%}"
    others = " ".join(f"{name} {share:.0%}" for name, share in row["reached"].items() if name != row["task"])
    return f"{line}  reached else: {others}"


if __name__ == "__main__":
    main()
