"""The ports of their own that foreign clients have, from the start of the server to its end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from mstar_rt.config_dialects import DialectConfig
from mstar_rt.errors import ConfigError, MstarError
from mstar_rt.model import ServedModel
from mstar_rt.server.access import Keys, check_reachable, exposure
from mstar_rt.server.compat.mapping import Mapping as DialectMapping
from mstar_rt.server.control.sessions import ControlSessions
from mstar_rt.server.rates import MessageRates
from mstar_rt.server.tls import TlsFiles, ssl_context

_log = logging.getLogger(__name__)


class Listener(Protocol):
    """One dialect's port. `address` is what its clients connect to, `listening` is set once they can."""

    address: str
    listening: asyncio.Event

    @property
    def name(self) -> str:
        """The dialect and its address."""

    async def start(self) -> None:
        """Raises:  FailedPrecondition: the port is in use.  ConfigError: it cannot be listened on."""

    async def stop(self, grace_s: float) -> None: ...


class Dialects:
    """`on_kill` is called when a client that may do so asks the server to stop, `on_failed` when one of the ports
    cannot be listened on once its policy serves.
    """

    def __init__(
        self,
        configs: Sequence[DialectConfig] = (),
        models: Mapping[str, ServedModel] | None = None,
        sessions: ControlSessions | None = None,
        rates: MessageRates | None = None,
        tls: TlsFiles | None = None,
        insecure: bool = False,
    ) -> None:
        self.on_kill: Callable[[], None] = lambda: None
        self.on_failed: Callable[[MstarError], None] = lambda error: None
        self.listeners: list[Listener] = []
        self._configs = configs
        self._models = models or {}
        self._sessions = sessions
        self._rates = rates
        self._tls = tls
        self._insecure = insecure

    async def start(self) -> None:
        """Raises:  FailedPrecondition, ConfigError: then nothing listens."""
        check_dialects(self._configs, self._models, tls=self._tls, insecure=self._insecure)
        try:
            for index, config in enumerate(self._configs):
                if config.kind != "lerobot":
                    listener = self._listener(config, f"dialects[{index}]")
                    self.listeners.append(listener)
                    await listener.start()
                    self._warn(config)
        except BaseException:
            await self.stop(0.0)
            raise

    async def stop(self, grace_s: float) -> None:
        await asyncio.gather(*(listener.stop(grace_s) for listener in self.listeners))

    def _listener(self, config: DialectConfig, label: str) -> Listener:
        assert self._sessions is not None
        assert self._rates is not None
        mapping = DialectMapping(config, self._models[config.model])
        keys = Keys.load(config.api_keys_file, f"{label}.api_keys_file") if config.api_keys_file else None
        if config.kind == "openpi":
            from mstar_rt.server.compat.openpi.server import OpenpiServer

            context = None if self._tls is None else ssl_context(self._tls)
            return OpenpiServer(mapping, self._sessions, self._rates, keys, context, self._fail)
        from mstar_rt.server.compat.gr00t.server import Gr00tServer

        return Gr00tServer(mapping, self._sessions, self._rates, keys, self._kill, self._fail)

    def _warn(self, config: DialectConfig) -> None:
        tls = self._tls if config.kind == "openpi" else None
        knows_clients = tls is not None and bool(tls.client_ca)
        if warning := exposure(
            config.host, has_tls=tls is not None, has_keys=bool(config.api_keys_file), knows_clients=knows_clients
        ):
            _log.warning("%s clients: %s", config.kind, warning)

    def _kill(self) -> None:
        self.on_kill()

    def _fail(self, error: MstarError) -> None:
        self.on_failed(error)


def check_dialects(
    configs: Sequence[DialectConfig], models: Mapping[str, ServedModel], *, tls: TlsFiles | None, insecure: bool
) -> None:
    """Raises:  FailedPrecondition: one does not fit its policy, with all differences.  ConfigError: one may not listen
    where it is told to, or its keys cannot be read.
    """
    for index, config in enumerate(configs):
        label = f"dialects[{index}]"
        DialectMapping(config, models[config.model]).check()
        if config.kind == "openpi":
            _check_websockets(label)
        if config.api_keys_file:
            Keys.load(config.api_keys_file, f"{label}.api_keys_file")
        if config.kind != "lerobot":
            check_reachable(
                config.host,
                has_tls=tls is not None and config.kind == "openpi",
                has_keys=bool(config.api_keys_file),
                insecure=insecure,
                label=f"{label}.host",
            )


def _check_websockets(label: str) -> None:
    try:
        import websockets.asyncio.server  # noqa: F401
    except ImportError:
        raise ConfigError(f"{label}: openpi clients need websockets: pip install 'mstar-rt[openpi]'") from None
