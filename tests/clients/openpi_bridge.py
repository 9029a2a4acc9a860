"""openpi's own client, unchanged, for a program that needs another numpy: what comes in on standard input is sent to the
server, what it answers goes to standard output. Messages are msgpack after their length, four bytes.

    python openpi_bridge.py HOST PORT [API_KEY]
"""

from __future__ import annotations

import sys
from typing import Any

from openpi_client import msgpack_numpy
from openpi_client.websocket_client_policy import WebsocketClientPolicy


def say(message: Any) -> None:
    data = msgpack_numpy.packb(message)
    sys.stdout.buffer.write(len(data).to_bytes(4, "big") + data)
    sys.stdout.buffer.flush()


def main(host: str, port: str, api_key: str | None = None) -> None:
    client = WebsocketClientPolicy(host, int(port), api_key)
    say(client.get_server_metadata())
    while header := sys.stdin.buffer.read(4):
        message = msgpack_numpy.unpackb(sys.stdin.buffer.read(int.from_bytes(header, "big")))
        try:
            say(client.infer(message))
        except Exception as error:
            say({"raised": type(error).__name__, "said": str(error)})


main(*sys.argv[1:])
