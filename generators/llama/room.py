"""Whether sequences are long enough for any request at all. No torch: a file is refused without reading weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from mstar_rt.errors import ConfigError
from mstar_rt.model import ServedModel
from mstar_rt.model.generation import warm_up_options

NUM_AROUND = 8
NO_OPTIONS: Mapping[str, str] = {}


def check_room(
    model: ServedModel,
    at_most: Mapping[str, int],
    exactly: Callable[[], Mapping[str, int]],
    long_by: Mapping[str, str] = NO_OPTIONS,
) -> None:
    """A server warms up with the shortest requests that there are, and would not start.

    Args:  at_most: what the shortest request of each task reads, in tokens, as far as is known without the tokenizer.
               exactly: the same, with it; asked only where it matters. long_by: the option that makes it long, of tasks
               that have one.
    Raises:  ConfigError: `max_sequence_tokens` is less than one of them takes.  What `exactly` raises.
    """
    longest = model.facts["max_sequence_tokens"]
    if max(_with_written(model, at_most).values()) <= longest:
        return
    needed = _with_written(model, exactly())
    task = max(needed, key=lambda name: needed[name])
    if needed[task] > longest:
        shorter = f", or shorten {long_by[task]!r}" if task in long_by else ""
        raise ConfigError(
            f"model {model.name!r}: 'max_sequence_tokens' is {longest}, but the shortest request of task {task!r} "
            f"takes {needed[task]}: set it to at least {needed[task]}{shorter}"
        )


def most_tokens(text: str) -> int:
    """No token is less than a byte, but for the few that tokenizers put around a text."""
    return len(text.encode()) + NUM_AROUND


def _with_written(model: ServedModel, num_read: Mapping[str, int]) -> dict[str, int]:
    return {task.name: num_read[task.name] + warm_up_options(model, task).get("max_tokens", 0) for task in model.tasks}
