"""Registry, clock, trace and errors."""

from __future__ import annotations

import difflib
import json
import sys
from pathlib import Path

import pytest

from mstar_rt.clock import ManualClock, deadline_ns_from_budget
from mstar_rt.errors import ERRORS_BY_CODE, ConfigError, InvalidArgument, MstarError, nearest, sentence
from mstar_rt.registry import load_declare, load_object


def test_codes_are_unique_and_complete() -> None:
    assert all(kind.code == code for code, kind in ERRORS_BY_CODE.items())

    def leaves(kind: type[MstarError]) -> set[str]:
        return {kind.code}.union(*(leaves(child) for child in kind.__subclasses__()))

    assert leaves(MstarError) <= set(ERRORS_BY_CODE)


def test_nearest() -> None:
    assert nearest("encdoe", ["encode", "predict"]) == "did you mean 'encode'?"
    assert nearest("zzz", ["b", "a"]) == "known: a, b"
    assert nearest("zzz", []) == "none are known"


def test_a_name_of_megabytes_is_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten of them take a second, during which a server would answer nobody."""
    monkeypatch.setattr(difflib, "get_close_matches", lambda *_, **__: pytest.fail("it is compared"))
    assert nearest("to" * 10_000, ["top"]) == "known: top"


def test_registry_names_what_it_knows() -> None:
    with pytest.raises(ConfigError, match="unknown model family 'vjepa2_a', did you mean 'vjepa2_ac'"):
        load_declare("vjepa2_a")
    assert load_object("json:dumps") is json.dumps
    with pytest.raises(ConfigError, match="cannot load 'no_such_package:declare'"):
        load_object("no_such_package:declare")
    with pytest.raises(ConfigError, match="cannot load"):
        load_object("json:nothing")


def test_clock_moves_only_when_told() -> None:
    clock = ManualClock(5)
    clock.advance_ns(7)
    assert clock.now_ns() == 12
    with pytest.raises(ValueError, match="cannot go back"):
        clock.advance_ns(-1)
    assert deadline_ns_from_budget(clock, 2.5) == 12 + 2_500_000
    assert deadline_ns_from_budget(clock, None) is None


def test_a_sentence_is_short_text_whatever_it_quotes() -> None:
    assert sentence(InvalidArgument("no")) == "no"
    long = sentence(InvalidArgument("begin " + "m" * 50_000 + " end"))
    assert len(long) < 1100
    assert long.startswith("begin ")
    assert long.endswith(" end")
    assert sentence(InvalidArgument("\udc80")).encode() == b"?"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("def declare(:\n", "cannot load 'broken:declare': SyntaxError: invalid syntax (broken.py, line 1)"),
        ("\nx = undefined\n", "cannot load 'broken:declare': NameError: name 'undefined' is not defined ({}, line 2)"),
        ("import sys\nsys.exit(7)\n", "cannot load 'broken:declare': SystemExit: 7 ({}, line 2)"),
    ],
    ids=["syntax", "name", "exit"],
)
def test_a_module_that_cannot_be_imported_is_told_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, sentence: str
) -> None:
    (tmp_path / "broken.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "broken", raising=False)
    with pytest.raises(ConfigError) as caught:
        load_declare("broken:declare")
    assert str(caught.value) == sentence.format(tmp_path / "broken.py")
