"""A certificate authority for one test run, made with the openssl command."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from mstar_rt.server.tls import TlsFiles


@dataclass(frozen=True)
class Pair:
    cert: str
    key: str


@dataclass(frozen=True)
class Authority:
    folder: Path

    @property
    def cert(self) -> str:
        return str(self.folder / "ca.pem")

    @property
    def key(self) -> str:
        return str(self.folder / "ca.key")

    def pair(self, name: str) -> Pair:
        """Signed by it, for 127.0.0.1 and for `name`."""
        pair = Pair(str(self.folder / f"{name}.pem"), str(self.folder / f"{name}.key"))
        if not Path(pair.cert).exists():
            alternatives = "subjectAltName=IP:127.0.0.1" if name.startswith("server") else f"subjectAltName=DNS:{name}"
            _openssl(name, pair, "-addext", alternatives, "-CA", self.cert, "-CAkey", self.key)
        return pair

    def server(self, name: str = "server", client_ca: bool = False) -> TlsFiles:
        pair = self.pair(name)
        return TlsFiles(pair.cert, pair.key, self.cert if client_ca else "")


def new_authority(folder: Path, alternatives: str = "") -> Authority:
    authority = Authority(folder)
    _openssl("ca", Pair(authority.cert, authority.key), *(["-addext", alternatives] if alternatives else []))
    return authority


def _openssl(name: str, pair: Pair, *options: str) -> None:
    command = [
        "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
        "-days", "30", "-subj", f"/CN={name}", "-out", pair.cert, "-keyout", pair.key, *options,
    ]  # fmt: skip
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
