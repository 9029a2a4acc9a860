from mstar_rt.protos import control_pb2 as _control_pb2
from mstar_rt.protos import request_pb2 as _request_pb2
from mstar_rt.protos import tensor_pb2 as _tensor_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ServerInfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ServerInfoResponse(_message.Message):
    __slots__ = ("version", "max_message_bytes", "uptime_s", "shared_memory", "draining", "services")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    UPTIME_S_FIELD_NUMBER: _ClassVar[int]
    SHARED_MEMORY_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    SERVICES_FIELD_NUMBER: _ClassVar[int]
    version: str
    max_message_bytes: int
    uptime_s: float
    shared_memory: bool
    draining: bool
    services: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, version: _Optional[str] = ..., max_message_bytes: _Optional[int] = ..., uptime_s: _Optional[float] = ..., shared_memory: _Optional[bool] = ..., draining: _Optional[bool] = ..., services: _Optional[_Iterable[str]] = ...) -> None: ...

class ListModelsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListModelsResponse(_message.Message):
    __slots__ = ("models",)
    MODELS_FIELD_NUMBER: _ClassVar[int]
    models: _containers.RepeatedCompositeFieldContainer[ModelSummary]
    def __init__(self, models: _Optional[_Iterable[_Union[ModelSummary, _Mapping]]] = ...) -> None: ...

class ModelSummary(_message.Message):
    __slots__ = ("name", "family", "doc", "serving", "reason", "tasks")
    NAME_FIELD_NUMBER: _ClassVar[int]
    FAMILY_FIELD_NUMBER: _ClassVar[int]
    DOC_FIELD_NUMBER: _ClassVar[int]
    SERVING_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    name: str
    family: str
    doc: str
    serving: bool
    reason: str
    tasks: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., family: _Optional[str] = ..., doc: _Optional[str] = ..., serving: _Optional[bool] = ..., reason: _Optional[str] = ..., tasks: _Optional[_Iterable[str]] = ...) -> None: ...

class DescribeModelRequest(_message.Message):
    __slots__ = ("model", "walk")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    WALK_FIELD_NUMBER: _ClassVar[int]
    model: str
    walk: str
    def __init__(self, model: _Optional[str] = ..., walk: _Optional[str] = ...) -> None: ...

class DescribeModelResponse(_message.Message):
    __slots__ = ("summary", "tasks", "walks", "facts", "checkpoint", "policy", "places")
    class FactsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _request_pb2.OptionValue
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_request_pb2.OptionValue, _Mapping]] = ...) -> None: ...
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    WALKS_FIELD_NUMBER: _ClassVar[int]
    FACTS_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    PLACES_FIELD_NUMBER: _ClassVar[int]
    summary: ModelSummary
    tasks: _containers.RepeatedCompositeFieldContainer[TaskSchema]
    walks: _containers.RepeatedCompositeFieldContainer[WalkDrawing]
    facts: _containers.MessageMap[str, _request_pb2.OptionValue]
    checkpoint: str
    policy: _control_pb2.PolicySchema
    places: _containers.RepeatedCompositeFieldContainer[NodePlace]
    def __init__(self, summary: _Optional[_Union[ModelSummary, _Mapping]] = ..., tasks: _Optional[_Iterable[_Union[TaskSchema, _Mapping]]] = ..., walks: _Optional[_Iterable[_Union[WalkDrawing, _Mapping]]] = ..., facts: _Optional[_Mapping[str, _request_pb2.OptionValue]] = ..., checkpoint: _Optional[str] = ..., policy: _Optional[_Union[_control_pb2.PolicySchema, _Mapping]] = ..., places: _Optional[_Iterable[_Union[NodePlace, _Mapping]]] = ...) -> None: ...

class NodePlace(_message.Message):
    __slots__ = ("node", "walks", "ranks", "dtype")
    NODE_FIELD_NUMBER: _ClassVar[int]
    WALKS_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    node: str
    walks: _containers.RepeatedScalarFieldContainer[str]
    ranks: _containers.RepeatedScalarFieldContainer[int]
    dtype: _tensor_pb2.DType
    def __init__(self, node: _Optional[str] = ..., walks: _Optional[_Iterable[str]] = ..., ranks: _Optional[_Iterable[int]] = ..., dtype: _Optional[_Union[_tensor_pb2.DType, str]] = ...) -> None: ...

class TaskSchema(_message.Message):
    __slots__ = ("name", "doc", "inputs", "outputs", "options", "walks", "criticality")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DOC_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    WALKS_FIELD_NUMBER: _ClassVar[int]
    CRITICALITY_FIELD_NUMBER: _ClassVar[int]
    name: str
    doc: str
    inputs: _containers.RepeatedCompositeFieldContainer[TensorSchema]
    outputs: _containers.RepeatedCompositeFieldContainer[TensorSchema]
    options: _containers.RepeatedCompositeFieldContainer[OptionSchema]
    walks: _containers.RepeatedScalarFieldContainer[str]
    criticality: _request_pb2.Criticality
    def __init__(self, name: _Optional[str] = ..., doc: _Optional[str] = ..., inputs: _Optional[_Iterable[_Union[TensorSchema, _Mapping]]] = ..., outputs: _Optional[_Iterable[_Union[TensorSchema, _Mapping]]] = ..., options: _Optional[_Iterable[_Union[OptionSchema, _Mapping]]] = ..., walks: _Optional[_Iterable[str]] = ..., criticality: _Optional[_Union[_request_pb2.Criticality, str]] = ...) -> None: ...

class TensorSchema(_message.Message):
    __slots__ = ("name", "shape", "dtypes", "units", "doc", "optional")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    DTYPES_FIELD_NUMBER: _ClassVar[int]
    UNITS_FIELD_NUMBER: _ClassVar[int]
    DOC_FIELD_NUMBER: _ClassVar[int]
    OPTIONAL_FIELD_NUMBER: _ClassVar[int]
    name: str
    shape: _containers.RepeatedCompositeFieldContainer[Dimension]
    dtypes: _containers.RepeatedScalarFieldContainer[_tensor_pb2.DType]
    units: str
    doc: str
    optional: bool
    def __init__(self, name: _Optional[str] = ..., shape: _Optional[_Iterable[_Union[Dimension, _Mapping]]] = ..., dtypes: _Optional[_Iterable[_Union[_tensor_pb2.DType, str]]] = ..., units: _Optional[str] = ..., doc: _Optional[str] = ..., optional: _Optional[bool] = ...) -> None: ...

class Dimension(_message.Message):
    __slots__ = ("size", "symbol", "max_size")
    SIZE_FIELD_NUMBER: _ClassVar[int]
    SYMBOL_FIELD_NUMBER: _ClassVar[int]
    MAX_SIZE_FIELD_NUMBER: _ClassVar[int]
    size: int
    symbol: str
    max_size: int
    def __init__(self, size: _Optional[int] = ..., symbol: _Optional[str] = ..., max_size: _Optional[int] = ...) -> None: ...

class OptionSchema(_message.Message):
    __slots__ = ("name", "kind", "default_value", "required", "minimum", "maximum", "choices", "length", "units", "doc")
    NAME_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_VALUE_FIELD_NUMBER: _ClassVar[int]
    REQUIRED_FIELD_NUMBER: _ClassVar[int]
    MINIMUM_FIELD_NUMBER: _ClassVar[int]
    MAXIMUM_FIELD_NUMBER: _ClassVar[int]
    CHOICES_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    UNITS_FIELD_NUMBER: _ClassVar[int]
    DOC_FIELD_NUMBER: _ClassVar[int]
    name: str
    kind: str
    default_value: _request_pb2.OptionValue
    required: bool
    minimum: float
    maximum: float
    choices: _containers.RepeatedScalarFieldContainer[str]
    length: int
    units: str
    doc: str
    def __init__(self, name: _Optional[str] = ..., kind: _Optional[str] = ..., default_value: _Optional[_Union[_request_pb2.OptionValue, _Mapping]] = ..., required: _Optional[bool] = ..., minimum: _Optional[float] = ..., maximum: _Optional[float] = ..., choices: _Optional[_Iterable[str]] = ..., length: _Optional[int] = ..., units: _Optional[str] = ..., doc: _Optional[str] = ...) -> None: ...

class WalkDrawing(_message.Message):
    __slots__ = ("walk", "text", "mermaid")
    WALK_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    MERMAID_FIELD_NUMBER: _ClassVar[int]
    walk: str
    text: str
    mermaid: str
    def __init__(self, walk: _Optional[str] = ..., text: _Optional[str] = ..., mermaid: _Optional[str] = ...) -> None: ...

class StatsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StatsResponse(_message.Message):
    __slots__ = ("processes", "silent")
    class ProcessesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: ProcessStats
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[ProcessStats, _Mapping]] = ...) -> None: ...
    PROCESSES_FIELD_NUMBER: _ClassVar[int]
    SILENT_FIELD_NUMBER: _ClassVar[int]
    processes: _containers.MessageMap[str, ProcessStats]
    silent: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, processes: _Optional[_Mapping[str, ProcessStats]] = ..., silent: _Optional[_Iterable[str]] = ...) -> None: ...

class ProcessStats(_message.Message):
    __slots__ = ("values", "histograms")
    class ValuesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    class HistogramsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Histogram
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Histogram, _Mapping]] = ...) -> None: ...
    VALUES_FIELD_NUMBER: _ClassVar[int]
    HISTOGRAMS_FIELD_NUMBER: _ClassVar[int]
    values: _containers.ScalarMap[str, float]
    histograms: _containers.MessageMap[str, Histogram]
    def __init__(self, values: _Optional[_Mapping[str, float]] = ..., histograms: _Optional[_Mapping[str, Histogram]] = ...) -> None: ...

class Histogram(_message.Message):
    __slots__ = ("bounds", "counts", "total")
    BOUNDS_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    bounds: _containers.RepeatedScalarFieldContainer[float]
    counts: _containers.RepeatedScalarFieldContainer[int]
    total: float
    def __init__(self, bounds: _Optional[_Iterable[float]] = ..., counts: _Optional[_Iterable[int]] = ..., total: _Optional[float] = ...) -> None: ...

class SessionsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SessionsResponse(_message.Message):
    __slots__ = ("sessions",)
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    sessions: _containers.RepeatedCompositeFieldContainer[SessionInfo]
    def __init__(self, sessions: _Optional[_Iterable[_Union[SessionInfo, _Mapping]]] = ...) -> None: ...

class SessionInfo(_message.Message):
    __slots__ = ("session_id", "kind", "model", "client", "age_s", "asked_hz", "budget_ms", "answered_hz", "p50_ms", "p99_ms", "num_answered", "num_missed", "dropped", "last")
    class DroppedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    AGE_S_FIELD_NUMBER: _ClassVar[int]
    ASKED_HZ_FIELD_NUMBER: _ClassVar[int]
    BUDGET_MS_FIELD_NUMBER: _ClassVar[int]
    ANSWERED_HZ_FIELD_NUMBER: _ClassVar[int]
    P50_MS_FIELD_NUMBER: _ClassVar[int]
    P99_MS_FIELD_NUMBER: _ClassVar[int]
    NUM_ANSWERED_FIELD_NUMBER: _ClassVar[int]
    NUM_MISSED_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    kind: str
    model: str
    client: str
    age_s: float
    asked_hz: float
    budget_ms: float
    answered_hz: float
    p50_ms: float
    p99_ms: float
    num_answered: int
    num_missed: int
    dropped: _containers.ScalarMap[str, int]
    last: _request_pb2.Timing
    def __init__(self, session_id: _Optional[str] = ..., kind: _Optional[str] = ..., model: _Optional[str] = ..., client: _Optional[str] = ..., age_s: _Optional[float] = ..., asked_hz: _Optional[float] = ..., budget_ms: _Optional[float] = ..., answered_hz: _Optional[float] = ..., p50_ms: _Optional[float] = ..., p99_ms: _Optional[float] = ..., num_answered: _Optional[int] = ..., num_missed: _Optional[int] = ..., dropped: _Optional[_Mapping[str, int]] = ..., last: _Optional[_Union[_request_pb2.Timing, _Mapping]] = ...) -> None: ...

class TraceRequest(_message.Message):
    __slots__ = ("last_s",)
    LAST_S_FIELD_NUMBER: _ClassVar[int]
    last_s: float
    def __init__(self, last_s: _Optional[float] = ...) -> None: ...

class TraceResponse(_message.Message):
    __slots__ = ("processes", "silent")
    PROCESSES_FIELD_NUMBER: _ClassVar[int]
    SILENT_FIELD_NUMBER: _ClassVar[int]
    processes: _containers.RepeatedCompositeFieldContainer[ProcessTrace]
    silent: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, processes: _Optional[_Iterable[_Union[ProcessTrace, _Mapping]]] = ..., silent: _Optional[_Iterable[str]] = ...) -> None: ...

class ProcessTrace(_message.Message):
    __slots__ = ("process", "rows")
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    process: str
    rows: bytes
    def __init__(self, process: _Optional[str] = ..., rows: _Optional[bytes] = ...) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DrainResponse(_message.Message):
    __slots__ = ("num_running",)
    NUM_RUNNING_FIELD_NUMBER: _ClassVar[int]
    num_running: int
    def __init__(self, num_running: _Optional[int] = ...) -> None: ...
