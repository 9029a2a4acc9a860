"""Keys and their file, where a server may listen, how many messages a client may send."""

from __future__ import annotations

import hmac
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from mstar_rt.clock import ManualClock
from mstar_rt.errors import ConfigError, ResourceExhausted
from mstar_rt.server.access import Keys, check_reachable, exposure
from mstar_rt.server.rates import MAX_IDLE, MessageRates

ONE, TWO, THREE = "first-key-of-all-12345", "second-key-of-all-1234", "third-key-of-all-12345"

WriteKeys = Callable[..., str]


@pytest.fixture
def written(tmp_path: Path) -> WriteKeys:
    def write(text: str, mode: int = 0o600) -> str:
        path = tmp_path / "keys"
        path.write_text(text)
        path.chmod(mode)
        return str(path)

    return write


# ---- keys


def test_a_key_is_known_by_its_name_or_its_place(written: WriteKeys) -> None:
    keys = Keys.load(written(f"# robots\n\narm-1 {ONE}\n{TWO}\narm-1 {THREE}\n"))
    assert [keys.name_of(key) for key in (ONE, TWO, THREE)] == ["arm-1", "key-2", "arm-1"]
    assert keys.check(ONE)
    for wrong in ("", ONE[:-1], ONE + "x", ONE.upper(), "arm-1", f"arm-1 {ONE}", "\udcff", "x" * 10_000):
        assert not keys.check(wrong)


def test_a_bearer_header_is_taken_apart(written: WriteKeys) -> None:
    keys = Keys.load(written(ONE))
    assert keys.name_of_bearer(f"Bearer {ONE}") == keys.name_of_bearer(f"bearer  {ONE} ") == "key-1"
    for wrong in (None, "", ONE, f"Basic {ONE}", "Bearer", f"Bearer {TWO}", f"Bearer{ONE}"):
        assert keys.name_of_bearer(wrong) is None


def test_every_key_is_compared_whatever_is_given(written: WriteKeys, monkeypatch: pytest.MonkeyPatch) -> None:
    """In constant time, over digests of one length: neither which key it is nor how much of it is right shows."""
    keys = Keys.load(written(f"{ONE}\n{TWO}\n{THREE}"))
    compared: list[tuple[int, int]] = []
    compare = hmac.compare_digest

    def watched(one: bytes, other: bytes) -> bool:
        compared.append((len(one), len(other)))
        return compare(one, other)

    monkeypatch.setattr("mstar_rt.server.access.hmac.compare_digest", watched)
    for given in (ONE, THREE, "nobody's", ""):
        compared.clear()
        keys.check(given)
        assert compared == [(32, 32)] * 3


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "holds no key, expected one a line"),
        ("# nothing\n", "holds no key, expected one a line"),
        ("short-secret", "line 1 of .* has a key of 12 characters, expected 16 to 1024"),
        (f"{ONE}\n{TWO} and {THREE}", "line 2 of .* is neither a key nor a name .* and a key"),
        (f"arm/1 {ONE}", "line 1 of .* is neither a key nor a name"),
        (f"a {ONE}\nb {ONE}", "holds one key twice"),
        (f"{ONE}é", "holds other characters than ASCII's"),
    ],
)
def test_a_file_that_holds_no_keys_is_refused_without_telling_it(written: WriteKeys, text: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=f"tokens_file: .*{sentence}") as refused:
        Keys.load(written(text), "tokens_file")
    for secret in (ONE, TWO, THREE, "short-secret"):
        assert secret not in str(refused.value)


@pytest.mark.parametrize("mode", [0o644, 0o660, 0o604, 0o620])
def test_a_file_that_others_may_use_is_refused(written: WriteKeys, mode: int) -> None:
    with pytest.raises(ConfigError, match=f"others may use .*mode {mode:04o}.: run chmod 600 on it"):
        Keys.load(written(ONE, mode))


def test_what_is_no_plain_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    for name, sentence in (("none", "cannot open"), (".", "is not a plain file"), ("pipe", "is not a plain file")):
        with pytest.raises(ConfigError, match=sentence):
            Keys.load(str(tmp_path / name))


def test_keys_change_with_their_file_and_stay_while_it_cannot_be_used(
    written: WriteKeys, caplog: pytest.LogCaptureFixture
) -> None:
    keys = Keys.load(written(ONE))
    path = written(f"{TWO}\n{THREE}")
    assert (keys.check(ONE), keys.check(TWO)) == (False, True)
    Path(path).write_text("half of a ke")
    assert (keys.check(ONE), keys.check(TWO)) == (False, True)
    assert "what was read before stays in use" in caplog.text
    Path(path).unlink()
    assert keys.check(TWO)
    written(f"{ONE}\n{THREE}")
    assert (keys.check(ONE), keys.check(TWO)) == (True, False)


def test_nothing_that_is_kept_or_logged_holds_a_key(written: WriteKeys, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("DEBUG"):
        keys = Keys.load(written(f"arm-1 {ONE}"))
        written(f"arm-1 {TWO}\nx {THREE}")
        keys.check(ONE)
    kept = repr(keys._file.current()) + caplog.text
    assert "arm-1" in kept
    assert not any(key in kept for key in (ONE, TWO, THREE))


# ---- where to listen


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_this_machine_needs_nothing(host: str) -> None:
    check_reachable(host, has_tls=False, has_keys=False, insecure=False)
    assert exposure(host, has_tls=False, has_keys=False, knows_clients=False) is None


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "10.0.0.7", "robot.example", "localhost.example", "127.0.0.1.x"])
def test_others_need_tls_or_keys_or_consent(host: str) -> None:
    with pytest.raises(ConfigError, match=r"dialects.0..host .* can be reached from other machines"):
        check_reachable(host, has_tls=False, has_keys=False, insecure=False, label="dialects[0].host")
    for has_tls, has_keys, insecure in ((True, False, False), (False, True, False), (False, False, True)):
        check_reachable(host, has_tls=has_tls, has_keys=has_keys, insecure=insecure)


def test_what_is_let_pass_and_still_open_is_said() -> None:
    assert "it asks for no key and no certificate" in str(
        exposure("::", has_tls=True, has_keys=False, knows_clients=False)
    )
    assert "travel in clear text" in str(exposure("::", has_tls=False, has_keys=True, knows_clients=False))
    assert exposure("::", has_tls=True, has_keys=True, knows_clients=False) is None
    assert exposure("::", has_tls=True, has_keys=False, knows_clients=True) is None


# ---- rates


def test_a_client_over_its_rate_is_told_when_the_next_message_is_let_in() -> None:
    clock = ManualClock(10**12)
    rates = MessageRates(10.0, clock)
    for _ in range(10):
        rates.take("a")
    with pytest.raises(
        ResourceExhausted, match=r"'a' sends over 10 messages a second .*the next one in 0.1 s"
    ) as refused:
        rates.take("a")
    assert refused.value.retryable
    assert refused.value.retry_after_s == pytest.approx(0.1)
    rates.take("b")
    clock.advance_ns(99_999_999)
    with pytest.raises(ResourceExhausted):
        rates.take("a")
    clock.advance_ns(1)
    rates.take("a")
    clock.advance_ns(3_600 * 10**9)
    for _ in range(10):
        rates.take("a")
    with pytest.raises(ResourceExhausted):
        rates.take("a")


def test_what_keeps_its_rate_is_never_refused() -> None:
    clock = ManualClock(1)
    for per_s in (0.1, 7.0, 10_000.0):
        rates = MessageRates(per_s, clock)
        for _ in range(2000):
            rates.take("a")
            clock.advance_ns(int(1e9 / per_s))


def test_any_rate_and_clients_without_end() -> None:
    clock = ManualClock(1)
    unbounded, bounded = MessageRates(None, clock), MessageRates(1000.0, clock)
    for number in range(3 * MAX_IDLE):
        unbounded.take("a")
        bounded.take(f"client {number}")
        clock.advance_ns(2_000_000)
    assert len(bounded._until_ns) <= MAX_IDLE
