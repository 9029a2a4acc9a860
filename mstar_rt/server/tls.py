"""Certificates of the server, for gRPC and for what else listens; replaced files count from the next connection on."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import Any

import grpc

from mstar_rt.errors import ConfigError
from mstar_rt.secret_files import read_file, read_secret_file
from mstar_rt.server.watched_files import WatchedFiles


@dataclass(frozen=True)
class TlsFiles:
    """Paths of PEM files. With `client_ca` a client has to show a certificate that one of its authorities signed."""

    cert: str
    key: str
    client_ca: str = ""


@dataclass(frozen=True)
class _Loaded:
    """`context` for asyncio's servers; it was made of the same files as the bytes, which gRPC takes."""

    context: ssl.SSLContext
    for_grpc: Any


def server_credentials(files: TlsFiles) -> grpc.ServerCredentials:
    """Raises:  ConfigError: the files are missing, no PEM, or do not belong together."""
    watched = _watched(files)
    first = watched.current()
    last = [first]

    def newer() -> Any:
        """None: as before."""
        loaded = watched.current()
        if loaded is last[0]:
            return None
        last[0] = loaded
        return loaded.for_grpc

    return grpc.dynamic_ssl_server_credentials(first.for_grpc, newer, bool(files.client_ca))


def ssl_context(files: TlsFiles) -> ssl.SSLContext:
    """For `asyncio.start_server` and what is built on it.

    Raises:  ConfigError: as `server_credentials`.
    """
    watched = _watched(files)
    context = _context(files)

    def newer(connection: ssl.SSLObject, name: str | None, before: ssl.SSLContext) -> None:
        connection.context = watched.current().context

    context.sni_callback = newer  # called in every handshake, with a name or without
    return context


def _watched(files: TlsFiles) -> WatchedFiles[_Loaded]:
    return WatchedFiles([files.cert, files.key, files.client_ca], lambda: _load(files))


def _load(files: TlsFiles) -> _Loaded:
    key, cert = read_secret_file(files.key, "tls_key_file"), read_file(files.cert, "tls_cert_file")
    client_ca = read_file(files.client_ca, "tls_client_ca_file") if files.client_ca else None
    return _Loaded(_context(files), grpc.ssl_server_certificate_configuration([(key, cert)], client_ca))


def _context(files: TlsFiles) -> ssl.SSLContext:
    """gRPC does not say what is wrong with a certificate, so it is tried here first."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(files.cert, files.key, password=_no_password)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"tls_cert_file {files.cert} and tls_key_file {files.key} are no PEM certificate and the key to it, "
            f"without a password: {_reason(error)}"
        ) from None
    if files.client_ca:
        try:
            context.load_verify_locations(files.client_ca)
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"tls_client_ca_file {files.client_ca} holds no PEM certificate: {_reason(error)}"
            ) from None
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _no_password() -> str:
    """Without this a key that has one makes OpenSSL ask at the terminal."""
    raise ValueError("the key has a password")


def _reason(error: Exception) -> str:
    return getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)
