"""Files that others must not read: keys and private keys."""

from __future__ import annotations

import os
import stat

from mstar_rt.errors import ConfigError

MAX_BYTES = 1 << 20
OTHERS = 0o077
"""Who is neither the owner nor root gets nothing."""
OTHERS_THAN_GROUP = 0o037
"""What root owns its group may read: so do secrets arrive that a cluster mounts for a server without privileges."""


def read_file(path: str, label: str) -> bytes:
    """`label` names the setting that gives `path`.

    Raises:  ConfigError: it is no plain file of at most 1 MiB that can be read.
    """
    return _read(path, label, is_secret=False)


def read_secret_file(path: str, label: str) -> bytes:
    """Raises:  ConfigError: as `read_file`, or others may read it."""
    return _read(path, label, is_secret=True)


def _read(path: str, label: str, is_secret: bool) -> bytes:
    """What is checked is what was opened: a path may lead elsewhere a moment later."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise ConfigError(f"{label}: cannot open {path}: {error.strerror}") from None
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_size > MAX_BYTES:
            raise ConfigError(f"{label}: {path} is not a plain file of at most {MAX_BYTES} bytes")
        if is_secret:
            _check_private(found, path, label)
        return os.read(fd, MAX_BYTES)
    finally:
        os.close(fd)


def _check_private(found: os.stat_result, path: str, label: str) -> None:
    if found.st_uid not in (0, os.geteuid()):
        raise ConfigError(f"{label}: {path} belongs to user {found.st_uid}, expected this one ({os.geteuid()}) or root")
    if found.st_mode & (OTHERS if found.st_uid else OTHERS_THAN_GROUP):
        raise ConfigError(
            f"{label}: others may use {path} (mode {stat.S_IMODE(found.st_mode):04o}): run chmod 600 on it, and make "
            "new keys if others were there meanwhile"
        )
