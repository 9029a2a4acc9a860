"""The `mstar-rt` command. Whatever a caller can mend ends with one sentence on stderr and exit code 2."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib
import importlib.util
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from mstar_rt import __version__
from mstar_rt.config import load_deployment, log_level
from mstar_rt.connection_arguments import add_connection_arguments, connection
from mstar_rt.errors import ConfigError, MstarError, NotFound, nearest
from mstar_rt.model import ServedModel
from mstar_rt.top.arguments import add_arguments

BENCHMARKS = (
    "runtime", "rollout", "plan", "control", "dialects", "mixed", "speech", "images", "window", "jitter", "soak",
)  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    parser = _parser()
    args, rest = parser.parse_known_args(argv)
    if rest and args.command != "demo":
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    try:
        logging.basicConfig(level=log_level(), format="%(asctime)s %(name)s %(levelname)s %(message)s")
        return int(args.run(args, rest))
    except BrokenPipeError:
        # Whoever read our output has read enough; keep the interpreter from complaining when it flushes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        print(
            f"mstar-rt: {error.strerror or error}: {error.filename}" if error.filename else f"mstar-rt: {error}",
            file=sys.stderr,
        )
        return 2
    except MstarError as error:
        print(f"mstar-rt: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="mstar-rt", description="A real-time serving runtime for robot brains.")
    parser.add_argument("--version", action="version", version=f"mstar-rt {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    serve = commands.add_parser("serve", help="start a deployment and serve it over gRPC")
    serve.add_argument("config", help="deployment file, e.g. configs/tabletop.yaml")
    serve.add_argument("--port", type=int, help="instead of the port in the file; 0 takes a free one")
    serve.add_argument(
        "--insecure",
        action="store_true",
        help="listen beyond loopback without TLS or tokens: whoever reaches it may use it",
    )
    serve.add_argument("--parent", type=int, help=argparse.SUPPRESS)  # stop when this process ends
    serve.set_defaults(run=_serve)

    check = commands.add_parser("check", help="validate a deployment file and print what runs where")
    check.add_argument("config")
    check.set_defaults(run=_check)

    graph = commands.add_parser("graph", help="draw a model's walks")
    graph.add_argument("model", help="a model family (e.g. vjepa2_ac), or with --config a model of that deployment")
    graph.add_argument("--config", help="deployment file in which MODEL is named")
    graph.add_argument("--walk", help="draw this walk only")
    graph.add_argument("--format", choices=("text", "mermaid", "svg"), default="text")
    graph.add_argument("--output", help="write to this file instead of printing")
    graph.set_defaults(run=_graph)

    top = commands.add_parser("top", help="show sessions, rates, misses and ranks of a running server, live")
    add_arguments(top)
    top.set_defaults(run=_top)

    trace = commands.add_parser("trace", help="write what all processes of a running server did lately, for Perfetto")
    trace.add_argument("address", nargs="?", default="127.0.0.1:50051", help="host:port of a server")
    trace.add_argument("--out", required=True, help="the file to write; open it on https://ui.perfetto.dev")
    trace.add_argument("--last-s", type=float, help="only what ended within so many seconds, over 0, at most 86400")
    add_connection_arguments(trace)
    trace.set_defaults(run=_trace)

    replay = commands.add_parser("replay", help="a recorded control session against a server: the first difference")
    replay.add_argument("file", help="what a control session with record=FILE has written")
    replay.add_argument("--address", default="127.0.0.1:50051", help="host:port of a server")
    replay.add_argument("--model", help="a policy of that server, instead of the one that was recorded")
    add_connection_arguments(replay)
    replay.set_defaults(run=_replay)

    chat = commands.add_parser("chat", help="talk with a language model of a running server")
    chat.add_argument("text", nargs="?", help="what to say; without it lines of standard input, as one conversation")
    chat.add_argument("--max-tokens", type=int, help="of each answer at most; the model's default if not given")
    chat.add_argument("--temperature", type=float, help="0: always the likeliest token")
    chat.add_argument("--image", help="a PNG or JPEG file that the conversation is about")
    _add_generator_arguments(chat, _chat)

    say = commands.add_parser("say", help="let a voice of a running server speak a text, to a WAV file")
    say.add_argument("text", help="what to say")
    say.add_argument("--out", required=True, help="the WAV file to write")
    say.add_argument("--voice", help="one of the model's voices, its default if not given")
    say.add_argument("--speed", type=float, help="1: normal")
    _add_generator_arguments(say, _say)

    draw = commands.add_parser("draw", help="let a model of a running server make an image, to a PNG or JPEG file")
    draw.add_argument("text", help="what is to be seen, or with --image what is to be changed")
    draw.add_argument("--out", required=True, help="the file to write, .png, .jpg or .jpeg")
    draw.add_argument("--image", help="a PNG or JPEG file to be edited")
    draw.add_argument("--size", help="WIDTHxHEIGHT in pixels, the model's default if not given")
    draw.add_argument("--num", type=int, help="several images, with seeds one after the other; to F, F-1, F-2 ...")
    draw.add_argument("--steps", type=int, help="denoise steps, the model's default if not given")
    draw.add_argument("--think", action="store_true", help="let the model write a plan first, which is printed")
    _add_generator_arguments(draw, _draw)

    demo = commands.add_parser(
        "demo", help="simulated robots, driven by a policy and by plans; or speech and images, to files", add_help=False
    )
    demo.set_defaults(run=_demo)

    bench = commands.add_parser("bench", help="measure, side by side with the native loop")
    bench.add_argument("name", help=f"one of {', '.join(BENCHMARKS)}")
    bench.add_argument("--quick", action="store_true", help="finish in 45 seconds")
    bench.add_argument("--json", help="write the report to this file")
    bench.add_argument("--png", help="write a plot to this file")
    bench.set_defaults(run=_bench)
    return parser


def _add_generator_arguments(
    parser: argparse.ArgumentParser, run: Callable[[argparse.Namespace, list[str]], int]
) -> None:
    parser.add_argument("--model", help="a model of the server; the only one that can, if not given")
    parser.add_argument("--seed", type=int, help="equal seeds give equal results; fresh if not given")
    parser.add_argument("--address", default="127.0.0.1:50051", help="host:port of a server")
    add_connection_arguments(parser)
    parser.set_defaults(run=run)


def _serve(args: argparse.Namespace, _: list[str]) -> int:
    with _ended_by(signal.SIGINT, signal.SIGTERM):
        return _start_and_serve(args)


@contextlib.contextmanager
def _ended_by(*numbers: signal.Signals) -> Iterator[None]:
    """With status 0, until the server itself listens for them: there is nothing to drain yet."""
    before = {number: signal.signal(number, lambda *_: sys.exit(0)) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _start_and_serve(args: argparse.Namespace) -> int:
    import dataclasses

    from mstar_rt.launch import serve
    from mstar_rt.lifetime import end_with_parent

    if args.parent is not None:
        end_with_parent(args.parent, signal.SIGTERM)
    config = load_deployment(args.config)
    if args.port is not None:
        if not 0 <= args.port <= 65535:
            raise ConfigError(f"--port is {args.port}, expected 0 to 65535")
        config = dataclasses.replace(config, server=dataclasses.replace(config.server, port=args.port))
    if args.insecure:
        config = dataclasses.replace(config, server=dataclasses.replace(config.server, insecure=True))
    asyncio.run(serve(config))
    return 0


def _check(args: argparse.Namespace, _: list[str]) -> int:
    from mstar_rt.check_report import report
    from mstar_rt.launch import declare_models, edge_config, place_models, watch_config
    from mstar_rt.server.compat.listeners import check_dialects
    from mstar_rt.server.edge import check_edge_config
    from mstar_rt.server.gateway.check import check_gateway
    from mstar_rt.server.trace_dumps import check_trace_folder

    config = load_deployment(args.config)
    models = declare_models(config)
    placement = place_models(config, models)
    edge = edge_config(config)
    check_edge_config(edge)
    check_dialects(edge.dialects, models, tls=edge.tls, insecure=edge.insecure)
    if edge.http_port is not None:
        check_gateway(models)
    if trace_dir := watch_config(config).trace_dir:
        check_trace_folder(Path(trace_dir))
    for model in models.values():
        if model.checkpoint and not Path(model.checkpoint).exists():
            raise ConfigError(f"model {model.name!r}: no weights file at {model.checkpoint}; check the path")
    print(f"{args.config}: deployment {config.name!r} on {config.server.host}:{config.server.port}")
    for line in report(config, models, placement):
        print(line)
    return 0


def _graph(args: argparse.Namespace, _: list[str]) -> int:
    from mstar_rt.graph import draw

    drawing = draw(_declared(args.model, args.config).graph, args.walk, args.format)
    if args.output:
        Path(args.output).write_text(drawing)
    else:
        print(drawing)
    return 0


def _declared(model: str, config_path: str | None) -> ServedModel:
    """A model of a deployment file, or a family with its default options."""
    from mstar_rt.model.declare import declare_model
    from mstar_rt.registry import load_declare

    if config_path is None:
        declared: ServedModel = load_declare(model)(model, "", {})
        return declared
    config = load_deployment(config_path)
    by_name = {entry.name: entry for entry in config.models}
    if model not in by_name:
        raise NotFound(f"{config_path} has no model {model!r}, {nearest(model, by_name)}")
    return declare_model(config, by_name[model])


def _top(args: argparse.Namespace, _: list[str]) -> int:
    from mstar_rt.top.command import run

    return run(args)


def _trace(args: argparse.Namespace, _: list[str]) -> int:
    from mstar_rt.client import connect
    from mstar_rt.trace_file import write_chrome_trace

    with connect(args.address, **connection(args)) as client:
        trace = client.trace(args.last_s)
    write_chrome_trace(args.out, trace.processes)
    num_spans = sum(len(spans) for spans in trace.processes.values())
    print(f"{args.out}: {num_spans} spans of {', '.join(trace.processes)}")
    for process in trace.silent:
        print(f"mstar-rt: {process} did not answer, it may be in a long step: ask again", file=sys.stderr)
    return 0


def _replay(args: argparse.Namespace, _: list[str]) -> int:
    from mstar_rt.client.recording.command import run

    return run(args)


def _chat(args: argparse.Namespace, _: list[str]) -> int:
    from mstar_rt.client.generation.command import chat

    return chat(args)


def _say(args: argparse.Namespace, _: list[str]) -> int:
    from mstar_rt.client.generation.command import say

    return say(args)


def _draw(args: argparse.Namespace, _: list[str]) -> int:
    from mstar_rt.client.generation.command import draw

    return draw(args)


def _demo(_: argparse.Namespace, rest: list[str]) -> int:
    if rest[:1] not in (["speech"], ["image"]) and importlib.util.find_spec("mujoco") is None:
        raise ConfigError("the demo needs the simulator: pip install 'mstar-rt[sim]'")
    return int(importlib.import_module("sim_bridge.demo").main(rest))


def _bench(args: argparse.Namespace, _: list[str]) -> int:
    if args.name not in BENCHMARKS:
        raise NotFound(f"no benchmark {args.name!r}, {nearest(args.name, BENCHMARKS)}")
    if importlib.util.find_spec("benchmarks") is None:
        raise ConfigError("the benchmarks lie in the repository: run from a checkout, with pip install -e .")
    for option, path in (("--json", args.json), ("--png", args.png)):
        if path and not Path(path).absolute().parent.is_dir():  # it is written at the end, when minutes would be lost
            raise ConfigError(f"{option} is {path}, whose folder does not exist: make it, or write somewhere else")
    return int(importlib.import_module(f"benchmarks.{args.name}").main(args))


if __name__ == "__main__":
    sys.exit(main())
