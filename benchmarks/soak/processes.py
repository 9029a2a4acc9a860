"""The processes of a server that this process started, as the system sees them."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

_ARENA_NAME = re.compile(r"/memfd:.*-(server|worker-\d+) \(deleted\)")


@dataclass(frozen=True)
class ServerProcesses:
    """`pid` is the server's; its workers are its children."""

    pid: int

    @classmethod
    def of_child(cls) -> ServerProcesses:
        """Of the only server that is a child of this process."""
        (pid,) = (child for child in _children(os.getpid()) if "mstar_rt.cli" in _command(child))
        return cls(pid)

    def workers(self) -> dict[int, int]:
        """Process id by rank of those that live now."""
        found = {}
        for pid in _children(self.pid):
            command = _command(pid)
            if "mstar_rt.worker" in command:
                found[int(command[command.index("--rank") + 1])] = pid
        return found

    def num_arenas_of_the_dead(self) -> int:
        """Memory of tensors that some process still maps or holds open, although the worker that made it has ended: one
        that was started anew has an arena of the same name."""
        pids = [self.pid, *self.workers().values()]
        arenas = set().union(*(_arenas(pid) for pid in pids))
        return len(arenas) - len({name for name, _ in arenas})

    def private_mb(self) -> dict[tuple[str, int], float]:
        """Resident memory that is neither a file nor shared (the arenas of tensors are), by name and process id."""
        named = {"server": self.pid} | {f"worker/{rank}": pid for rank, pid in self.workers().items()}
        return {(name, pid): _private_mb(pid) for name, pid in named.items()}


def _children(parent: int) -> list[int]:
    children = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue  # it ended meanwhile
            if int(fields[1]) == parent and fields[0] != "Z":
                children.append(int(entry.name))
    return children


def _command(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except OSError:
        return []


def _arenas(pid: int) -> set[tuple[str, int]]:
    """Name and inode of the arenas that the process maps or holds open."""
    found = set()
    try:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            fields = line.split(maxsplit=5)
            if len(fields) == 6:
                found.add((fields[5], int(fields[4])))
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            found.add((os.readlink(entry), entry.stat().st_ino))
    except OSError:
        pass  # it ended meanwhile
    return {(name, inode) for name, inode in found if _ARENA_NAME.match(name)}


def _private_mb(pid: int) -> float:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0  # it ended meanwhile
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("RssAnon:")), 0.0)
