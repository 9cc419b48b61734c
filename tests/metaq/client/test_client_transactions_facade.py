"""Transactions of ``MetaQ`` and its producers, with a real broker: commit, rollback, XA and what is left behind."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from fix_broker import RunningBroker, StartBroker, wait_until
from forked import in_child
from listeners import Cut, CuttingRelay

from metaq import AsyncMetaQ, MetaQ
from metaq.client import transactions
from metaq.client.transactions import LocalTransaction, XaBranch
from metaq.errors import ConnectionFailed, TopicNotFound, TransactionError, TransactionNotFound
from metaq.model import Partition, Xid
from metaq.net.transport import Timeouts

pytestmark = pytest.mark.process


@pytest.fixture
def mq(dev_broker: RunningBroker) -> Iterator[MetaQ]:
    with MetaQ(str(dev_broker.address)) as made:
        yield made


def texts(mq: MetaQ) -> list[bytes]:
    return sorted(message.data for message in mq.browse("orders"))


def test_a_block_that_ends_well_is_committed_as_a_whole(mq: MetaQ) -> None:
    with mq.producer().transaction() as transaction:
        assert transaction.id is None
        first = transaction.send("orders", "a", attribute="paid")
        transaction.send("orders", b"b", partition=Partition(0, 1))
        assert first.offset == -1
        assert str(transaction.id).startswith("TX:")
        assert texts(mq) == []
    assert texts(mq) == [b"a", b"b"]
    with pytest.raises(ValueError, match="the transaction has ended"):
        transaction.send("orders", "c")


def test_an_exception_rolls_back_and_is_not_hidden(mq: MetaQ) -> None:
    with pytest.raises(ZeroDivisionError):
        _fail_in(mq.producer().transaction())
    with mq.producer().transaction() as transaction:
        transaction.send("orders", "b")
        transaction.rollback()
    with mq.producer().transaction():
        pass  # nothing was sent: there is nothing to commit
    mq.producer().send("orders", "after")
    assert texts(mq) == [b"after"]


def test_a_transaction_belongs_to_no_thread_and_several_are_open_at_once(mq: MetaQ) -> None:
    producer = mq.producer()
    with producer.transaction() as one, producer.transaction() as two:
        one.send("orders", "1")
        two.send("orders", "2")
        one.send("orders", "3")
        two.rollback()
    assert texts(mq) == [b"1", b"3"]


def test_messages_of_many_threads_are_sent_one_after_the_other(mq: MetaQ) -> None:
    wanted = [b"%d" % number for number in range(40)]
    with mq.producer().transaction() as transaction, ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda text: transaction.send("orders", text), wanted))
    assert texts(mq) == sorted(wanted)


def test_a_transaction_ends_once(mq: MetaQ) -> None:
    """Its connection may be somebody else's by then."""
    with mq.producer().transaction() as transaction:
        transaction.send("orders", "a")
        transaction.commit()
        for step in (transaction.commit, transaction.rollback):
            with pytest.raises(ValueError, match="the transaction has ended"):
                step()
    with mq.xa(b"1", b"b", unique="s") as branch:
        branch.send("orders", "b")
        assert branch.prepare()
        for step in (branch.prepare, branch.rollback):
            with pytest.raises(ValueError, match="the transaction has ended"):
                step()
    mq.commit(branch.xid)
    assert texts(mq) == [b"a", b"b"]


def test_a_transaction_belongs_to_the_process_that_began_it(mq: MetaQ) -> None:
    """A child that leaves the block must not roll back over the parent's connection."""
    with mq.producer().transaction() as transaction:
        transaction.send("orders", "a")

        def leaves() -> bool:
            with pytest.raises(ValueError, match="the transaction belongs to the process"):
                transaction.send("orders", "child")
            transaction.__exit__(SystemExit, None, None)
            return True

        assert in_child(leaves)
        transaction.send("orders", "b")
    assert texts(mq) == [b"a", b"b"]


def test_a_task_cancelled_while_it_sends_rolls_back_afterwards(
    dev_broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two steps at the same time would read each other's answers."""
    steps: list[str] = []

    def noted(name: str, step: Callable[..., object]) -> Callable[..., object]:
        def call(*given: object) -> object:
            try:
                return step(*given)
            finally:
                steps.append(name)

        return call

    monkeypatch.setattr("metaq.client.transactions.put", noted("put", transactions.put))
    steps_class = transactions.TransactionSteps
    monkeypatch.setattr(steps_class, "rollback", noted("rollback", steps_class.rollback))

    async def send_both(mq: AsyncMetaQ) -> None:
        async with mq.producer().transaction() as transaction:
            await transaction.send("orders", "first")
            await transaction.send("orders", "second")

    async def main(relay: CuttingRelay) -> None:
        async with AsyncMetaQ(str(relay.address), timeouts=Timeouts(5.0, 20.0)) as mq:
            sending = asyncio.create_task(send_both(mq))
            assert await asyncio.to_thread(relay.reached.wait, 20)
            sending.cancel()
            threading.Timer(0.2, relay.release).start()
            with pytest.raises(asyncio.CancelledError):
                await sending

    with CuttingRelay(dev_broker.address, Cut(b"put ", "answer", 2)) as relay:
        asyncio.run(main(relay))
    assert steps == ["put", "put", "rollback"]
    with MetaQ(str(dev_broker.address)) as mq:
        mq.producer().send("orders", "after")
        assert texts(mq) == [b"after"]


def test_a_broker_that_dies_before_the_commit_has_rolled_back(
    start_broker: StartBroker, mq: MetaQ, dev_broker: RunningBroker
) -> None:
    with mq.producer().transaction() as transaction:
        transaction.send("orders", "lost")
        dev_broker.kill()
        again = ("--port", str(dev_broker.address.port), "--rocketmq-port", "0")
        start_broker("dev", dev_broker.data, *again, "--partitions", "2")
        with pytest.raises((ConnectionFailed, TransactionError)):
            transaction.commit()
    mq.producer().send("orders", "after")
    assert texts(mq) == [b"after"]


def test_two_phases_over_any_connection(mq: MetaQ) -> None:
    with mq.xa(b"transfer-17", b"orders", unique="my-service") as branch:
        branch.send("orders", "in two phases")
        assert branch.prepare()
    (prepared,) = mq.prepared("my-service")
    assert (prepared.xid, prepared.broker) == (branch.xid, 0)
    assert mq.prepared("other") == []
    assert texts(mq) == []
    mq.commit(prepared.xid)
    assert texts(mq) == [b"in two phases"]
    with pytest.raises(TransactionNotFound, match="was ended, or never prepared"):
        mq.commit(prepared.xid)


def test_a_prepared_branch_survives_the_broker(mq: MetaQ, start_broker: StartBroker, dev_broker: RunningBroker) -> None:
    for number, text in enumerate(("commit me", "drop me")):
        with mq.xa(b"%d" % number, b"b", unique="s") as branch:
            branch.send("orders", text)
            branch.prepare()
    dev_broker.kill()
    again = ("--port", str(dev_broker.address.port), "--rocketmq-port", "0")
    start_broker("dev", dev_broker.data, *again, "--partitions", "2")
    first, second = sorted((one.xid for one in mq.prepared("s")), key=lambda xid: xid.global_id)
    mq.commit(first)
    mq.rollback(second)
    assert (mq.prepared(), texts(mq)) == ([], [b"commit me"])


def test_a_branch_that_is_not_prepared_is_rolled_back(mq: MetaQ) -> None:
    with mq.xa(b"1", b"b", unique="s") as branch:
        branch.send("orders", "forgotten")
    with pytest.raises(ZeroDivisionError):
        _fail_in(mq.xa(b"2", b"b", unique="s"))
    with mq.xa(b"3", b"b", unique="s") as branch:
        assert not branch.prepare(), "nothing was sent: there is nothing to commit"
    assert (mq.prepared(), texts(mq)) == ([], [])


def test_what_cannot_be_is_refused(mq: MetaQ) -> None:
    with mq.producer().transaction() as transaction:
        with pytest.raises(TypeError, match="data: expected bytes or a text"):
            transaction.send("orders", None)  # type: ignore[arg-type]
        with pytest.raises((TopicNotFound, ValueError)):
            transaction.send("orders", "x", partition=Partition(7, 7))
    with pytest.raises(ValueError, match="timeout -1: expected whole seconds"):
        mq.producer().transaction(timeout=-1)
    with pytest.raises(TransactionNotFound):
        mq.rollback(Xid(1, b"never", b"b", "s"))


def test_a_transaction_that_took_too_long_is_not_committed(mq: MetaQ, dev_broker: RunningBroker) -> None:
    transaction = mq.producer().transaction(timeout=2)
    transaction.send("orders", "late")
    wait_until(lambda: "its timeout has expired" in dev_broker.log_text(), "it has expired")
    with pytest.raises(TransactionError):
        transaction.commit()
    assert texts(mq) == []


def _fail_in(transaction: LocalTransaction | XaBranch) -> None:
    with transaction:
        transaction.send("orders", "failed")
        raise ZeroDivisionError
