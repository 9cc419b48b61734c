"""Groups that brokers keep, with real brokers: members share partitions, and none is owned twice."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from math import inf
from pathlib import Path
from subprocess import Popen
from typing import Any

import pytest
from fix_broker import DEADLINE_S, RunningBroker, StartBroker, wait_until, write_ini

from metaq import AsyncMetaQ, MetaQ
from metaq.backends.metaq.group_requests import NotNow
from metaq.client.group_consumer import GroupConsumer
from metaq.client.groups import steps
from metaq.client.groups.deliveries import Delivery
from metaq.client.groups.fetchers import Fetchers
from metaq.client.groups.forgetting import forget_group
from metaq.client.groups.metaq_group import state_folder
from metaq.client.groups.ownership import broker_group
from metaq.client.groups.ownership.broker_group import (
    BrokerMember,
    BrokerMembership,
    OffsetsAtBrokers,
    _BrokerLink,
    new_token,
)
from metaq.client.groups.state import ConsumerState
from metaq.client.offsets import GroupOffset, OffsetStorage
from metaq.client.sql_offsets import SqliteOffsets, dbapi, sqlite
from metaq.discovery.fixed import FixedDirectory
from metaq.errors import ConsumerIdInUse, MetaqError, ProtocolError, StoreFailed
from metaq.model import Address, Partition, TopicPartition

pytestmark = pytest.mark.process

QUICK: dict[str, Any] = {"poll_max_s": 0.05, "session_s": 20.0, "save_s": 0.2, "drain_s": 1.0}
EXPIRING = QUICK | {"session_s": 2.0}
"""For tests that wait for the end of a session; a busy machine may end one of another test's by itself."""
PARTITIONS = 4

MEMBER = """
import sys
from metaq import MetaQ

with MetaQ(sys.argv[1]) as mq, mq.consumer("g", ["t"], session_s=2.0, save_s=0.2, poll_max_s=0.05) as consumer:
    consumer.run(lambda message: None)
"""


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Members learn of changes soon, however long their sessions are."""
    monkeypatch.setattr(broker_group, "BEAT_S", 0.4)


@pytest.fixture
def brokers(start_broker: StartBroker, tmp_path: Path) -> list[RunningBroker]:
    """Two brokers with two partitions each."""
    topics = "[topic=t]\nnumPartitions=2\n"
    return [
        start_broker("start", "-f", write_ini(tmp_path / str(number), topics, brokerId=number)) for number in range(2)
    ]


@pytest.fixture
def mq(brokers: list[RunningBroker], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[MetaQ]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with MetaQ(",".join(str(broker.address) for broker in brokers)) as mq:
        yield mq


def send(mq: MetaQ, *texts: str) -> None:
    producer = mq.producer()
    for number, text in enumerate(texts):
        producer.send("t", text, partition=Partition(number % 2, number // 2 % 2))


@contextmanager
def reading(consumer: GroupConsumer, found: list[str]) -> Iterator[GroupConsumer]:
    """Read messages in a thread."""
    with consumer:
        thread = threading.Thread(target=consumer.run, args=(lambda message: found.append(message.data.decode()),))
        thread.start()
        try:
            yield consumer
        finally:
            consumer.stop()
            thread.join()


def test_members_share_the_partitions_and_hand_them_over(mq: MetaQ) -> None:
    one: list[str] = []
    two: list[str] = []
    send(mq, *(f"a{number}" for number in range(8)))
    with reading(mq.consumer("g", ["t"], **QUICK), one) as first:
        wait_until(lambda: len(one) == 8, "the only member has all partitions")
        with reading(mq.consumer("g", ["t"], **QUICK), two) as second:
            wait_until(lambda: (len(first.assignment), len(second.assignment)) == (2, 2), "they are shared")
            send(mq, *(f"b{number}" for number in range(8)))
            wait_until(lambda: len(one) + len(two) == 16, "all is read")
            assert len(two) == 4
        wait_until(lambda: len(first.assignment) == PARTITIONS, "the second one has left")
        send(mq, *(f"c{number}" for number in range(8)))
        wait_until(lambda: len(one) + len(two) == 24, "all is read")
    assert len({*one, *two}) == 24
    assert mq.cluster.groups() == ["g"]
    assert all(one.position == one.end for one in mq.cluster.lag("g"))
    assert not list(state_folder(mq.consumers.name).glob("*.sqlite")), "no offset is on this machine"


def test_start_is_for_partitions_that_the_group_has_never_read(mq: MetaQ) -> None:
    send(mq, "old", "old", "old", "old")
    with mq.consumer("g", ["t"], start="latest", **QUICK) as consumer:
        wait_until(lambda: len(consumer.assignment) == PARTITIONS, "it has begun")
        wait_until(lambda: None not in [one.position for one in mq.cluster.lag("g", ["t"])], "the start is saved")
    send(mq, "a", "b", "c", "d")
    with mq.consumer("g", ["t"], start="latest", **QUICK) as consumer:
        found: list[str] = []
        wait_until(
            lambda: found.extend(m.data.decode() for m in consumer.fetch(timeout=0.1)) or len(found) == 4, "all comes"
        )
    assert sorted(found) == ["a", "b", "c", "d"]


def test_a_broker_that_returns_has_the_offsets_and_gives_nothing_away(
    mq: MetaQ, brokers: list[RunningBroker], start_broker: StartBroker, tmp_path: Path
) -> None:
    found: list[str] = []
    send(mq, "a", "b", "c", "d")
    with reading(mq.consumer("g", ["t"], **EXPIRING), found):
        wait_until(lambda: len(found) == 4, "all is read")
        wait_until(lambda: not any(one.bytes_behind for one in mq.cluster.lag("g")), "all is saved")
        brokers[1].process.kill()
        brokers[1].process.wait()
        with MetaQ(str(brokers[0].address)) as near:
            near.producer().send("t", "e", partition=Partition(0, 0))
        wait_until(lambda: "e" in found, "the other broker's partitions are read")
        again = start_broker("start", "-f", tmp_path / "1" / "server.ini", "--port", str(brokers[1].address.port))
        assert again.address == brokers[1].address
        mq.producer().send("t", "f", partition=Partition(1, 0))
        wait_until(lambda: "f" in found, "the broker's partitions are read again")
    assert sorted(set(found)) == sorted(found), "nothing comes twice"


def test_a_broker_that_is_away_does_not_hold_up_the_others(
    mq: MetaQ, brokers: list[RunningBroker], start_broker: StartBroker, tmp_path: Path
) -> None:
    """A member is killed and another one joins meanwhile: the partitions of the other broker change their owners."""
    found: list[str] = []
    third: list[str] = []

    def send_near(*texts: str) -> None:
        with MetaQ(str(brokers[0].address)) as near:
            producer = near.producer()
            for number, text in enumerate(texts):
                producer.send("t", text, partition=Partition(0, number % 2))

    def here(consumer: GroupConsumer) -> set[Partition]:
        return {where.partition for where in consumer.assignment if where.partition.broker == 0}

    with ExitStack() as stack:
        first = stack.enter_context(Popen([sys.executable, "-c", MEMBER, mq.consumers.name]))
        stack.callback(first.kill)
        second = stack.enter_context(reading(mq.consumer("g", ["t"], **EXPIRING), found))
        wait_until(lambda: len(mq.cluster.members("g")) == len(second.assignment) == 2, "they share the partitions")
        brokers[1].process.kill()
        brokers[1].process.wait()
        first.kill()
        send_near("a", "b")
        wait_until(lambda: sorted(found) == ["a", "b"], "the partitions of the killed member are read")
        with reading(mq.consumer("g", ["t"], **EXPIRING), third) as other:
            wait_until(lambda: (len(here(second)), len(here(other))) == (1, 1), "one that is new gets its share")
            send_near("c", "d")
            wait_until(lambda: len(found + third) == 4, "both read")
            start_broker("start", "-f", tmp_path / "1" / "server.ini", "--port", str(brokers[1].address.port))
            send(mq, "e", "f", "g", "h")
            wait_until(lambda: len(found + third) == 8, "the broker's partitions are read again")
            wait_until(lambda: (len(second.assignment), len(other.assignment)) == (2, 2), "all are divided again")
    assert sorted(found + third) == list("abcdefgh"), "nothing comes twice"
    assert not any(one.bytes_behind for one in mq.cluster.lag("g"))


def test_a_topic_that_only_the_broker_has_that_is_away(
    mq: MetaQ, brokers: list[RunningBroker], start_broker: StartBroker, tmp_path: Path
) -> None:
    found: list[str] = []
    rare = start_broker("start", "-f", write_ini(tmp_path / "rare", "[topic=rare]\n", brokerId=2))
    with MetaQ(f"{mq.consumers.name},{rare.address}") as three:
        three.producer().send("rare", "r1")
        rare.process.kill()
        rare.process.wait()
        with reading(three.consumer("g", ["t", "rare"], **QUICK), found):
            send(mq, "a")
            wait_until(lambda: found == ["a"], "the other topic is read")
            start_broker("start", "-f", tmp_path / "rare" / "server.ini", "--port", str(rare.address.port))
            wait_until(lambda: found == ["a", "r1"], "the broker is asked again")


def test_two_programs_with_one_id(mq: MetaQ) -> None:
    with mq.consumer("g", ["t"], consumer_id="id", **QUICK) as first:
        wait_until(lambda: len(first.assignment) == PARTITIONS, "it is a member")
        second = mq.consumer("g", ["t"], consumer_id="id", **(QUICK | {"session_s": 0.2}))
        with pytest.raises(ConsumerIdInUse, match="'g_id' is running already"), second:
            second.fetch(timeout=10)


def test_the_offsets_of_this_machine_move_to_the_brokers(mq: MetaQ) -> None:
    send(mq, "a", "b", "c", "d")
    where = TopicPartition("t", Partition(0, 0))
    end = mq.cluster.lag("g", ["t"])[0].end
    folder = state_folder(mq.consumers.name)
    folder.mkdir(parents=True)
    local = SqliteOffsets(folder / "offsets.sqlite")
    local.save("g", {where: GroupOffset(end)})
    local.close()
    found: list[str] = []
    with reading(mq.consumer("g", ["t"], **QUICK), found):
        wait_until(lambda: len(found) == 3, "the others are read")
    assert sorted(found) == ["b", "c", "d"]
    assert next(one.position for one in mq.cluster.lag("g")) == end
    assert local.load("g", [where]) == {}
    with mq.consumer("g", ["t"], **QUICK) as consumer:
        wait_until(lambda: len(consumer.assignment) == PARTITIONS, "it is a member")
        with pytest.raises(ValueError, match="has running consumers"):
            forget_group(mq.consumers, "g")
    forget_group(mq.consumers, "g")
    assert mq.cluster.groups() == []
    with pytest.raises(ValueError, match="no broker knows group 'g'"):
        forget_group(mq.consumers, "g")
    with reading(mq.consumer("g", ["t"], **QUICK), found):
        wait_until(lambda: len(found) == 7, "it begins anew")
    assert sorted(found[3:]) == ["a", "b", "c", "d"]


def test_offsets_of_this_machine_that_the_brokers_have_do_not_come_back(mq: MetaQ) -> None:
    send(mq, "a", "b", "c", "d")
    found: list[str] = []
    with reading(mq.consumer("g", ["t"], **QUICK), found):
        wait_until(lambda: len(found) == 4, "all is read")
    where, end = TopicPartition("t", Partition(0, 0)), mq.cluster.lag("g", ["t"])[0].end
    folder = state_folder(mq.consumers.name)
    folder.mkdir(parents=True, exist_ok=True)
    local = SqliteOffsets(folder / "offsets.sqlite")
    local.save("g", {where: GroupOffset(end)})
    with mq.consumer("g", ["t"], **QUICK) as consumer:
        wait_until(lambda: len(consumer.assignment) == PARTITIONS, "it is a member")
    forget_group(mq.consumers, "g")
    with reading(mq.consumer("g", ["t"], **QUICK), found):
        wait_until(lambda: len(found) == 8, "it begins anew")
    local.close()


def test_a_reset_of_a_group_that_is_not_running(mq: MetaQ) -> None:
    send(mq, "a", "b", "c", "d")
    found: list[str] = []
    with reading(mq.consumer("g", ["t"], **QUICK), found):
        wait_until(lambda: len(found) == 4, "all is read")
        with pytest.raises(ValueError, match="has running consumers"):
            mq.cluster.reset("g", mq.cluster.plan_reset("g", "t", "earliest"))
    mq.cluster.reset("g", mq.cluster.plan_reset("g", "t", "earliest"))
    with reading(mq.consumer("g", ["t"], **QUICK), found):
        wait_until(lambda: len(found) == 8, "all is read again")


def test_a_broker_that_keeps_no_groups_joins_the_list(
    mq: MetaQ, start_broker: StartBroker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    send(mq, "a", "b", "c", "d")
    found: list[str] = []
    with reading(mq.consumer("g", ["t"], **QUICK), found):
        wait_until(lambda: len(found) == 4, "all is read")
    role = "[topic=t]\n[slave]\nslaveId=0\nmaster=127.0.0.1:1\n"
    slave = start_broker("start", "-f", write_ini(tmp_path / "slave", role, brokerId=2))
    with MetaQ(f"{mq.consumers.name},{slave.address}") as longer:
        with pytest.raises(ValueError, match=f"'g' is kept by other brokers.*{slave.address} keeps no consumer groups"):
            longer.consumer("g", ["t"], **QUICK).fetch(timeout=10)
        with reading(longer.consumer("another", ["t"], **QUICK), found):
            wait_until(lambda: len(found) == 8, "a group that is new is read here only")
    (warning,) = [one for one in caplog.records if "keeps no consumer groups" in one.getMessage()]
    assert (warning.levelname, "group another" in warning.getMessage()) == ("WARNING", True)


def of_dbapi(path: Path) -> OffsetStorage:
    storage = dbapi(lambda: sqlite3.connect(path, check_same_thread=False))
    storage.create_table()
    return storage


@pytest.mark.parametrize("make", [sqlite, of_dbapi])
def test_members_with_one_store_share_the_partitions(
    mq: MetaQ, tmp_path: Path, make: Callable[[Path], OffsetStorage]
) -> None:
    """The brokers know the owners, and the store has the offsets."""
    one: list[str] = []
    two: list[str] = []
    places = [TopicPartition("t", Partition(broker, index)) for broker in range(2) for index in range(2)]
    seen: list[dict[TopicPartition, int]] = []
    looking = make(tmp_path / "offsets")

    def is_read(count: int) -> bool:
        seen.append({where: stored.offset for where, stored in looking.load("g", places).items()})
        return len(one) + len(two) >= count

    with reading(mq.consumer("g", ["t"], offsets=make(tmp_path / "offsets"), **QUICK), one) as first:
        send(mq, *(f"a{number}" for number in range(8)))
        wait_until(lambda: is_read(8), "the only member has all partitions")
        with reading(mq.consumer("g", ["t"], offsets=make(tmp_path / "offsets"), **QUICK), two) as second:
            wait_until(lambda: (len(first.assignment), len(second.assignment)) == (2, 2), "they are shared")
            for turn in range(5):
                send(mq, *(f"b{turn}-{number}" for number in range(8)))
                wait_until(lambda turn=turn: is_read(16 + 8 * turn), "all is read")
        wait_until(lambda: len(first.assignment) == PARTITIONS, "the second one has left")
        send(mq, *(f"c{number}" for number in range(8)))
        wait_until(lambda: is_read(56), "all is read")
    is_read(56)
    assert len({*one, *two}) == len(one) + len(two) == 56
    assert len(two) == 20
    assert all(later[where] >= offset for former, later in pairwise(seen) for where, offset in former.items())
    assert [seen[-1][where] for where in places] == [lag.end for lag in mq.cluster.lag("g", ["t"])]
    assert {lag.position for lag in mq.cluster.lag("g", ["t"])} == {None}, "the brokers have no offset"


def test_asyncio_members_share_the_partitions(mq: MetaQ) -> None:
    async def read() -> list[str]:
        found: list[str] = []
        async with AsyncMetaQ(mq.consumers.name) as client:
            first, second = (client.consumer("g", ["t"], **QUICK) for _ in range(2))
            async with first, second:
                while len(first.assignment) != 2 or len(second.assignment) != 2:
                    await asyncio.sleep(0.05)
                send(mq, "a", "b", "c", "d")
                while len(found) < 4:
                    for consumer in (first, second):
                        found += [message.data.decode() for message in await consumer.fetch(timeout=0.2)]
        return found

    assert sorted(asyncio.run(asyncio.wait_for(read(), DEADLINE_S))) == ["a", "b", "c", "d"]
    assert not any(one.bytes_behind for one in mq.cluster.lag("g"))


def test_a_lone_group_waits_for_the_broker_that_keeps_no_groups(
    mq: MetaQ, start_broker: StartBroker, tmp_path: Path
) -> None:
    """Its offsets are on this machine: they do not move to the other brokers while that one restarts."""
    role = "[topic=t]\n[slave]\nslaveId=0\nmaster=127.0.0.1:1\n"
    ini = write_ini(tmp_path / "slave", role, brokerId=2)
    slave = start_broker("start", "-f", ini)
    found: list[str] = []
    with MetaQ(f"{mq.consumers.name},{slave.address}") as longer:
        send(mq, "a", "b", "c", "d")
        with reading(longer.consumer("g", ["t"], **QUICK), found):
            wait_until(lambda: len(found) == 4, "all is read")
        slave.kill()
        send(mq, "e", "f", "g", "h")
        with reading(longer.consumer("g", ["t"], **QUICK), found) as consumer:
            wait_until(lambda: str(slave.address) in str(consumer.paused) or len(found) > 4, "the broker is asked")
            assert len(found) == 4
            start_broker("start", "-f", ini, "--port", str(slave.address.port))
            wait_until(lambda: len(found) >= 8, "all is read")
        assert mq.cluster.groups() == []
    assert sorted(found) == list("abcdefgh"), "nothing comes twice"


def test_a_new_group_begins_while_a_broker_is_away_that_keeps_no_groups(
    mq: MetaQ, start_broker: StartBroker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ini = write_ini(tmp_path / "slave", "[topic=t]\n[slave]\nslaveId=0\nmaster=127.0.0.1:1\n", brokerId=2)
    slave = start_broker("start", "-f", ini)
    slave.kill()
    found: list[str] = []
    with MetaQ(f"{mq.consumers.name},{slave.address}") as longer:
        send(mq, "a", "b", "c", "d")
        with reading(longer.consumer("g", ["t"], **QUICK), found):
            wait_until(lambda: len(found) == 4, "the others are read")
            start_broker("start", "-f", ini, "--port", str(slave.address.port))
            wait_until(lambda: "it keeps no consumer groups" in caplog.text, "the new reason is logged")


def test_a_broker_that_returns_with_the_session_of_a_former_run(
    mq: MetaQ, brokers: list[RunningBroker], start_broker: StartBroker, tmp_path: Path
) -> None:
    found: list[str] = []
    send(mq, "a", "b", "c", "d")
    with reading(mq.consumer("g", ["t"], consumer_id="id", **(QUICK | {"session_s": 8.0})), found):
        wait_until(lambda: len(found) == 4, "all is read")
        wait_until(lambda: not any(one.bytes_behind for one in mq.cluster.lag("g")), "all is saved")
        brokers[1].kill()
    with reading(mq.consumer("g", ["t"], consumer_id="id", **QUICK), found) as consumer:
        wait_until(lambda: len(consumer.assignment) == 2, "it reads from the other broker")
        start_broker("start", "-f", tmp_path / "1" / "server.ini", "--port", str(brokers[1].address.port))
        send(mq, "e", "f", "g", "h")
        wait_until(lambda: len(found) >= 8, "all is read, once the former session has ended")
    assert sorted(found) == list("abcdefgh"), "nothing comes twice"


@contextmanager
def frozen(broker: RunningBroker) -> Iterator[None]:
    broker.process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        broker.process.send_signal(signal.SIGCONT)


def saved_near(brokers: list[RunningBroker]) -> int:
    """Return the sum of the group's offsets at the first broker."""
    with MetaQ(str(brokers[0].address)) as near:
        return sum(one.position or 0 for one in near.cluster.lag("g", ["t"]))


def send_near(brokers: list[RunningBroker], text: str) -> int:
    """Send to the first broker; return where its partitions end then."""
    with MetaQ(str(brokers[0].address)) as near:
        near.producer().send("t", text, partition=Partition(0, 0))
        return sum(one.end for one in near.cluster.lag("g", ["t"]))


def fetch(consumer: GroupConsumer, count: int) -> None:
    """Take ``count`` messages, and settle those of the calls before."""
    found: list[Delivery] = []
    wait_until(lambda: found.extend(consumer.fetch(timeout=0.1)) or len(found) >= count, "they come")
    assert len(found) == count


LONG_S, SOON_S = 60.0, 20.0


def wait_long(consumer: GroupConsumer, mq: MetaQ, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on, who waits for a broker that hangs waits for ``LONG_S``, and not for ``ANSWER_S``."""
    monkeypatch.setattr(steps, "CLOSE_S", LONG_S)
    shared: BrokerMembership = consumer._core._membership._shared  # type: ignore[attr-defined]
    former, patient = shared._pool, mq.consumers.pool.hurried(LONG_S)
    for one in (shared, *shared._links.values()):
        one._pool = patient
    former.close()


def test_positions_at_healthy_brokers_are_stored_while_another_one_hangs(
    mq: MetaQ, brokers: list[RunningBroker], monkeypatch: pytest.MonkeyPatch
) -> None:
    send(mq, "a", "b", "c", "d")
    with mq.consumer("g", ["t"], **(EXPIRING | {"save_s": 600.0})) as consumer:
        fetch(consumer, 4)
        consumer.commit()
        with frozen(brokers[1]):
            end = send_near(brokers, "e")
            fetch(consumer, 1)
            began_s = time.monotonic()
            consumer.commit()
            assert (time.monotonic() - began_s < 9.0, saved_near(brokers)) == (True, end), "within the session"
            wait_until(lambda: len(consumer.assignment) == 2, "the session has ended")
            wait_long(consumer, mq, monkeypatch)
            for _ in range(3):
                end = send_near(brokers, "f")
                fetch(consumer, 1)
                began_s = time.monotonic()
                consumer.commit()
                assert (time.monotonic() - began_s < SOON_S, saved_near(brokers)) == (True, end)
            end = send_near(brokers, "g")
            fetch(consumer, 1)
            began_s = time.monotonic()
            consumer.close()
            assert (time.monotonic() - began_s < SOON_S, saved_near(brokers)) == (True, end)


def test_positions_at_healthy_brokers_are_stored_beside_unsaved_ones_of_another_one(
    mq: MetaQ, brokers: list[RunningBroker], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(mq, "a", "b", "c", "d")
    with mq.consumer("g", ["t"], **(QUICK | {"save_s": 600.0, "session_s": 30.0})) as consumer:
        fetch(consumer, 4)
        with frozen(brokers[1]):
            wait_until(lambda: "cannot be asked" in caplog.text, "it is known to be away")
            wait_long(consumer, mq, monkeypatch)
            for _ in range(3):
                end = send_near(brokers, "e")
                fetch(consumer, 1)
                began_s = time.monotonic()
                with pytest.raises(MetaqError, match=str(brokers[1].address)):
                    consumer.commit()
                assert (time.monotonic() - began_s < SOON_S, saved_near(brokers)) == (True, end)
            end = send_near(brokers, "f")
            fetch(consumer, 1)
            consumer.close()
            assert saved_near(brokers) == end
    assert "the last positions are not saved, messages of t/1-0" in caplog.text


def test_a_broker_with_another_id_at_its_address(
    mq: MetaQ, brokers: list[RunningBroker], start_broker: StartBroker, tmp_path: Path
) -> None:
    """Partitions of the broker that is gone are given up, and the others are divided."""
    found: list[str] = []
    send(mq, "a", "b", "c", "d")
    with reading(mq.consumer("g", ["t"], **QUICK), found) as consumer:
        wait_until(lambda: len(found) == 4, "all is read")
        brokers[1].kill()
        ini = write_ini(tmp_path / "2", "[topic=t]\nnumPartitions=2\n", brokerId=2)
        start_broker("start", "-f", ini, "--port", str(brokers[1].address.port))
        with MetaQ(str(brokers[1].address)) as there:
            there.producer().send("t", "e")
        wait_until(lambda: "e" in found, "its partitions are read")
        wait_until(lambda: {one.partition.broker for one in consumer.assignment} == {0, 2}, "the others are given up")
        with reading(mq.consumer("g", ["t"], **QUICK), found) as other:
            wait_until(lambda: (len(consumer.assignment), len(other.assignment)) == (2, 2), "they are shared")


@pytest.fixture
def membership(mq: MetaQ) -> Iterator[BrokerMembership]:
    """A consumer that is a member at both brokers."""
    cluster, member = mq.consumers, BrokerMember("g", "id", ("t",), 20.0, new_token())
    membership = BrokerMembership(cluster.directory, cluster.pool, member, cluster.pool.clock)
    membership.register()
    yield membership
    membership.close()


def absent(membership: BrokerMembership) -> _BrokerLink:
    """Make a broker count as away, longer than the session."""
    link = membership._links[1]
    link.stop()
    assert link._thread is not None
    link._thread.join()
    link.away, link._until_s = NotNow("broker 1", "it restarts"), -inf
    return link


def test_a_broker_that_returns_while_the_others_are_asked(
    membership: BrokerMembership, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its partitions are not found then, but they are not given up either."""
    link, ask = absent(membership), membership._partitions

    def partitions() -> Mapping[str, list[Partition]]:
        found = ask()
        link.away = None
        return found

    monkeypatch.setattr(membership, "_partitions", partitions)
    view = membership.view()
    assert (len(view.partitions["t"]), view.away, view.offsets_away) == (2, {1}, {1})

    def brokers() -> dict[int, Address]:
        found = FixedDirectory.brokers(membership.directory)
        link.away = None
        return found

    monkeypatch.setattr(membership.directory, "brokers", brokers)
    absent(membership)
    assert membership.view().away == {1}
    assert membership._links[1] is link


def test_brokers_come_and_go_in_other_threads(membership: BrokerMembership) -> None:
    ended = threading.Event()

    def change() -> None:
        while not ended.is_set():
            for port in range(1000):
                membership._silent[Address("127.0.0.1", port)] = NotNow("broker", "it restarts"), 0.0
            membership._silent.clear()

    thread = threading.Thread(target=change)
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    thread.start()
    try:
        for _ in range(2000):
            assert membership._absent() == {}
    finally:
        ended.set()
        thread.join()
        sys.setswitchinterval(interval_s)


def test_a_heartbeat_with_a_final_error_does_not_end_the_consumer(mq: MetaQ, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[str] = []
    failing, failed = threading.Event(), threading.Event()
    ask = _BrokerLink.join

    def join(link: _BrokerLink) -> Mapping[str, list[str]]:
        if failing.is_set() and threading.current_thread() is link._thread:
            failed.set()
            raise ProtocolError("an answer that cannot be read")
        return ask(link)

    monkeypatch.setattr(_BrokerLink, "join", join)
    with reading(mq.consumer("g", ["t"], **(QUICK | {"session_s": 60.0})), found) as consumer:
        wait_until(lambda: len(consumer.assignment) == PARTITIONS, "it is a member")
        failing.set()
        consumer._core.coordinator._note_change()
        wait_until(lambda: "cannot be read" in str(consumer._core.coordinator._said), "it is explained")
        failing.clear()
        send(mq, "a", "b", "c", "d")
        wait_until(lambda: len(found) == 4, "it goes on")
    assert failed.is_set()


@pytest.mark.parametrize("error", [StoreFailed("offsets.sqlite", "it is damaged"), PermissionError("no access")])
def test_a_file_of_this_machine_that_cannot_be_read(
    membership: BrokerMembership, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    def local() -> SqliteOffsets:
        raise error

    offsets, where = OffsetsAtBrokers(membership, local), TopicPartition("t", Partition(0, 0))
    with pytest.raises(StoreFailed, match=str(error.args[-1])):
        offsets.load("g", [where])
    offsets.save("g", {where: GroupOffset(21)})
    assert offsets.load("g", [where]) == {where: GroupOffset(21)}
    assert "which are not needed" in caplog.text


def test_why_a_broker_is_not_asked_for_messages(mq: MetaQ, membership: BrokerMembership) -> None:
    link = absent(membership)
    state: ConsumerState[Any, Any, Any] = ConsumerState(retry_max_s=1.0, max_attempts=1, dedupe=0)
    fetchers = Fetchers(
        state, membership.directory, mq.consumers.pool, "g", lambda broker: (), why_away=membership.why_away
    )
    with pytest.raises(NotNow, match="it restarts"):
        fetchers._address(1)
    link.away = None
    assert fetchers._address(1) == link.address
