"""The load in a process of its own, so that it takes no time from the robots' client.

It says "running" when planner and painters have had something, and prints what came, and when, once its standard input
says stop.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from dataclasses import asdict

from benchmarks.mixed.loads import RUNNING, Came, paint, plan
from mstar_rt.client import connect_async


async def _told_to_stop(started: list[asyncio.Event]) -> None:
    for each in started:
        await each.wait()
    print(RUNNING, flush=True)
    await asyncio.to_thread(sys.stdin.readline)


async def main(arguments: argparse.Namespace) -> None:
    came, painted = Came(), asyncio.Event()
    started = [painted]
    async with connect_async(arguments.address) as client:
        running = [
            asyncio.create_task(paint(client, arguments.painter, came, painted, number))
            for number in range(arguments.num_painters)
        ]
        if arguments.planner:
            started.append(asyncio.Event())
            running.append(asyncio.create_task(plan(client, arguments.planner, came, started[-1])))
        stopped = asyncio.create_task(_told_to_stop(started))
        await asyncio.wait([stopped, *running], return_when=asyncio.FIRST_COMPLETED)
        for task in running:
            if task.done():
                task.result()  # it never returns, so it raises
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
    print(json.dumps(asdict(came)), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("address")
    parser.add_argument("--painter", required=True)
    parser.add_argument("--num-painters", type=int, required=True)
    parser.add_argument("--planner", default="")
    asyncio.run(main(parser.parse_args()))
