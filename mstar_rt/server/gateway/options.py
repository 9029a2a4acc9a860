"""Fields of a request that are options of the model's task, and refusals in the words of fields."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from mstar_rt.errors import InvalidArgument
from mstar_rt.model import ServedModel
from mstar_rt.server.gateway.errors import FieldError
from mstar_rt.server.gateway.fields import Fields
from mstar_rt.server.generation.requests import option_names
from mstar_rt.wording import reworded

SAMPLING = ("max_tokens", "temperature", "top_k", "top_p", "repetition_penalty", "ignore_end", "seed")
STOP, BUDGET = "stop", "budget_ms"

Given = dict[str, tuple[str, Any]]
"""By the option's name: the field that it came as, and its value."""
Names = Mapping[str, tuple[str, str]]
"""By what the server and the model call something: the field that it is in, and what a sentence calls it there."""


def take_sampling(fields: Fields) -> Given:
    """Those of SAMPLING that are there."""
    values = {
        "max_tokens": fields.integer("max_tokens"),
        "temperature": fields.number("temperature"),
        "top_k": fields.integer("top_k"),
        "top_p": fields.number("top_p"),
        "repetition_penalty": fields.number("repetition_penalty"),
        "ignore_end": fields.flag("ignore_end"),
        "seed": fields.integer("seed", least=0),
    }
    return {name: (name, value) for name, value in values.items() if value is not None}


def take_stop(fields: Fields) -> Given:
    """`stop`, where it is there: a text or a list of texts."""
    stop = fields.any(STOP)
    if stop is None:
        return {}
    if not isinstance(stop, str) and not (isinstance(stop, list) and all(isinstance(each, str) for each in stop)):
        raise fields.error(STOP, "is no text and no list of texts, expected one of them")
    return {STOP: (STOP, [stop] if isinstance(stop, str) else stop)}


def checked(model: ServedModel, task: str, given: Given) -> dict[str, Any]:
    """The options and their values, which are checked when the request starts: see ServedModel.check_request.

    Raises:  FieldError: the task has no such option.
    """
    known = option_names(model, task)
    for name, (field, _) in given.items():
        if name not in known:
            raise FieldError(field, f"{field} is no option of model {model.name!r}: leave it out")
    return {name: value for name, (_, value) in given.items()}


def named(fields: Mapping[str, str]) -> Names:
    """Of what a sentence calls as the field is called."""
    return {name: (field, field) for name, field in fields.items()}


@contextmanager
def as_fields(names: Names) -> Iterator[None]:
    """What is refused meanwhile, be it by the model's own check on a worker, is said of fields of the request: each of
    `names` in the sentence becomes what the field is called, and the first of them is the error's `field`.

    Raises:  FieldError.
    """
    try:
        yield
    except FieldError:
        raise
    except InvalidArgument as error:
        message, found = reworded(str(error), {name: shown for name, (_, shown) in names.items()})
        if not found:
            raise
        raise FieldError(names[found[0]][0], message) from None
