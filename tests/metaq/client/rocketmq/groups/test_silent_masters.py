"""Silent masters: how often the name servers are asked about them, and what follows when one was replaced."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing

import pytest
from fix_broker import wait_until

from metaq.client.rocketmq.groups import silence
from metaq.client.rocketmq.groups.silence import SilentMasters
from metaq.model import Address
from metaq.net.clock import SYSTEM_CLOCK

OLD, NEW = Address("127.0.0.1", 10911), Address("127.0.0.1", 10912)


class Asked:
    """The name servers."""

    def __init__(self) -> None:
        self.times_s: list[float] = []
        self.master = OLD
        self.replaced: list[Address] = []

    def has_moved(self, broker_name: str, address: Address) -> bool:
        assert broker_name == "broker-a"
        self.times_s.append(time.monotonic())
        return address != self.master


@pytest.fixture
def asked() -> Asked:
    return Asked()


@pytest.fixture
def masters(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> Iterator[SilentMasters]:
    monkeypatch.setattr(silence, "LOOK_S", 0.1)
    monkeypatch.setattr(silence, "LOOK_S_MAX", 0.8)
    with closing(SilentMasters(asked.has_moved, asked.replaced.append, SYSTEM_CLOCK)) as made:
        yield made


def test_one_that_was_replaced_is_found(asked: Asked, masters: SilentMasters) -> None:
    masters.waits("broker-a", OLD)
    wait_until(lambda: len(asked.times_s) >= 2, "two looks")
    assert asked.replaced == []
    asked.master = NEW
    wait_until(lambda: asked.replaced == [OLD], "the old master is given up")
    masters.waits("broker-a", NEW)
    looks = len(asked.times_s)
    wait_until(lambda: len(asked.times_s) > looks, "the new one is looked after, too")
    assert asked.replaced == [OLD]


def test_a_master_with_messages_is_not_asked_about(asked: Asked, masters: SilentMasters) -> None:
    end_s = time.monotonic() + 1.0
    longest_s, last_s = 0.0, time.monotonic()
    while time.monotonic() < end_s:
        masters.heard("broker-a", OLD)
        longest_s, last_s = max(longest_s, time.monotonic() - last_s), time.monotonic()
        time.sleep(0.005)
    assert not asked.times_s or longest_s > 0.1  # only on a machine that stood still


def test_looks_become_rare(asked: Asked, masters: SilentMasters) -> None:
    masters.waits("broker-a", OLD)
    wait_until(lambda: len(asked.times_s) >= 2, "two looks")
    masters.waits("broker-a", OLD)  # a further pull is no message
    wait_until(lambda: asked.times_s[-1] - asked.times_s[0] > 2.0, "two seconds of silence")
    pauses = [later - earlier for earlier, later in zip(asked.times_s, asked.times_s[1:], strict=False)]
    assert pauses[0] > 0.09
    assert pauses[-1] > 0.4


def test_nothing_runs_after_the_end(asked: Asked, masters: SilentMasters) -> None:
    masters.close()
    before = set(threading.enumerate())  # a thread of another test may still be ending
    masters.waits("broker-a", OLD)
    assert {thread.name for thread in set(threading.enumerate()) - before} == set()
