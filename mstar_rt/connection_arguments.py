"""How a command reaches a server: options, or else the environment. Light, as every command builds the whole parser."""

from __future__ import annotations

import argparse

from mstar_rt.config import connection_environment
from mstar_rt.errors import ConfigError
from mstar_rt.secret_files import read_secret_file


def add_connection_arguments(parser: argparse.ArgumentParser) -> None:
    """There is none for the token itself: everybody on a machine sees the arguments of its processes."""
    parser.add_argument("--token-file", help="file with the token, readable by you alone (or MSTAR_TOKEN: the token)")
    parser.add_argument("--tls-ca-file", help="PEM file of who signed the server's certificate (or MSTAR_TLS_CA_FILE)")
    parser.add_argument("--tls-cert-file", help="PEM certificate of this client (or MSTAR_TLS_CERT_FILE)")
    parser.add_argument("--tls-key-file", help="the key to it (or MSTAR_TLS_KEY_FILE)")


def connection(args: argparse.Namespace) -> dict[str, str]:
    """What `connect` takes beside the address.

    Raises:  ConfigError: the token's file cannot be used.
    """
    given = {name: getattr(args, name) for name in ("tls_ca_file", "tls_cert_file", "tls_key_file")}
    found = {**connection_environment(), **{name: value for name, value in given.items() if value is not None}}
    if args.token_file is not None:
        words = read_secret_file(args.token_file, "--token-file").decode("ascii", "replace").split()
        if len(words) != 1:
            raise ConfigError(f"--token-file: {args.token_file} holds {len(words)} words, expected the token alone")
        found["token"] = words[0]
    return found
