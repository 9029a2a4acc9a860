"""The private directory in which a deployment's sockets lie.

Its name carries the owner's process id for people; whether the owner lives is decided by a lock that the
kernel drops when the owner dies, however it dies. The next deployment to start removes what dead ones left
behind.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import shutil
import stat
import tempfile
from pathlib import Path

from mstar_rt.errors import FailedPrecondition

MAX_SOCKET_PATH_BYTES = 107
"""Of a Unix socket's address on Linux (108 with the final zero)."""

_LONGEST_SOCKET_NAME = 48
_OWNER_LOCK = "owner.lock"
_NAME = re.compile(r"mstar-rt-(?P<uid>\d+)-(?P<pid>\d+)-[0-9a-f]{8}")


class DeploymentDirectory:
    """A directory with mode 0700 that this process owns until `remove`."""

    def __init__(self, path: Path, lock_fd: int) -> None:
        self.path = path
        self._lock_fd: int | None = lock_fd

    @classmethod
    def create(cls, base: Path | None = None) -> DeploymentDirectory:
        """Sweep dead deployments out of `base` (default: the system's temporary directory), then make a new
        directory.

        Raises:  FailedPrecondition: `base` is missing, not writable, or its path is too long for a socket.
        """
        base = _short_temporary_directory() if base is None else base
        sweep_dead(base)
        while True:
            path = base / f"mstar-rt-{os.geteuid()}-{os.getpid()}-{secrets.token_hex(4)}"
            if len(os.fsencode(path)) + _LONGEST_SOCKET_NAME > MAX_SOCKET_PATH_BYTES:
                raise FailedPrecondition(
                    f"the path {path} is too long for sockets: with a file name it must fit "
                    f"{MAX_SOCKET_PATH_BYTES} bytes, choose a shorter base directory"
                )
            try:
                path.mkdir(mode=0o700)
            except OSError as error:
                raise FailedPrecondition(f"the sockets' directory {path} cannot be made: {error.strerror}") from error
            lock_fd = lock_file(path / _OWNER_LOCK)
            if lock_fd is not None:
                return cls(path, lock_fd)
            # Another deployment's sweep took our fresh directory for a dead one's: it removes it, we make
            # another.

    def remove(self) -> None:
        """Delete the directory with all sockets in it. Idempotent."""
        if self._lock_fd is not None:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock_fd)
            self._lock_fd = None


def sweep_dead(base: Path) -> list[Path]:
    """Remove the directories under `base` whose owners are dead, of this user only; returns them."""
    swept = []
    for path in sorted(base.glob("mstar-rt-*-*-*")):
        match = _NAME.fullmatch(path.name)
        if match is None or int(match["uid"]) != os.geteuid() or not _is_own_directory(path):
            continue
        # Made and not yet locked: its owner is about to lock it, unless it died in between.
        if not (path / _OWNER_LOCK).exists() and Path(f"/proc/{match['pid']}").exists():
            continue
        lock_fd = lock_file(path / _OWNER_LOCK)
        if lock_fd is not None:
            shutil.rmtree(path, ignore_errors=True)
            os.close(lock_fd)
            swept.append(path)
    return swept


def lock_file(path: Path) -> int | None:
    """The descriptor that holds an exclusive lock on `path` until closed, by us or by our death.

    None if a living process holds it, or if the directory vanished.
    """
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # A sweep may have unlinked the file between open and lock: then the lock protects nothing.
        if os.stat(path).st_ino == os.fstat(fd).st_ino:
            return fd
    except (BlockingIOError, FileNotFoundError):
        pass
    os.close(fd)
    return None


def _is_own_directory(path: Path) -> bool:
    try:
        status = path.lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()


def _short_temporary_directory() -> Path:
    """The temporary directory, or /tmp where that is too deep for the path limit of sockets."""
    temporary = Path(tempfile.gettempdir())
    longest_name = len(f"/mstar-rt-{os.geteuid()}-{2**22}-{'0' * 8}") + _LONGEST_SOCKET_NAME
    return temporary if len(os.fsencode(temporary)) + longest_name <= MAX_SOCKET_PATH_BYTES else Path("/tmp")  # noqa: S108
