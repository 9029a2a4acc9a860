from mstar_rt.protos import request_pb2 as _request_pb2
from mstar_rt.protos import tensor_pb2 as _tensor_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GenerateRequest(_message.Message):
    __slots__ = ("model", "task", "options", "turns", "text", "speech", "image", "seed", "model_options")
    class ModelOptionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _request_pb2.OptionValue
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_request_pb2.OptionValue, _Mapping]] = ...) -> None: ...
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    TURNS_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    SPEECH_FIELD_NUMBER: _ClassVar[int]
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    MODEL_OPTIONS_FIELD_NUMBER: _ClassVar[int]
    model: str
    task: str
    options: _request_pb2.RequestOptions
    turns: _containers.RepeatedCompositeFieldContainer[Turn]
    text: TextOptions
    speech: SpeechOptions
    image: ImageOptions
    seed: int
    model_options: _containers.MessageMap[str, _request_pb2.OptionValue]
    def __init__(self, model: _Optional[str] = ..., task: _Optional[str] = ..., options: _Optional[_Union[_request_pb2.RequestOptions, _Mapping]] = ..., turns: _Optional[_Iterable[_Union[Turn, _Mapping]]] = ..., text: _Optional[_Union[TextOptions, _Mapping]] = ..., speech: _Optional[_Union[SpeechOptions, _Mapping]] = ..., image: _Optional[_Union[ImageOptions, _Mapping]] = ..., seed: _Optional[int] = ..., model_options: _Optional[_Mapping[str, _request_pb2.OptionValue]] = ...) -> None: ...

class Turn(_message.Message):
    __slots__ = ("role", "parts")
    class Role(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        ROLE_UNSPECIFIED: _ClassVar[Turn.Role]
        ROLE_SYSTEM: _ClassVar[Turn.Role]
        ROLE_USER: _ClassVar[Turn.Role]
        ROLE_ASSISTANT: _ClassVar[Turn.Role]
    ROLE_UNSPECIFIED: Turn.Role
    ROLE_SYSTEM: Turn.Role
    ROLE_USER: Turn.Role
    ROLE_ASSISTANT: Turn.Role
    ROLE_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    role: Turn.Role
    parts: _containers.RepeatedCompositeFieldContainer[Part]
    def __init__(self, role: _Optional[_Union[Turn.Role, str]] = ..., parts: _Optional[_Iterable[_Union[Part, _Mapping]]] = ...) -> None: ...

class Part(_message.Message):
    __slots__ = ("text", "image", "audio")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    AUDIO_FIELD_NUMBER: _ClassVar[int]
    text: str
    image: _tensor_pb2.Image
    audio: Audio
    def __init__(self, text: _Optional[str] = ..., image: _Optional[_Union[_tensor_pb2.Image, _Mapping]] = ..., audio: _Optional[_Union[Audio, _Mapping]] = ...) -> None: ...

class Audio(_message.Message):
    __slots__ = ("encoding", "data", "shared", "sample_rate_hz", "num_channels")
    class Encoding(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        ENCODING_UNSPECIFIED: _ClassVar[Audio.Encoding]
        ENCODING_PCM16: _ClassVar[Audio.Encoding]
        ENCODING_FLOAT32: _ClassVar[Audio.Encoding]
        ENCODING_WAV: _ClassVar[Audio.Encoding]
    ENCODING_UNSPECIFIED: Audio.Encoding
    ENCODING_PCM16: Audio.Encoding
    ENCODING_FLOAT32: Audio.Encoding
    ENCODING_WAV: Audio.Encoding
    ENCODING_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    SHARED_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_RATE_HZ_FIELD_NUMBER: _ClassVar[int]
    NUM_CHANNELS_FIELD_NUMBER: _ClassVar[int]
    encoding: Audio.Encoding
    data: bytes
    shared: _tensor_pb2.SharedMemoryRef
    sample_rate_hz: int
    num_channels: int
    def __init__(self, encoding: _Optional[_Union[Audio.Encoding, str]] = ..., data: _Optional[bytes] = ..., shared: _Optional[_Union[_tensor_pb2.SharedMemoryRef, _Mapping]] = ..., sample_rate_hz: _Optional[int] = ..., num_channels: _Optional[int] = ...) -> None: ...

class TextOptions(_message.Message):
    __slots__ = ("max_tokens", "temperature", "top_k", "top_p", "repetition_penalty", "stop", "ignore_end")
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    IGNORE_END_FIELD_NUMBER: _ClassVar[int]
    max_tokens: int
    temperature: float
    top_k: int
    top_p: float
    repetition_penalty: float
    stop: _containers.RepeatedScalarFieldContainer[str]
    ignore_end: bool
    def __init__(self, max_tokens: _Optional[int] = ..., temperature: _Optional[float] = ..., top_k: _Optional[int] = ..., top_p: _Optional[float] = ..., repetition_penalty: _Optional[float] = ..., stop: _Optional[_Iterable[str]] = ..., ignore_end: _Optional[bool] = ...) -> None: ...

class SpeechOptions(_message.Message):
    __slots__ = ("voice", "speed", "encoding", "first_chunk_frames", "max_chunk_frames", "playback_buffer_s")
    VOICE_FIELD_NUMBER: _ClassVar[int]
    SPEED_FIELD_NUMBER: _ClassVar[int]
    ENCODING_FIELD_NUMBER: _ClassVar[int]
    FIRST_CHUNK_FRAMES_FIELD_NUMBER: _ClassVar[int]
    MAX_CHUNK_FRAMES_FIELD_NUMBER: _ClassVar[int]
    PLAYBACK_BUFFER_S_FIELD_NUMBER: _ClassVar[int]
    voice: str
    speed: float
    encoding: Audio.Encoding
    first_chunk_frames: int
    max_chunk_frames: int
    playback_buffer_s: float
    def __init__(self, voice: _Optional[str] = ..., speed: _Optional[float] = ..., encoding: _Optional[_Union[Audio.Encoding, str]] = ..., first_chunk_frames: _Optional[int] = ..., max_chunk_frames: _Optional[int] = ..., playback_buffer_s: _Optional[float] = ...) -> None: ...

class ImageOptions(_message.Message):
    __slots__ = ("height", "width", "num_images", "text_guidance", "image_guidance", "guidance_start", "guidance_end", "num_denoise_steps", "timestep_shift", "renormalization", "renormalization_min", "think", "preview_every", "encoding", "latents_every")
    class Renormalization(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        RENORMALIZATION_UNSPECIFIED: _ClassVar[ImageOptions.Renormalization]
        RENORMALIZATION_NONE: _ClassVar[ImageOptions.Renormalization]
        RENORMALIZATION_GLOBAL: _ClassVar[ImageOptions.Renormalization]
        RENORMALIZATION_CHANNEL: _ClassVar[ImageOptions.Renormalization]
        RENORMALIZATION_TEXT_CHANNEL: _ClassVar[ImageOptions.Renormalization]
    RENORMALIZATION_UNSPECIFIED: ImageOptions.Renormalization
    RENORMALIZATION_NONE: ImageOptions.Renormalization
    RENORMALIZATION_GLOBAL: ImageOptions.Renormalization
    RENORMALIZATION_CHANNEL: ImageOptions.Renormalization
    RENORMALIZATION_TEXT_CHANNEL: ImageOptions.Renormalization
    HEIGHT_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    NUM_IMAGES_FIELD_NUMBER: _ClassVar[int]
    TEXT_GUIDANCE_FIELD_NUMBER: _ClassVar[int]
    IMAGE_GUIDANCE_FIELD_NUMBER: _ClassVar[int]
    GUIDANCE_START_FIELD_NUMBER: _ClassVar[int]
    GUIDANCE_END_FIELD_NUMBER: _ClassVar[int]
    NUM_DENOISE_STEPS_FIELD_NUMBER: _ClassVar[int]
    TIMESTEP_SHIFT_FIELD_NUMBER: _ClassVar[int]
    RENORMALIZATION_FIELD_NUMBER: _ClassVar[int]
    RENORMALIZATION_MIN_FIELD_NUMBER: _ClassVar[int]
    THINK_FIELD_NUMBER: _ClassVar[int]
    PREVIEW_EVERY_FIELD_NUMBER: _ClassVar[int]
    ENCODING_FIELD_NUMBER: _ClassVar[int]
    LATENTS_EVERY_FIELD_NUMBER: _ClassVar[int]
    height: int
    width: int
    num_images: int
    text_guidance: float
    image_guidance: float
    guidance_start: float
    guidance_end: float
    num_denoise_steps: int
    timestep_shift: float
    renormalization: ImageOptions.Renormalization
    renormalization_min: float
    think: bool
    preview_every: int
    encoding: _tensor_pb2.Image.Encoding
    latents_every: int
    def __init__(self, height: _Optional[int] = ..., width: _Optional[int] = ..., num_images: _Optional[int] = ..., text_guidance: _Optional[float] = ..., image_guidance: _Optional[float] = ..., guidance_start: _Optional[float] = ..., guidance_end: _Optional[float] = ..., num_denoise_steps: _Optional[int] = ..., timestep_shift: _Optional[float] = ..., renormalization: _Optional[_Union[ImageOptions.Renormalization, str]] = ..., renormalization_min: _Optional[float] = ..., think: _Optional[bool] = ..., preview_every: _Optional[int] = ..., encoding: _Optional[_Union[_tensor_pb2.Image.Encoding, str]] = ..., latents_every: _Optional[int] = ...) -> None: ...

class GenerateResponse(_message.Message):
    __slots__ = ("text", "audio", "progress", "image", "done")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    AUDIO_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    text: TextChunk
    audio: AudioChunk
    progress: ImageProgress
    image: ImageResult
    done: GenerateDone
    def __init__(self, text: _Optional[_Union[TextChunk, _Mapping]] = ..., audio: _Optional[_Union[AudioChunk, _Mapping]] = ..., progress: _Optional[_Union[ImageProgress, _Mapping]] = ..., image: _Optional[_Union[ImageResult, _Mapping]] = ..., done: _Optional[_Union[GenerateDone, _Mapping]] = ...) -> None: ...

class TextChunk(_message.Message):
    __slots__ = ("text", "num_tokens", "thought", "image_index")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    THOUGHT_FIELD_NUMBER: _ClassVar[int]
    IMAGE_INDEX_FIELD_NUMBER: _ClassVar[int]
    text: str
    num_tokens: int
    thought: bool
    image_index: int
    def __init__(self, text: _Optional[str] = ..., num_tokens: _Optional[int] = ..., thought: _Optional[bool] = ..., image_index: _Optional[int] = ...) -> None: ...

class AudioChunk(_message.Message):
    __slots__ = ("audio", "first_sample")
    AUDIO_FIELD_NUMBER: _ClassVar[int]
    FIRST_SAMPLE_FIELD_NUMBER: _ClassVar[int]
    audio: Audio
    first_sample: int
    def __init__(self, audio: _Optional[_Union[Audio, _Mapping]] = ..., first_sample: _Optional[int] = ...) -> None: ...

class ImageProgress(_message.Message):
    __slots__ = ("image_index", "step", "num_steps", "preview", "latents")
    IMAGE_INDEX_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    NUM_STEPS_FIELD_NUMBER: _ClassVar[int]
    PREVIEW_FIELD_NUMBER: _ClassVar[int]
    LATENTS_FIELD_NUMBER: _ClassVar[int]
    image_index: int
    step: int
    num_steps: int
    preview: _tensor_pb2.Image
    latents: _tensor_pb2.Tensor
    def __init__(self, image_index: _Optional[int] = ..., step: _Optional[int] = ..., num_steps: _Optional[int] = ..., preview: _Optional[_Union[_tensor_pb2.Image, _Mapping]] = ..., latents: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ...) -> None: ...

class ImageResult(_message.Message):
    __slots__ = ("image_index", "image", "seed")
    IMAGE_INDEX_FIELD_NUMBER: _ClassVar[int]
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    image_index: int
    image: _tensor_pb2.Image
    seed: int
    def __init__(self, image_index: _Optional[int] = ..., image: _Optional[_Union[_tensor_pb2.Image, _Mapping]] = ..., seed: _Optional[int] = ...) -> None: ...

class GenerateDone(_message.Message):
    __slots__ = ("request_id", "reason", "num_input_tokens", "num_output_tokens", "num_samples", "timing", "flags")
    class Reason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        REASON_UNSPECIFIED: _ClassVar[GenerateDone.Reason]
        REASON_END: _ClassVar[GenerateDone.Reason]
        REASON_STOP: _ClassVar[GenerateDone.Reason]
        REASON_MAX_TOKENS: _ClassVar[GenerateDone.Reason]
        REASON_DEADLINE: _ClassVar[GenerateDone.Reason]
    REASON_UNSPECIFIED: GenerateDone.Reason
    REASON_END: GenerateDone.Reason
    REASON_STOP: GenerateDone.Reason
    REASON_MAX_TOKENS: GenerateDone.Reason
    REASON_DEADLINE: GenerateDone.Reason
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    NUM_INPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    TIMING_FIELD_NUMBER: _ClassVar[int]
    FLAGS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    reason: GenerateDone.Reason
    num_input_tokens: int
    num_output_tokens: int
    num_samples: int
    timing: _request_pb2.Timing
    flags: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, request_id: _Optional[str] = ..., reason: _Optional[_Union[GenerateDone.Reason, str]] = ..., num_input_tokens: _Optional[int] = ..., num_output_tokens: _Optional[int] = ..., num_samples: _Optional[int] = ..., timing: _Optional[_Union[_request_pb2.Timing, _Mapping]] = ..., flags: _Optional[_Iterable[str]] = ...) -> None: ...
