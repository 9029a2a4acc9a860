"""Fields of a request that are options of the model's task."""

from __future__ import annotations

from typing import Any

from mstar_rt.errors import InvalidArgument
from mstar_rt.model import ServedModel
from mstar_rt.server.gateway.errors import FieldError
from mstar_rt.server.gateway.fields import Fields

SAMPLING = ("max_tokens", "temperature", "top_k", "top_p", "repetition_penalty", "ignore_end", "seed")
BUDGET = "budget_ms"

Given = dict[str, tuple[str, Any]]
"""By the option's name: the field that it came as, and its value."""


def take_sampling(fields: Fields) -> Given:
    """Those of SAMPLING that are there."""
    values = {
        "max_tokens": fields.integer("max_tokens"),
        "temperature": fields.number("temperature"),
        "top_k": fields.integer("top_k"),
        "top_p": fields.number("top_p"),
        "repetition_penalty": fields.number("repetition_penalty"),
        "ignore_end": fields.flag("ignore_end"),
        "seed": fields.integer("seed"),
    }
    return {name: (name, value) for name, value in values.items() if value is not None}


def checked(model: ServedModel, task: str, given: Given) -> dict[str, Any]:
    """Raises:  FieldError: the task has no such option, or not with that value. Lists are left to whoever makes text of
    them.
    """
    specs = {spec.name: spec for spec in model.task(task).params}
    for name, (field, value) in given.items():
        if name not in specs:
            raise FieldError(field, f"{field} is no option of model {model.name!r}: leave it out")
        if isinstance(value, list):
            continue
        try:
            specs[name].check(value, f"model {model.name!r}")
        except InvalidArgument as error:
            raise FieldError(field, str(error)) from None
    return {name: value for name, (_, value) in given.items()}
