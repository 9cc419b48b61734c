"""Transactions of RocketMQ with the bundled broker: commit, rollback, check-backs, and members that die between."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sized
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from fix_broker import RunningBroker, launch_in, wait_until
from forked import in_child
from transaction_steps import STEPS, run_and_die
from waiting import in_loop

from metaq import AsyncRocketMQ
from metaq.backends.rocketmq.errors import RequestRefused
from metaq.backends.rocketmq.half_messages import Outcome
from metaq.client.rocketmq.async_producer import AsyncRocketTransaction
from metaq.client.rocketmq.client import RocketMQ
from metaq.client.rocketmq.records import RocketReceived
from metaq.client.rocketmq.transactions import RocketTransaction, TransactionalProducer
from metaq.errors import SendFailed, TransactionError
from metaq.model import Partition
from metaq.net.retry import RetryPolicy
from metaq.net.transport import Timeouts

pytestmark = pytest.mark.process

QUICK = 0.1
EAGER = "[topic=*]\n[rocketmq]\nenabled=true\nport=0\ntransactionTimeOut=1\ntransactionCheckInterval=100\n"


@pytest.fixture(scope="module")
def eager_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """It asks about half messages soon."""
    broker = launch_in(tmp_path_factory.mktemp("eager"), EAGER)
    yield broker
    broker.end()


@pytest.fixture
def mq(eager_broker: RunningBroker) -> Iterator[RocketMQ]:
    with RocketMQ(str(eager_broker.rocketmq_address), timeouts=Timeouts(30.0, 30.0)) as made:
        yield made


@pytest.fixture
def topic() -> str:
    return f"t-{uuid4().hex[:8]}"


def never(message: RocketReceived) -> Outcome:
    raise AssertionError(f"asked about {message.data!r}")


class Checks:
    """A ``check`` that gives answers in turn, the last one for ever, and remembers what it was asked."""

    def __init__(self, *answers: Any) -> None:
        self.answers, self.asked = list(answers), list[RocketReceived]()

    def __call__(self, message: RocketReceived) -> Outcome:
        self.asked.append(message)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        outcome: Outcome = answer
        return outcome


def texts(mq: RocketMQ, topic: str) -> list[str]:
    return sorted(message.data.decode() for message in mq.browse(topic))


def test_leaving_the_block_commits_and_an_exception_rolls_back(mq: RocketMQ, topic: str) -> None:
    with mq.transactional_producer("g-" + topic, never, heartbeat_s=QUICK) as producer:
        with producer.transaction(ask_after=60) as transaction:
            sent = transaction.send(topic, "paid", tag="hot", keys=["k1"], properties={"p": "1"}, key="x")
            transaction.send(topic, b"packed")
            assert (sent.offset, sent.offset_message_id, transaction.state) == (-1, None, "open")
            producer.send(topic, "plain")
            assert texts(mq, topic) == ["plain"]
        assert transaction.state == "committed"
        failing = producer.transaction(ask_after=60)
        with pytest.raises(ZeroDivisionError):
            _fail(failing, topic, ZeroDivisionError())
        assert failing.state == "rolled back"
    assert texts(mq, topic) == ["packed", "paid", "plain"]
    (message,) = (one for one in mq.browse(topic) if one.data == b"paid")
    assert (message.message_id, message.tag, message.keys) == (sent.message_id, "hot", ("k1",))
    assert message.properties["p"] == "1"


def test_a_transaction_ends_once(mq: RocketMQ, topic: str) -> None:
    with mq.transactional_producer("g-" + topic, never) as producer:
        transaction = producer.transaction(ask_after=60)
        transaction.send(topic, "once")
        transaction.commit()
        for step in (transaction.commit, transaction.rollback, transaction.leave, lambda: transaction.send(topic, "x")):
            with pytest.raises(ValueError, match="the transaction has ended"):
                step()
        with producer.transaction() as empty:
            pass
        assert empty.state == "committed"
        assert repr(transaction) == "<RocketTransaction of 1 messages, committed>"
    assert texts(mq, topic) == ["once"]
    with pytest.raises(ValueError, match="the producer is closed"):
        producer.transaction()


def test_a_transaction_belongs_to_the_process_that_began_it(mq: RocketMQ, topic: str) -> None:
    with mq.transactional_producer("g-" + topic, never) as producer:
        transaction = producer.transaction(ask_after=60)
        transaction.send(topic, "a")

        def leaves() -> bool:
            with pytest.raises(ValueError, match="the transaction belongs to the process"):
                transaction.commit()
            transaction.__exit__(ZeroDivisionError, None, None)
            return True

        assert in_child(leaves)
        transaction.commit()
    assert texts(mq, topic) == ["a"]


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_the_first_error_is_raised_though_the_producer_is_closed(
    mq: RocketMQ, topic: str, error: type[BaseException]
) -> None:
    producer = mq.transactional_producer("g-" + topic, never)
    transaction = producer.transaction(ask_after=60)
    transaction.send(topic, "x")
    producer.close()
    with pytest.raises(error), transaction:
        raise error
    assert transaction.state == "left open"
    with pytest.raises(ValueError, match="the transaction has ended"):
        transaction.leave()


def test_a_block_that_ends_after_its_producer_leaves_the_transaction_open(mq: RocketMQ, topic: str) -> None:
    producer = mq.transactional_producer("g-" + topic, never)
    transaction = producer.transaction(ask_after=60)
    transaction.send(topic, "x")
    with pytest.raises(ValueError, match="the producer is closed"), transaction:
        producer.close()
    assert transaction.state == "left open"


def test_ctrl_c_leaves_it_to_the_check(mq: RocketMQ, topic: str) -> None:
    check = Checks("commit")
    with mq.transactional_producer("g-" + topic, check, heartbeat_s=QUICK) as producer:
        transaction = producer.transaction()
        with pytest.raises(KeyboardInterrupt):
            _fail(transaction, topic, KeyboardInterrupt())
        assert transaction.state == "left open"
        wait_until(lambda: texts(mq, topic) == ["x"], "the check-back committed it")
    asked = check.asked[0]
    assert (asked.topic, asked.partition, asked.data) == (topic, Partition("metaq", 0), b"x")
    assert (asked.message_id, asked.keys) == (transaction._halves[0].message_id, ("order-7",))
    assert {one.message_id for one in check.asked} == {asked.message_id}, "a slow answer is asked for again"


def _fail(transaction: RocketTransaction, topic: str, error: BaseException) -> None:
    with transaction:
        transaction.send(topic, "x", keys=["order-7"], partition=Partition("metaq", 0))
        raise error


def test_unknown_errors_and_wrong_answers_are_asked_again(
    mq: RocketMQ, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    check = Checks("unknown", LookupError("no database"), "maybe", "rollback")
    with mq.transactional_producer("g-" + topic, check, heartbeat_s=QUICK) as producer:
        with producer.transaction() as first:
            first.send(topic, "first")
        wait_until(lambda: bool(producer.reached), "the broker knows it, and does not ask fifteen times in vain")
        producer.transaction().send(topic, "forgotten")  # nobody ends it, and nobody has it any more
        wait_until(lambda: len(check.asked) >= 4, "it was asked four times")
        with producer.transaction() as later:
            later.send(topic, "later")
        wait_until(lambda: _no_more_come(check.asked, 0.5), "rolled back, it is asked about no more")
    assert texts(mq, topic) == ["first", "later"]
    assert "LookupError: no database" in caplog.text
    assert "check returned 'maybe'" in caplog.text


def _no_more_come(asked: Sized, seconds: float) -> bool:
    """Whether the broker asks no more for ``seconds``, which are several of its intervals."""
    count = len(asked)
    threading.Event().wait(seconds)
    return len(asked) == count


def test_no_check_while_the_transaction_is_open_here(mq: RocketMQ, topic: str) -> None:
    check = Checks("rollback")
    with mq.transactional_producer("g-" + topic, check, heartbeat_s=QUICK) as producer:
        with producer.transaction() as transaction:
            transaction.send(topic, "slow")
            wait_until(lambda: bool(producer.reached), "the broker knows it")
            threading.Event().wait(0.5)  # the broker asks several times meanwhile
        assert check.asked == []
    assert texts(mq, topic) == ["slow"]


def test_a_slow_check_is_not_called_twice_and_keeps_no_other_waiting(mq: RocketMQ, topic: str) -> None:
    release, calls = threading.Event(), list[bytes]()

    def check(message: RocketReceived) -> Outcome:
        calls.append(message.data)
        if message.data == b"slow":
            release.wait(60)
        return "commit"

    with mq.transactional_producer("g-" + topic, check, heartbeat_s=QUICK, check_workers=2) as producer:
        for text in ("slow", "quick"):
            transaction = producer.transaction()
            transaction.send(topic, text)
            transaction.leave()
        wait_until(lambda: texts(mq, topic) == ["quick"], "the quick one came")
        threading.Event().wait(0.5)
        assert calls.count(b"slow") == 1
        release.set()
        wait_until(lambda: texts(mq, topic) == ["quick", "slow"], "the slow one came")


@pytest.mark.parametrize("step", STEPS)
def test_another_member_answers_for_one_that_died(
    eager_broker: RunningBroker, mq: RocketMQ, topic: str, step: str, tmp_path: Path
) -> None:
    done = tmp_path / "done"
    run_and_die(str(eager_broker.rocketmq_address), topic, step, done)
    asked: list[str] = []

    def check(message: RocketReceived) -> Outcome:
        asked.append(message.message_id)
        return "commit" if done.exists() and done.read_text() == message.message_id else "rollback"

    with mq.transactional_producer(f"group-{topic}", check, heartbeat_s=QUICK):
        if step == "sent":
            wait_until(lambda: bool(asked), "it is asked")
            threading.Event().wait(0.3)
            assert texts(mq, topic) == []
        else:
            wait_until(lambda: texts(mq, topic) == [step], "it is delivered")
    assert len(set(asked)) == (0 if step == "told" and not asked else 1), "a slow answer is asked for again"
    assert texts(mq, topic) == ([] if step == "sent" else [step])


def test_a_message_that_was_rolled_back_meanwhile_cannot_be_committed(mq: RocketMQ, topic: str) -> None:
    elsewhere = Checks("rollback")
    with mq.transactional_producer("g-" + topic, never) as producer:
        transaction = producer.transaction()
        transaction.send(topic, "x")
        wait_until(lambda: bool(producer.reached), "the broker knows it")
        producer._client.close()  # this member is not reached any more; another one is asked
        with mq.transactional_producer("g-" + topic, elsewhere, heartbeat_s=QUICK):
            wait_until(lambda: bool(elsewhere.asked), "the other is asked")
            wait_until(lambda: _no_more_come(elsewhere.asked, 1.0), "the broker has its answer")
            with pytest.raises(TransactionError, match=r"refused the commit of message .* was ended before"):
                transaction.commit()
        assert transaction.state == "left open"
    assert texts(mq, topic) == []


@in_loop
async def test_the_same_with_asyncio(eager_broker: RunningBroker, topic: str) -> None:
    asked: list[tuple[bytes, bool]] = []

    async def check(message: RocketReceived) -> Outcome:
        await asyncio.sleep(0)
        asked.append((message.data, threading.current_thread() is threading.main_thread()))
        return "commit"

    async def cancelled(transaction: AsyncRocketTransaction, begun: asyncio.Event) -> None:
        async with transaction:
            await transaction.send(topic, "left")
            begun.set()
            await asyncio.sleep(60)

    async with AsyncRocketMQ(str(eager_broker.rocketmq_address)) as mq:
        unused = mq.transactional_producer("g-" + topic, check)
        with pytest.raises(ValueError, match="inside its async with block"):
            unused.transaction()
        async with mq.transactional_producer("g-" + topic, check, heartbeat_s=QUICK) as producer:
            async with producer.transaction(ask_after=60) as committed:
                sent = await committed.send(topic, "committed", key="x")
                assert sent.offset == -1
            async with producer.transaction(ask_after=60) as dropped:
                await dropped.send(topic, "dropped")
                await dropped.rollback()
            assert (committed.state, dropped.state) == ("committed", "rolled back")
            begun, transaction = asyncio.Event(), producer.transaction()
            task = asyncio.create_task(cancelled(transaction, begun))
            await begun.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert transaction.state == "left open"
            async with asyncio.timeout(60):
                while {message.data async for message in mq.browse(topic)} != {b"committed", b"left"}:
                    await asyncio.sleep(0.05)
            await producer.send(topic, "plain")
        assert set(asked) == {(b"left", True)}, "a slow answer is asked for again"


def test_names_have_their_namespace_at_the_broker_only(eager_broker: RunningBroker, topic: str) -> None:
    check = Checks("commit")
    with (
        RocketMQ(str(eager_broker.rocketmq_address), namespace="ns") as mq,
        mq.transactional_producer("g", check, heartbeat_s=QUICK) as producer,
    ):
        with producer.transaction(ask_after=60) as transaction:
            transaction.send(topic, "committed")
        left = producer.transaction()
        left.send(topic, "left")
        left.leave()
        wait_until(lambda: texts(mq, topic) == ["committed", "left"], "both are there")
    assert {one.topic for one in check.asked} == {topic}, "a slow answer is asked for again"
    with RocketMQ(str(eager_broker.rocketmq_address)) as mq:
        assert texts(mq, f"ns%{topic}") == ["committed", "left"]


def test_a_message_that_waits_is_taken_back(mq: RocketMQ, topic: str) -> None:
    producer = mq.producer()
    for number, delay_s in enumerate((0.5, 10.0)):  # a busy machine may be too late for the first
        topic = f"{topic}-{number}"
        recalled = producer.send(topic, "recalled", delay=delay_s)
        kept = producer.send(topic, "kept", delay=delay_s)
        assert recalled.recall_handle
        assert kept.recall_handle
        try:
            assert producer.recall(topic, recalled.recall_handle) == recalled.message_id
            break
        except RequestRefused:
            assert number == 0
    wait_until(lambda: bool(texts(mq, topic)), "the other one came")
    assert texts(mq, topic) == ["kept"]
    for handle in (recalled.recall_handle, kept.recall_handle):
        with pytest.raises(RequestRefused, match="does not wait, or no more"):
            producer.recall(topic, handle)
    with pytest.raises(ValueError, match="recall handle 'x': expected the handle in the response to a send"):
        producer.recall(topic, "x")


def test_what_a_transaction_cannot_have_is_refused(mq: RocketMQ, topic: str) -> None:
    make: Callable[..., TransactionalProducer] = mq.transactional_producer
    with pytest.raises(TypeError, match="check: expected a function, got str"):
        make("g", "commit")
    with pytest.raises(ValueError, match=r"check_workers 0: expected 1\.\.1000"):
        make("g", never, check_workers=0)
    with pytest.raises(ValueError, match="heartbeat_s 0: expected seconds"):
        make("g", never, heartbeat_s=0)
    with make("g", never) as producer:
        with pytest.raises(ValueError, match=r"ask_after 0\.5: expected whole seconds"):
            producer.transaction(ask_after=0.5)  # type: ignore[arg-type]
        with producer.transaction() as transaction:
            with pytest.raises(TypeError, match="data: expected bytes or a text"):
                transaction.send(topic, 5)  # type: ignore[arg-type]
            with pytest.raises(ValueError, match="the body has 5242880 bytes"):
                transaction.send(topic, bytes(5 << 20))


def test_a_broker_that_goes_away_and_comes_back(tmp_path: Path) -> None:
    check = Checks("commit")

    def start(port: int) -> Any:
        return launch_in(tmp_path, EAGER.replace("port=0", f"port={port}"))

    broker = start(0)
    try:
        address = broker.rocketmq_address
        with RocketMQ(str(address), timeouts=Timeouts(30.0, 30.0)) as mq:
            producer = mq.transactional_producer("g", check, heartbeat_s=QUICK)
            producer._sender._policy = RetryPolicy(1, 0.01)
            with producer:
                with producer.transaction() as transaction:
                    transaction.send("orders", "x")
                    wait_until(lambda: bool(producer.reached), "the broker knows it")
                    broker.kill()
                    broker.end()
                    wait_until(lambda: not producer.reached, "its heartbeats fail")
                assert transaction.state == "left open"
                with pytest.raises(SendFailed), producer.transaction() as failing:
                    failing.send("orders", "nobody is there")
                broker = start(address.port)
                wait_until(lambda: texts(mq, "orders") == ["x"], "asked again, it is committed")
                assert producer.send("orders", "y").message_id
    finally:
        broker.end()
