"""What foreign clients send to what a policy takes, and back: one dialect of a deployment file, one served policy."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Mapping as MappingType
from contextlib import contextmanager
from typing import Any

import numpy as np

from mstar_rt.config_dialects import CHUNKING_OPTIONS, ActionTarget, DialectConfig, StateSource
from mstar_rt.errors import FailedPrecondition, InvalidArgument, MstarError, nearest
from mstar_rt.model import PolicySpec, ServedModel
from mstar_rt.protos import control_pb2 as wire
from mstar_rt.protos.arrays import array_from_tensor
from mstar_rt.server.compat.pictures import picture, without_batch
from mstar_rt.server.compat.presets import layout_of
from mstar_rt.server.compat.robot import ForeignObservation
from mstar_rt.server.control.schema_check import MODES, robot_schema
from mstar_rt.server.control.schema_check import differences as schema_differences
from mstar_rt.server.control.settings import settings_for
from mstar_rt.server.schema import option_value

MAX_NAMED = 3
"""Keys without a use that a refusal names."""
NO_INSTRUCTION_YET = "(no instruction yet)"
"""What a session is opened with: every observation brings its own."""
OFF_LOOP_BYTES = 512 << 10
"""Messages beyond which reading, conversion and resizing are for another thread than the event loop's."""
SEPARATORS = {"gr00t": "."}
BATCH_DIMS = {"gr00t": 2}
"""GR00T's arrays have a batch and a time in front."""
OPTIONAL_PREFIX = {"gr00t": "language."}
"""GR00T's nested observations have the instruction in a modality of its own, {"language": {"annotation...": ...}}; flat
ones have its key alone."""


class Mapping:
    """`check` before anything else is asked of it."""

    def __init__(self, dialect: DialectConfig, model: ServedModel) -> None:
        """Raises:  FailedPrecondition: the model is no policy."""
        if model.policy is None:
            raise FailedPrecondition(f"model {model.name!r} is not a policy, so it drives no robot: name another one")
        self.dialect = dialect
        self.model = model
        self.policy: PolicySpec = model.policy
        self.layout = layout_of(dialect, self.policy)
        self._separator = SEPARATORS.get(dialect.kind, "/")
        self._batch_dims = BATCH_DIMS.get(dialect.kind, 0)
        self._optional_prefix = OPTIONAL_PREFIX.get(dialect.kind, "")
        self._cameras = {camera.name: camera for camera in self.policy.cameras}
        sources = [*(camera.key for camera in self.layout.cameras.values()), *(part.key for part in self.layout.state)]
        self._known = {*sources, *self.layout.ignore}
        self.instruction_key = None
        if self.layout.instruction is not None:
            self.instruction_key = self.layout.instruction.key.removeprefix(self._optional_prefix)
            self._known.add(self.instruction_key)

    # ---- does it fit

    def check(self) -> None:
        """Raises:  FailedPrecondition: with all differences."""
        found = self.differences()
        if found:
            things = "difference" if len(found) == 1 else "differences"
            raise FailedPrecondition(
                f"the {self.dialect.kind} dialect does not fit policy {self.model.name!r}, {len(found)} {things}: "
                + "; ".join(found)
            )

    def differences(self) -> list[str]:
        found = [*self._camera_differences(), *self._state_differences(), *self._other_differences()]
        if found:
            return found
        try:
            opening = self.opening()
            found = list(schema_differences(self.policy, opening, self.dialect.options.get("chunking")))
            if not found:
                settings_for(self.model, opening)
        except MstarError as error:
            found = [str(error)]
        return found

    def _camera_differences(self) -> Iterator[str]:
        for name in (*self.layout.cameras, *self.layout.mask):
            if name not in self._cameras:
                yield f"camera {name!r} is not known, {nearest(name, self._cameras)}"
        for name, camera in self._cameras.items():
            if name in self.layout.mask:
                if not camera.may_be_masked:
                    yield f"camera {name!r} is masked, but the policy needs it"
                if name in self.layout.cameras:
                    yield f"camera {name!r} is masked and has a key, expected one of the two"
            elif name not in self.layout.cameras:
                also = ", or put it into mask" if camera.may_be_masked else ""
                yield f"camera {name!r} ({camera.height} x {camera.width}) has no key, name it in cameras{also}"

    def _state_differences(self) -> Iterator[str]:
        size = sum(part.size for part in self.layout.state)
        wanted = 0 if self.policy.state is None else self.policy.state.size
        if size != wanted:
            parts = ", ".join(f"{part.key} {part.size}" for part in self.layout.state)
            yield f"state has {size} numbers ({parts or 'none given'}), expected {wanted}"

    def _other_differences(self) -> Iterator[str]:
        if self.policy.takes_instruction and self.layout.instruction is None:
            yield "instruction has no key, and the policy needs one"
        if not self.policy.takes_instruction and self.layout.instruction is not None:
            yield "instruction has a key, the policy takes none (put the key into ignore if clients send it)"
        if self.dialect.execute > self.policy.action_horizon:
            yield f"execute is {self.dialect.execute}, a chunk has {self.policy.action_horizon} actions"
        target, size = self.layout.actions, self.policy.action.size
        if self.num_actions > size:
            yield f"actions have {self.num_actions} numbers for clients, those of the policy {size}"
        for name, numbers in (("scale", target.scale), ("offset", target.offset)):
            if len(numbers) not in (1, self.num_actions):
                yield f"actions.{name} has {len(numbers)} numbers, expected 1 or {self.num_actions}"

    @property
    def num_actions(self) -> int:
        target: ActionTarget = self.layout.actions
        return sum(target.split.values()) or target.size or self.policy.action.size

    # ---- the session

    def opening(self) -> wire.OpenControl:
        """Of a session for one of these clients. Cameras that they do not have are masked throughout."""
        options = self.dialect.options
        cameras = [camera for name, camera in self._cameras.items() if name in self.layout.cameras]
        instruction = self.layout.instruction
        opening = wire.OpenControl(
            model=self.model.name,
            instruction="" if instruction is None else instruction.default or NO_INSTRUCTION_YET,
            control_hz=self.dialect.control_hz,
            replan_every=self.dialect.execute,
            schema=robot_schema(self.policy, cameras, options.get("normalization")),
            budget_ms=options.get("budget_ms"),
            num_denoise_steps=options.get("num_denoise_steps"),
            seed=options.get("seed"),
            anytime=options.get("anytime"),
            model_options={name: option_value(value) for name, value in options.get("model_options", {}).items()},
        )
        if "chunking" in options:
            opening.chunking.CopyFrom(self._chunking())
        return opening

    def _chunking(self) -> wire.RealTimeChunking:
        given = {name: value for name, value in self.dialect.options.items() if name in CHUNKING_OPTIONS}
        mode = given.pop("chunking")
        if self.dialect.kind != "lerobot" and mode in self.policy.chunking:
            given.setdefault("delay", 0)  # the client stands still until it is answered
        if "schedule" in given:
            name = f"SCHEDULE_{given['schedule'].upper()}"
            if name not in dict(wire.RealTimeChunking.Schedule.items()):
                raise InvalidArgument(f"schedule is {given['schedule']!r}, expected linear, exponential, ones or zeros")
            given["schedule"] = wire.RealTimeChunking.Schedule.Value(name)
        return wire.RealTimeChunking(mode=MODES.get(mode, wire.RealTimeChunking.MODE_UNSPECIFIED), **given)

    # ---- its messages

    def observation(self, message: MappingType[Any, Any]) -> ForeignObservation:
        """Nested mappings are addressed by their keys, joined.

        Raises:  InvalidArgument: with all that does not fit.
        """
        wrong: list[str] = []
        values = self._flat(message, wrong)
        images = {}
        for name, source in self.layout.cameras.items():
            with _noting(wrong):
                images[name] = picture(values.get(source.key), source, self._cameras[name], self._batch_dims)
        parts = []
        for part in self.layout.state:
            with _noting(wrong):
                parts.append(_numbers(values.get(part.key), part, self._batch_dims))
        instruction = None
        with _noting(wrong):
            instruction = self._instruction(values)
        if wrong:
            things = "difference" if len(wrong) == 1 else "differences"
            raise InvalidArgument(
                f"the observation does not fit policy {self.model.name!r}, {len(wrong)} {things}: {'; '.join(wrong)}"
            )
        return ForeignObservation(
            images=images, state=np.concatenate(parts) if parts else None, instruction=instruction
        )

    def actions(self, chunk: wire.ActionChunk) -> dict[str, np.ndarray]:
        """float32 [H, n] by key."""
        target = self.layout.actions
        actions = array_from_tensor(chunk.actions, "actions")[:, : self.num_actions]
        if target.scale != (1.0,) or target.offset != (0.0,):
            actions = (actions * np.array(target.scale) + np.array(target.offset)).astype(np.float32)
        if not target.split:
            return {target.key: actions}
        ends = np.cumsum(list(target.split.values()))
        return {key: actions[:, end - size : end] for (key, size), end in zip(target.split.items(), ends, strict=True)}

    def _flat(self, message: MappingType[Any, Any], wrong: list[str]) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for name, value in _leaves(message, self._separator, ""):
            key = name.removeprefix(self._optional_prefix)
            if key in values:
                wrong.append(f"{key[:64]!r} is given twice")
            values[key] = value
        unused = [key for key in values if key not in self._known]
        wrong += [f"{key[:64]!r} is not used, {nearest(key, self._known)}" for key in unused[:MAX_NAMED]]
        if len(unused) > MAX_NAMED:
            wrong.append(f"{len(unused) - MAX_NAMED} more keys are not used")
        return values

    def _instruction(self, values: dict[str, Any]) -> str | None:
        source = self.layout.instruction
        if source is None or self.instruction_key is None:
            return None
        value = values.get(self.instruction_key, source.default)
        for _ in range(self._batch_dims):
            if isinstance(value, list | tuple) and len(value) == 1:
                value = value[0]
        if isinstance(value, np.ndarray) and value.ndim == 0:
            value = value.item()
        if isinstance(value, str) and not value.strip():
            value = source.default  # LeRobot's client sends "" for none
        if not isinstance(value, str) or not value.strip():
            raise InvalidArgument(f"{self.instruction_key!r} is missing or no text, expected the instruction")
        return str(value)


@contextmanager
def _noting(wrong: list[str]) -> Iterator[None]:
    """What is wrong with one value is noted, and the next one is looked at."""
    try:
        yield
    except InvalidArgument as error:
        wrong.append(str(error))


def _leaves(message: MappingType[Any, Any], separator: str, prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in message.items():
        name = prefix + (key.decode(errors="replace") if isinstance(key, bytes) else str(key))
        if isinstance(value, MappingType):
            yield from _leaves(value, separator, name + separator)
        else:
            yield name, value


def _numbers(value: Any, part: StateSource, batch_dims: int) -> np.ndarray:
    """[size] float32."""
    if isinstance(value, np.ndarray):
        array = without_batch(value, batch_dims, part.key)
    elif _is_number(value) or (isinstance(value, list | tuple) and all(map(_is_number, value))):
        array = np.array(value, np.float64)
    else:
        found = "missing" if value is None else f"a {type(value).__name__}"
        raise InvalidArgument(f"{part.key!r} is {found}, expected {part.size} number(s)")
    if array.dtype.kind not in "fiu" or array.size != part.size or array.ndim > 1:
        raise InvalidArgument(
            f"{part.key!r} has shape {list(array.shape)} of {array.dtype}, expected [{part.size}] of numbers"
        )
    numbers = array.reshape(part.size).astype(np.float64) * np.array(part.scale) + np.array(part.offset)
    if not np.isfinite(numbers).all() or np.abs(numbers).max() > np.finfo(np.float32).max:
        raise InvalidArgument(f"{part.key!r} has a number that is not finite")
    return numbers.astype(np.float32)


def _is_number(value: Any) -> bool:
    if isinstance(value, int) and not isinstance(value, bool):
        return abs(value) < 1 << 63
    return isinstance(value, float | np.floating | np.integer)
