"""How often something is tried again, and for how long a server that is away is waited for."""

from __future__ import annotations

from itertools import cycle

import pytest

from metaq.errors import BrokerError, ConnectionFailed, MetaqError
from metaq.net.retry import PAUSE_S_MAX, Attempts, RetryPolicy, persist
from metaq.testing.manual_clock import ManualClock

AWAY = ConnectionFailed("b0:1", "connect", "refused")
BUSY = BrokerError("b0:1", "put", 503, "no thread free")


def failing(clock: ManualClock, until_s: float, error: MetaqError = AWAY) -> float:
    """Fails with ``error`` until ``until_s`` of the clock."""
    if clock.monotonic() < until_s:
        raise error
    return clock.monotonic()


def test_a_server_that_is_away_is_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock(0.0)
    assert persist(lambda: failing(clock, 100), RetryPolicy(2, 0.5, wait_s=300), clock) >= 100
    assert clock.slept_s[:4] == [0.5, 1, 2, 4]
    assert max(clock.slept_s) == PAUSE_S_MAX
    (said,) = [record.message for record in caplog.records]
    assert said == f"{AWAY}. Waiting for up to 298 s"


def test_the_wait_ends() -> None:
    clock = ManualClock(0.0)
    with pytest.raises(ConnectionFailed):
        persist(lambda: failing(clock, 1e9), RetryPolicy(2, 0.5, wait_s=300), clock)
    assert 300 <= clock.monotonic() < 300 + PAUSE_S_MAX


def test_servers_that_restart_one_after_the_other_are_each_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    clock, other = ManualClock(0.0), ConnectionFailed("b1:1", "connect", "refused")
    policy = RetryPolicy(2, 0.5, wait_s=300)
    with pytest.raises(ConnectionFailed, match="broker b1:1"):
        persist(lambda: (failing(clock, 290), failing(clock, 1e9, other)), policy, clock)
    assert 590 <= clock.monotonic() < 600 + PAUSE_S_MAX
    assert [record.message.split(":")[0] for record in caplog.records] == ["broker b0", "broker b1"]


def test_two_servers_that_are_away_together_are_waited_for_once() -> None:
    clock, errors = ManualClock(0.0), cycle((AWAY, ConnectionFailed("b1:1", "connect", "refused")))
    with pytest.raises(ConnectionFailed):
        persist(lambda: failing(clock, 1e9, next(errors)), RetryPolicy(2, 0.5, wait_s=300), clock)
    assert 300 <= clock.monotonic() < 300 + PAUSE_S_MAX


def test_a_server_that_is_busy_is_not_away() -> None:
    clock = ManualClock(0.0)
    with pytest.raises(BrokerError):
        persist(lambda: failing(clock, 1e9, BUSY), RetryPolicy(2, 0.5, wait_s=300), clock)
    assert clock.slept_s == [0.5, 1]


def test_the_wait_begins_anew_when_something_got_through() -> None:
    clock = ManualClock(0.0)
    attempts = Attempts(RetryPolicy(0, 0.5, wait_s=20), clock)
    for _ in range(5):
        until_s = clock.monotonic() + 15
        while clock.monotonic() < until_s:
            attempts.pause_after(AWAY)
        attempts.progressed()
