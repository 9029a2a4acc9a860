"""The allow-list unpickler: what RobotClient pickles is read, whatever the protocol; nothing else, and nothing is run."""

from __future__ import annotations

import os
import pickle
import random
import re
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

from fuzzing import NUM_MESSAGES, mutated, outcomes
from lerobot_client import pickled

from benchmarks.dialects.lerobot_classes import RemotePolicyConfig, TimedObservation
from mstar_rt.errors import InvalidArgument
from mstar_rt.server.compat.lerobot import payloads, unpickling
from mstar_rt.server.compat.lerobot.payloads import policy_instructions, timed_observation

PROTOCOLS = (2, 3, 4, 5)
PICTURE = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3)
SEEN: dict[str, Any] = {
    "shoulder.pos": 1.5, "elbow.pos": np.float32(-0.25), "count": np.int64(-3), "flag": np.bool_(True), "small": 300,
    "top": PICTURE, "flipped": PICTURE[::-1], "wide": np.asfortranarray(PICTURE), "depth": np.ones((2, 2), np.float64),
    "half": np.zeros(3, np.float16), "task": "push – ünïcode",
}  # fmt: skip
FEATURES = {
    "observation.state": {"dtype": "float32", "shape": (2,), "names": ["shoulder.pos", "elbow.pos"]},
    "observation.images.top": {"dtype": "image", "shape": (4, 6, 3), "names": ["height", "width", "channels"]},
}


def refusal(data: bytes) -> str:
    """By both methods that take pickles, in the same words."""
    with pytest.raises(InvalidArgument) as observation:
        timed_observation(data)
    with pytest.raises(InvalidArgument) as setup:
        policy_instructions(data)
    assert str(setup.value) == str(observation.value)
    return str(setup.value)


# ---- what a client says


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("module", payloads.MODULES)
def test_an_observation_is_read_as_it_was_pickled(protocol: int, module: str) -> None:
    seen = timed_observation(pickled(TimedObservation(12.5, 7, SEEN, True), protocol, module))
    assert (seen.timestamp, seen.timestep, seen.must_go) == (12.5, 7, True)
    assert list(seen.observation) == list(SEEN)
    for name, value in SEEN.items():
        read = seen.observation[name]
        if isinstance(value, np.ndarray):
            assert read.dtype == value.dtype
        np.testing.assert_array_equal(read, value)
        assert not isinstance(read, np.generic)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_policy_instructions_are_read_as_they_were_pickled(protocol: int) -> None:
    config = RemotePolicyConfig("pi05", "policy", FEATURES, 50, "cuda", {"a": "b"})
    given = policy_instructions(pickled(config, protocol, "lerobot.scripts.server.helpers"))
    assert given.module == "lerobot.scripts.server.helpers"
    assert (given.policy_type, given.pretrained_name_or_path, given.actions_per_chunk) == ("pi05", "policy", 50)
    assert (given.device, given.rename_map, given.features) == ("cuda", {"a": "b"}, FEATURES)


def test_arrays_are_views_of_the_payload() -> None:
    big = np.zeros((480, 640, 3), np.uint8)
    data = pickled(TimedObservation(0.0, 0, {"top": big}), 4)
    read = timed_observation(data).observation["top"]
    assert np.shares_memory(read, np.frombuffer(data, np.uint8))
    assert not read.flags.writeable


def test_numpy_1_and_2_are_read() -> None:
    data = pickled(TimedObservation(0.0, 0, {"top": PICTURE, "x": np.float64(2)}), 2)
    older = data.replace(b"cnumpy._core.", b"cnumpy.core.")
    assert older != data
    np.testing.assert_array_equal(timed_observation(older).observation["top"], PICTURE)


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (TimedObservation(0.0, -1, {}), "timestep -1, expected 0"),
        (TimedObservation(0.0, True, {}), "TimedObservation.timestep is of type bool, expected int"),
        (TimedObservation(0.0, "1", {}), "TimedObservation.timestep is of type str, expected int"),  # type: ignore[arg-type]
        (TimedObservation(float("nan"), 1, {}), "timestamp nan"),
        (TimedObservation(0.0, 1, [1]), "TimedObservation.observation is of type list, expected dict"),  # type: ignore[arg-type]
        ({"timestep": 1}, "the pickle holds no TimedObservation"),
        (TimedObservation(0.0, 1, {"a": {1: 2}}), "a key of type int, expected str"),
        (TimedObservation(0.0, 1, {"a": np.array(["x"])}), "dtype 'U1', expected numbers"),
        (TimedObservation(0.0, 1, {"a": np.array([None])}), "dtype 'O8', expected numbers"),
        (TimedObservation(0.0, 1, {"a": np.zeros(2, [("x", "f4")])}), "dtype 'V4', expected numbers"),
        (TimedObservation(0.0, 1, {"a": np.zeros(2, ">f4")}), "not little-endian"),
        (TimedObservation(0.0, 1, {"a": np.ma.ones(2)}), "the pickle names 'numpy.ma"),
        (TimedObservation(0.0, 1, {"a": {1, 2}}), "opcode"),
        (TimedObservation(0.0, 1, {"a": 1 << 70}), "an integer of 9 bytes"),
        (TimedObservation(0.0, 1, {"a": 1j}), "the pickle names 'builtins.complex'"),
    ],
)
def test_what_is_no_observation_is_refused(value: Any, sentence: str) -> None:
    with pytest.raises(InvalidArgument) as error:
        timed_observation(pickled(value))
    assert sentence in str(error.value)


# ---- what an attacker says


class Evil:
    def __init__(self, *reduced: Any) -> None:
        self._reduced = reduced

    def __reduce__(self) -> Any:
        return self._reduced


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    ("function", "name"), [(os.system, "posix.system"), (eval, "eval"), (exec, "exec"), (open, "open"),
                           (getattr, "getattr"), (subprocess.Popen, "Popen"), (pickle.loads, "loads"),
                           (__import__, "__import__")],
)  # fmt: skip
def test_a_global_that_is_not_allowed_is_named_and_not_run(
    function: Any, name: str, protocol: int, tmp_path: Path
) -> None:
    mark = tmp_path / "executed"
    argument = f"touch {mark}" if function is os.system else f"open({str(mark)!r}, 'w')"
    for value in (
        Evil(function, (argument,)),
        TimedObservation(0.0, 0, {"top": Evil(function, (argument,))}),
        RemotePolicyConfig("act", "policy", {"a": [Evil(function, (argument,))]}, 8),
    ):
        data = pickled(value, protocol)
        with pytest.raises(InvalidArgument) as error:
            (policy_instructions if isinstance(value, RemotePolicyConfig) else timed_observation)(data)
        assert name in str(error.value)
        assert "nothing was executed" in str(error.value)
    assert not mark.exists()


def test_reduce_within_reduce_is_refused_at_the_first_name() -> None:
    assert "builtins.print" in refusal(pickle.dumps(Evil(print, (Evil(os.system, ("true",)),))))
    assert "getattr" in refusal(b"\x80\x04cbuiltins\ngetattr\n(cposix\nsystem\nX\x01\x00\x00\x00xtR.")
    assert "posix.system" in refusal(b"\x80\x02cnumpy\ndtype\n(cposix\nsystem\ntR.")


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"", "ends within a value"),
        (b".", "ends with values left over"),
        (b"\x80\x01N.", "protocol 1, expected 2 to 5"),
        (b"\x80\x06N.", "protocol 6, expected 2 to 5"),
        (b"\x80\x04N", "ends within a value"),
        (b"\x80\x04N.N.", "2 bytes follow after the pickle"),
        (b"\x80\x04NN.", "ends with values left over"),
        (b"\x80\x04(N.", "ends with values left over"),
        (b"\x80\x04t.", "closes a container that it has not opened"),
        (b"\x80\x04a.", "takes a value that is not there"),
        (b"\x80\x04NNa.", "puts items into something that is no list"),
        (b"\x80\x04]NNs.", "puts items into something that is no dict"),
        (b"\x80\x04}(Nu.", "a key without a value"),
        (b"\x80\x04}]Ns.", "a key of type list, expected str"),
        (b"\x80\x04h\x07.", "refers to value 7, which it has not given"),
        (b"\x80\x04\x94.", "takes a value that is not there"),
        (b"\x80\x04NN\x93.", "names a global by something that is no text"),
        (b"\x80\x04N)R.", "calls something that is no function"),
        (b"\x80\x04N)\x81.", "calls something that is no function"),
        (b"\x80\x04N}b.", "gives state to something that has none"),
        (b"\x80\x04cnumpy\ndtype\n.", "a function where data is expected"),
        (b"\x80\x04cnumpy\ndtype\n)\x81.", "makes an object of something that is no class"),
        (b"\x80\x04cnumpy\nndarray\n)R.", "calls something that is no function"),
        (b"\x80\x04cnumpy\ndtype\n)R.", "whose dtype is no name"),
        (b"\x80\x04cnumpy\ndtype\nX\x02\x00\x00\x00f4\x85R.", "something unfinished where data is expected"),
        (b"\x80\x04cnumpy._core.multiarray\n_reconstruct\ncnumpy\nndarray\n\x85R.", "an array without data"),
        (b"\x80\x04cnumpy._core.multiarray\n_reconstruct\ncnumpy\ndtype\n\x85R.", "a class that is not numpy.ndarray"),
        (b"\x80\x04c" + b"a" * 500, "a name without an end"),
        (b"\x80\x04X\x02\x00\x00\x00\xff\xff.", "text that is not UTF-8"),
        (b"\x80\x04\x8a\xff" + b"\xff" * 255 + b".", "an integer of 255 bytes"),
        (b"\x80\x04\x8b\xff\xff\xff\x7f.", "opcode b'\\x8b'"),  # LONG4
        (b"\x80\x04Ptoken\n.", "opcode b'P'"),  # persistent id
        (b"\x80\x04\x82\x01.", "opcode b'\\x82'"),  # extension registry
        (b"\x80\x04(ios\nsystem\n.", "opcode b'i'"),
        (b"\x80\x04\x97.", "opcode b'\\x97'"),  # out-of-band buffer
        (b"\x80\x04I10\n.", "opcode b'I'"),
        (b"cposix\nsystem\n(S'true'\ntR.", "the pickle names 'posix.system'"),
        (b"\x80\x04B\xff\xff\xff\xff.", "bytes more were announced"),
        (b"\x80\x04\x8e" + b"\xff" * 8 + b".", "bytes more were announced"),
        (b"\x80\x04\x8d" + struct.pack("<Q", 1 << 62) + b".", "bytes more were announced"),
        (b"\x80\x05\x96" + struct.pack("<Q", 1 << 40) + b".", "bytes more were announced"),
        (b"\x80\x04" + b"(" * 1000 + b".", "nested more than 16 deep"),
        (b"\x80\x04N" + b"\x85" * 1000 + b".", "nested more than 16 deep"),
        (b"\x80\x04]\x94" + b"h\x00a" * 3 + b".", "nested more than 16 deep"),  # a list in itself
        (b"\x80\x04" + b"N\x94" * 60_000 + b".", "more than 20000 operations"),
        (b"\x80\x04](" + b"N" * 15_000 + b"e.", "stands for more than 10000 values"),
    ],
)  # fmt: skip
def test_a_broken_or_hostile_pickle_is_refused(data: bytes, sentence: str) -> None:
    assert sentence in refusal(data)


def test_a_few_bytes_do_not_stand_for_very_many_values() -> None:
    """Fifteen tuples of three references each to the one before: 3**15 values in 100 bytes."""
    levels = b"".join(b"h" + bytes((i,)) + b"h" + bytes((i,)) + b"\x87\x94" for i in range(15))
    assert "stands for more than 10000 values" in refusal(b"\x80\x04]\x94" + levels + b".")


def test_bytes_are_not_made_again_and_again() -> None:
    text = b"X" + struct.pack("<I", 100_000) + b"a" * 100_000 + b"\x94"
    encode = b"c_codecs\nencode\n\x94X\x06\x00\x00\x00latin1\x94"
    again = b"".join(b"h\x01h\x00h\x02\x86R" for _ in range(100))
    assert "many more bytes than it has" in refusal(b"\x80\x04" + text + encode + again + b".")


def test_the_server_imports_no_unpickler() -> None:
    """Neither Python's own nor anything that uses it, nor LeRobot, nor torch."""
    banned = re.compile(
        r"^\s*(?:import|from)\s+(?:c?_?pickle|pickletools|lerobot|dill|cloudpickle|joblib|shelve)\b", re.M
    )
    torch = re.compile(r"^\s*(?:import|from)\s+torch\b", re.M)
    root = Path(unpickling.__file__).parents[3]
    for source in root.rglob("*.py"):
        text = source.read_text()
        assert not banned.search(text), source
        assert "server" not in source.parts or not torch.search(text), source


async def test_ten_thousand_fuzzed_payloads() -> None:
    """Each is read, or refused in a sentence."""
    seen = TimedObservation(1.0, 3, {"a.pos": 1.0, "top": PICTURE, "task": "push"}, True)
    payloads = [pickled(seen, protocol) for protocol in PROTOCOLS]
    payloads += [pickled(RemotePolicyConfig("act", "policy", FEATURES, 8), protocol) for protocol in PROTOCOLS]
    rng = random.Random(7)
    others = [*payloads, b"cposix\nsystem\n", b"(.RbaetuN]})c\x93\x94\x81\x85\x86\x87" * 3]

    async def read(data: bytes) -> None:
        (timed_observation if rng.random() < 0.5 else policy_instructions)(data)

    found = await outcomes((mutated(rng.choice(payloads), rng, others) for _ in range(NUM_MESSAGES)), read)
    assert set(found) == {"taken", "INVALID_ARGUMENT"}
    assert found["taken"] > 100
    assert found["INVALID_ARGUMENT"] > 5000
