"""A group of RocketMQ's over two brokers, one of which goes away and comes back."""

from __future__ import annotations

import itertools
import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from fix_broker import StartBroker, wait_until
from local_servers import NAMES, BrokerPair, running_name_server
from rocketmq_clients import Make, Member

from metaq import RocketMQ
from metaq.model import Partition

pytestmark = pytest.mark.process

QUEUES = [Partition(name, index) for name in NAMES for index in range(2)]


@pytest.fixture
def pair(start_broker: StartBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BrokerPair]:
    """The brokers; members look at their cluster several times a second."""
    monkeypatch.setattr("metaq.client.rocketmq.groups.membership.REFRESH_S", 0.3)
    monkeypatch.setattr("metaq.discovery.refreshed.CACHE_AGE_S_MAX", 0.2)
    with running_name_server(tmp_path) as name_server:
        yield BrokerPair(start_broker, tmp_path, name_server.address)


def send(mq: RocketMQ, what: str, queues: list[Partition]) -> list[str]:
    """Send three messages to each queue; return them, sorted."""
    texts = [f"{what} {queue} {number}" for queue in queues for number in range(3)]
    for text in texts:
        mq.producer().send("orders", text, partition=next(queue for queue in queues if f" {queue} " in text))
    return sorted(texts)


def read(members: list[Member], count: int) -> list[str]:
    """Take so many messages in all, and whatever comes with them."""
    found: list[str] = []

    def enough() -> bool:
        found.extend(one.data.decode() for member in members for one in member.fetch(timeout=0.05))
        return len(found) >= count

    wait_until(enough, f"{count} messages are read")
    return sorted(found + [one.data.decode() for member in members for one in member.fetch()])


def commit(members: list[Member]) -> None:
    for member in members:
        member.commit()


def divide(members: list[Member], queues: list[Partition]) -> list[str]:
    """Wait until each queue is read by one member, and both have as many; return what they read meanwhile."""
    found: list[str] = []

    def divided() -> bool:
        found.extend(one.data.decode() for member in members for one in member.fetch(timeout=0.02))
        shares = [[where.partition for where in member.queues()] for member in members]
        return sorted(itertools.chain(*shares)) == queues and len(shares[0]) == len(shares[1])

    wait_until(divided, f"{queues} are divided")
    return found


@pytest.mark.slow
def test_a_frozen_broker_does_not_make_a_consumer_its_own_double(
    pair: BrokerPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it is asked for the members, the thread of heartbeats has time to reach the other broker."""
    monkeypatch.setattr("metaq.client.rocketmq.groups.rocketmq_group.ID_WAIT_S", 0.5)
    with RocketMQ(pair.name_server) as mq:
        expected = send(mq, "before", QUEUES[2:])
        frozen = pair.process_id(NAMES[0])
        os.kill(frozen, signal.SIGSTOP)
        with mq.consumer("g", ["orders"], consumer_id="mine") as consumer:
            found: list[str] = []
            try:
                while len(found) < len(expected):
                    found += [one.data.decode() for one in consumer.fetch(timeout=1)]
            finally:
                os.kill(frozen, signal.SIGCONT)
    assert sorted(found) == expected


def test_a_broker_that_is_killed_and_comes_back(
    pair: BrokerPair, clients: Make, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    of_a, of_b = QUEUES[:2], QUEUES[2:]
    join = clients(pair.name_server)
    with RocketMQ(pair.name_server) as mq:
        members = [join(), join()]
        divide(members, QUEUES)
        expected = send(mq, "first", QUEUES)
        assert read(members, len(expected)) == expected
        commit(members)
        unread = send(mq, "unread", of_b)
        pair.kill("broker-b")
        seen = divide(members, of_a)  # what was pulled before
        expected = send(mq, "meanwhile", of_a)
        assert read(members, len(expected)) == expected
        commit(members)
        assert [member.consumer.paused for member in members] == [None, None]
        pair.start("broker-b")
        pair.wait_for(*NAMES)
        seen += divide(members, QUEUES)
        expected = sorted(unread + send(mq, "afterwards", QUEUES))
        assert sorted(seen + read(members, len(expected) - len(seen))) == expected
        ids = {member.consumer.consumer_id for member in members}
        wait_until(lambda: all(pair.members_at(name, "g") == ids for name in NAMES), "both brokers know both members")
        commit(members)
        assert {one.messages_behind for one in mq.cluster.lag("g")} == {0}
