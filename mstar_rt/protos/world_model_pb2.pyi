from mstar_rt.protos import request_pb2 as _request_pb2
from mstar_rt.protos import tensor_pb2 as _tensor_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Context(_message.Message):
    __slots__ = ("frames", "latents", "state", "actions", "states", "extrinsics")
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    LATENTS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ACTIONS_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    EXTRINSICS_FIELD_NUMBER: _ClassVar[int]
    frames: _tensor_pb2.Frames
    latents: _tensor_pb2.Tensor
    state: _tensor_pb2.Tensor
    actions: _tensor_pb2.Tensor
    states: _tensor_pb2.Tensor
    extrinsics: _tensor_pb2.Tensor
    def __init__(self, frames: _Optional[_Union[_tensor_pb2.Frames, _Mapping]] = ..., latents: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ..., state: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ..., actions: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ..., states: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ..., extrinsics: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ...) -> None: ...

class Goal(_message.Message):
    __slots__ = ("frames", "latents", "use", "weights")
    class Use(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        USE_UNSPECIFIED: _ClassVar[Goal.Use]
        USE_PER_STEP: _ClassVar[Goal.Use]
        USE_NEAREST: _ClassVar[Goal.Use]
    USE_UNSPECIFIED: Goal.Use
    USE_PER_STEP: Goal.Use
    USE_NEAREST: Goal.Use
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    LATENTS_FIELD_NUMBER: _ClassVar[int]
    USE_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    frames: _tensor_pb2.Frames
    latents: _tensor_pb2.Tensor
    use: Goal.Use
    weights: _tensor_pb2.Tensor
    def __init__(self, frames: _Optional[_Union[_tensor_pb2.Frames, _Mapping]] = ..., latents: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ..., use: _Optional[_Union[Goal.Use, str]] = ..., weights: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ...) -> None: ...

class EncodeRequest(_message.Message):
    __slots__ = ("model", "options", "frames", "model_options")
    class ModelOptionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _request_pb2.OptionValue
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_request_pb2.OptionValue, _Mapping]] = ...) -> None: ...
    MODEL_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    MODEL_OPTIONS_FIELD_NUMBER: _ClassVar[int]
    model: str
    options: _request_pb2.RequestOptions
    frames: _tensor_pb2.Frames
    model_options: _containers.MessageMap[str, _request_pb2.OptionValue]
    def __init__(self, model: _Optional[str] = ..., options: _Optional[_Union[_request_pb2.RequestOptions, _Mapping]] = ..., frames: _Optional[_Union[_tensor_pb2.Frames, _Mapping]] = ..., model_options: _Optional[_Mapping[str, _request_pb2.OptionValue]] = ...) -> None: ...

class EncodeResponse(_message.Message):
    __slots__ = ("request_id", "latents", "timing", "flags")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    LATENTS_FIELD_NUMBER: _ClassVar[int]
    TIMING_FIELD_NUMBER: _ClassVar[int]
    FLAGS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    latents: _tensor_pb2.Tensor
    timing: _request_pb2.Timing
    flags: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, request_id: _Optional[str] = ..., latents: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ..., timing: _Optional[_Union[_request_pb2.Timing, _Mapping]] = ..., flags: _Optional[_Iterable[str]] = ...) -> None: ...

class RolloutRequest(_message.Message):
    __slots__ = ("model", "options", "context", "rollout")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    ROLLOUT_FIELD_NUMBER: _ClassVar[int]
    model: str
    options: _request_pb2.RequestOptions
    context: Context
    rollout: Rollout
    def __init__(self, model: _Optional[str] = ..., options: _Optional[_Union[_request_pb2.RequestOptions, _Mapping]] = ..., context: _Optional[_Union[Context, _Mapping]] = ..., rollout: _Optional[_Union[Rollout, _Mapping]] = ...) -> None: ...

class Rollout(_message.Message):
    __slots__ = ("actions", "states", "output", "goal", "model_options")
    class Output(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        OUTPUT_UNSPECIFIED: _ClassVar[Rollout.Output]
        OUTPUT_LAST_LATENT: _ClassVar[Rollout.Output]
        OUTPUT_GOAL_DISTANCE: _ClassVar[Rollout.Output]
    OUTPUT_UNSPECIFIED: Rollout.Output
    OUTPUT_LAST_LATENT: Rollout.Output
    OUTPUT_GOAL_DISTANCE: Rollout.Output
    class ModelOptionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _request_pb2.OptionValue
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_request_pb2.OptionValue, _Mapping]] = ...) -> None: ...
    ACTIONS_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    GOAL_FIELD_NUMBER: _ClassVar[int]
    MODEL_OPTIONS_FIELD_NUMBER: _ClassVar[int]
    actions: _tensor_pb2.Tensor
    states: _tensor_pb2.Tensor
    output: Rollout.Output
    goal: Goal
    model_options: _containers.MessageMap[str, _request_pb2.OptionValue]
    def __init__(self, actions: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ..., states: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ..., output: _Optional[_Union[Rollout.Output, str]] = ..., goal: _Optional[_Union[Goal, _Mapping]] = ..., model_options: _Optional[_Mapping[str, _request_pb2.OptionValue]] = ...) -> None: ...

class RolloutResponse(_message.Message):
    __slots__ = ("step", "done")
    STEP_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    step: RolloutStep
    done: RolloutDone
    def __init__(self, step: _Optional[_Union[RolloutStep, _Mapping]] = ..., done: _Optional[_Union[RolloutDone, _Mapping]] = ...) -> None: ...

class RolloutStep(_message.Message):
    __slots__ = ("step", "latent", "pose", "goal_distance", "extra")
    class ExtraEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _tensor_pb2.Tensor
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ...) -> None: ...
    STEP_FIELD_NUMBER: _ClassVar[int]
    LATENT_FIELD_NUMBER: _ClassVar[int]
    POSE_FIELD_NUMBER: _ClassVar[int]
    GOAL_DISTANCE_FIELD_NUMBER: _ClassVar[int]
    EXTRA_FIELD_NUMBER: _ClassVar[int]
    step: int
    latent: _tensor_pb2.Tensor
    pose: _tensor_pb2.Tensor
    goal_distance: _tensor_pb2.Tensor
    extra: _containers.MessageMap[str, _tensor_pb2.Tensor]
    def __init__(self, step: _Optional[int] = ..., latent: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ..., pose: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ..., goal_distance: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ..., extra: _Optional[_Mapping[str, _tensor_pb2.Tensor]] = ...) -> None: ...

class RolloutDone(_message.Message):
    __slots__ = ("request_id", "num_steps", "timing", "flags")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    NUM_STEPS_FIELD_NUMBER: _ClassVar[int]
    TIMING_FIELD_NUMBER: _ClassVar[int]
    FLAGS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    num_steps: int
    timing: _request_pb2.Timing
    flags: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, request_id: _Optional[str] = ..., num_steps: _Optional[int] = ..., timing: _Optional[_Union[_request_pb2.Timing, _Mapping]] = ..., flags: _Optional[_Iterable[str]] = ...) -> None: ...

class PlannerOptions(_message.Message):
    __slots__ = ("rollout_horizon", "num_samples", "num_elites", "num_iterations", "momentum_mean", "momentum_std", "momentum_mean_gripper", "momentum_std_gripper", "max_displacement", "pinned", "close_gripper_step", "seed", "warm_start", "planner", "cost", "temperature", "convergence_tolerance", "keep_elites", "include_mean", "tree_branching", "action_low", "action_high", "initial_mean", "model_options")
    class Planner(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        PLANNER_UNSPECIFIED: _ClassVar[PlannerOptions.Planner]
        PLANNER_CEM: _ClassVar[PlannerOptions.Planner]
        PLANNER_MPPI: _ClassVar[PlannerOptions.Planner]
    PLANNER_UNSPECIFIED: PlannerOptions.Planner
    PLANNER_CEM: PlannerOptions.Planner
    PLANNER_MPPI: PlannerOptions.Planner
    class Cost(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        COST_UNSPECIFIED: _ClassVar[PlannerOptions.Cost]
        COST_L1: _ClassVar[PlannerOptions.Cost]
        COST_L2: _ClassVar[PlannerOptions.Cost]
        COST_COSINE: _ClassVar[PlannerOptions.Cost]
    COST_UNSPECIFIED: PlannerOptions.Cost
    COST_L1: PlannerOptions.Cost
    COST_L2: PlannerOptions.Cost
    COST_COSINE: PlannerOptions.Cost
    class ModelOptionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _request_pb2.OptionValue
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_request_pb2.OptionValue, _Mapping]] = ...) -> None: ...
    ROLLOUT_HORIZON_FIELD_NUMBER: _ClassVar[int]
    NUM_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    NUM_ELITES_FIELD_NUMBER: _ClassVar[int]
    NUM_ITERATIONS_FIELD_NUMBER: _ClassVar[int]
    MOMENTUM_MEAN_FIELD_NUMBER: _ClassVar[int]
    MOMENTUM_STD_FIELD_NUMBER: _ClassVar[int]
    MOMENTUM_MEAN_GRIPPER_FIELD_NUMBER: _ClassVar[int]
    MOMENTUM_STD_GRIPPER_FIELD_NUMBER: _ClassVar[int]
    MAX_DISPLACEMENT_FIELD_NUMBER: _ClassVar[int]
    PINNED_FIELD_NUMBER: _ClassVar[int]
    CLOSE_GRIPPER_STEP_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    WARM_START_FIELD_NUMBER: _ClassVar[int]
    PLANNER_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    CONVERGENCE_TOLERANCE_FIELD_NUMBER: _ClassVar[int]
    KEEP_ELITES_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_MEAN_FIELD_NUMBER: _ClassVar[int]
    TREE_BRANCHING_FIELD_NUMBER: _ClassVar[int]
    ACTION_LOW_FIELD_NUMBER: _ClassVar[int]
    ACTION_HIGH_FIELD_NUMBER: _ClassVar[int]
    INITIAL_MEAN_FIELD_NUMBER: _ClassVar[int]
    MODEL_OPTIONS_FIELD_NUMBER: _ClassVar[int]
    rollout_horizon: int
    num_samples: int
    num_elites: int
    num_iterations: int
    momentum_mean: float
    momentum_std: float
    momentum_mean_gripper: float
    momentum_std_gripper: float
    max_displacement: float
    pinned: _containers.RepeatedCompositeFieldContainer[PinnedDimension]
    close_gripper_step: int
    seed: int
    warm_start: bool
    planner: PlannerOptions.Planner
    cost: PlannerOptions.Cost
    temperature: float
    convergence_tolerance: float
    keep_elites: bool
    include_mean: bool
    tree_branching: _containers.RepeatedScalarFieldContainer[int]
    action_low: _tensor_pb2.Tensor
    action_high: _tensor_pb2.Tensor
    initial_mean: _tensor_pb2.Tensor
    model_options: _containers.MessageMap[str, _request_pb2.OptionValue]
    def __init__(self, rollout_horizon: _Optional[int] = ..., num_samples: _Optional[int] = ..., num_elites: _Optional[int] = ..., num_iterations: _Optional[int] = ..., momentum_mean: _Optional[float] = ..., momentum_std: _Optional[float] = ..., momentum_mean_gripper: _Optional[float] = ..., momentum_std_gripper: _Optional[float] = ..., max_displacement: _Optional[float] = ..., pinned: _Optional[_Iterable[_Union[PinnedDimension, _Mapping]]] = ..., close_gripper_step: _Optional[int] = ..., seed: _Optional[int] = ..., warm_start: _Optional[bool] = ..., planner: _Optional[_Union[PlannerOptions.Planner, str]] = ..., cost: _Optional[_Union[PlannerOptions.Cost, str]] = ..., temperature: _Optional[float] = ..., convergence_tolerance: _Optional[float] = ..., keep_elites: _Optional[bool] = ..., include_mean: _Optional[bool] = ..., tree_branching: _Optional[_Iterable[int]] = ..., action_low: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ..., action_high: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ..., initial_mean: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ..., model_options: _Optional[_Mapping[str, _request_pb2.OptionValue]] = ...) -> None: ...

class PinnedDimension(_message.Message):
    __slots__ = ("dimension", "value")
    DIMENSION_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    dimension: int
    value: float
    def __init__(self, dimension: _Optional[int] = ..., value: _Optional[float] = ...) -> None: ...

class PlanRequest(_message.Message):
    __slots__ = ("model", "options", "context", "goal", "planner", "improvements")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    GOAL_FIELD_NUMBER: _ClassVar[int]
    PLANNER_FIELD_NUMBER: _ClassVar[int]
    IMPROVEMENTS_FIELD_NUMBER: _ClassVar[int]
    model: str
    options: _request_pb2.RequestOptions
    context: Context
    goal: Goal
    planner: PlannerOptions
    improvements: bool
    def __init__(self, model: _Optional[str] = ..., options: _Optional[_Union[_request_pb2.RequestOptions, _Mapping]] = ..., context: _Optional[_Union[Context, _Mapping]] = ..., goal: _Optional[_Union[Goal, _Mapping]] = ..., planner: _Optional[_Union[PlannerOptions, _Mapping]] = ..., improvements: _Optional[bool] = ...) -> None: ...

class PlanResponse(_message.Message):
    __slots__ = ("improvement", "plan")
    IMPROVEMENT_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    improvement: PlanImprovement
    plan: Plan
    def __init__(self, improvement: _Optional[_Union[PlanImprovement, _Mapping]] = ..., plan: _Optional[_Union[Plan, _Mapping]] = ...) -> None: ...

class PlanImprovement(_message.Message):
    __slots__ = ("iteration", "actions", "best_cost", "elite_mean_cost", "elapsed_us", "extra", "elite_std")
    class ExtraEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _tensor_pb2.Tensor
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ...) -> None: ...
    ITERATION_FIELD_NUMBER: _ClassVar[int]
    ACTIONS_FIELD_NUMBER: _ClassVar[int]
    BEST_COST_FIELD_NUMBER: _ClassVar[int]
    ELITE_MEAN_COST_FIELD_NUMBER: _ClassVar[int]
    ELAPSED_US_FIELD_NUMBER: _ClassVar[int]
    EXTRA_FIELD_NUMBER: _ClassVar[int]
    ELITE_STD_FIELD_NUMBER: _ClassVar[int]
    iteration: int
    actions: _tensor_pb2.Tensor
    best_cost: float
    elite_mean_cost: float
    elapsed_us: float
    extra: _containers.MessageMap[str, _tensor_pb2.Tensor]
    elite_std: _tensor_pb2.Tensor
    def __init__(self, iteration: _Optional[int] = ..., actions: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ..., best_cost: _Optional[float] = ..., elite_mean_cost: _Optional[float] = ..., elapsed_us: _Optional[float] = ..., extra: _Optional[_Mapping[str, _tensor_pb2.Tensor]] = ..., elite_std: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ...) -> None: ...

class Plan(_message.Message):
    __slots__ = ("request_id", "actions", "best_cost", "elite_mean_cost", "num_iterations", "flags", "timing", "observation_id", "elite_std")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ACTIONS_FIELD_NUMBER: _ClassVar[int]
    BEST_COST_FIELD_NUMBER: _ClassVar[int]
    ELITE_MEAN_COST_FIELD_NUMBER: _ClassVar[int]
    NUM_ITERATIONS_FIELD_NUMBER: _ClassVar[int]
    FLAGS_FIELD_NUMBER: _ClassVar[int]
    TIMING_FIELD_NUMBER: _ClassVar[int]
    OBSERVATION_ID_FIELD_NUMBER: _ClassVar[int]
    ELITE_STD_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    actions: _tensor_pb2.Tensor
    best_cost: float
    elite_mean_cost: float
    num_iterations: int
    flags: _containers.RepeatedScalarFieldContainer[str]
    timing: _request_pb2.Timing
    observation_id: int
    elite_std: _tensor_pb2.Tensor
    def __init__(self, request_id: _Optional[str] = ..., actions: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ..., best_cost: _Optional[float] = ..., elite_mean_cost: _Optional[float] = ..., num_iterations: _Optional[int] = ..., flags: _Optional[_Iterable[str]] = ..., timing: _Optional[_Union[_request_pb2.Timing, _Mapping]] = ..., observation_id: _Optional[int] = ..., elite_std: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ...) -> None: ...

class SessionRequest(_message.Message):
    __slots__ = ("message_id", "open", "set_goal", "observe", "plan", "rollout", "cancel", "close")
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    OPEN_FIELD_NUMBER: _ClassVar[int]
    SET_GOAL_FIELD_NUMBER: _ClassVar[int]
    OBSERVE_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    ROLLOUT_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    CLOSE_FIELD_NUMBER: _ClassVar[int]
    message_id: int
    open: OpenWorldModel
    set_goal: Goal
    observe: Observe
    plan: SessionPlan
    rollout: SessionRollout
    cancel: CancelCommand
    close: CloseWorldModel
    def __init__(self, message_id: _Optional[int] = ..., open: _Optional[_Union[OpenWorldModel, _Mapping]] = ..., set_goal: _Optional[_Union[Goal, _Mapping]] = ..., observe: _Optional[_Union[Observe, _Mapping]] = ..., plan: _Optional[_Union[SessionPlan, _Mapping]] = ..., rollout: _Optional[_Union[SessionRollout, _Mapping]] = ..., cancel: _Optional[_Union[CancelCommand, _Mapping]] = ..., close: _Optional[_Union[CloseWorldModel, _Mapping]] = ...) -> None: ...

class OpenWorldModel(_message.Message):
    __slots__ = ("model", "planner", "context_window", "options", "window_stride")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    PLANNER_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_WINDOW_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    WINDOW_STRIDE_FIELD_NUMBER: _ClassVar[int]
    model: str
    planner: PlannerOptions
    context_window: int
    options: _request_pb2.RequestOptions
    window_stride: int
    def __init__(self, model: _Optional[str] = ..., planner: _Optional[_Union[PlannerOptions, _Mapping]] = ..., context_window: _Optional[int] = ..., options: _Optional[_Union[_request_pb2.RequestOptions, _Mapping]] = ..., window_stride: _Optional[int] = ...) -> None: ...

class Observe(_message.Message):
    __slots__ = ("context", "executed_action", "follows")
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    EXECUTED_ACTION_FIELD_NUMBER: _ClassVar[int]
    FOLLOWS_FIELD_NUMBER: _ClassVar[int]
    context: Context
    executed_action: _tensor_pb2.Tensor
    follows: int
    def __init__(self, context: _Optional[_Union[Context, _Mapping]] = ..., executed_action: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ..., follows: _Optional[int] = ...) -> None: ...

class SessionPlan(_message.Message):
    __slots__ = ("options", "planner", "goal", "context", "improvements")
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    PLANNER_FIELD_NUMBER: _ClassVar[int]
    GOAL_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    IMPROVEMENTS_FIELD_NUMBER: _ClassVar[int]
    options: _request_pb2.RequestOptions
    planner: PlannerOptions
    goal: Goal
    context: Context
    improvements: bool
    def __init__(self, options: _Optional[_Union[_request_pb2.RequestOptions, _Mapping]] = ..., planner: _Optional[_Union[PlannerOptions, _Mapping]] = ..., goal: _Optional[_Union[Goal, _Mapping]] = ..., context: _Optional[_Union[Context, _Mapping]] = ..., improvements: _Optional[bool] = ...) -> None: ...

class SessionRollout(_message.Message):
    __slots__ = ("options", "rollout", "context")
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    ROLLOUT_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    options: _request_pb2.RequestOptions
    rollout: Rollout
    context: Context
    def __init__(self, options: _Optional[_Union[_request_pb2.RequestOptions, _Mapping]] = ..., rollout: _Optional[_Union[Rollout, _Mapping]] = ..., context: _Optional[_Union[Context, _Mapping]] = ...) -> None: ...

class CancelCommand(_message.Message):
    __slots__ = ("message_id",)
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    message_id: int
    def __init__(self, message_id: _Optional[int] = ...) -> None: ...

class CloseWorldModel(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SessionResponse(_message.Message):
    __slots__ = ("answers", "opened", "goal_set", "observed", "improvement", "plan", "step", "done", "cancel_done", "closed", "error", "event")
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    OPENED_FIELD_NUMBER: _ClassVar[int]
    GOAL_SET_FIELD_NUMBER: _ClassVar[int]
    OBSERVED_FIELD_NUMBER: _ClassVar[int]
    IMPROVEMENT_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    CANCEL_DONE_FIELD_NUMBER: _ClassVar[int]
    CLOSED_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    EVENT_FIELD_NUMBER: _ClassVar[int]
    answers: int
    opened: WorldModelOpened
    goal_set: GoalSet
    observed: Observed
    improvement: PlanImprovement
    plan: Plan
    step: RolloutStep
    done: RolloutDone
    cancel_done: CancelDone
    closed: WorldModelClosed
    error: SessionError
    event: SessionEvent
    def __init__(self, answers: _Optional[int] = ..., opened: _Optional[_Union[WorldModelOpened, _Mapping]] = ..., goal_set: _Optional[_Union[GoalSet, _Mapping]] = ..., observed: _Optional[_Union[Observed, _Mapping]] = ..., improvement: _Optional[_Union[PlanImprovement, _Mapping]] = ..., plan: _Optional[_Union[Plan, _Mapping]] = ..., step: _Optional[_Union[RolloutStep, _Mapping]] = ..., done: _Optional[_Union[RolloutDone, _Mapping]] = ..., cancel_done: _Optional[_Union[CancelDone, _Mapping]] = ..., closed: _Optional[_Union[WorldModelClosed, _Mapping]] = ..., error: _Optional[_Union[SessionError, _Mapping]] = ..., event: _Optional[_Union[SessionEvent, _Mapping]] = ...) -> None: ...

class WorldModelOpened(_message.Message):
    __slots__ = ("session_id",)
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    def __init__(self, session_id: _Optional[str] = ...) -> None: ...

class GoalSet(_message.Message):
    __slots__ = ("request_id", "timing")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TIMING_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    timing: _request_pb2.Timing
    def __init__(self, request_id: _Optional[str] = ..., timing: _Optional[_Union[_request_pb2.Timing, _Mapping]] = ...) -> None: ...

class Observed(_message.Message):
    __slots__ = ("decode_us", "timing", "num_frames", "flags", "request_id")
    DECODE_US_FIELD_NUMBER: _ClassVar[int]
    TIMING_FIELD_NUMBER: _ClassVar[int]
    NUM_FRAMES_FIELD_NUMBER: _ClassVar[int]
    FLAGS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    decode_us: float
    timing: _request_pb2.Timing
    num_frames: int
    flags: _containers.RepeatedScalarFieldContainer[str]
    request_id: str
    def __init__(self, decode_us: _Optional[float] = ..., timing: _Optional[_Union[_request_pb2.Timing, _Mapping]] = ..., num_frames: _Optional[int] = ..., flags: _Optional[_Iterable[str]] = ..., request_id: _Optional[str] = ...) -> None: ...

class CancelDone(_message.Message):
    __slots__ = ("found",)
    FOUND_FIELD_NUMBER: _ClassVar[int]
    found: bool
    def __init__(self, found: _Optional[bool] = ...) -> None: ...

class WorldModelClosed(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SessionError(_message.Message):
    __slots__ = ("detail",)
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    detail: _request_pb2.ErrorDetail
    def __init__(self, detail: _Optional[_Union[_request_pb2.ErrorDetail, _Mapping]] = ...) -> None: ...

class SessionEvent(_message.Message):
    __slots__ = ("kind", "replaced_by", "message")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        KIND_UNSPECIFIED: _ClassVar[SessionEvent.Kind]
        KIND_OBSERVATION_DROPPED: _ClassVar[SessionEvent.Kind]
        KIND_RECOVERING: _ClassVar[SessionEvent.Kind]
    KIND_UNSPECIFIED: SessionEvent.Kind
    KIND_OBSERVATION_DROPPED: SessionEvent.Kind
    KIND_RECOVERING: SessionEvent.Kind
    KIND_FIELD_NUMBER: _ClassVar[int]
    REPLACED_BY_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    kind: SessionEvent.Kind
    replaced_by: int
    message: str
    def __init__(self, kind: _Optional[_Union[SessionEvent.Kind, str]] = ..., replaced_by: _Optional[int] = ..., message: _Optional[str] = ...) -> None: ...
