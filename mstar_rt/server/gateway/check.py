"""Whether the gateway can be served; without the packages that it needs."""

from __future__ import annotations

from collections.abc import Mapping

from mstar_rt.errors import ConfigError, FailedPrecondition
from mstar_rt.model import ServedModel


def check_gateway(models: Mapping[str, ServedModel]) -> None:
    """Raises:  ConfigError: its packages are not installed.  FailedPrecondition: there is nothing to serve."""
    if all(model.generation is None for model in models.values()):
        raise FailedPrecondition(
            f"http_port is given, but no model here writes, speaks or draws ({', '.join(models)}): leave it out"
        )
    try:
        import python_multipart  # noqa: F401
        import starlette.applications  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError:
        raise ConfigError(
            "http_port needs starlette, uvicorn and python-multipart: pip install 'mstar-rt[http]'"
        ) from None
