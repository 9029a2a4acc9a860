"""Tensors that outlive walks: kept inputs of requests, and what walks persisted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


class Scopes:
    """Values by name. What a request leaves becomes the session's when the request has ended well; until then its own
    later walks see it, and nobody else. A request without a session is its own scope.
    """

    def __init__(self) -> None:
        self._inputs: dict[str, dict[str, Any]] = {}
        self._left: dict[str, tuple[str, dict[str, Any]]] = {}
        self._settled: dict[str, dict[str, Any]] = {}
        self._fetched: dict[tuple[str, str], int] = {}

    def __len__(self) -> int:
        return len(self._inputs.keys() | self._left.keys() | self._settled.keys())

    def known(self, request_id: str, scope: str) -> dict[str, Any]:
        """What a walk of the request may read, besides what came with it; the caller's own."""
        if not (self._inputs or self._left or self._settled):
            return {}
        return {**self.persisted(request_id, scope), **self._inputs.get(request_id, {})}

    def persisted(self, request_id: str, scope: str) -> dict[str, Any]:
        left = self._left.get(request_id)
        return {
            **self._settled.get(scope, {}),
            **(left[1] if left is not None else {}),
            **(self._settled.get(request_id, {}) if scope != request_id else {}),
        }

    def keep_inputs(self, request_id: str, values: Mapping[str, Any]) -> None:
        """For later walks of the request."""
        if values:
            self._inputs.setdefault(request_id, {}).update(values)

    def leave(self, request_id: str, scope: str, values: Mapping[str, Any]) -> None:
        """A walk of the request persisted these."""
        if values:
            self._left.setdefault(request_id, (scope, {}))[1].update(values)
            self._forget_copies(request_id, values)

    def is_fetched(self, level: str, name: str, walk_id: int) -> bool:
        """Whether the copy here is what that walk left on another rank."""
        return self._fetched.get((level, name)) == walk_id

    def put_fetched(self, request_id: str, level: str, name: str, walk_id: int, value: Any) -> None:
        """A copy of what another rank holds; `level` is the session if an earlier request left it, else the request."""
        if request_id in self._left:
            self._left[request_id][1].pop(name, None)
        self._settled.setdefault(level, {})[name] = value
        self._fetched[level, name] = walk_id

    def end_request(self, request_id: str, keep: bool) -> None:
        """`keep`: the request ended well."""
        self._inputs.pop(request_id, None)
        scope, values = self._left.pop(request_id, ("", {}))
        self.release(request_id)
        if keep and values and scope != request_id:
            self._forget_copies(scope, values)
            self._settled.setdefault(scope, {}).update(values)

    def _forget_copies(self, level: str, names: Iterable[str]) -> None:
        for name in names:
            if self._fetched.pop((level, name), None) is not None:
                del self._settled[level][name]

    def release(self, scope: str) -> None:
        if self._settled.pop(scope, None) is not None and self._fetched:
            self._fetched = {key: walk_id for key, walk_id in self._fetched.items() if key[0] != scope}
