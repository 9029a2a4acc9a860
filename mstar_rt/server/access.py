"""Who may use the server: its keys, and where it may listen without any."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
from dataclasses import dataclass, field

from mstar_rt.errors import ConfigError
from mstar_rt.secret_files import read_secret_file
from mstar_rt.server.watched_files import WatchedFiles

KEY = re.compile(r"[!-~]{16,1024}")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
BEARER = "bearer"


@dataclass(frozen=True)
class _Key:
    """The digest alone is kept: no log, no dump of an object and no difference in length can give the key away."""

    name: str
    digest: bytes = field(repr=False)


class Keys:
    """A file of secrets: one a line, after a name and a space if it has one. Names may repeat, so that the old and the
    new key of a client are good at the same time; `#` begins a comment line. The file is read again when it changes.
    """

    def __init__(self, path: str, label: str) -> None:
        self._file = WatchedFiles([path], lambda: _read_keys(path, label))

    @classmethod
    def load(cls, path: str, label: str = "keys file") -> Keys:
        """`label` is the setting that names the file.

        Raises:  ConfigError: it cannot be read, others may read it, it holds no key or one that is too short.
        """
        return cls(path, label)

    def check(self, given: str) -> bool:
        return self.name_of(given) is not None

    def name_of(self, given: str) -> str | None:
        """Whose key that is ("key-3": the third of the file, without a name); None: nobody's. How long this takes does
        not depend on what is given: all keys are compared, over digests."""
        digest = _digest(given)
        found = None
        for key in self._file.current():
            if hmac.compare_digest(key.digest, digest):
                found = key.name
        return found

    def name_of_bearer(self, header: str | None) -> str | None:
        """As `name_of`, of an `Authorization: Bearer <key>` header."""
        kind, _, given = (header or "").strip().partition(" ")
        return self.name_of(given.strip()) if kind.lower() == BEARER else None


def _digest(given: str) -> bytes:
    return hashlib.sha256(given.encode("utf-8", "surrogatepass")).digest()


def _read_keys(path: str, label: str) -> tuple[_Key, ...]:
    """No sentence of an error may hold any part of a line."""
    try:
        lines = read_secret_file(path, label).decode("ascii").splitlines()
    except UnicodeDecodeError:
        raise ConfigError(f"{label}: {path} holds other characters than ASCII's") from None
    keys: list[_Key] = []
    for number, line in enumerate(lines, 1):
        words = line.split()
        if words and not words[0].startswith("#"):
            keys.append(_key(words, len(keys) + 1, f"{label}: line {number} of {path}"))
    if not keys:
        raise ConfigError(f"{label}: {path} holds no key, expected one a line")
    if len({key.digest for key in keys}) < len(keys):
        raise ConfigError(f"{label}: {path} holds one key twice")
    return tuple(keys)


def _key(words: list[str], number: int, where: str) -> _Key:
    name = words[0] if len(words) == 2 else f"key-{number}"
    if len(words) > 2 or not NAME.fullmatch(name):
        raise ConfigError(f"{where} is neither a key nor a name (letters, digits, '-', '_', '.') and a key")
    if not KEY.fullmatch(words[-1]):
        raise ConfigError(f"{where} has a key of {len(words[-1])} characters, expected 16 to 1024, without spaces")
    return _Key(name, _digest(words[-1]))


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_reachable(host: str, *, has_tls: bool, has_keys: bool, insecure: bool, label: str = "host") -> None:
    """`label` is the setting that gives `host`.

    Raises:  ConfigError: other machines could use what listens there, and nothing would stop them.
    """
    if not (has_tls or has_keys or insecure or is_loopback(host)):
        raise ConfigError(
            f"{label} {host!r} can be reached from other machines and the server has no TLS and no keys: listen on "
            "127.0.0.1, give it certificates or keys, or let everybody in with `insecure: true` or --insecure"
        )


def exposure(host: str, *, has_tls: bool, has_keys: bool, knows_clients: bool) -> str | None:
    """What whoever starts the server should know about what `check_reachable` lets pass. `knows_clients`: it asks for
    their certificates."""
    if is_loopback(host):
        return None
    if not has_keys and not knows_clients:
        return f"whoever reaches {host} can use this server: it asks for no key and no certificate"
    if not has_tls:
        return f"keys for {host} travel in clear text, and so does everything else: give the server a certificate"
    return None
