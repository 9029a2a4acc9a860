"""`mstar-rt demo policy`: robots that are told in words what to do, driven at 20 Hz by a served policy, with real-time
chunking on and off, and with more and more delay between them and the server."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mstar_rt.errors import InvalidArgument
from sim_bridge.demo_arguments import add_server_arguments, server_access
from sim_bridge.instruction_tasks import TASKS
from sim_bridge.policy_baselines import expert_success_rate, random_success_rate
from sim_bridge.policy_dashboard import PolicyDashboard
from sim_bridge.policy_episode import PolicyEpisode
from sim_bridge.policy_fleet import FleetRun, PolicySetting, run_setting
from sim_bridge.policy_recorder import plot_seams, save_video
from sim_bridge.policy_summary import summarize_run
from sim_bridge.server_process import served_or_given

CONFIG = Path(__file__).parents[1] / "configs" / "tabletop_policy.yaml"
MODEL = "policy"
FIRST_SEED = 20_000
"""Neither training nor the policy's evaluation uses seeds from here on."""
CONTINUED = "prefix"
REQUIRED_SUCCESS = 0.8
"""Of the robots without added delay and with chunks that continue each other."""
RANDOM_LIMIT = 0.2
VIDEO_ROBOTS = 5
MODES = ("off", "prefix", "guided", "guided_identity", "temporal_ensemble")


def main(argv: Sequence[str] | None = None) -> int:
    args = _arguments(argv)
    access = server_access(args)
    if "tls_ca_file" in access and any(args.delays_ms):
        raise InvalidArgument(
            "--delays-ms adds delay by a relay on 127.0.0.1, where a TLS certificate of the server is not known: give 0"
        )
    output = Path(args.output)
    output.mkdir(parents=True, exist_ok=True)
    episodes = _episodes(args)
    settings = [_setting(args, mode, delay_ms) for delay_ms in args.delays_ms for mode in args.chunking]
    with served_or_given(CONFIG, args.address, MODEL, access) as address:
        baselines = {"expert": expert_success_rate(episodes), "random": random_success_rate(episodes)}
        runs, rows = asyncio.run(_run(address, access, settings, episodes))
    summary = {"success_of_baselines": baselines, "first_seed": args.seed, "settings": rows}
    (output / "summary.json").write_text(json.dumps(summary, indent=1))
    _record(output, runs)
    return _verdict(summary, output)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="mstar-rt demo policy", description=__doc__)
    parser.add_argument("--robots", type=int, default=10, help="robots at once; their chunks share steps")
    parser.add_argument("--episodes", type=int, default=20, help="episodes in each setting, the tasks in turn")
    parser.add_argument("--replan-every", type=int, default=5, help="ticks between two observations of a robot")
    parser.add_argument(
        "--delays-ms", type=float, nargs="+", default=[0.0, 100.0, 300.0], help="added between server and robots"
    )
    parser.add_argument("--chunking", nargs="+", choices=MODES, default=["off", CONTINUED])
    parser.add_argument("--seed", type=int, default=FIRST_SEED, help="seed of the first episode of each setting")
    add_server_arguments(parser)
    parser.add_argument("--output", default="out/demo/policy", help="folder for summary.json, video and plot")
    args = parser.parse_args(argv)
    for name in ("robots", "episodes", "replan_every"):
        if getattr(args, name) < 1:
            raise InvalidArgument(f"--{name.replace('_', '-')} is {getattr(args, name)}, expected at least 1")
    for delay_ms in args.delays_ms:
        if not 0 <= delay_ms <= 1000:
            raise InvalidArgument(f"--delays-ms has {delay_ms}, expected 0 to 1000")
    if args.seed < 0:
        raise InvalidArgument(f"--seed is {args.seed}, expected at least 0")
    return args


def _episodes(args: argparse.Namespace) -> list[tuple[str, int]]:
    """(task, seed): the same for every setting."""
    names = tuple(TASKS)
    return [(names[index % len(names)], args.seed + index) for index in range(args.episodes)]


def _setting(args: argparse.Namespace, mode: str, delay_ms: float) -> PolicySetting:
    return PolicySetting(
        chunking=None if mode == "off" else mode,
        added_delay_s=delay_ms / 1e3,
        replan_every=args.replan_every,
        num_robots=min(args.robots, args.episodes),
        model=MODEL,
    )


async def _run(
    address: str, access: Mapping[str, str], settings: Sequence[PolicySetting], episodes: Sequence[tuple[str, int]]
) -> tuple[list[FleetRun], list[dict[str, Any]]]:
    """Each setting's run, and its row of the table."""
    runs, rows = [], []
    with PolicyDashboard(len(settings)) as dashboard:
        for setting in settings:
            dashboard.on_start(setting.name)
            run = await run_setting(address, setting, episodes, dashboard.on_episode, access)
            runs.append(run)
            rows.append(summarize_run(run))
            dashboard.on_setting(rows[-1])
    return runs, rows


def _record(output: Path, runs: Sequence[FleetRun]) -> None:
    """Of the settings with the most added delay, where chunking matters most: the same episodes one above the other."""
    most_s = max(run.setting.added_delay_s for run in runs)
    slowest = {run.setting.name: run.episodes for run in runs if run.setting.added_delay_s == most_s}
    seen: dict[str, list[PolicyEpisode]] = {
        f"chunking {name}": [each for each in episodes if each.ticks][:VIDEO_ROBOTS]
        for name, episodes in slowest.items()
    }
    seen = {name: episodes for name, episodes in seen.items() if episodes}
    if seen:
        save_video(output / "episodes.mp4", seen)
        plot_seams(output / "seams.png", {name: episodes[0] for name, episodes in seen.items()})


def _verdict(summary: Mapping[str, Any], output: Path) -> int:
    """0 only if the robots did what they should, and it was not easy."""
    baselines, rows = summary["success_of_baselines"], summary["settings"]
    print(f"scripted expert {baselines['expert']:.2f}, random targets {baselines['random']:.2f}; see {output}/")
    for row in rows:
        if row["refusals"]:
            num_asked = row["num_robots"] + len(row["refusals"])
            print(f"{row['num_robots']} of {num_asked} robots were taken on ({row['chunking']}): {row['refusals'][0]}")
    shortfalls = [error for row in rows for error in row["errors"]]
    for row in rows:
        if row["chunking"] == CONTINUED and row["added_delay_ms"] == 0 and row["success_rate"] < REQUIRED_SUCCESS:
            shortfalls.append(f"success {row['success_rate']:.2f} without added delay is under {REQUIRED_SUCCESS}")
    if baselines["random"] >= RANDOM_LIMIT:
        shortfalls.append(f"random targets solve {baselines['random']:.2f}")
    for shortfall in shortfalls:
        print(f"FALLS SHORT: {shortfall}")
    return 1 if shortfalls else 0
