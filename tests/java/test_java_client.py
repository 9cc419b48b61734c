"""The project's client against a Java MetaQ broker; runs only where ``METAQ_JAVA_BROKER`` names one."""

from __future__ import annotations

from contextlib import closing

import pytest

from metaq.backends.metaq.batch_writer import BatchWriter
from metaq.backends.metaq.filtered import messages_of_types
from metaq.backends.metaq.pool import SessionPool
from metaq.backends.metaq.session import Session
from metaq.backends.metaq.transactions import TransactionSteps, Vote
from metaq.client.consumer import Consumer
from metaq.client.metaq import MetaQ
from metaq.client.producer import Producer, encode_block, put
from metaq.discovery.fixed import FixedDirectory
from metaq.errors import BrokerError, TransactionError
from metaq.formats.checksum import checksum
from metaq.model import Address, Message, Partition, TopicPartition, Xid
from metaq.protocols.text.commands import Put

Directory = tuple[FixedDirectory, SessionPool]


def after(directory: Directory, place: TopicPartition, start: int) -> list[Message]:
    """The messages of a partition from ``start`` on."""
    return [frame.message for frame in Consumer(*directory).messages(place.topic, place.partition, start)]


def end_of(directory: Directory, place: TopicPartition) -> int:
    """The partition's readable end; a message is put first, so that there is one."""
    Producer(*directory).put(place.topic, Message(b"before the test"), place.partition)
    return directory[0].ends([place.topic])[place].end


def test_partitions_that_it_has_not_opened_are_named(
    java_directory: Directory, java_place: TopicPartition, java_broker: Address
) -> None:
    end_of(java_directory, java_place)
    directory, _ = java_directory
    offered, listed = set(directory.writable(java_place.topic)), set(directory.partitions(java_place.topic))
    with MetaQ(str(java_broker)) as mq:
        browser = mq.browse(java_place.topic)
        assert len(list(browser)) > 0
        described = {one.partition: one.listed for one in mq.cluster.describe(java_place.topic)}
    assert set(browser.unlisted) == offered - listed
    assert {partition for partition, is_listed in described.items() if not is_listed} == offered - listed


def test_it_offers_no_extensions_and_reports_its_partitions(
    java_directory: Directory, java_place: TopicPartition, java_broker: Address
) -> None:
    directory, pool = java_directory
    with pool.lease(java_broker) as session:
        assert not session.extensions
    assert directory.brokers() == {java_place.partition.broker_id: java_broker}
    end_of(java_directory, java_place)
    assert java_place.partition in directory.topics()[java_place.topic]
    assert directory.available([java_place.topic])[java_place].incarnation is None


def test_messages_come_back_with_receipts_that_say_where_they_are(
    java_directory: Directory, java_place: TopicPartition
) -> None:
    start = end_of(java_directory, java_place)
    sent = [Message(b"plain"), Message(b"", attribute="empty"), Message("日本".encode(), attribute="é")]
    producer = Producer(*java_directory)
    receipts = [producer.put(java_place.topic, message, java_place.partition) for message in sent]
    frames = list(Consumer(*java_directory).messages(java_place.topic, java_place.partition, start))
    assert [frame.message for frame in frames] == sent
    assert [(frame.offset, frame.message_id) for frame in frames] == [(r.offset, r.message_id) for r in receipts]


def test_a_block_goes_message_by_message_and_keeps_its_order(
    java_directory: Directory, java_place: TopicPartition, java_broker: Address
) -> None:
    start = end_of(java_directory, java_place)
    sent = [Message(b"%d" % number, attribute="odd" if number % 2 else "even") for number in range(300)]
    with java_directory[1].lease(java_broker) as session:
        writer = BatchWriter(session, java_place.topic)
        for first in range(0, 300, 100):
            writer.write(java_place.partition.index, *encode_block(sent[first : first + 100]))
        receipts = writer.flush()
        odd = list(messages_of_types(session, java_place.topic, java_place.partition.index, start, ["odd"]))
    assert after(java_directory, java_place, start) == sent
    assert receipts[0].offset == start
    assert [frame.message for frame in odd] == sent[1::2]


def test_a_wrong_checksum_and_a_wrong_partition_are_refused(
    java_directory: Directory, java_place: TopicPartition, java_broker: Address
) -> None:
    with java_directory[1].lease(java_broker) as session:
        with pytest.raises(BrokerError, match="Checksum failure"):
            session.ask(Put(java_place.topic, java_place.partition.index, b"x", 0, 0, checksum(b"y")))
        with pytest.raises(BrokerError, match="wrong partition 9999"):
            put(session, java_place.topic, 9999, Message(b"x"))


def test_a_local_transaction(java_directory: Directory, java_place: TopicPartition, java_broker: Address) -> None:
    start = end_of(java_directory, java_place)
    with closing(Session.connect(java_broker)) as session:
        transactions = TransactionSteps(session)
        for outcome, payload in ((transactions.rollback, b"rolled back"), (transactions.commit, b"committed")):
            key = transactions.local_id()
            transactions.begin(key)
            put(session, java_place.topic, java_place.partition.index, Message(payload), key)
            assert after(java_directory, java_place, start) == []
            outcome(key)
    assert _followed_by_another(java_directory, java_place, start) == [Message(b"committed")]


def test_an_xa_branch_is_recovered_and_committed_elsewhere(
    java_directory: Directory, java_place: TopicPartition, java_broker: Address
) -> None:
    start = end_of(java_directory, java_place)
    unique = f"metaq-spark-test-{start}"
    xid, empty = (Xid(7, b"%d" % start, branch, unique) for branch in (b"branch", b"empty"))
    with closing(Session.connect(java_broker)) as session:
        transactions = TransactionSteps(session)
        transactions.begin(xid)
        put(session, java_place.topic, java_place.partition.index, Message(b"in two phases"), xid)
        assert transactions.prepare(xid) is Vote.PREPARED
        transactions.begin(empty)
        assert transactions.prepare(empty) is Vote.READ_ONLY
    with closing(Session.connect(java_broker)) as session:
        transactions = TransactionSteps(session)
        assert transactions.recover(unique) == [xid]
        transactions.commit(xid)
        assert transactions.recover(unique) == []
        with pytest.raises(TransactionError, match="code=-4"):
            transactions.commit(xid)
    assert _followed_by_another(java_directory, java_place, start) == [Message(b"in two phases")]


def _followed_by_another(directory: Directory, place: TopicPartition, start: int) -> list[Message]:
    """What is there from ``start`` on, once one more message is acknowledged.

    A Java broker answers a commit when its messages are queued, before they are readable; the next put waits for them.
    """
    Producer(*directory).put(place.topic, Message(b"after"), place.partition)
    *messages, last = after(directory, place, start)
    assert last == Message(b"after")
    return messages


def test_a_partition_that_was_never_written(java_directory: Directory, java_place: TopicPartition) -> None:
    never = Partition(java_place.partition.broker_id, 9999)
    with pytest.raises(ValueError, match=f"partition {never}"):
        Producer(*java_directory).put(java_place.topic, Message(b"x"), never)
