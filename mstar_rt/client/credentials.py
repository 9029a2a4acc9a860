"""Who the client is, and how it knows the server: TLS files and a token."""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc

from mstar_rt.errors import InvalidArgument
from mstar_rt.secret_files import read_file

Option = tuple[str, int]
TOKEN = re.compile(r"[!-~]{1,1024}")


@dataclass(frozen=True)
class Credentials:
    """With none of them the connection is in clear text. `tls_ca_file`: PEM certificates of the authorities that sign
    the server's certificate, or that certificate itself. `tls_cert_file` and `tls_key_file`: the client's own, where
    the server asks for them. `token`: goes with every call.

    Raises:  InvalidArgument: they do not fit together, a file cannot be used.
    """

    tls_ca_file: str | None = None
    tls_cert_file: str | None = None
    tls_key_file: str | None = None
    token: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for name in ("tls_ca_file", "tls_cert_file", "tls_key_file"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, str) and value):
                raise InvalidArgument(f"{name} is {value!r}, expected the path of a PEM file")
        if (self.tls_cert_file is None) != (self.tls_key_file is None):
            raise InvalidArgument("tls_cert_file and tls_key_file are a pair: expected both or neither")
        if self.tls_cert_file is not None and self.tls_ca_file is None:
            raise InvalidArgument("tls_cert_file is given without tls_ca_file, by which the server is known")
        if self.token is not None and not (isinstance(self.token, str) and TOKEN.fullmatch(self.token)):
            raise InvalidArgument("the token is empty, or holds characters that cannot be sent, such as spaces")

    def opener(self, library: Any) -> Callable[[str, Sequence[Option]], Any]:
        """What opens channels. `library`: grpc or grpc.aio."""
        credentials = self._channel_credentials()

        def open_channel(address: str, options: Sequence[Option]) -> Any:
            if credentials is None:
                channel = library.insecure_channel(address, options)
            else:
                channel = library.secure_channel(address, credentials, options)
            return channel if self.token is None else ChannelWithToken(channel, self.token)

        return open_channel

    def _channel_credentials(self) -> grpc.ChannelCredentials | None:
        if self.tls_ca_file is None:
            return None
        authorities, key, cert = read_file(self.tls_ca_file, "tls_ca_file"), None, None
        if self.tls_cert_file is not None and self.tls_key_file is not None:
            key, cert = read_file(self.tls_key_file, "tls_key_file"), read_file(self.tls_cert_file, "tls_cert_file")
        self._check_files(self.tls_ca_file)
        return grpc.ssl_channel_credentials(authorities, key, cert)

    def _check_files(self, authorities: str) -> None:
        """gRPC would only say that it cannot connect."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        try:
            context.load_verify_locations(authorities)
        except (OSError, ValueError) as error:
            raise InvalidArgument(f"tls_ca_file {authorities} holds no PEM certificate: {_reason(error)}") from None
        if self.tls_cert_file is not None:
            try:
                context.load_cert_chain(self.tls_cert_file, self.tls_key_file, password=_no_password)
            except (OSError, ValueError) as error:
                raise InvalidArgument(
                    f"tls_cert_file {self.tls_cert_file} and tls_key_file {self.tls_key_file} are no PEM certificate "
                    f"and the key to it, without a password: {_reason(error)}"
                ) from None


IN_CLEAR = Credentials()


class ChannelWithToken:
    """A channel whose calls carry a token. Not an interceptor: those cost a task or a thread for each call of a stream,
    and call credentials of gRPC need TLS."""

    def __init__(self, channel: Any, token: str) -> None:
        self._channel = channel
        self._metadata = (("authorization", f"Bearer {token}"),)

    def unary_unary(self, *args: Any, **kwargs: Any) -> _CallWithMetadata:
        return _CallWithMetadata(self._channel.unary_unary(*args, **kwargs), self._metadata)

    def unary_stream(self, *args: Any, **kwargs: Any) -> _CallWithMetadata:
        return _CallWithMetadata(self._channel.unary_stream(*args, **kwargs), self._metadata)

    def stream_unary(self, *args: Any, **kwargs: Any) -> _CallWithMetadata:
        return _CallWithMetadata(self._channel.stream_unary(*args, **kwargs), self._metadata)

    def stream_stream(self, *args: Any, **kwargs: Any) -> _CallWithMetadata:
        return _CallWithMetadata(self._channel.stream_stream(*args, **kwargs), self._metadata)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channel, name)


class _CallWithMetadata:
    def __init__(self, call: Any, metadata: tuple[tuple[str, str], ...]) -> None:
        self._call = call
        self._metadata = metadata

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(*args, metadata=self._metadata, **kwargs)


def _no_password() -> str:
    """Without this a key that has one makes OpenSSL ask at the terminal."""
    raise ValueError("the key has a password")


def _reason(error: Exception) -> str:
    return getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)
