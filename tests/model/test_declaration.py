"""A declaration whose parts do not fit together is refused when it is made, with a sentence that says what to change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest

from mstar_rt.config import DeploymentConfig, ModelConfig
from mstar_rt.errors import ConfigError, GraphError
from mstar_rt.graph import GraphNode, Loop, Walk, WalkGraph
from mstar_rt.model import KVSpec, ParamSpec, ServedModel, TaskSpec, TensorSpec
from mstar_rt.model.declare import declare_model

STEP = GraphNode("step", ("state",), ("next_state",), engine="kv_cache", cache="memory")
KEEP = GraphNode("keep", ("image", "mask"), ("state",))
GRAPH = WalkGraph(
    nodes=(STEP, KEEP),
    walks=(
        Walk("play", Loop("playing", STEP, "steps", 8, carry={"state": "next_state"}), emit=("next_state",)),
        Walk("keep", KEEP, persist=("state",)),
    ),
)
MEMORY = KVSpec(1, 1, 16, 4, 64, "session")
STATE = TensorSpec("state", ("N",), ("float32",), "numbers")
NEXT = replace(STATE, name="next_state")
IMAGE = TensorSpec("image", ("T", 4), ("uint8",), "pixels", max_sizes=(("T", 8),))
MASK = TensorSpec("mask", ("T-1",), ("bool",), "which", optional=True)
STEPS = ParamSpec("steps", "int", 3, "how often", minimum=1, maximum=8)
PLAY = TaskSpec("play", "from a state", (STATE,), (NEXT,), ("play",), (STEPS,))
LOOK = TaskSpec("look", "keep a state", (IMAGE, MASK), (), ("keep",))
RESUME = TaskSpec(
    "resume", "from the state kept", (), (NEXT,), ("play",), (STEPS,), session_inputs=(("state", "run look first"),)
)
BOTH = TaskSpec("both", "look and play", (IMAGE, MASK), (NEXT,), ("keep", "play"), (STEPS,))


def model(*tasks: TaskSpec, **fields: Any) -> ServedModel:
    given: dict[str, Any] = {"caches": {"memory": MEMORY}, "nodes_factory": "nowhere:nodes", **fields}
    return ServedModel("toy", "toy", "for tests", GRAPH, tasks or (PLAY, LOOK, RESUME, BOTH), **given)


def play(**changes: Any) -> ServedModel:
    return model(replace(PLAY, **changes), LOOK)


def look(**changes: Any) -> ServedModel:
    return model(PLAY, replace(LOOK, **changes))


def steps(**changes: Any) -> ServedModel:
    return play(params=(replace(STEPS, **changes),))


def other(kind: str, default: Any, **limits: Any) -> ServedModel:
    return play(params=(STEPS, ParamSpec("other", kind, default, "", **limits)))


def from_image(required: bool = True, limit: int | None = 8, **changes: Any) -> ServedModel:
    """The number of steps is the number of images."""
    image = replace(IMAGE, optional=not required, max_sizes=() if limit is None else (("T", limit),))
    param = replace(STEPS, **{"default": None, "minimum": None, "maximum": None, **changes})
    return model(replace(BOTH, inputs=(image, MASK), params=(param,), derived=(("steps", "T"),)))


def test_what_fits_is_accepted() -> None:
    assert [task.name for task in model().tasks] == ["play", "look", "resume", "both"]
    assert model(BOTH, node_outputs={"step.next_state": replace(NEXT, dtypes=("uint32",))}).node_outputs


@pytest.mark.parametrize(
    "declare",
    [
        from_image,
        lambda: from_image(limit=None, maximum=8),
        lambda: from_image(limit=9, maximum=8),
        lambda: from_image(required=False, minimum=1, maximum=8),
        lambda: steps(default=None),
        lambda: other("float", 1, minimum=0),
        lambda: other("floats", (0.5,), length=1),
        lambda: other("str", None, optional=True),
        lambda: play(outputs=(replace(NEXT, dtypes=("bfloat16",)),)),
    ],
)
def test_what_bounds_a_loop_or_limits_a_parameter(declare: Callable[[], ServedModel]) -> None:
    declare()


Case = tuple[Callable[[], ServedModel], str]
TASKS: list[Case] = [
    (lambda: play(walks=("plya",)), "model 'toy', task 'play': its walks name 'plya', .* did you mean 'play'?"),
    (lambda: play(walks=()), "task 'play': its walks are .*, expected a tuple of at least one name"),
    (lambda: play(walks="play"), "task 'play': its walks are 'play', expected a tuple"),
    (lambda: model(PLAY, PLAY), "model 'toy' has two tasks of the name 'play'"),
    (lambda: ServedModel("toy", "", "", GRAPH, (), "a:b"), "model 'toy' has no tasks"),
    (lambda: play(inputs=(STATE, STATE)), "task 'play' has two inputs of the name 'state'"),
    (lambda: play(outputs=(NEXT, NEXT)), "task 'play' has two outputs of the name 'next_state'"),
    (lambda: play(params=(STEPS, STEPS)), "task 'play' has two parameters of the name 'steps'"),
    (lambda: play(criticality="urgent"), "has criticality 'urgent', expected one of control, planning, generation"),
    (lambda: model(nodes_factory="nodes"), "has nodes_factory 'nodes', expected 'module:function'"),
]
TENSORS: list[Case] = [
    (
        lambda: look(inputs=(replace(IMAGE, name="imgae"), MASK)),
        "task 'look': walk 'keep' reads 'image', which is no input .*, did you mean 'imgae'?",
    ),
    (lambda: model(replace(PLAY, inputs=())), "walk 'play' reads 'state', .* which no walk of a task persists"),
    (lambda: look(inputs=(IMAGE, MASK, STATE)), "task 'look': no walk of it reads its input 'state'"),
    (lambda: look(outputs=(NEXT,)), "task 'look': no walk of it emits its output 'next_state'"),
    (lambda: play(outputs=()), "task 'play': walk 'play' emits 'next_state', which is no output of the task"),
    (
        lambda: play(outputs=(replace(NEXT, dtypes=("flaot32",)),)),
        "task 'play', tensor 'next_state' has dtype 'flaot32', did you mean 'float32'?",
    ),
    (lambda: play(inputs=(replace(STATE, dtypes=cast(Any, "float32")),)), "its dtypes are 'float32', expected a tuple"),
    (lambda: play(inputs=(replace(STATE, dtypes=()),)), "its dtypes are .*, expected a tuple"),
    (lambda: play(inputs=(replace(STATE, dtypes=("bfloat16",)),)), "which arrives as 'float32'"),
    (lambda: play(inputs=(replace(STATE, shape=(0,)),)), "tensor 'state' has a size 0, expected an integer"),
    (lambda: play(inputs=(replace(STATE, shape=cast(Any, "N")),)), "tensor 'state' has shape 'N', expected a tuple"),
    (lambda: play(inputs=(replace(STATE, max_sizes=(("M", 3),)),)), "limits 'M', which its shape does not have"),
    (lambda: play(inputs=(replace(STATE, max_sizes=(("N", 0),)),)), "limits 'N' to 0, expected an integer"),
    (lambda: look(inputs=(MASK, IMAGE)), "input 'mask' has a size 'T-1', but no input before it has 'T'"),
    (lambda: look(one_of=(("image", "maks"),)), "its one_of inputs name 'maks', .*, did you mean 'mask'?"),
    (lambda: look(one_of=("image",)), "its one_of inputs are 'image', expected a tuple"),
    (lambda: look(at_most_one=(("image", "maks"),)), "its at_most_one inputs name 'maks'"),
    (
        lambda: play(session_inputs=(("stat", ""),)),
        "no walk of it reads its session input 'stat', did you mean 'state'?",
    ),
    (
        lambda: model(replace(PLAY, session_inputs=(("state", "run look"),))),
        "no walk of a task persists its session input 'state'",
    ),
    (lambda: model(node_outputs={"step.nxt_state": NEXT}), "has 'step.nxt_state', .*, did you mean 'step.next_state'?"),
    (
        lambda: model(node_outputs={"step.next_state": replace(NEXT, dtypes=("real",))}),
        "model 'toy', node output 'step.next_state' has dtype 'real'",
    ),
]
PARAMS: list[Case] = [
    (
        lambda: steps(name="step"),
        "task 'play': walk 'play', loop 'playing' runs 'steps' times, which is no parameter of .*, did you mean 'step'?",
    ),
    (lambda: steps(kind="float"), "runs 'steps' times, a parameter of kind 'float', expected 'int'"),
    (lambda: steps(maximum=9), "runs 'steps' times, which may be 9, expected a maximum of at most its limit 8"),
    (lambda: steps(maximum=None), "runs 'steps' times, which has no maximum"),
    (lambda: steps(minimum=0), "runs 'steps' times, which may be less than 1"),
    (lambda: steps(minimum=None), "runs 'steps' times, which may be less than 1"),
    (lambda: steps(default=None, optional=True), "which a request may leave out, give the parameter a default"),
    (lambda: from_image(limit=9), "runs 'steps' times, which may be 9"),
    (lambda: from_image(limit=None), "runs 'steps' times, which has no maximum"),
    (lambda: from_image(required=False), "runs 'steps' times, which may be less than 1"),
    (lambda: from_image(required=False, minimum=1), "runs 'steps' times, which has no maximum"),
    (lambda: from_image(required=False, minimum=1, maximum=8, optional=True), "which a request may leave out"),
    (lambda: play(derived=(("step", "N"),)), "its derived integers name 'step', .*, did you mean 'steps'?"),
    (lambda: play(derived=(("steps", "M"),)), "its derived symbols name 'M', which does not exist, known: N"),
    (lambda: steps(default=9), "task 'play': option 'steps' is 9, expected 1 to 8, which its own default 9"),
    (lambda: other("integer", 1), "parameter 'other' has kind 'integer', did you mean 'int'?"),
    (lambda: other("int", None, minimum=3, maximum=2), "parameter 'other' has minimum 3 over its maximum 2"),
    (lambda: other("str", "c", choices=("a", "b")), "option 'other' is 'c', expected one of a, b"),
    (lambda: other("str", "a", choices="ab"), "parameter 'other' has the choices 'ab', expected a tuple"),
    (lambda: other("int", 1, choices=("1",)), "is of kind 'int' and has choices, which only str have"),
    (lambda: other("bool", True, minimum=0), "is of kind 'bool' and has minimum"),
    (lambda: other("floats", (1.0,), length=2), "option 'other' has 1 numbers, expected 2"),
    (lambda: play(params=(STEPS, ParamSpec("seed", "float", 0.0, ""))), "parameter 'seed' is of kind 'float'"),
]
CACHES: list[Case] = [
    (
        lambda: model(caches={"memroy": MEMORY}),
        "model 'toy': node 'step' attends over cache 'memory', .*, did you mean 'memroy'?",
    ),
    (
        lambda: model(caches={"memory": MEMORY, "mem": MEMORY}),
        "no node attends over cache 'mem', did you mean 'memory'?",
    ),
    *(
        (
            lambda size=size: model(caches={"memory": replace(MEMORY, **cast(Any, {size: 0}))}),
            f"cache 'memory' has {size} 0, expected",
        )
        for size in ("num_layers", "num_kv_heads", "head_dim", "page_size", "max_sequence_tokens")
    ),
]


@pytest.mark.parametrize(("declare", "sentence"), [*TASKS, *TENSORS, *PARAMS, *CACHES])
def test_what_does_not_fit_is_refused(declare: Callable[[], ServedModel], sentence: str) -> None:
    with pytest.raises(GraphError, match=sentence):
        declare()


def test_what_only_an_idle_walk_persists_is_given_by_nobody() -> None:
    with pytest.raises(GraphError, match="walk 'play' reads 'state'"):
        model(RESUME)
    assert model(RESUME, LOOK)


@pytest.mark.parametrize(
    ("lifetime", "kept", "sentence"),
    [
        ("session", "past", r"keeps 'past', expected a tuple of labels: \('past',\)"),
        ("walk", ("past",), "keeps 'past', but its lifetime is 'walk', expected 'request' or 'session'"),
        ("request", (["past"],), "keeps \\['past'\\], expected a string, an integer or a flat tuple of them"),
    ],
)
def test_what_a_cache_cannot_keep(lifetime: str, kept: Any, sentence: str) -> None:
    with pytest.raises(GraphError, match=sentence):
        KVSpec(1, 1, 16, 4, 64, lifetime, kept)


def test_a_family_that_fails_is_said_with_the_options_it_was_given() -> None:
    entry = ModelConfig("w", "vjepa2_ac", options={"preset": ["tabletop"]})
    with pytest.raises(
        ConfigError, match=r"cannot declare model 'w' with options \{'preset': \['tabletop'\]\}: unhash"
    ):
        declare_model(DeploymentConfig("d", (entry,)), entry)
