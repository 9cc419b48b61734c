"""Masters that reads avoid for a while: threads look at them, and others add to them meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from metaq.discovery.zk_cache import TreeCache
from metaq.discovery.zk_layout import ZooKeeperAddress
from metaq.discovery.zk_map import RegisteredBroker
from metaq.model import Address

MASTERS, SLAVES = ([Address("127.0.0.1", port + number) for number in range(2)] for port in (8123, 9123))


class Moment(float):
    """A time that calls a function when it is compared, as if another thread ran then."""

    then: Callable[[], object] = staticmethod(lambda: None)

    def __add__(self, seconds: float) -> Moment:
        return Moment(float(self) + seconds)

    def __lt__(self, other: float) -> bool:
        Moment.then()
        return float(self) < float(other)


class MomentClock:
    def monotonic(self) -> Any:
        return Moment(5.0)

    def sleep(self, seconds: float) -> None:
        raise AssertionError("nothing waits")


class TwoPairs(TreeCache):
    def brokers(self) -> Mapping[int, RegisteredBroker]:
        return {
            number: RegisteredBroker(master, {1: slave})
            for number, (master, slave) in enumerate(zip(MASTERS, SLAVES, strict=True))
        }


def test_a_master_is_avoided_while_another_thread_looks() -> None:
    cache = TwoPairs(ZooKeeperAddress("127.0.0.1:1"), 1.0, MomentClock())
    assert cache.avoid(MASTERS[0])
    Moment.then = staticmethod(lambda: cache.avoid(MASTERS[1]))
    assert cache.readable()[0] == SLAVES[0]
    assert cache.readable() == dict(enumerate(SLAVES))
