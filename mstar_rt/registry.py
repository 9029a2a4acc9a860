"""Names of model families to the functions that declare them. Strings only: nothing here imports a model."""

from __future__ import annotations

import importlib
import traceback
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any

from mstar_rt.errors import ConfigError, nearest

BUILT_IN_FAMILIES = {
    "act": "policies.act.model:declare",
    "bagel": "generators.bagel.model:declare",
    "diffusion": "policies.diffusion.model:declare",
    "hibari": "generators.hibari.model:declare",
    "llama": "generators.llama.model:declare",
    "orpheus": "generators.orpheus.model:declare",
    "pi05": "policies.pi05.model:declare",
    "pi0": "policies.pi05.model:declare_pi0",
    "vjepa2": "world_models.vjepa2_video.model:declare",
    "vjepa2_ac": "world_models.vjepa2.model:declare",
}

# What a deployer's package registers to add a family: `my_family = "my_package.model:declare"`.
ENTRY_POINT_GROUP = "mstar_rt.models"


def known_families() -> dict[str, str]:
    """Family name to dotted path, built-in ones and those that installed packages register."""
    registered = {point.name: point.value for point in entry_points(group=ENTRY_POINT_GROUP)}
    return {**registered, **BUILT_IN_FAMILIES}


def load_declare(family: str) -> Callable[..., Any]:
    """The `declare(name, checkpoint, options) -> ServedModel` of a family; `family` may itself be a dotted path."""
    families = known_families()
    path = families.get(family, family)
    if ":" not in path:
        raise ConfigError(f"unknown model family {family!r}, {nearest(family, families)}")
    return load_object(path)


def load_object(path: str) -> Callable[..., Any]:
    """The object at "package.module:name".

    Raises: ConfigError: there is none, or its module cannot be imported, whatever it does.
    """
    module_name, _, attribute = path.partition(":")
    try:
        return getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"cannot load {path!r}: {error}") from error
    except (Exception, SystemExit) as error:
        raise ConfigError(f"cannot load {path!r}: {type(error).__name__}: {error}{_line_of(error)}") from error


def _line_of(error: BaseException) -> str:
    """Where the module failed; a SyntaxError says so itself."""
    if isinstance(error, SyntaxError) or error.__traceback__ is None:
        return ""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f" ({last.filename}, line {last.lineno})"
