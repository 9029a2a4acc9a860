"""LeRobot's clients on the server's own port, their session a control session like any other."""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

from control_stream import Held, answer, policy_runtime
from fuzzing import mutated
from lerobot_client import LeRobotClient, parts, pickled, rows, unpickled
from toy_policy import HORIZON, POLICY, SIZE
from toy_runtime import ToyRuntime, toy_runtime

from benchmarks.dialects.lerobot_classes import RemotePolicyConfig, TimedObservation
from mstar_rt.config_dialects import CameraSource, DialectConfig, InstructionSource, StateSource
from mstar_rt.errors import ConfigError
from mstar_rt.message import CancelRequest, OpenSession, Submit
from mstar_rt.protos import lerobot_pb2 as wire
from mstar_rt.server.compat.lerobot import places
from mstar_rt.server.edge import EdgeConfig, check_edge_config

JOINTS = ("x.pos", "y.pos", "grip.pos")
DIALECT = DialectConfig(
    kind="lerobot",
    model="toy",
    control_hz=20.0,
    execute=4,
    cameras={"top": CameraSource("front")},
    mask=("wrist",),
    state=tuple(StateSource(joint, 1) for joint in JOINTS),
    instruction=InstructionSource("task"),
    options={"normalization": "lab", "budget_ms": 60_000.0},
)
FEATURES: dict[str, Any] = {
    "observation.state": {"dtype": "float32", "shape": (3,), "names": list(JOINTS)},
    "observation.images.front": {"dtype": "image", "shape": (SIZE, SIZE, 3), "names": ["height", "width", "channels"]},
}
CONFIG = RemotePolicyConfig("toy_policy", "toy", FEATURES, HORIZON)


def seen(value: float = 0.0, task: str = "push") -> dict[str, Any]:
    joints = dict.fromkeys(JOINTS, value)
    return {**joints, "front": np.full((SIZE, SIZE, 3), 100, np.uint8), "task": task}


def expected(value: float, brightness: float = 1.0) -> np.ndarray:
    """What the toy policy answers to `seen(value)`."""
    return (value + brightness + np.arange(HORIZON)[:, None] / 100 + np.zeros(2)).astype(np.float32)


@contextmanager
def serving(dialect: DialectConfig = DIALECT, **options: Any) -> Iterator[ToyRuntime]:
    config = EdgeConfig(port=0, max_message_bytes=1 << 20, dialects=(dialect,))
    with policy_runtime(config=config, **options) as runtime:
        yield runtime


@pytest.fixture
def runtime() -> Iterator[ToyRuntime]:
    with serving() as running:
        yield running


@pytest.fixture
def client(runtime: ToyRuntime) -> Iterator[LeRobotClient]:
    with LeRobotClient(runtime.address) as opened:
        yield opened


def status(call: Any, *arguments: Any, **named: Any) -> tuple[str, str]:
    """Code and sentence with which a call ends."""
    with pytest.raises(grpc.RpcError) as error:
        call(*arguments, **named)
    return error.value.code().name, error.value.details()


# ---- the sequence of RobotClient


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_a_robot_gets_a_chunk_for_each_observation(client: LeRobotClient, protocol: int) -> None:
    client.start(CONFIG, protocol)
    client.observe(seen(2.0), timestep=0, must_go=True, protocol=protocol)
    actions = client.actions()
    np.testing.assert_allclose(rows(actions), expected(2.0), rtol=1e-6)
    assert [each.timestep for each in actions] == list(range(HORIZON))
    np.testing.assert_allclose([each.timestamp for each in actions], 1000 + np.arange(HORIZON) / 20)
    assert {each.action.dtype.__str__() for each in actions} == {"torch.float32"}
    client.observe(seen(5.0), timestep=4)
    actions = client.actions()
    np.testing.assert_allclose(rows(actions), expected(5.0), rtol=1e-6)
    assert [each.timestep for each in actions] == list(range(4, 4 + HORIZON))


def test_actions_per_chunk_are_sent(client: LeRobotClient) -> None:
    client.start(replace(CONFIG, actions_per_chunk=5))
    client.observe(seen(1.0), must_go=True)
    assert len(client.actions()) == 5


def test_a_client_of_before_0_4_gets_its_own_classes(client: LeRobotClient) -> None:
    older = "lerobot.scripts.server.helpers"
    client.ready()
    client.instruct(pickled(CONFIG, 4, older))
    client.send(parts(pickled(TimedObservation(0.0, 0, seen(), True), 4, older)))
    data = client.poll()
    assert older.encode() in data
    assert len(unpickled(data, older)) == HORIZON


def test_the_task_of_the_observation_is_the_instruction(client: LeRobotClient, runtime: ToyRuntime) -> None:
    client.start(CONFIG)
    client.observe(seen(task="push left"), must_go=True)
    client.actions()
    client.observe(seen(task="push right"), timestep=4)
    client.actions()
    assert [each.params["instruction"] for each in runtime.seen(Submit)] == ["push left", "push right"]


def test_a_payload_comes_in_parts(client: LeRobotClient) -> None:
    client.start(CONFIG)
    client.send(parts(pickled(TimedObservation(0.0, 0, seen(3.0), True)), 100))
    np.testing.assert_allclose(rows(client.actions()), expected(3.0), rtol=1e-6)


BEGIN, MIDDLE, END = wire.TRANSFER_BEGIN, wire.TRANSFER_MIDDLE, wire.TRANSFER_END


@pytest.mark.parametrize(
    ("messages", "sentence"),
    [
        ([], "ended after 0 parts without one of state END"),
        ([(BEGIN, b"a"), (MIDDLE, b"b")], "ended after 2 parts without one of state END"),
        ([(MIDDLE, b"a")], "state 2, expected TRANSFER_BEGIN or TRANSFER_END"),
        ([(BEGIN, b"a"), (BEGIN, b"a")], "state 1, expected TRANSFER_MIDDLE or TRANSFER_END"),
        ([(wire.TRANSFER_UNKNOWN, b"a")], "state 0, expected TRANSFER_BEGIN or TRANSFER_END"),
        ([(7, b"a")], "state 7, expected"),
        ([(END, b"")], "part 0 of the observation is empty"),
        ([(END, b"N."), (END, b"N.")], "a part came after the last one"),
        ([(BEGIN, b"a" * 900_000), (END, b"a" * 900_000)], "over 1048576 bytes"),
        ([(END, b"\x80\x04N.")], "the pickle holds no TimedObservation"),
    ],
)  # fmt: skip
def test_parts_out_of_order_are_refused(
    client: LeRobotClient, messages: list[tuple[int, bytes]], sentence: str
) -> None:
    client.start(CONFIG)
    code, details = status(client.send, (wire.Observation(transfer_state=s, data=d) for s, d in messages))  # type: ignore[arg-type]
    assert (code, sentence in details) == ("INVALID_ARGUMENT", True), details
    client.observe(seen(), must_go=True)
    assert client.actions()


def test_a_robot_sends_one_observation_at_a_time(client: LeRobotClient) -> None:
    client.start(CONFIG)
    whole = list(parts(pickled(TimedObservation(0.0, 0, seen(3.0), True)), 500))
    rest = threading.Event()

    def slowly() -> Iterator[wire.Observation]:
        yield whole[0]
        rest.wait(20)
        yield from whole[1:]

    sending = client.send_future(slowly())
    code, details = status(client.observe, seen())
    assert (code, "send one at a time" in details) == ("RESOURCE_EXHAUSTED", True)
    rest.set()
    sending.result(timeout=20)
    np.testing.assert_allclose(rows(client.actions()), expected(3.0), rtol=1e-6)


# ---- what does not fit


def test_what_does_not_fit_is_told_before_anything_moves(client: LeRobotClient) -> None:
    features = {
        "observation.state": {"dtype": "float32", "shape": (2,), "names": ["x.pos", "elbow.pos"]},
        "observation.images.front": {"dtype": "image", "shape": (480, 640, 3), "names": []},
        "observation.images.side": {"dtype": "image", "shape": (16, 16, 3), "names": []},
    }
    wrong = RemotePolicyConfig("xvla", "toy", features, 50, "cuda", {"front": "top"})
    code, details = status(client.start, wrong)
    assert code == "FAILED_PRECONDITION"
    for sentence in (
        "the robot does not fit policy 'toy', 4 differences: policy_type is 'xvla', 'toy' is of type 'toy_policy'",
        "rename_map is given, but names are mapped by `cameras` and `state` of the server's dialect",
        "actions_per_chunk is 50, expected 4 (what a robot executes between two chunks, by the server's dialect) to 8",
        "'front' is 480 x 640, expected 16 x 16",
        "'elbow.pos' is not used",
        "'side' is not used",
        "'y.pos' is missing",
        "'grip.pos' is missing",
        "nothing was moved",
    ):
        assert sentence in details
    assert status(client.observe, seen())[0] == "FAILED_PRECONDITION"


@pytest.mark.parametrize(
    ("features", "sentence"),
    [
        ({"observation.state": 3}, "feature 'observation.state' is none"),
        ({"observation.state": {"names": "xyz"}}, "feature 'observation.state' is none"),
        ({"observation.images.front": {"shape": (16, 16)}}, "feature 'observation.images.front' is none"),
        ({"observation.images.front": {"shape": (1 << 40, 1 << 40, 3)}}, "feature 'observation.images.front' is none"),
        ({"observation.images.front": {"shape": (8000, 8000, 3)}}, "192000000 numbers, expected at most"),
        ({"action": {"shape": (2,)}}, "feature 'action' is none"),
        ({str(i): {} for i in range(300)}, "300 features, expected at most 256"),
    ],
)
def test_features_that_describe_no_observation_are_refused(
    client: LeRobotClient, features: dict[str, Any], sentence: str
) -> None:
    code, details = status(client.start, replace(CONFIG, lerobot_features=features))
    assert (code, sentence in details) == ("FAILED_PRECONDITION", True), details


def test_a_model_that_is_not_served_is_refused(client: LeRobotClient) -> None:
    code, details = status(client.start, replace(CONFIG, pretrained_name_or_path="lerobot/act_aloha"))
    assert code == "FAILED_PRECONDITION"
    assert "pretrained_name_or_path is 'lerobot/act_aloha', expected the name of a model that is served" in details
    assert "known: toy" in details


def test_without_a_dialect_there_is_no_such_service() -> None:
    with toy_runtime() as runtime, LeRobotClient(runtime.address) as client:
        assert status(client.ready)[0] == "UNIMPLEMENTED"


def test_it_is_not_reachable_from_elsewhere() -> None:
    with pytest.raises(ConfigError, match="reach"):
        check_edge_config(EdgeConfig(host="0.0.0.0", port=0, dialects=(DIALECT,)))


def test_a_server_with_tokens_asks_for_one(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("arm 0123456789abcdef0123456789abcdef\n")
    tokens.chmod(0o600)
    config = EdgeConfig(port=0, dialects=(DIALECT,), tokens_file=str(tokens))
    with policy_runtime(config=config) as runtime, LeRobotClient(runtime.address) as client:
        assert status(client.ready)[0] == "UNAUTHENTICATED"
        assert status(client.instruct, b"\x80\x04cposix\nsystem\n.")[0] == "UNAUTHENTICATED"
        ready = client.channel.unary_unary("/transport.AsyncInference/Ready")
        metadata = [("authorization", "Bearer 0123456789abcdef0123456789abcdef")]
        assert ready(b"", timeout=20, metadata=metadata) == b""


# ---- errors are statuses


def test_a_hostile_pickle_is_refused_by_both_methods(client: LeRobotClient, tmp_path: Path) -> None:
    """lerobot#3047."""
    mark = tmp_path / "executed"
    text = f"touch {mark}".encode()
    data = b"\x80\x04cposix\nsystem\nX" + len(text).to_bytes(4, "little") + text + b"\x85R."
    code, details = status(client.instruct, data)
    assert (code, "'posix.system'" in details) == ("INVALID_ARGUMENT", True)
    client.start(CONFIG)
    code, details = status(client.send, parts(data))
    assert (code, "'posix.system'" in details) == ("INVALID_ARGUMENT", True)
    assert not mark.exists()
    client.observe(seen(1.0), must_go=True)
    assert len(client.actions()) == HORIZON


def test_hostile_messages_leave_it_serving(client: LeRobotClient) -> None:
    client.start(CONFIG)
    rng = random.Random(3)
    payloads = [pickled(CONFIG), pickled(TimedObservation(0.0, 0, seen(), True))]
    codes = set()
    for number in range(150):
        data = mutated(rng.choice(payloads), rng, [*payloads, b"cposix\nsystem\n"])
        try:
            client.instruct(data) if number % 2 else client.send(parts(data, rng.choice((50, 1 << 20))))
        except grpc.RpcError as error:
            codes.add(error.code().name)
    assert codes <= {"INVALID_ARGUMENT", "FAILED_PRECONDITION", "RESOURCE_EXHAUSTED"}, codes
    client.start(CONFIG)
    client.observe(seen(1.0), must_go=True)
    np.testing.assert_allclose(rows(client.actions()), expected(1.0), rtol=1e-6)


def test_an_observation_that_does_not_fit_is_refused(client: LeRobotClient) -> None:
    client.start(CONFIG)
    wrong = seen() | {"front": np.zeros((4, 4, 3), np.uint8), "x.pos": float("nan")}
    code, details = status(client.observe, wrong)
    assert code == "INVALID_ARGUMENT"
    assert "'front' is 4 x 4, expected 16 x 16" in details
    assert "'x.pos'" in details
    client.observe(seen(), must_go=True)
    assert client.actions()


def test_a_failing_model_is_a_status_and_the_session_goes_on(client: LeRobotClient, runtime: ToyRuntime) -> None:
    """lerobot#2119 and #1772."""
    held = Held(runtime)
    client.start(CONFIG)
    client.observe(seen(), must_go=True)
    held.wait()
    held.end(lambda job: job.fail("INTERNAL", "the step failed"))
    assert status(client.poll) == ("INTERNAL", "the step failed")
    client.observe(seen(1.0), must_go=True)
    held.wait(2)
    held.end()
    assert len(client.actions()) == HORIZON


def test_numbers_that_are_not_finite_are_not_sent(client: LeRobotClient, runtime: ToyRuntime) -> None:
    held = Held(runtime)
    client.start(CONFIG)
    client.observe(seen(), must_go=True)
    held.wait()
    held.end(lambda job: answer(job, np.full((HORIZON, 2), np.nan, np.float32)))
    code, details = status(client.poll)
    assert code == "INTERNAL", details


def test_calls_without_a_session_are_refused(client: LeRobotClient) -> None:
    for call in (lambda: client.observe(seen()), lambda: client.poll(timeout_s=0.6)):
        code, details = status(call)
        assert (code, "call Ready and SendPolicyInstructions first" in details) == ("FAILED_PRECONDITION", True)


def test_a_session_that_is_not_admitted_is_refused_with_the_numbers(client: LeRobotClient, runtime: ToyRuntime) -> None:
    runtime.refuse_session = "RESOURCE_EXHAUSTED", "rank 0 has time for 3 chunks per second"
    assert status(client.start, CONFIG) == ("RESOURCE_EXHAUSTED", "rank 0 has time for 3 chunks per second")
    runtime.refuse_session = None
    client.start(CONFIG)


# ---- time


def failed_late(client: LeRobotClient, held: Held) -> int:
    """The deadline of an observation that is dropped because it has passed."""
    client.start(CONFIG)
    client.observe(seen(1.0), must_go=True)
    deadline_ns: int = held.wait().deadline_ns
    held.end(lambda job: job.fail("DEADLINE_EXCEEDED", "too late"))
    return deadline_ns


def test_after_a_late_observation_the_next_one_has_longer() -> None:
    dialect = replace(DIALECT, options={"normalization": "lab"})
    with serving(dialect) as runtime, LeRobotClient(runtime.address) as client:
        held = Held(runtime)
        deadline_ns = failed_late(client, held)
        assert client.poll(timeout_s=0.6) == b""
        client.observe(seen(2.0))
        assert held.wait(2).deadline_ns > deadline_ns + 15e9
        held.end()
        np.testing.assert_allclose(rows(client.actions()), expected(2.0), rtol=1e-6)


def test_with_a_budget_a_late_observation_has_failed() -> None:
    """Not with DEADLINE_EXCEEDED, after which RobotClient's gRPC would pause before it asks again."""
    dialect = replace(DIALECT, options={**DIALECT.options, "budget_ms": 200.0})
    with serving(dialect) as runtime, LeRobotClient(runtime.address) as client:
        failed_late(client, Held(runtime))
        sentence = "the observation's chunk could not be made within its budget"
        assert status(client.poll) == ("RESOURCE_EXHAUSTED", sentence)


def test_without_an_observation_there_are_no_actions_yet(client: LeRobotClient) -> None:
    client.start(CONFIG)
    assert client.poll(timeout_s=0.6) == b""


def test_a_chunk_that_is_made_meanwhile_ends_the_wait(client: LeRobotClient, runtime: ToyRuntime) -> None:
    held = Held(runtime)
    client.start(CONFIG)
    polled = client.poll_future()
    client.observe(seen(), must_go=True)
    held.wait()
    held.end()
    assert len(unpickled(polled.result(timeout=20).data)) == HORIZON


def test_the_newest_observation_wins(client: LeRobotClient, runtime: ToyRuntime) -> None:
    """Before the first chunk RobotClient sends in every tick."""
    held = Held(runtime)
    client.start(CONFIG)
    client.observe(seen(0.0), must_go=True)
    held.wait()
    for value in range(1, 6):
        client.observe(seen(float(value)), must_go=True)
    held.end()
    assert client.actions()[0].action[0] == pytest.approx(1.0)
    held.wait(2)
    held.end()
    assert client.actions()[0].action[0] == pytest.approx(6.0)
    assert len(runtime.seen(Submit)) == 2


def test_must_go_is_answered_sooner_than_the_rhythm() -> None:
    """Its queue is empty: it would stand still until `execute` control periods, 4 s here, have passed."""
    with serving(replace(DIALECT, control_hz=1.0)) as runtime, LeRobotClient(runtime.address) as client:
        client.start(CONFIG)
        client.observe(seen(1.0), must_go=True)
        client.actions()
        client.observe(seen(2.0), timestep=1)
        assert client.poll(timeout_s=0.6) == b""  # one action was executed of four
        client.observe(seen(3.0), timestep=1, must_go=True)
        np.testing.assert_allclose(rows(client.actions()), expected(3.0), rtol=1e-6)


def test_a_second_session_that_starts_at_0_gets_actions(client: LeRobotClient, runtime: ToyRuntime) -> None:
    """lerobot#1500: nothing of a session is left for the next one, on the same connection or another."""
    for _ in range(2):
        client.start(CONFIG)
        for timestep in (0, 4):
            client.observe(seen(1.0), timestep)
            assert client.actions()[0].timestep == timestep
    with LeRobotClient(runtime.address) as other:
        other.start(CONFIG)
        other.observe(seen(1.0), 0)
        assert other.actions()[0].timestep == 0


def test_a_lower_timestep_begins_another_episode(client: LeRobotClient) -> None:
    client.start(CONFIG)
    for timestep in (0, 4, 8, 0, 4):
        client.observe(seen(float(timestep)), timestep)
        actions = client.actions()
        assert actions[0].timestep == timestep
        np.testing.assert_allclose(rows(actions), expected(float(timestep)), rtol=1e-6)


def test_a_cold_model_is_waited_for(runtime: ToyRuntime) -> None:
    """lerobot#2541: instructions are answered once it is warm, and no chunk of the session was made cold."""
    runtime.set_serving(False, "it is warming up")
    with LeRobotClient(runtime.address) as client:
        client.ready()
        starting = client.channel.unary_unary("/transport.AsyncInference/SendPolicyInstructions").future(
            wire.PolicySetup(data=pickled(CONFIG)).SerializeToString(), timeout=20
        )
        client.ready()
        assert not starting.done()
        assert not runtime.seen(OpenSession)
        runtime.set_serving(True)
        starting.result()
        client.observe(seen(), must_go=True)
        assert client.actions()


def test_chunks_are_joined_where_the_robot_is() -> None:
    """With a prefix of two actions, the chunk for timestep 4 begins with rows 4 and 5 of the one before."""
    options = {**DIALECT.options, "chunking": "prefix", "delay": 2}
    with serving(replace(DIALECT, options=options)) as runtime, LeRobotClient(runtime.address) as client:
        client.start(CONFIG)
        client.observe(seen(0.0), 0)
        first = rows(client.actions())
        client.observe(seen(1.0), 4)
        second = rows(client.actions())
        np.testing.assert_array_equal(second[:2], first[4:6])
        np.testing.assert_allclose(second[2:], expected(1.0)[2:], rtol=1e-6)


def test_a_slow_model_does_not_starve_a_robot() -> None:
    """lerobot#2356: 350 ms a chunk, 50 actions, 30 Hz. The robot is RobotClient's queue; a tick takes no time here."""
    horizon, latency_ticks, execute = 50, 11, 10
    dialect = replace(DIALECT, control_hz=30.0, execute=execute)
    with serving(dialect, policy=replace(POLICY, action_horizon=horizon)) as runtime:
        held = Held(runtime)
        with LeRobotClient(runtime.address) as client:
            client.start(replace(CONFIG, actions_per_chunk=horizon))
            queue: list[int] = []
            latest, starved, num_made, begun, ends = -1, 0, 0, -execute, None
            for tick in range(150):
                if ends is not None and tick >= ends:
                    held.end(lambda job: answer(job, np.zeros((horizon, 2), np.float32)))
                    queue = [each.timestep for each in client.actions() if each.timestep > latest]
                    num_made, ends = num_made + 1, None
                if queue:
                    latest = queue.pop(0)
                elif num_made:
                    starved += 1
                if len(queue) <= horizon / 2:
                    client.observe(seen(), max(latest, 0), must_go=not queue)
                    if ends is None and latest - begun >= execute:
                        held.wait(num_made + 1)
                if ends is None and len(runtime.seen(Submit)) > num_made:
                    begun, ends = max(latest, 0), tick + latency_ticks
            assert num_made >= 4
            assert starved == 0


# ---- several robots, and robots that go away


def go_away(client: LeRobotClient, runtime: ToyRuntime) -> None:
    """As a RobotClient that ends, or a cable that is cut, while GetActions waits."""
    polling = client.poll_future()
    status(client.send, iter([]))  # an answer to a later call: the server has the earlier one
    assert not polling.done()
    client.channel.close()
    runtime.wait_until_nothing_is_held()


def test_robots_do_not_disturb_each_other(runtime: ToyRuntime) -> None:
    with LeRobotClient(runtime.address) as first, LeRobotClient(runtime.address) as second:
        first.start(CONFIG)
        first.observe(seen(1.0), 0)
        second.start(replace(CONFIG, actions_per_chunk=4))
        second.ready()
        np.testing.assert_allclose(rows(first.actions()), expected(1.0), rtol=1e-6)
        first.observe(seen(2.0), 4)
        assert first.actions()[0].timestep == 4
        assert status(second.observe, seen())[0] == "FAILED_PRECONDITION"


def test_a_robot_that_goes_away_frees_its_place(runtime: ToyRuntime) -> None:
    held = Held(runtime)
    client = LeRobotClient(runtime.address)
    client.start(CONFIG)
    client.observe(seen(), must_go=True)
    held.wait()
    go_away(client, runtime)


def test_a_robot_that_is_silent_loses_its_place() -> None:
    with serving(replace(DIALECT, idle_timeout_s=0.05)) as runtime, LeRobotClient(runtime.address) as client:
        client.start(CONFIG)
        runtime.wait_until_nothing_is_held()
        client.observe(seen(), must_go=True)
        assert client.actions(), "it goes on with another place"
        assert len(runtime.seen(OpenSession)) == 2


def test_a_robot_that_lost_its_connection_goes_on(runtime: ToyRuntime) -> None:
    """RobotClient does not say again what it had asked for."""
    lost = LeRobotClient(runtime.address)
    lost.start(CONFIG)
    lost.observe(seen(), must_go=True)
    lost.actions()
    go_away(lost, runtime)
    runtime.wait_until_nothing_is_held()
    with LeRobotClient(runtime.address) as client:
        client.observe(seen(1.0), timestep=57, must_go=True)
        actions = client.actions()
        assert actions[0].timestep == 57
        np.testing.assert_allclose(rows(actions), expected(1.0), rtol=1e-6)


def test_a_connection_that_was_cut_unseen_is_taken_over(runtime: ToyRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    """No call was under way, so nothing was cancelled: only that it is silent tells."""
    monkeypatch.setattr(places, "SILENT_S", 0.0)
    cut = LeRobotClient(runtime.address)
    cut.start(CONFIG)
    with LeRobotClient(runtime.address) as client:
        client.observe(seen(1.0), timestep=9, must_go=True)
        assert client.actions()[0].timestep == 9
        assert len(runtime.seen(OpenSession)) == 2
    cut.channel.close()


def test_ready_ends_a_call_that_waits(client: LeRobotClient) -> None:
    client.start(CONFIG)
    polling = client.poll_future()
    client.ready()
    assert status(polling.result, timeout=20)[0] == "CANCELLED"


def test_ready_ends_what_runs(client: LeRobotClient, runtime: ToyRuntime) -> None:
    held = Held(runtime)
    client.start(CONFIG)
    client.observe(seen(), must_go=True)
    held.wait()
    client.ready()
    assert len(runtime.seen(CancelRequest)) == 1
    runtime.wait_until_nothing_is_held()
