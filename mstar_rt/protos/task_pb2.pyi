from mstar_rt.protos import request_pb2 as _request_pb2
from mstar_rt.protos import tensor_pb2 as _tensor_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TaskRequest(_message.Message):
    __slots__ = ("message_id", "model", "task", "tensors", "model_options", "options", "cancel")
    class TensorsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _tensor_pb2.Tensor
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ...) -> None: ...
    class ModelOptionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _request_pb2.OptionValue
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_request_pb2.OptionValue, _Mapping]] = ...) -> None: ...
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    MODEL_OPTIONS_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    message_id: int
    model: str
    task: str
    tensors: _containers.MessageMap[str, _tensor_pb2.Tensor]
    model_options: _containers.MessageMap[str, _request_pb2.OptionValue]
    options: _request_pb2.RequestOptions
    cancel: bool
    def __init__(self, message_id: _Optional[int] = ..., model: _Optional[str] = ..., task: _Optional[str] = ..., tensors: _Optional[_Mapping[str, _tensor_pb2.Tensor]] = ..., model_options: _Optional[_Mapping[str, _request_pb2.OptionValue]] = ..., options: _Optional[_Union[_request_pb2.RequestOptions, _Mapping]] = ..., cancel: _Optional[bool] = ...) -> None: ...

class TaskResponse(_message.Message):
    __slots__ = ("answers", "output", "done", "error")
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    answers: int
    output: TaskOutput
    done: TaskDone
    error: _request_pb2.ErrorDetail
    def __init__(self, answers: _Optional[int] = ..., output: _Optional[_Union[TaskOutput, _Mapping]] = ..., done: _Optional[_Union[TaskDone, _Mapping]] = ..., error: _Optional[_Union[_request_pb2.ErrorDetail, _Mapping]] = ...) -> None: ...

class TaskOutput(_message.Message):
    __slots__ = ("name", "iteration", "tensor", "walk")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ITERATION_FIELD_NUMBER: _ClassVar[int]
    TENSOR_FIELD_NUMBER: _ClassVar[int]
    WALK_FIELD_NUMBER: _ClassVar[int]
    name: str
    iteration: _containers.RepeatedScalarFieldContainer[int]
    tensor: _tensor_pb2.Tensor
    walk: str
    def __init__(self, name: _Optional[str] = ..., iteration: _Optional[_Iterable[int]] = ..., tensor: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ..., walk: _Optional[str] = ...) -> None: ...

class TaskDone(_message.Message):
    __slots__ = ("request_id", "timing", "flags")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TIMING_FIELD_NUMBER: _ClassVar[int]
    FLAGS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    timing: _request_pb2.Timing
    flags: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, request_id: _Optional[str] = ..., timing: _Optional[_Union[_request_pb2.Timing, _Mapping]] = ..., flags: _Optional[_Iterable[str]] = ...) -> None: ...
