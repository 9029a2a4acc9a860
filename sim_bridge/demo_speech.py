"""`mstar-rt demo speech`: a text is spoken by a served voice, sentence by sentence, and written to a WAV file."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from mstar_rt.client import AudioPiece, Speech, SpeechStream, connect
from mstar_rt.errors import Unavailable
from sim_bridge.demo_arguments import generator_arguments, server_access
from sim_bridge.server_process import GIVEN_TIMEOUT_S, served_or_given

CONFIG = Path(__file__).parents[1] / "configs" / "voice.yaml"
MODEL = "voice"
TEXT = "Good morning. The water is on the table. I will bring it to you in a moment."


@dataclass(frozen=True)
class Figures:
    """What a listener had of it. Times are from the request on, in seconds.

    `real_time_factor`: until all was there, over how long it sounds. `silent_s`: how long a player that starts with the
    first piece had nothing to play before the last.
    """

    first_sound_s: float
    all_there_s: float
    duration_s: float
    num_pieces: int
    silent_s: float

    @property
    def real_time_factor(self) -> float:
        return self.all_there_s / self.duration_s


def main(argv: Sequence[str] | None = None) -> int:
    args = _arguments(argv)
    access = server_access(args)
    output = Path(args.output)
    output.mkdir(parents=True, exist_ok=True)
    options = {name: getattr(args, name) for name in ("voice", "speed", "seed") if getattr(args, name) is not None}
    with served_or_given(CONFIG, args.address, args.model, access) as address, connect(address, **access) as client:
        client.wait_until_serving(GIVEN_TIMEOUT_S, args.model)  # connects: what follows is timed
        speech, figures = listen(client.speak(args.model, args.text, **options), time.perf_counter)
    speech.save_wav(output / "speech.wav")
    summary = {**asdict(figures), "real_time_factor": figures.real_time_factor, "text": args.text, "options": options}
    (output / "summary.json").write_text(json.dumps(summary, indent=1))
    print(
        f"first sound after {figures.first_sound_s * 1e3:.0f} ms, all {figures.duration_s:.1f} s of it after "
        f"{figures.all_there_s * 1e3:.0f} ms in {figures.num_pieces} pieces: RTF {figures.real_time_factor:.3f}, "
        f"{figures.silent_s * 1e3:.0f} ms of unwanted silence"
    )
    print(f"{output / 'speech.wav'}: listen to it")
    return 0 if np.abs(speech.samples).max() > 0 else 1


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="mstar-rt demo speech", description=__doc__)
    parser.add_argument("text", nargs="?", default=TEXT, help=f"what is said, in English (default: {TEXT!r})")
    parser.add_argument("--voice", help="one of the model's, see docs/speech.md")
    parser.add_argument("--speed", type=float, help="1: normal, 0.5 to 2")
    parser.add_argument("--seed", type=int, help="equal seeds give equal sound")
    parser.add_argument("--output", default="out/demo/speech", help="folder for speech.wav and summary.json")
    return generator_arguments(parser, argv, MODEL, "speaks", ("text",))


def listen(stream: SpeechStream, now_s: Callable[[], float]) -> tuple[Speech, Figures]:
    """All of it, and how it came, the request having been sent just now."""
    asked_s = now_s()
    pieces: list[AudioPiece] = []
    arrivals_s: list[float] = []
    for piece in stream:
        arrivals_s.append(now_s() - asked_s)
        pieces.append(piece)
    if stream.done is None or not pieces:
        raise Unavailable("the server ended the call without a sound: run the demo again")
    speech = Speech(np.concatenate([piece.samples for piece in pieces]), pieces[0].sample_rate_hz, stream.done)
    silent_s = _silent_s(arrivals_s, [len(piece.samples) / piece.sample_rate_hz for piece in pieces])
    return speech, Figures(arrivals_s[0], now_s() - asked_s, speech.duration_s, len(pieces), silent_s)


def _silent_s(arrivals_s: Sequence[float], durations_s: Sequence[float]) -> float:
    """A player that has nothing left goes on as soon as more has come."""
    runs_dry_s, silent_s = arrivals_s[0], 0.0
    for arrived_s, duration_s in zip(arrivals_s, durations_s, strict=True):
        late_s = max(0.0, arrived_s - runs_dry_s)
        silent_s += late_s
        runs_dry_s += late_s + duration_s
    return silent_s
