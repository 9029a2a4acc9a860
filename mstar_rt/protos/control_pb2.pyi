from mstar_rt.protos import request_pb2 as _request_pb2
from mstar_rt.protos import tensor_pb2 as _tensor_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ControlRequest(_message.Message):
    __slots__ = ("open", "observation", "set_instruction", "reset", "close", "heartbeat")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    OBSERVATION_FIELD_NUMBER: _ClassVar[int]
    SET_INSTRUCTION_FIELD_NUMBER: _ClassVar[int]
    RESET_FIELD_NUMBER: _ClassVar[int]
    CLOSE_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    open: OpenControl
    observation: Observation
    set_instruction: SetInstruction
    reset: ResetEpisode
    close: CloseControl
    heartbeat: Heartbeat
    def __init__(self, open: _Optional[_Union[OpenControl, _Mapping]] = ..., observation: _Optional[_Union[Observation, _Mapping]] = ..., set_instruction: _Optional[_Union[SetInstruction, _Mapping]] = ..., reset: _Optional[_Union[ResetEpisode, _Mapping]] = ..., close: _Optional[_Union[CloseControl, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ...) -> None: ...

class ControlResponse(_message.Message):
    __slots__ = ("opened", "chunk", "event", "closed", "heartbeat")
    OPENED_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    EVENT_FIELD_NUMBER: _ClassVar[int]
    CLOSED_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    opened: ControlOpened
    chunk: ActionChunk
    event: ControlEvent
    closed: ControlClosed
    heartbeat: Heartbeat
    def __init__(self, opened: _Optional[_Union[ControlOpened, _Mapping]] = ..., chunk: _Optional[_Union[ActionChunk, _Mapping]] = ..., event: _Optional[_Union[ControlEvent, _Mapping]] = ..., closed: _Optional[_Union[ControlClosed, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ...) -> None: ...

class OpenControl(_message.Message):
    __slots__ = ("model", "instruction", "control_hz", "replan_every", "schema", "chunking", "budget_ms", "num_denoise_steps", "seed", "anytime", "epoch", "shared_memory", "model_options", "takes_over")
    class ModelOptionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _request_pb2.OptionValue
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_request_pb2.OptionValue, _Mapping]] = ...) -> None: ...
    MODEL_FIELD_NUMBER: _ClassVar[int]
    INSTRUCTION_FIELD_NUMBER: _ClassVar[int]
    CONTROL_HZ_FIELD_NUMBER: _ClassVar[int]
    REPLAN_EVERY_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    CHUNKING_FIELD_NUMBER: _ClassVar[int]
    BUDGET_MS_FIELD_NUMBER: _ClassVar[int]
    NUM_DENOISE_STEPS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    ANYTIME_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SHARED_MEMORY_FIELD_NUMBER: _ClassVar[int]
    MODEL_OPTIONS_FIELD_NUMBER: _ClassVar[int]
    TAKES_OVER_FIELD_NUMBER: _ClassVar[int]
    model: str
    instruction: str
    control_hz: float
    replan_every: int
    schema: RobotSchema
    chunking: RealTimeChunking
    budget_ms: float
    num_denoise_steps: int
    seed: int
    anytime: bool
    epoch: int
    shared_memory: SharedMemoryOffer
    model_options: _containers.MessageMap[str, _request_pb2.OptionValue]
    takes_over: str
    def __init__(self, model: _Optional[str] = ..., instruction: _Optional[str] = ..., control_hz: _Optional[float] = ..., replan_every: _Optional[int] = ..., schema: _Optional[_Union[RobotSchema, _Mapping]] = ..., chunking: _Optional[_Union[RealTimeChunking, _Mapping]] = ..., budget_ms: _Optional[float] = ..., num_denoise_steps: _Optional[int] = ..., seed: _Optional[int] = ..., anytime: _Optional[bool] = ..., epoch: _Optional[int] = ..., shared_memory: _Optional[_Union[SharedMemoryOffer, _Mapping]] = ..., model_options: _Optional[_Mapping[str, _request_pb2.OptionValue]] = ..., takes_over: _Optional[str] = ...) -> None: ...

class RobotSchema(_message.Message):
    __slots__ = ("cameras", "state", "action", "normalization")
    CAMERAS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    NORMALIZATION_FIELD_NUMBER: _ClassVar[int]
    cameras: _containers.RepeatedCompositeFieldContainer[CameraSchema]
    state: VectorSchema
    action: VectorSchema
    normalization: str
    def __init__(self, cameras: _Optional[_Iterable[_Union[CameraSchema, _Mapping]]] = ..., state: _Optional[_Union[VectorSchema, _Mapping]] = ..., action: _Optional[_Union[VectorSchema, _Mapping]] = ..., normalization: _Optional[str] = ...) -> None: ...

class CameraSchema(_message.Message):
    __slots__ = ("name", "height", "width", "may_be_masked")
    NAME_FIELD_NUMBER: _ClassVar[int]
    HEIGHT_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    MAY_BE_MASKED_FIELD_NUMBER: _ClassVar[int]
    name: str
    height: int
    width: int
    may_be_masked: bool
    def __init__(self, name: _Optional[str] = ..., height: _Optional[int] = ..., width: _Optional[int] = ..., may_be_masked: _Optional[bool] = ...) -> None: ...

class VectorSchema(_message.Message):
    __slots__ = ("size", "names", "units")
    SIZE_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    UNITS_FIELD_NUMBER: _ClassVar[int]
    size: int
    names: _containers.RepeatedScalarFieldContainer[str]
    units: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, size: _Optional[int] = ..., names: _Optional[_Iterable[str]] = ..., units: _Optional[_Iterable[str]] = ...) -> None: ...

class PolicySchema(_message.Message):
    __slots__ = ("schema", "action_horizon", "takes_instruction", "num_observations", "normalizations", "chunking", "max_prefix_delay", "anytime")
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    ACTION_HORIZON_FIELD_NUMBER: _ClassVar[int]
    TAKES_INSTRUCTION_FIELD_NUMBER: _ClassVar[int]
    NUM_OBSERVATIONS_FIELD_NUMBER: _ClassVar[int]
    NORMALIZATIONS_FIELD_NUMBER: _ClassVar[int]
    CHUNKING_FIELD_NUMBER: _ClassVar[int]
    MAX_PREFIX_DELAY_FIELD_NUMBER: _ClassVar[int]
    ANYTIME_FIELD_NUMBER: _ClassVar[int]
    schema: RobotSchema
    action_horizon: int
    takes_instruction: bool
    num_observations: int
    normalizations: _containers.RepeatedScalarFieldContainer[str]
    chunking: _containers.RepeatedScalarFieldContainer[RealTimeChunking.Mode]
    max_prefix_delay: int
    anytime: bool
    def __init__(self, schema: _Optional[_Union[RobotSchema, _Mapping]] = ..., action_horizon: _Optional[int] = ..., takes_instruction: _Optional[bool] = ..., num_observations: _Optional[int] = ..., normalizations: _Optional[_Iterable[str]] = ..., chunking: _Optional[_Iterable[_Union[RealTimeChunking.Mode, str]]] = ..., max_prefix_delay: _Optional[int] = ..., anytime: _Optional[bool] = ...) -> None: ...

class RealTimeChunking(_message.Message):
    __slots__ = ("mode", "schedule", "max_guidance_weight", "prefix_attention_horizon", "delay", "ensemble_decay")
    class Mode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        MODE_UNSPECIFIED: _ClassVar[RealTimeChunking.Mode]
        MODE_GUIDED: _ClassVar[RealTimeChunking.Mode]
        MODE_GUIDED_IDENTITY: _ClassVar[RealTimeChunking.Mode]
        MODE_PREFIX: _ClassVar[RealTimeChunking.Mode]
        MODE_TEMPORAL_ENSEMBLE: _ClassVar[RealTimeChunking.Mode]
    MODE_UNSPECIFIED: RealTimeChunking.Mode
    MODE_GUIDED: RealTimeChunking.Mode
    MODE_GUIDED_IDENTITY: RealTimeChunking.Mode
    MODE_PREFIX: RealTimeChunking.Mode
    MODE_TEMPORAL_ENSEMBLE: RealTimeChunking.Mode
    class Schedule(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        SCHEDULE_UNSPECIFIED: _ClassVar[RealTimeChunking.Schedule]
        SCHEDULE_LINEAR: _ClassVar[RealTimeChunking.Schedule]
        SCHEDULE_EXPONENTIAL: _ClassVar[RealTimeChunking.Schedule]
        SCHEDULE_ONES: _ClassVar[RealTimeChunking.Schedule]
        SCHEDULE_ZEROS: _ClassVar[RealTimeChunking.Schedule]
    SCHEDULE_UNSPECIFIED: RealTimeChunking.Schedule
    SCHEDULE_LINEAR: RealTimeChunking.Schedule
    SCHEDULE_EXPONENTIAL: RealTimeChunking.Schedule
    SCHEDULE_ONES: RealTimeChunking.Schedule
    SCHEDULE_ZEROS: RealTimeChunking.Schedule
    MODE_FIELD_NUMBER: _ClassVar[int]
    SCHEDULE_FIELD_NUMBER: _ClassVar[int]
    MAX_GUIDANCE_WEIGHT_FIELD_NUMBER: _ClassVar[int]
    PREFIX_ATTENTION_HORIZON_FIELD_NUMBER: _ClassVar[int]
    DELAY_FIELD_NUMBER: _ClassVar[int]
    ENSEMBLE_DECAY_FIELD_NUMBER: _ClassVar[int]
    mode: RealTimeChunking.Mode
    schedule: RealTimeChunking.Schedule
    max_guidance_weight: float
    prefix_attention_horizon: int
    delay: int
    ensemble_decay: float
    def __init__(self, mode: _Optional[_Union[RealTimeChunking.Mode, str]] = ..., schedule: _Optional[_Union[RealTimeChunking.Schedule, str]] = ..., max_guidance_weight: _Optional[float] = ..., prefix_attention_horizon: _Optional[int] = ..., delay: _Optional[int] = ..., ensemble_decay: _Optional[float] = ...) -> None: ...

class SharedMemoryOffer(_message.Message):
    __slots__ = ("region", "pid", "fd", "num_bytes", "token")
    REGION_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    FD_FIELD_NUMBER: _ClassVar[int]
    NUM_BYTES_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    region: str
    pid: int
    fd: int
    num_bytes: int
    token: bytes
    def __init__(self, region: _Optional[str] = ..., pid: _Optional[int] = ..., fd: _Optional[int] = ..., num_bytes: _Optional[int] = ..., token: _Optional[bytes] = ...) -> None: ...

class ControlOpened(_message.Message):
    __slots__ = ("session_id", "action_horizon", "schema", "admitted_hz", "shared_memory", "epoch", "warmup", "shared_memory_refused", "max_message_bytes", "seed")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    ACTION_HORIZON_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    ADMITTED_HZ_FIELD_NUMBER: _ClassVar[int]
    SHARED_MEMORY_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    WARMUP_FIELD_NUMBER: _ClassVar[int]
    SHARED_MEMORY_REFUSED_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    action_horizon: int
    schema: RobotSchema
    admitted_hz: float
    shared_memory: bool
    epoch: int
    warmup: _request_pb2.Timing
    shared_memory_refused: _request_pb2.ErrorDetail
    max_message_bytes: int
    seed: int
    def __init__(self, session_id: _Optional[str] = ..., action_horizon: _Optional[int] = ..., schema: _Optional[_Union[RobotSchema, _Mapping]] = ..., admitted_hz: _Optional[float] = ..., shared_memory: _Optional[bool] = ..., epoch: _Optional[int] = ..., warmup: _Optional[_Union[_request_pb2.Timing, _Mapping]] = ..., shared_memory_refused: _Optional[_Union[_request_pb2.ErrorDetail, _Mapping]] = ..., max_message_bytes: _Optional[int] = ..., seed: _Optional[int] = ...) -> None: ...

class Observation(_message.Message):
    __slots__ = ("seq", "epoch", "images", "masked_cameras", "state", "budget_ms", "executed_index", "executed_chunk_seq", "previous_actions", "noise", "client_time_ns", "delay", "wants_chunk")
    class ImagesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _tensor_pb2.Image
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_tensor_pb2.Image, _Mapping]] = ...) -> None: ...
    SEQ_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    IMAGES_FIELD_NUMBER: _ClassVar[int]
    MASKED_CAMERAS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    BUDGET_MS_FIELD_NUMBER: _ClassVar[int]
    EXECUTED_INDEX_FIELD_NUMBER: _ClassVar[int]
    EXECUTED_CHUNK_SEQ_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_ACTIONS_FIELD_NUMBER: _ClassVar[int]
    NOISE_FIELD_NUMBER: _ClassVar[int]
    CLIENT_TIME_NS_FIELD_NUMBER: _ClassVar[int]
    DELAY_FIELD_NUMBER: _ClassVar[int]
    WANTS_CHUNK_FIELD_NUMBER: _ClassVar[int]
    seq: int
    epoch: int
    images: _containers.MessageMap[str, _tensor_pb2.Image]
    masked_cameras: _containers.RepeatedScalarFieldContainer[str]
    state: _tensor_pb2.Tensor
    budget_ms: float
    executed_index: int
    executed_chunk_seq: int
    previous_actions: _tensor_pb2.Tensor
    noise: _tensor_pb2.Tensor
    client_time_ns: int
    delay: int
    wants_chunk: bool
    def __init__(self, seq: _Optional[int] = ..., epoch: _Optional[int] = ..., images: _Optional[_Mapping[str, _tensor_pb2.Image]] = ..., masked_cameras: _Optional[_Iterable[str]] = ..., state: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ..., budget_ms: _Optional[float] = ..., executed_index: _Optional[int] = ..., executed_chunk_seq: _Optional[int] = ..., previous_actions: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ..., noise: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ..., client_time_ns: _Optional[int] = ..., delay: _Optional[int] = ..., wants_chunk: _Optional[bool] = ...) -> None: ...

class ActionChunk(_message.Message):
    __slots__ = ("answers_seq", "epoch", "actions", "delay_assumed", "num_denoise_steps", "timing", "client_time_ns", "instruction_index", "request_id", "flags")
    ANSWERS_SEQ_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ACTIONS_FIELD_NUMBER: _ClassVar[int]
    DELAY_ASSUMED_FIELD_NUMBER: _ClassVar[int]
    NUM_DENOISE_STEPS_FIELD_NUMBER: _ClassVar[int]
    TIMING_FIELD_NUMBER: _ClassVar[int]
    CLIENT_TIME_NS_FIELD_NUMBER: _ClassVar[int]
    INSTRUCTION_INDEX_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    FLAGS_FIELD_NUMBER: _ClassVar[int]
    answers_seq: int
    epoch: int
    actions: _tensor_pb2.Tensor
    delay_assumed: int
    num_denoise_steps: int
    timing: _request_pb2.Timing
    client_time_ns: int
    instruction_index: int
    request_id: str
    flags: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, answers_seq: _Optional[int] = ..., epoch: _Optional[int] = ..., actions: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ..., delay_assumed: _Optional[int] = ..., num_denoise_steps: _Optional[int] = ..., timing: _Optional[_Union[_request_pb2.Timing, _Mapping]] = ..., client_time_ns: _Optional[int] = ..., instruction_index: _Optional[int] = ..., request_id: _Optional[str] = ..., flags: _Optional[_Iterable[str]] = ...) -> None: ...

class SetInstruction(_message.Message):
    __slots__ = ("instruction",)
    INSTRUCTION_FIELD_NUMBER: _ClassVar[int]
    instruction: str
    def __init__(self, instruction: _Optional[str] = ...) -> None: ...

class ResetEpisode(_message.Message):
    __slots__ = ("epoch", "instruction", "seed")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    INSTRUCTION_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    instruction: str
    seed: int
    def __init__(self, epoch: _Optional[int] = ..., instruction: _Optional[str] = ..., seed: _Optional[int] = ...) -> None: ...

class CloseControl(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ControlClosed(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("number",)
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    number: int
    def __init__(self, number: _Optional[int] = ...) -> None: ...

class ControlEvent(_message.Message):
    __slots__ = ("kind", "seq", "epoch", "detail", "replaced_by")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        KIND_UNSPECIFIED: _ClassVar[ControlEvent.Kind]
        KIND_DROPPED_STALE: _ClassVar[ControlEvent.Kind]
        KIND_DROPPED_LATE: _ClassVar[ControlEvent.Kind]
        KIND_LATE: _ClassVar[ControlEvent.Kind]
        KIND_DROPPED_EPOCH: _ClassVar[ControlEvent.Kind]
        KIND_RECOVERING: _ClassVar[ControlEvent.Kind]
        KIND_FAILED: _ClassVar[ControlEvent.Kind]
        KIND_RESET_DONE: _ClassVar[ControlEvent.Kind]
        KIND_NOT_DUE: _ClassVar[ControlEvent.Kind]
    KIND_UNSPECIFIED: ControlEvent.Kind
    KIND_DROPPED_STALE: ControlEvent.Kind
    KIND_DROPPED_LATE: ControlEvent.Kind
    KIND_LATE: ControlEvent.Kind
    KIND_DROPPED_EPOCH: ControlEvent.Kind
    KIND_RECOVERING: ControlEvent.Kind
    KIND_FAILED: ControlEvent.Kind
    KIND_RESET_DONE: ControlEvent.Kind
    KIND_NOT_DUE: ControlEvent.Kind
    KIND_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    REPLACED_BY_FIELD_NUMBER: _ClassVar[int]
    kind: ControlEvent.Kind
    seq: int
    epoch: int
    detail: _request_pb2.ErrorDetail
    replaced_by: int
    def __init__(self, kind: _Optional[_Union[ControlEvent.Kind, str]] = ..., seq: _Optional[int] = ..., epoch: _Optional[int] = ..., detail: _Optional[_Union[_request_pb2.ErrorDetail, _Mapping]] = ..., replaced_by: _Optional[int] = ...) -> None: ...
