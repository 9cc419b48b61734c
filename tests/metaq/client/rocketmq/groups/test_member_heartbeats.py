"""Members of a group whose brokers refuse them, or are away: which error counts."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest

from metaq.backends.rocketmq.reads.pulls import ALL
from metaq.client.rocketmq.groups.heartbeats import MemberHeartbeats
from metaq.client.rocketmq.groups.membership import MemberSettings, RocketMembership
from metaq.client.rocketmq.groups.subscriptions import Subscriptions
from metaq.errors import ConnectionFailed, MetaqError, WrongServer, likeliest_to_pass
from metaq.model import Address, Partition, TopicPartition
from metaq.net.clock import SYSTEM_CLOCK
from metaq.net.identification import HTTP, ROCKETMQ

FIRST, SECOND = Address("127.0.0.1", 10911), Address("127.0.0.1", 10912)
AWAY, WRONG = ConnectionFailed(FIRST, "connect", "refused"), WrongServer(SECOND, ROCKETMQ, HTTP)


class Brokers:
    """The requests of the member ``me`` to two brokers, and the name server's answers about them."""

    group, namespace = "g", None

    def __init__(self, *failures: MetaqError | None) -> None:
        self.failures: dict[Address, MetaqError | None] = dict(zip((FIRST, SECOND), failures, strict=True))
        self.answers_heartbeats = False

    def beat(self, addresses: Collection[Address]) -> dict[Address, MetaqError | None]:
        return {at: None if self.answers_heartbeats else found for at, found in self.failures.items()}

    def members(self, address: Address) -> Collection[str]:
        if (failure := self.failures[address]) is not None:
            raise failure
        return ["me"]

    def brokers(self) -> dict[str, dict[int, Address]]:
        return {"first": {0: FIRST}, "second": {0: SECOND}}

    def queues(self, topic: str) -> list[Partition]:
        return [Partition("first", 0), Partition("second", 0)]

    def read_address(self, broker_name: str, broker_id: int = 0, *, topic: str | None = None) -> Address:
        return self.brokers()[broker_name][broker_id]


def heartbeats(brokers: Any) -> MemberHeartbeats:
    return MemberHeartbeats(brokers, lambda: [FIRST, SECOND], lambda: None, SYSTEM_CLOCK)


@pytest.mark.parametrize("failures", [(AWAY, WRONG), (WRONG, AWAY)])
def test_that_one_broker_can_never_be_used_counts_only_if_no_other_may_come_back(
    failures: tuple[MetaqError, MetaqError],
) -> None:
    brokers: Any = Brokers(*failures)
    with pytest.raises(ConnectionFailed):
        heartbeats(brokers).beat()
    subscriptions = Subscriptions("g", ["orders"], ALL, broadcast=True)
    settings = MemberSettings()
    membership = RocketMembership(brokers, brokers, brokers, brokers, "me", subscriptions, settings, SYSTEM_CLOCK)
    with pytest.raises(ConnectionFailed):
        membership.register()
    with pytest.raises(ConnectionFailed):
        membership.view()
    brokers.answers_heartbeats = True
    membership.register()
    with pytest.raises(ConnectionFailed):
        membership.view()
    with pytest.raises(ConnectionFailed):
        membership.owned_now([TopicPartition("orders", queue) for queue in brokers.queues("orders")])


@pytest.mark.parametrize("failures", [(None, WRONG), (WRONG, None)])
def test_one_broker_that_accepts_it_is_enough(failures: tuple[MetaqError | None, MetaqError | None]) -> None:
    beats = heartbeats(Brokers(*failures))
    beats.beat()
    assert len(beats.reached) == 1


def test_brokers_that_can_never_be_used_are_the_reason() -> None:
    with pytest.raises(WrongServer):
        heartbeats(Brokers(WRONG, WRONG)).beat()
    assert likeliest_to_pass([]) is None
