"""Checks of a part of a request, for what a session is given before the rest of it is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from mstar_rt.model import ParamValue, ServedModel
from mstar_rt.model.spec import check_params, check_tensors


def check_given_tensors(model: ServedModel, tasks: Sequence[str], tensors: Mapping[str, np.ndarray]) -> None:
    """Every tensor must be one that some of `tasks` takes, and fit; missing ones may come later.

    Raises:  InvalidArgument.
    """
    specs = {spec.name: replace(spec, optional=True) for task in tasks for spec in model.task(task).inputs}
    check_tensors(tuple(specs.values()), tensors, _where(model, tasks))


def check_given_options(model: ServedModel, tasks: Sequence[str], params: Mapping[str, ParamValue]) -> None:
    """Every option must be one that some of `tasks` takes, and in range.

    Raises:  InvalidArgument.
    """
    specs = {spec.name: replace(spec, optional=True) for task in tasks for spec in model.task(task).params}
    check_params(tuple(specs.values()), params, _where(model, tasks))


def _where(model: ServedModel, tasks: Sequence[str]) -> str:
    return f"{model.name}.{'/'.join(tasks)}"
