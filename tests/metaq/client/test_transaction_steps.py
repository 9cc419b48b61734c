"""MetaQ's transactions, cut at each step: the request lost, or its answer; by the network, or by ``kill -9``.

All clients of a test stand at their steps when it happens, so that one kill of the broker is a kill at every step.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Final, Literal

import pytest
from fix_broker import RunningBroker, StartBroker
from listeners import Cut, CuttingRelay

from metaq import MetaQ
from metaq.errors import ConnectionFailed, DeadlineExceeded, TransactionNotFound
from metaq.model import Xid
from metaq.net.transport import Timeouts

pytestmark = pytest.mark.process

UNIQUE: Final = "steps"
TIMEOUTS: Final = Timeouts(5.0, 20.0)
LOST: Final = (ConnectionFailed, DeadlineExceeded)

Fate = Literal["none", "all", "prepared"]
Work = Callable[[MetaQ, str], None]


def xid_of(topic: str) -> Xid:
    return Xid(0x4D51, topic.encode(), b"b", UNIQUE)


def local_commit(mq: MetaQ, topic: str) -> None:
    with mq.producer().transaction() as transaction:
        transaction.send(topic, "first")
        transaction.send(topic, "second")


def local_rollback(mq: MetaQ, topic: str) -> None:
    with mq.producer().transaction() as transaction:
        transaction.send(topic, "first")
        transaction.rollback()


def xa_prepare(mq: MetaQ, topic: str) -> None:
    with mq.xa(topic.encode(), b"b", unique=UNIQUE) as branch:
        branch.send(topic, "first")
        branch.send(topic, "second")
        branch.prepare()


def xa_rollback(mq: MetaQ, topic: str) -> None:
    with mq.xa(topic.encode(), b"b", unique=UNIQUE) as branch:
        branch.send(topic, "first")
        branch.rollback()


def second_commit(mq: MetaQ, topic: str) -> None:
    mq.commit(xid_of(topic))


def second_rollback(mq: MetaQ, topic: str) -> None:
    mq.rollback(xid_of(topic))


@dataclass
class Scenario:
    """``work`` is cut at ``cut``; ``fate`` is what the broker knows then: nothing, all, or a prepared branch."""

    name: str
    work: Work
    cut: Cut
    fate: Fate
    is_prepared_before: bool = False
    error: BaseException | None = field(default=None, init=False)

    @property
    def topic(self) -> str:
        return self.name

    def run(self, relay: CuttingRelay) -> None:
        try:
            with MetaQ(str(relay.address), timeouts=TIMEOUTS) as mq:
                self.work(mq, self.topic)
        except BaseException as error:  # looked at by the test
            self.error = error


def scenarios() -> list[Scenario]:
    """Each step, once with its request lost and once with its answer lost."""
    steps: list[tuple[str, Work, bytes, int, Fate, Fate, bool]] = [
        # name, work, word in the request, which of them, fate if the request is lost, ... the answer, prepared before
        ("local-begin", local_commit, b" BEGIN", 1, "none", "none", False),
        ("local-put-1", local_commit, b"put ", 1, "none", "none", False),
        ("local-put-2", local_commit, b"put ", 2, "none", "none", False),
        ("local-commit", local_commit, b" COMMIT_", 1, "none", "all", False),
        ("local-rollback", local_rollback, b" ROLLBACK", 1, "none", "none", False),
        ("xa-begin", xa_prepare, b" BEGIN", 1, "none", "none", False),
        ("xa-put-1", xa_prepare, b"put ", 1, "none", "none", False),
        ("xa-put-2", xa_prepare, b"put ", 2, "none", "none", False),
        ("xa-prepare", xa_prepare, b" PREPARE", 1, "none", "prepared", False),
        ("xa-rollback", xa_rollback, b" ROLLBACK", 1, "none", "none", False),
        ("second-look", second_commit, b" RECOVER", 1, "prepared", "prepared", True),
        ("second-commit", second_commit, b" COMMIT_", 1, "prepared", "all", True),
        ("second-rollback", second_rollback, b" ROLLBACK", 1, "prepared", "none", True),
    ]
    return [
        Scenario(f"{name}-{lost}", work, Cut(word, lost, number), fate, before)
        for name, work, word, number, *fates, before in steps
        for lost, fate in zip(("request", "answer"), fates, strict=True)
    ]


def cut_all(broker: RunningBroker, fail: Callable[[], None]) -> list[Scenario]:
    """Run all scenarios up to their cuts, then let ``fail`` happen, and let all clients find out."""
    found = scenarios()
    with MetaQ(str(broker.address)) as mq:
        for scenario in found:
            mq.producer().publish(scenario.topic)
            if scenario.is_prepared_before:
                xa_prepare(mq, scenario.topic)
    with ExitStack() as stack:
        relays = [stack.enter_context(CuttingRelay(broker.address, scenario.cut)) for scenario in found]
        threads = []
        for scenario, relay in zip(found, relays, strict=True):
            threads.append(threading.Thread(target=scenario.run, args=(relay,)))
            threads[-1].start()
        for scenario, relay in zip(found, relays, strict=True):
            assert relay.reached.wait(60), f"{scenario.name} never got there: {scenario.error!r}"
        fail()
        for relay in relays:
            relay.release()
        for thread in threads:
            thread.join(60)
    return found


def check(found: list[Scenario], broker: RunningBroker) -> None:
    """What each client was told, what is there, and that each prepared branch can be ended, by anybody, once."""
    with MetaQ(str(broker.address)) as mq:
        prepared = {one.xid for one in mq.prepared(UNIQUE)}
        for scenario in found:
            topic, name = scenario.topic, scenario.name
            assert isinstance(scenario.error, LOST), f"{name}: {scenario.error!r}"
            fate = scenario.fate
            assert (xid_of(topic) in prepared) == (fate == "prepared"), name
            assert texts(mq, topic) == ([b"first", b"second"] if fate == "all" else []), name
            if fate == "prepared":
                mq.commit(xid_of(topic))
                assert texts(mq, topic) == [b"first", b"second"], name
            with pytest.raises(TransactionNotFound):
                mq.commit(xid_of(topic))
            local_commit(mq, topic)
            assert len(texts(mq, topic)) == (4 if fate in ("all", "prepared") else 2), name
        assert mq.prepared(UNIQUE) == []


def texts(mq: MetaQ, topic: str) -> list[bytes]:
    return [message.data for message in mq.browse(topic)]


def test_connections_that_break_at_each_step(dev_broker: RunningBroker) -> None:
    check(cut_all(dev_broker, lambda: None), dev_broker)


def test_a_broker_that_is_killed_at_each_step(start_broker: StartBroker, dev_broker: RunningBroker) -> None:
    found = cut_all(dev_broker, dev_broker.kill)
    again = start_broker("dev", dev_broker.data, "--port", "0", "--partitions", "2")
    check(found, again)
