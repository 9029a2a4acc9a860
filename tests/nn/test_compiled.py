"""Compiled before serving, equal, never compiled in the middle of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from mstar_rt.errors import ConfigError
from mstar_rt.nn.compiled import Compiled, Example


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def example(*shape: int) -> Example:
    return Example(lambda: (torch.ones(shape),), packs=False)


def test_any_size_runs_what_was_prepared_and_other_ranks_run_plainly() -> None:
    plain_calls: list[tuple[int, ...]] = []

    def function(x: torch.Tensor) -> torch.Tensor:
        if not torch.compiler.is_compiling():
            plain_calls.append(tuple(x.shape))
        return torch.tanh(x) * 2 + x.sum(-1, keepdim=True)

    compiled = Compiled(function)
    with torch.inference_mode():
        compiled.prepare([example(3, 5)])
        plain_calls.clear()
        for shape in ((3, 5), (7, 9), (2, 3)):
            x = torch.randn(shape)
            torch.testing.assert_close(compiled(x), torch.tanh(x) * 2 + x.sum(-1, keepdim=True))
        assert plain_calls == []
        x = torch.randn(2, 3, 4)
        torch.testing.assert_close(compiled(x), torch.tanh(x) * 2 + x.sum(-1, keepdim=True))
        assert plain_calls == [(2, 3, 4)]


def test_what_cannot_be_compiled_is_refused_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_compiler(x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("no compiler here")

    monkeypatch.setattr(torch, "compile", lambda function, **options: no_compiler)
    with pytest.raises(ConfigError, match=r"torch.compile fails here .RuntimeError.*install a C"):
        Compiled(torch.tanh).prepare([example(2)])


def test_code_that_comes_out_wrong_is_not_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda function, **options: torch.cos)
    with pytest.raises(AssertionError, match="off by"):
        Compiled(torch.sin).prepare([example(2)])
