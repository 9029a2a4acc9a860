from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Criticality(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CRITICALITY_UNSPECIFIED: _ClassVar[Criticality]
    CRITICALITY_CONTROL: _ClassVar[Criticality]
    CRITICALITY_PLANNING: _ClassVar[Criticality]
    CRITICALITY_GENERATION: _ClassVar[Criticality]
CRITICALITY_UNSPECIFIED: Criticality
CRITICALITY_CONTROL: Criticality
CRITICALITY_PLANNING: Criticality
CRITICALITY_GENERATION: Criticality

class RequestOptions(_message.Message):
    __slots__ = ("budget_ms", "criticality")
    BUDGET_MS_FIELD_NUMBER: _ClassVar[int]
    CRITICALITY_FIELD_NUMBER: _ClassVar[int]
    budget_ms: float
    criticality: Criticality
    def __init__(self, budget_ms: _Optional[float] = ..., criticality: _Optional[_Union[Criticality, str]] = ...) -> None: ...

class OptionValue(_message.Message):
    __slots__ = ("flag", "integer", "number", "text", "numbers")
    FLAG_FIELD_NUMBER: _ClassVar[int]
    INTEGER_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    NUMBERS_FIELD_NUMBER: _ClassVar[int]
    flag: bool
    integer: int
    number: float
    text: str
    numbers: NumberList
    def __init__(self, flag: _Optional[bool] = ..., integer: _Optional[int] = ..., number: _Optional[float] = ..., text: _Optional[str] = ..., numbers: _Optional[_Union[NumberList, _Mapping]] = ...) -> None: ...

class NumberList(_message.Message):
    __slots__ = ("values",)
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, values: _Optional[_Iterable[float]] = ...) -> None: ...

class Timing(_message.Message):
    __slots__ = ("decode_us", "queue_us", "nodes", "loops", "runtime_us", "encode_us", "total_us", "transport_us", "run_us")
    DECODE_US_FIELD_NUMBER: _ClassVar[int]
    QUEUE_US_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    LOOPS_FIELD_NUMBER: _ClassVar[int]
    RUNTIME_US_FIELD_NUMBER: _ClassVar[int]
    ENCODE_US_FIELD_NUMBER: _ClassVar[int]
    TOTAL_US_FIELD_NUMBER: _ClassVar[int]
    TRANSPORT_US_FIELD_NUMBER: _ClassVar[int]
    RUN_US_FIELD_NUMBER: _ClassVar[int]
    decode_us: float
    queue_us: float
    nodes: _containers.RepeatedCompositeFieldContainer[NodeTiming]
    loops: _containers.RepeatedCompositeFieldContainer[LoopTiming]
    runtime_us: float
    encode_us: float
    total_us: float
    transport_us: float
    run_us: float
    def __init__(self, decode_us: _Optional[float] = ..., queue_us: _Optional[float] = ..., nodes: _Optional[_Iterable[_Union[NodeTiming, _Mapping]]] = ..., loops: _Optional[_Iterable[_Union[LoopTiming, _Mapping]]] = ..., runtime_us: _Optional[float] = ..., encode_us: _Optional[float] = ..., total_us: _Optional[float] = ..., transport_us: _Optional[float] = ..., run_us: _Optional[float] = ...) -> None: ...

class NodeTiming(_message.Message):
    __slots__ = ("name", "num_steps", "queue_us", "run_us", "batched_with")
    NAME_FIELD_NUMBER: _ClassVar[int]
    NUM_STEPS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_US_FIELD_NUMBER: _ClassVar[int]
    RUN_US_FIELD_NUMBER: _ClassVar[int]
    BATCHED_WITH_FIELD_NUMBER: _ClassVar[int]
    name: str
    num_steps: int
    queue_us: float
    run_us: float
    batched_with: int
    def __init__(self, name: _Optional[str] = ..., num_steps: _Optional[int] = ..., queue_us: _Optional[float] = ..., run_us: _Optional[float] = ..., batched_with: _Optional[int] = ...) -> None: ...

class LoopTiming(_message.Message):
    __slots__ = ("name", "num_iterations", "run_us")
    NAME_FIELD_NUMBER: _ClassVar[int]
    NUM_ITERATIONS_FIELD_NUMBER: _ClassVar[int]
    RUN_US_FIELD_NUMBER: _ClassVar[int]
    name: str
    num_iterations: int
    run_us: float
    def __init__(self, name: _Optional[str] = ..., num_iterations: _Optional[int] = ..., run_us: _Optional[float] = ...) -> None: ...

class ErrorDetail(_message.Message):
    __slots__ = ("code", "message", "request_id", "retryable", "retry_after_ms")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    RETRYABLE_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    code: str
    message: str
    request_id: str
    retryable: bool
    retry_after_ms: float
    def __init__(self, code: _Optional[str] = ..., message: _Optional[str] = ..., request_id: _Optional[str] = ..., retryable: _Optional[bool] = ..., retry_after_ms: _Optional[float] = ...) -> None: ...
