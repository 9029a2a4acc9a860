"""Files that are read again when they change, so that keys and certificates can be replaced while a server runs."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from mstar_rt.errors import ConfigError

Read = TypeVar("Read")
Stamp = tuple[tuple[int, int, int], ...]

_log = logging.getLogger(__name__)


class WatchedFiles(Generic[Read]):
    """`current` asks the file system (a microsecond a file) and is called for every connection or call. It may be
    called by any thread.

    Raises:  ConfigError: when it is made, what `read` raises.
    """

    def __init__(self, paths: Sequence[str], read: Callable[[], Read]) -> None:
        self._paths = tuple(path for path in paths if path)
        self._read = read
        self._lock = threading.Lock()
        self._stamp = self._stamp_now()
        self._value = read()

    def current(self) -> Read:
        """What the files hold. While they cannot be used, which the log says once, what they held before: whoever
        replaces two files has to do it one after the other."""
        with self._lock:
            stamp = self._stamp_now()
            if stamp != self._stamp:
                self._stamp = stamp
                try:
                    self._value = self._read()
                    _log.warning("%s changed and was read again", " or ".join(self._paths))
                except ConfigError as error:
                    _log.error("what was read before stays in use: %s", error)
            return self._value

    def _stamp_now(self) -> Stamp:
        return tuple(_stamp(path) for path in self._paths)


def _stamp(path: str) -> tuple[int, int, int]:
    try:
        found = os.stat(path)
    except OSError:
        return 0, 0, 0
    return found.st_mtime_ns, found.st_size, found.st_ino
