"""What the parts of `mstar-rt demo` are told alike: which server they use, and a text for those that generate."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from mstar_rt.connection_arguments import add_connection_arguments, connection
from mstar_rt.errors import InvalidArgument


def add_server_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--address", help="use the server at host:port instead of starting one")
    add_connection_arguments(parser)


def server_access(args: argparse.Namespace) -> dict[str, str]:
    """What `connect` takes beside the address; nothing for a server that the demo starts, despite the environment.

    Raises:  ConfigError: the token's file cannot be used.
    """
    return {} if args.address is None else connection(args)


def generator_arguments(
    parser: argparse.ArgumentParser, argv: Sequence[str] | None, model: str, does: str, texts: Sequence[str]
) -> argparse.Namespace:
    """Those of `parser`, of the server, and which of its models, that `does` what the demo shows. `model` is what the
    demo serves itself, `texts` are the names of arguments that are texts.

    Raises:  InvalidArgument: a model that the demo does not serve, an empty text.
    """
    add_server_arguments(parser)
    parser.add_argument("--model", default=model, help=f"a model of that server that {does}")
    args = parser.parse_args(argv)
    if args.address is None and args.model != model:
        raise InvalidArgument(f"--model is {args.model}, but without --address the demo serves {model!r}")
    for name in texts:
        text = getattr(args, name)
        if text is not None and not text.strip():
            raise InvalidArgument(f"the {name} is empty, expected at least a word")
    return args
