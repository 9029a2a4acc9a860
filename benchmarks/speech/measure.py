"""Measures one case after the other and writes the report; runs in a process with a worker's settings."""

from __future__ import annotations

import argparse
import asyncio

from benchmarks.report import Report, finish
from benchmarks.served.worker_process import THREADS, arguments
from benchmarks.speech.cases import TALKER, cases, text_cases
from benchmarks.speech.deployment import checkpoint_of
from benchmarks.speech.overhead import measure_overhead
from benchmarks.speech.plot import plot
from benchmarks.speech.speech_measure import measure_speech
from benchmarks.speech.speech_systems import SpeechSystems
from benchmarks.speech.text_measure import measure_text
from benchmarks.speech.text_systems import TextSystems
from mstar_rt.client import connect_async
from mstar_rt.config import DeploymentConfig, load_deployment


def main() -> int:
    server, args = arguments()
    settings = {
        "dtype": "float32", "quick": args.quick,
        "threads": f"{THREADS} for the native loops, {THREADS} for the only worker; server and client are others",
    }  # fmt: skip
    report = Report("speech", settings)
    asyncio.run(_measure(report, load_deployment(server.file), server.address, args))
    return finish(report, args, plot)


async def _measure(report: Report, config: DeploymentConfig, address: str, args: argparse.Namespace) -> None:
    async with connect_async(address) as client:
        for size in dict.fromkeys(case.size for case in cases(args.quick)):
            systems = SpeechSystems(size, checkpoint_of(config, size), client)
            for case in cases(args.quick):
                if case.size == size:
                    await measure_speech(report, case, systems)
        for text_case in text_cases(args.quick):
            text_systems = TextSystems(text_case.model, checkpoint_of(config, text_case.model), client)
            await measure_text(report, text_case, text_systems)
            if text_case.model == TALKER:
                await measure_overhead(report, config, TALKER, text_systems, args.quick)


if __name__ == "__main__":
    raise SystemExit(main())
