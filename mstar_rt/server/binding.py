"""A port that is taken before anything listens on it, so that one in use stops the start and not a client."""

from __future__ import annotations

import asyncio
import errno
import socket

from mstar_rt.errors import ConfigError, FailedPrecondition, MstarError


async def bound_socket(host: str, port: int, what: str) -> socket.socket:
    """`what` names the setting, e.g. "port".

    Raises:  FailedPrecondition: the port is in use.  ConfigError: it cannot be listened on.
    """
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        family, kind, protocol, _, address = found[0]
        bound = socket.socket(family, kind, protocol)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
        except BaseException:
            bound.close()
            raise
    except OSError as error:
        raise listening_error(error, host, port, what) from None
    return bound


def listening_error(error: OSError, host: str, port: int, what: str) -> MstarError:
    if error.errno == errno.EADDRINUSE:
        return port_in_use(host, port, what)
    return ConfigError(f"cannot listen on {what} {port} of {host}: {error.strerror or error}")


def port_in_use(host: str, port: int, what: str) -> FailedPrecondition:
    return FailedPrecondition(f"{what} {port} of {host} is in use: stop what listens there, or choose another port")


def address_text(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
