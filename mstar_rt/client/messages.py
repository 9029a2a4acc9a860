"""Arguments of the client's methods to wire messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from google.protobuf.descriptor import FieldDescriptor

from mstar_rt.client import arguments
from mstar_rt.errors import InvalidArgument
from mstar_rt.protos import request_pb2, tensor_pb2
from mstar_rt.protos import world_model_pb2 as wire
from mstar_rt.protos.arrays import tensor_from_array

Numbers = np.ndarray | Sequence[float] | Sequence[Sequence[float]] | Sequence[Sequence[Sequence[float]]]
Images = np.ndarray | bytes | Sequence[bytes]
"""uint8 [T, H, W, 3] or one frame [H, W, 3], RGB; or whole JPEG or PNG files, one per frame. A model may declare
float32 frames too, which are taken as normalised already.
"""

GOAL_USES = {
    "last": wire.Goal.USE_UNSPECIFIED, "per_step": wire.Goal.USE_PER_STEP, "nearest": wire.Goal.USE_NEAREST,
}  # fmt: skip
ROLLOUT_OUTPUTS = {
    "latents": wire.Rollout.OUTPUT_UNSPECIFIED,
    "last_latent": wire.Rollout.OUTPUT_LAST_LATENT,
    "goal_distance": wire.Rollout.OUTPUT_GOAL_DISTANCE,
}

WHOLE = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1), FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1), FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
}  # fmt: skip
"""Least and largest number of each type of field that holds whole numbers."""
MAX_SEED = 2**63 - 1
"""Of a request: its field has one bit more."""


def frames(images: Images) -> tensor_pb2.Frames:
    """Raises:  InvalidArgument: neither an array nor JPEG or PNG files."""
    if isinstance(images, bytes):
        images = [images]
    if isinstance(images, np.ndarray):
        array = images[None] if images.ndim == 3 else images
        return tensor_pb2.Frames(tensor=tensor_from_array(array))
    files = list(images) if isinstance(images, Sequence) else [images]
    return tensor_pb2.Frames(images=tensor_pb2.ImageSequence(images=[compressed(file, "frames") for file in files]))


def numbers(values: Numbers, name: str) -> tensor_pb2.Tensor:
    """Python numbers and float64 go out as float32, which is what models take; other dtypes as they are.

    Raises:  InvalidArgument: not numbers, or rows of different lengths.
    """
    try:
        array = np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise _not_numbers(name, values) from error
    if array.dtype.kind not in "biuf":
        raise _not_numbers(name, values)
    if array.dtype == np.float64 or not isinstance(values, np.ndarray):
        with np.errstate(over="ignore"):  # to infinity, which the server refuses
            array = array.astype(np.float32)
    return tensor_from_array(array)


def _not_numbers(name: str, values: object) -> InvalidArgument:
    return InvalidArgument(
        f"{name} is {arguments.shown(values)}, expected an array or nested sequences of numbers, all rows of one length"
    )


def context(
    images: Images | None,
    state: Numbers | None,
    latents: Numbers | None = None,
    context_actions: Numbers | None = None,
    context_states: Numbers | None = None,
    extrinsics: Numbers | None = None,
) -> wire.Context:
    """Raises:  InvalidArgument: not exactly one of frames and latents."""
    if (images is None) == (latents is None):
        raise InvalidArgument("give either frames or latents, not both and not neither")
    message = wire.Context(
        state=None if state is None else numbers(state, "state"),
        actions=None if context_actions is None else numbers(context_actions, "context_actions"),
        states=None if context_states is None else numbers(context_states, "context_states"),
        extrinsics=None if extrinsics is None else numbers(extrinsics, "extrinsics"),
    )
    if images is not None:
        message.frames.CopyFrom(frames(images))
    if latents is not None:
        message.latents.CopyFrom(numbers(latents, "latents"))
    return message


def goal(
    images: Images | None, latents: Numbers | None, use: str | None = None, weights: Numbers | None = None
) -> wire.Goal:
    """Raises:  InvalidArgument: not exactly one of frames and latents, an unknown use."""
    if (images is None) == (latents is None):
        raise InvalidArgument("give either goal_frames or goal_latents, not both and not neither")
    message = wire.Goal(
        use=_choice("goal_use", use, GOAL_USES), weights=None if weights is None else numbers(weights, "goal_weights")
    )
    if images is not None:
        message.frames.CopyFrom(frames(images))
    if latents is not None:
        message.latents.CopyFrom(numbers(latents, "goal_latents"))
    return message


def goal_if_given(
    images: Images | None, latents: Numbers | None, use: str | None, weights: Numbers | None
) -> wire.Goal | None:
    """Raises:  InvalidArgument: see `goal`; a use or weights of no goal."""
    if images is not None or latents is not None:
        return goal(images, latents, use, weights)
    for name, value in (("goal_use", use), ("goal_weights", weights)):
        if value is not None:
            raise InvalidArgument(f"{name} is given without a goal: give goal_frames or goal_latents with it")
    return None


def rollout(
    actions: Numbers,
    states: Numbers | None,
    output: str | None,
    towards: wire.Goal | None,
    model_options: Mapping[str, Any],
) -> wire.Rollout:
    return wire.Rollout(
        actions=numbers(actions, "actions"),
        states=None if states is None else numbers(states, "states"),
        output=_choice("output", output, ROLLOUT_OUTPUTS),
        goal=towards,
        model_options={name: option_value(name, value) for name, value in model_options.items()},
    )


def planner(options: Mapping[str, Any]) -> wire.PlannerOptions:
    """Options by name: those of PlannerOptions, any others as options of the model, which refuses what it
    does not know.

    `pinned` is {dimension: value}, {} pins none; an option with a few choices is given as text, one of those that
    `describe` lists.
    Raises:  InvalidArgument: a value of the wrong kind.
    """
    message = wire.PlannerOptions()
    for name, value in options.items():
        if value is None and name == "tree_branching":
            raise InvalidArgument(f"option {name!r} is None, leave it out, or give () for flat sampling")
        if value is None:
            raise InvalidArgument(f"option {name!r} is None, leave it out to get the default")
        try:
            _set_planner_option(message, name, value)
        except (TypeError, ValueError, AttributeError, LookupError, OverflowError) as error:
            raise InvalidArgument(f"option {name!r} cannot be {arguments.shown(value)}: {error}") from error
    return message


def _set_planner_option(message: wire.PlannerOptions, name: str, value: Any) -> None:
    field = wire.PlannerOptions.DESCRIPTOR.fields_by_name.get(name)
    if field is None or name == "model_options":
        _set_model_option(message, name, value)
    elif name == "pinned":
        _set_pins(message, value)
    elif name == "tree_branching":
        _set_branching(message, value)
    elif field.enum_type is not None:
        setattr(message, name, enum_number(field.enum_type, value))
    elif field.message_type is not None:
        getattr(message, name).CopyFrom(numbers(value, name))
    elif field.cpp_type in WHOLE:
        setattr(message, name, whole(field, value))
    elif field.cpp_type == FieldDescriptor.CPPTYPE_DOUBLE:
        setattr(message, name, arguments.number(value))
    else:
        setattr(message, name, value)


def _set_model_option(message: wire.PlannerOptions, name: str, value: Any) -> None:
    if name in message.model_options:
        raise ValueError("another option says the same: give one of them")
    message.model_options[name].CopyFrom(option_value(name, value))


def _set_pins(message: wire.PlannerOptions, pins: Any) -> None:
    """None at all is said under the names by which models declare it: an empty field would mean the default."""
    if not isinstance(pins, Mapping):
        raise TypeError("a mapping {dimension: value} is expected")
    if not pins:
        _set_model_option(message, "pinned_dims", ())
        _set_model_option(message, "pinned_values", ())
    dimension = wire.PinnedDimension.DESCRIPTOR.fields_by_name["dimension"]
    values = {whole(dimension, pinned): arguments.number(value) for pinned, value in pins.items()}
    message.pinned.extend(wire.PinnedDimension(dimension=d, value=v) for d, v in sorted(values.items()))


def _set_branching(message: wire.PlannerOptions, branching: Any) -> None:
    """Flat sampling is said as an option of the model: an empty field would mean the session's default."""
    if isinstance(branching, (str, bytes)) or not isinstance(branching, (Sequence, np.ndarray)):
        raise TypeError("a sequence of whole numbers is expected, () for flat sampling")
    if not len(branching):
        _set_model_option(message, "tree_branching", ())
    field = message.DESCRIPTOR.fields_by_name["tree_branching"]
    message.tree_branching.extend(whole(field, branches) for branches in branching)


def whole(field: Any, value: object) -> int:
    """Raises:  TypeError, ValueError: not a whole number, not one that `field` takes; it says what is expected."""
    least, most = WHOLE[field.cpp_type]
    return arguments.whole(value, least, MAX_SEED if field.name == "seed" else most)


def enum_number(enum: Any, value: Any) -> int:
    """ "l1" -> COST_L1 of enum Cost."""
    prefix = enum.values[0].name.removesuffix("UNSPECIFIED")
    choices = {known.name.removeprefix(prefix).lower(): known.number for known in enum.values if known.number}
    number = choices.get(str(value).lower())
    if number is None:
        raise LookupError(f"no model has that choice, `describe` lists which of {', '.join(choices)} yours has")
    return number


def option_value(name: str, value: Any) -> request_pb2.OptionValue:
    """Raises:  InvalidArgument: not a bool, int64, float, text or sequence of numbers."""
    try:
        if isinstance(value, (bool, np.bool_)):
            return request_pb2.OptionValue(flag=bool(value))
        if isinstance(value, int | np.integer):
            if not -(2**63) <= value < 2**63:
                raise InvalidArgument(f"option {name!r} is {arguments.shown(value)}, whole numbers have 64 bits")
            return request_pb2.OptionValue(integer=int(value))
        if isinstance(value, (float, np.floating)):
            return request_pb2.OptionValue(number=float(value))
        if isinstance(value, str):
            return request_pb2.OptionValue(text=value)
        return request_pb2.OptionValue(numbers=request_pb2.NumberList(values=[float(each) for each in value]))
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidArgument(
            f"option {name!r} is {arguments.shown(value)}, expected a bool, a number, text or a sequence of numbers"
        ) from error


def _choice(name: str, value: str | None, known: Mapping[str, int]) -> Any:
    """The enum's number; None leaves it unset."""
    if value is None:
        return None
    if not isinstance(value, str) or value not in known:
        raise InvalidArgument(f"{name} is {arguments.shown(value)}, expected one of {', '.join(known)}")
    return known[value]


def request_options(budget_ms: float | None, criticality: str | None = None) -> request_pb2.RequestOptions:
    """Raises:  InvalidArgument: a budget out of range, an unknown criticality."""
    message = request_pb2.RequestOptions(budget_ms=arguments.budget_ms(budget_ms))
    if criticality is not None:
        known = {
            "planning": request_pb2.CRITICALITY_PLANNING,
            "generation": request_pb2.CRITICALITY_GENERATION,
        }
        if not isinstance(criticality, str) or criticality not in known:
            raise InvalidArgument(f"criticality is {arguments.shown(criticality)}, expected one of {', '.join(known)}")
        message.criticality = known[criticality]
    return message


def compressed(data: object, name: str) -> tensor_pb2.Image:
    """Raises:  InvalidArgument: not the bytes of a JPEG or PNG file."""
    if not isinstance(data, bytes):
        raise InvalidArgument(f"{name} must be an array [T, H, W, 3] or JPEG or PNG files as bytes")
    encoding = encoding_of(data)
    if encoding is None:
        raise InvalidArgument(f"{name} given as bytes must be JPEG or PNG, and these are neither")
    return tensor_pb2.Image(encoding=encoding, data=data)


def encoding_of(file: bytes) -> tensor_pb2.Image.Encoding | None:
    """None: it is neither a JPEG nor a PNG file."""
    if file.startswith(b"\xff\xd8"):
        return tensor_pb2.Image.ENCODING_JPEG
    return tensor_pb2.Image.ENCODING_PNG if file.startswith(b"\x89PNG") else None
