"""A broker that was killed, and whose indexes are lost or damaged then: unread and delayed messages are all delivered.

Of every queue older messages were removed before, so that nothing but an index, or what is noted beside the log, tells
which number its messages have.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from itertools import count
from pathlib import Path

import pytest
from examples import rarely
from fix_broker import StartBroker, wait_until
from metaq_broker.log.files.durable_ends import read_durable_ends
from metaq_broker.log.files.files import Files
from metaq_broker.log.segments.index import RECORD_BYTES
from remoting_headers import commit_of, heartbeat_of_shop, send_header
from request_replay import Asker, Wire
from restarted_broker import RestartedBroker

from metaq.client.rocketmq.client import RocketMQ
from metaq.formats.rocketmq.sys_flags import PREPARED
from metaq.protocols.remoting.headers import to_request

pytestmark = pytest.mark.process

INI = (
    "[zookeeper]\nzk.zkEnable=false\n[rocketmq]\nenabled=true\nport=0\nmessageDelayLevel=1s 1h 4s\n"
    "transactionTimeOut=300\ntransactionCheckInterval=300\ntransactionCheckMax=1000\n"
)
NEVER = {"deletePolicy": "delete,0s", "deleteWhen": "0 0 0 1 1 ? 2099", "maxSegmentSize": 3000}
OLD, UNREAD, DELAYED = 120, 20, 20


def remove(path: Path) -> None:
    path.unlink()


def damage_header(path: Path) -> None:
    path.write_bytes(bytes(RECORD_BYTES) + path.read_bytes()[RECORD_BYTES:])


def truncate(path: Path) -> None:
    os.truncate(path, RECORD_BYTES + 7)


class Aged:
    """A broker of whose queues the oldest messages were removed, with unread, delayed and half messages; killed."""

    def __init__(self, broker: RestartedBroker) -> None:
        self.broker = broker
        broker.start()
        with Asker(broker.address) as asker:
            assert asker.create_topic("t", 1).code == 0
            broker.send(0, *(f"old {number}" for number in range(OLD)))
            broker.send(0, *(f"old delayed {number}" for number in range(OLD)), delay_level=3)
            self._half_messages(OLD, end=True)
            wait_until(lambda: len(broker.bodies()) == 3 * OLD, "old messages")
            self.committed = 3 * OLD
            asker.commit("t", "g", 0, self.committed)
            wait_until(self._all_began_anew, "retention")
            broker.send(0, *(f"delayed {number}" for number in range(DELAYED)), delay_level=3)
            broker.send(0, *(f"unread {number}" for number in range(UNREAD)))
            self._half_messages(1, end=False)
        ends = self._ends()
        wait_until(lambda: self._ends() != ends, "durable ends")
        self.copies = {path: path.read_bytes() for path in self.indexes()}
        broker.kill()

    def _half_messages(self, messages: int, *, end: bool) -> None:
        with closing(Wire(self.broker.address)) as wire:
            for number in range(messages):
                properties = f"TRAN_MSG\x01true\x02PGROUP\x01shop\x02UNIQ_KEY\x01U{number}"
                half = send_header(producer_group="shop", sys_flag=PREPARED, properties=properties)
                wire.post(to_request(half, b"half %d" % number if end else b"open", opaque=number))
                stored = wire.wait(number)
                assert stored.code == 0
                if end:
                    wire.post(commit_of(stored.ext["queueOffset"], int(stored.ext["msgId"][-16:], 16), 10_000 + number))
                    assert wire.wait(10_000 + number).code == 0

    def _ends(self) -> object:
        return read_durable_ends(Files(), self.broker.data)

    def _all_began_anew(self) -> bool:
        self.broker.ctl("retention", "run")
        return all(int(path.stem) > 0 for path in self.indexes())

    def indexes(self) -> list[Path]:
        named = ("t-0", "SCHEDULE_TOPIC_XXXX-2", "RMQ_SYS_TRANS_HALF_TOPIC-0", "RMQ_SYS_TRANS_OP_HALF_TOPIC-0")
        return sorted(path for name in named for path in (self.broker.data / name).glob("*.index"))

    def restart(self) -> str:
        return self.broker.start()

    def unread(self) -> list[str]:
        """What the group has not read, in the order of the queue."""
        with Asker(self.broker.address) as asker:
            position = asker.committed("t", "g", 0)
        with RocketMQ(str(self.broker.address)) as rocketmq:
            found = [each for each in rocketmq.browse("t") if each.offset >= position]
        return [bytes(each.data).decode() for each in found]

    def commit_the_half_message(self) -> None:
        """As its producer, that is asked about it, and maybe about older ones."""
        with closing(Wire(self.broker.address)) as wire:
            wire.post(heartbeat_of_shop(1))
            assert wire.wait(1).code == 0
            for number in count(2):
                asked = wire.wait_reported(39)
                wire.post(commit_of(asked.ext["tranStateTableOffset"], int(asked.ext["commitLogOffset"]), number))
                decided = wire.wait(number)
                if b"open" in asked.body:
                    assert decided.code == 0
                    return


@pytest.fixture
def aged(start_broker: StartBroker, tmp_path: Path) -> Aged:
    return Aged(RestartedBroker(start_broker, tmp_path, INI, **NEVER))


WANTED = [f"unread {number}" for number in range(UNREAD)]
LATER = [f"delayed {number}" for number in range(DELAYED)]


@pytest.mark.parametrize("lose", [remove, *rarely(damage_header, truncate)])
def test_unread_delayed_and_half_messages_are_delivered_once(aged: Aged, lose: Callable[[Path], None]) -> None:
    for path in aged.indexes():
        lose(path)
    said = aged.restart()
    assert "go on at the ends" not in said
    assert "renumbered" not in said
    with Asker(aged.broker.address) as asker:
        assert asker.committed("t", "g", 0) == aged.committed
    aged.commit_the_half_message()
    wait_until(lambda: len(aged.unread()) >= UNREAD + DELAYED + 1, "delayed messages")
    found = aged.unread()
    assert found[:UNREAD] == WANTED
    assert sorted(found[UNREAD:]) == sorted([*LATER, "open"])


def test_old_copies_of_indexes_do_no_harm(aged: Aged) -> None:
    for path, content in aged.copies.items():
        path.write_bytes(content[: 2 * RECORD_BYTES])
    assert "renumbered" not in aged.restart()
    wait_until(lambda: len(aged.unread()) >= UNREAD + DELAYED, "delayed messages")
    found = aged.unread()
    assert (found[:UNREAD], sorted(found[UNREAD:])) == (WANTED, sorted(LATER))


def test_where_no_number_is_known_all_that_is_kept_is_delivered(aged: Aged) -> None:
    (aged.broker.data / "durable-ends").unlink()
    for path in aged.indexes():
        path.unlink()
    said = aged.restart()
    assert "queues were renumbered, because their indexes are lost; the groups continue at the starts" in said
    assert "delayed messages: the queue was renumbered; all are delivered" in said
    aged.commit_the_half_message()
    wait_until(lambda: {*WANTED, *LATER, "open"} <= set(aged.unread()), "unread, delayed and half messages")
    aged.broker.stop()
    assert "renumbered" not in aged.restart()
    assert {*WANTED, *LATER, "open"} <= set(aged.unread())
