"""A cable that can be cut: passes TCP connections on to an address."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

BUFFER_BYTES = 1 << 16


class Relay:
    """Cuts every connection once, when `cut_after_bytes` have passed; connections that are made later are left alone."""

    def __init__(self, address: str, cut_after_bytes: int) -> None:
        host, _, port = address.rpartition(":")
        self._target = host, int(port)
        self._left = cut_after_bytes
        self._lock = threading.Lock()
        self._ends: list[socket.socket] = []
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self.num_cut = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listening.close()
        self._cut()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listening.accept()
                far = socket.create_connection(self._target)
                self._ends += near, far
                for source, sink in ((near, far), (far, near)):
                    threading.Thread(target=self._pass_on, args=(source, sink), daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(BUFFER_BYTES):
                sink.sendall(data)
                if self._is_cut_by(len(data)):
                    self.num_cut += 1
                    self._cut()
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _is_cut_by(self, num_bytes: int) -> bool:
        with self._lock:
            before, self._left = self._left, self._left - num_bytes
            return before > 0 >= self._left

    def _cut(self) -> None:
        for end in self._ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        self._ends.clear()
