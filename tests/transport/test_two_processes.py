"""Control and tensors between real processes: both ways, through bursts, kills and restarts, and nothing is
left.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import mstar_rt
from mstar_rt.errors import FailedPrecondition, Unavailable
from mstar_rt.message import AskStats, Drain, Emitted, Message, PeerGone, Release, Shutdown, Stats
from mstar_rt.transport import Envelope, ZmqMesh, shared_memory_plane

pytestmark = pytest.mark.system

PEER_PROCESS = Path(__file__).with_name("peer_process.py")
BURST = 20_000
DEADLINE_S = 15.0
LARGE = np.arange(300_000, dtype=np.float32).reshape(3, 100_000)


@pytest.fixture
def base() -> Iterator[Path]:
    """A short directory for sockets."""
    path = Path(tempfile.mkdtemp(prefix="rt", dir="/tmp"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
def start_peer() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts peer_process.py; kills what still runs at the end."""
    started: list[subprocess.Popen[str]] = []

    def start(directory: Path, address: str, role: str) -> subprocess.Popen[str]:
        environment = os.environ | {"PYTHONPATH": str(Path(mstar_rt.__file__).parents[1])}
        command = [sys.executable, str(PEER_PROCESS), str(directory), address, role]
        peer = subprocess.Popen(command, env=environment, stdin=-1, stdout=-1, text=True)
        started.append(peer)
        return peer

    yield start
    for peer in started:
        peer.kill()
        peer.communicate()


class Server:
    """The test's own end: address "server" of a new deployment."""

    def __init__(self, base: Path) -> None:
        self.mesh = ZmqMesh.create(base)
        self.endpoint = self.mesh.endpoint("server")
        self.plane = shared_memory_plane(self.endpoint, self.mesh.deployment_id, 64 << 20)
        self._waiting: list[Envelope] = []

    def next(self) -> Envelope:
        """The next envelope that is no Release; fails at the deadline."""
        while True:
            if not self._waiting:
                self._waiting = self.endpoint.receive(DEADLINE_S)
                assert self._waiting, f"nothing arrived within {DEADLINE_S} s"
            envelope = self._waiting.pop(0)
            if not isinstance(envelope.message, Release):
                return envelope
            self.plane.on_release(envelope.message)

    def ask(self, to: str, message: Message) -> Message:
        self.endpoint.send(to, message)
        return self.next().message

    def echo(self, to: str, index: int, data: np.ndarray) -> np.ndarray:
        """Sends a tensor, returns a copy of the answer and releases it."""
        answer = self.ask(
            to, Emitted("r", "w", index, "x", (), self.plane.put(str(data.dtype), data.shape, data, [to]))
        )
        assert isinstance(answer, Emitted)
        assert answer.index == index
        copy = self.plane.view(answer.tensor).copy()
        self.plane.release(answer.tensor)
        return copy

    def wait_until_idle(self) -> None:
        """Until all that we put is released; the ends ask one another so that each gets its turn."""
        for _ in range(1000):
            if not self.plane.num_held_bytes:
                break
            self.ask("worker/0", PeerGone("nobody"))
        self.plane.flush()

    def close(self) -> None:
        self.plane.close()
        self.mesh.close()


@pytest.fixture
def server(base: Path) -> Iterator[Server]:
    server = Server(base)
    yield server
    server.close()
    assert list(base.iterdir()) == []


Start = Callable[..., subprocess.Popen[str]]


def test_tensors_go_both_ways_and_nothing_stays_held(server: Server, start_peer: Start) -> None:
    start_peer(server.mesh.directory, "worker/0", "echo")
    assert server.next().message == Drain()
    for index in range(100):
        data = LARGE[:, : 1 + index * 1000] + index if index % 3 else np.arange(index, dtype=np.float64)
        data = np.ascontiguousarray(data)
        np.testing.assert_array_equal(server.echo("worker/0", index, data), data + 1)
    server.wait_until_idle()
    held = server.ask("worker/0", AskStats("server", 7))
    assert held == Stats("worker/0", 7, {"held_bytes": 0, "held_segments": 0})
    assert server.plane.num_held_segments == 0


def test_senders_are_told_apart_by_process(server: Server, start_peer: Start) -> None:
    pids = []
    for _ in range(2):
        peer = start_peer(server.mesh.directory, "worker/0", "echo")
        hello = server.next()
        assert (hello.sender, hello.sender_pid, hello.message) == ("worker/0", peer.pid, Drain())
        pids.append(hello.sender_pid)
        assert server.ask("worker/0", PeerGone("x")) == PeerGone("x")
        peer.kill()
        peer.wait()
    assert pids[0] != pids[1]


def test_two_processes_that_burst_at_each_other_both_progress(server: Server, start_peer: Start) -> None:
    peer = start_peer(server.mesh.directory, "worker/0", "burst")
    for ask_id in range(BURST):
        server.endpoint.send("worker/0", AskStats("server", ask_id))
    for ask_id in range(BURST):
        assert server.next().message == AskStats("worker/0", ask_id)
    assert server.next().message == Stats("worker/0", 0, {"num_received": BURST})
    # The last message was sent just before the peer closed and ended: closing waited for it.
    assert peer.wait(DEADLINE_S) == 0


def test_a_killed_peer_frees_all_and_its_successor_serves(server: Server, start_peer: Start) -> None:
    peer = start_peer(server.mesh.directory, "worker/0", "hold")
    assert server.next().message == Drain()
    for index in range(5):
        server.echo("worker/0", index, LARGE)
    ref = server.plane.put("float32", LARGE.shape, LARGE, ["worker/0"])
    answer = server.ask("worker/0", Emitted("r", "w", 5, "x", (), ref))
    assert isinstance(answer, Emitted)
    assert server.plane.num_held_segments == 6
    assert_nothing_in_dev_shm(os.getpid(), peer.pid)
    for index in range(200):
        server.endpoint.send("worker/0", Emitted("r", "w", index, "x", (), ref))
    peer.kill()
    peer.wait()
    assert_nothing_in_dev_shm(os.getpid())

    # What the dead one wrote stays readable to whoever has attached to it, and only to them.
    np.testing.assert_array_equal(server.plane.view(answer.tensor), LARGE + 1)
    server.plane.forget_peer("worker/0")
    server.endpoint.forget_peer("worker/0")
    assert server.plane.num_held_bytes == 0
    with pytest.raises(Unavailable, match=rf"worker/0 \(process {peer.pid}\) is gone"):
        server.plane.view(answer.tensor)

    successor = start_peer(server.mesh.directory, "worker/0", "echo")
    # Answers of the dead one that were under way carry its process id.
    while (hello := server.next()).sender_pid == peer.pid:
        pass
    assert (hello.sender_pid, hello.message) == (successor.pid, Drain())
    np.testing.assert_array_equal(server.echo("worker/0", 9, LARGE), LARGE + 1)
    server.wait_until_idle()
    assert server.plane.num_held_bytes == 0


def test_later_sends_reach_a_restarted_peer_without_being_told(server: Server, start_peer: Start) -> None:
    peer = start_peer(server.mesh.directory, "worker/0", "echo")
    assert server.next().message == Drain()
    peer.kill()
    peer.wait()
    start_peer(server.mesh.directory, "worker/0", "echo")
    assert server.next().message == Drain()
    assert server.ask("worker/0", PeerGone("x")) == PeerGone("x")


def test_two_deployments_side_by_side_do_not_meet(base: Path, start_peer: Start) -> None:
    servers = [Server(base), Server(base)]
    peers = [start_peer(server.mesh.directory, "worker/0", "echo") for server in servers]
    for server, peer in zip(servers, peers, strict=True):
        assert server.next().sender_pid == peer.pid
    for index in range(20):
        for server, peer in zip(servers, peers, strict=True):
            server.endpoint.send("worker/0", PeerGone(server.mesh.deployment_id))
            envelope = server.next()
            assert envelope.message == PeerGone(server.mesh.deployment_id)
            assert envelope.sender_pid == peer.pid
            value = np.full(10_000, index + server.mesh.directory.stat().st_ino, np.int64)
            np.testing.assert_array_equal(server.echo("worker/0", index, value), value + 1)
    for server, peer in zip(servers, peers, strict=True):
        server.endpoint.send("worker/0", Shutdown())
        assert peer.wait(DEADLINE_S) == 0
        server.close()
    assert list(base.iterdir()) == []


def test_an_address_belongs_to_one_process(server: Server, start_peer: Start) -> None:
    peer = start_peer(server.mesh.directory, "worker/0", "echo")
    assert server.next().message == Drain()
    with pytest.raises(FailedPrecondition, match=r"'worker/0' .* held by a living process"):
        server.mesh.endpoint("worker/0")
    peer.kill()
    peer.wait()
    server.mesh.endpoint("worker/0")


def test_the_directory_of_a_killed_owner_is_swept_by_the_next_and_a_living_one_stays(
    base: Path, start_peer: Start
) -> None:
    killed, living = (start_peer(base, "server", "own") for _ in range(2))
    directories = []
    for owner in (killed, living):
        assert owner.stdout is not None
        directories.append(Path(owner.stdout.readline().strip()))
    assert all(directory.parent == base and directory.is_dir() for directory in directories)
    killed.kill()
    killed.wait()
    foreign = base / "mstar-rt-foreign"
    foreign.mkdir()
    mesh = ZmqMesh.create(base)
    assert set(base.iterdir()) == {directories[1], mesh.directory, foreign}
    living.communicate(timeout=DEADLINE_S)
    mesh.close()
    assert set(base.iterdir()) == {foreign}


def test_only_the_user_may_enter_a_deployment(server: Server) -> None:
    assert stat.S_IMODE(server.mesh.directory.stat().st_mode) == 0o700


def test_base_directories_that_cannot_hold_sockets_are_named(base: Path) -> None:
    with pytest.raises(FailedPrecondition, match="too long for sockets"):
        ZmqMesh.create(base / ("d" * 60))
    with pytest.raises(FailedPrecondition, match="cannot be made: No such file"):
        ZmqMesh.create(base / "missing")


def test_a_closed_deployment_cannot_be_joined(base: Path) -> None:
    mesh = ZmqMesh.create(base)
    guest = ZmqMesh.join(mesh.directory)
    mesh.close()
    mesh.close()
    with pytest.raises(Unavailable, match="cannot join it"):
        guest.endpoint("worker/0")
    guest.close()
    with pytest.raises(Unavailable, match="no deployment at"):
        ZmqMesh.join(mesh.directory)


def assert_nothing_in_dev_shm(*pids: int) -> None:
    """Neither mapped nor open in these processes, and nothing of ours by name. Locks of libraries that another test has
    imported are mapped from there too."""
    assert not [path for path in os.listdir("/dev/shm") if "mstar" in path]
    for pid in pids:
        mapped = [line for line in Path(f"/proc/{pid}/maps").read_text().splitlines() if "/dev/shm/" in line]
        assert not [line for line in mapped if "/dev/shm/sem." not in line]
        for fd in Path(f"/proc/{pid}/fd").iterdir():
            assert not (fd.is_symlink() and str(fd.readlink()).startswith("/dev/shm/"))
