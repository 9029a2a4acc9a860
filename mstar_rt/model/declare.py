"""From a deployment file's entry to the declaration of its model; launcher and workers read it alike."""

from __future__ import annotations

from mstar_rt.config import DeploymentConfig, ModelConfig
from mstar_rt.errors import ConfigError, MstarError
from mstar_rt.model.served import ServedModel
from mstar_rt.registry import load_declare


def declare_model(config: DeploymentConfig, model: ModelConfig) -> ServedModel:
    """Raises: ConfigError: the family does not declare a model, or refuses these options."""
    declare = load_declare(model.family)
    options = config.resolve_options(model.options)
    try:
        declared = declare(model.name, config.resolve(model.checkpoint), options)
    except MstarError:
        raise
    except Exception as error:
        given = f" with options {options}" if options else ""
        raise ConfigError(f"family {model.family!r} cannot declare model {model.name!r}{given}: {error}") from error
    if not isinstance(declared, ServedModel):
        raise ConfigError(f"family {model.family!r} declares a {type(declared).__name__}, expected a ServedModel")
    return declared
