"""torch.compile for code that runs in the middle of a control tick: all compiling happens before serving."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch

from mstar_rt.errors import ConfigError

TOLERANCE = {torch.float32: 1e-3}
logger = logging.getLogger(__name__)


class Example(NamedTuple):
    """Arguments of a call, made when they are needed. `packs`: run products on packed copies of the weights, which pays
    from a few dozen rows or a few hundred columns on.
    """

    arguments: Callable[[], tuple[Any, ...]]
    packs: bool


class Compiled:
    """A function of tensors whose sizes may change from call to call; weights that it closes over may not.

    torch makes one program for each combination of tensor ranks, and of sizes that are 1 or are not. Those of the
    examples are made by `prepare`; a call that would need another one runs uncompiled, rather than wait for seconds.
    """

    def __init__(self, function: Callable[..., torch.Tensor], device: str = "cpu") -> None:
        self._is_on_cpu = device == "cpu"
        self._run = torch.compile(function, dynamic=True, fullgraph=True)
        self._plain = function

    def prepare(self, examples: Iterable[Example]) -> None:
        """Compile for arguments like those of each example, and hold what comes out against the plain function.

        Raises:  ConfigError: it cannot be compiled on this machine.
        """
        # Here, because they take a second to load that others need not wait for.
        from torch._inductor import config as inductor_config
        from torch.fx.experimental import _config as fx_config

        for example in examples:
            arguments = example.arguments()
            # No Python between kernels; `freezing` is what packs.
            settings = {"cpp_wrapper": True, "freezing": example.packs} if self._is_on_cpu else {}
            # Sizes that happen to be equal in an example need not be so in service.
            with (
                warnings.catch_warnings(),
                fx_config.patch(use_duck_shape=False),  # type: ignore[attr-defined]
                inductor_config.patch(settings),
            ):
                warnings.simplefilter("ignore")
                try:
                    out = self._run(*arguments)
                except Exception as error:
                    logger.error("torch.compile failed", exc_info=error)
                    raise ConfigError(
                        f"workers: compile is true, but torch.compile fails here ({type(error).__name__}; the log has "
                        "why): install a C++ compiler, or take compile out"
                    ) from error
            expected = self._plain(*arguments)
            off, most = float((out - expected).abs().max()), TOLERANCE.get(expected.dtype, 5e-2)
            assert off <= most * (1 + float(expected.abs().max())), f"compiled code is off by {off:.1e}"

    def __call__(self, *arguments: Any) -> torch.Tensor:
        with torch.compiler.set_stance("eager_on_recompile"):
            result: torch.Tensor = self._run(*arguments)
        return result
