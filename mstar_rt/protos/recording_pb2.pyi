from mstar_rt.protos import control_pb2 as _control_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RecordingFrame(_message.Message):
    __slots__ = ("time_ns", "header", "request", "response", "end")
    TIME_NS_FIELD_NUMBER: _ClassVar[int]
    HEADER_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    time_ns: int
    header: RecordingHeader
    request: _control_pb2.ControlRequest
    response: _control_pb2.ControlResponse
    end: RecordingEnd
    def __init__(self, time_ns: _Optional[int] = ..., header: _Optional[_Union[RecordingHeader, _Mapping]] = ..., request: _Optional[_Union[_control_pb2.ControlRequest, _Mapping]] = ..., response: _Optional[_Union[_control_pb2.ControlResponse, _Mapping]] = ..., end: _Optional[_Union[RecordingEnd, _Mapping]] = ...) -> None: ...

class RecordingHeader(_message.Message):
    __slots__ = ("recorder", "address", "created_unix_ms", "policy")
    RECORDER_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    CREATED_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    recorder: str
    address: str
    created_unix_ms: int
    policy: _control_pb2.PolicySchema
    def __init__(self, recorder: _Optional[str] = ..., address: _Optional[str] = ..., created_unix_ms: _Optional[int] = ..., policy: _Optional[_Union[_control_pb2.PolicySchema, _Mapping]] = ...) -> None: ...

class RecordingEnd(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...
