"""The writer against a scripted broker: what is acknowledged is stored, and nothing fails in silence."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import closing

import pytest
from fix_broker import wait_until
from rocketmq_clients import ScriptedBench, on_scripted_cluster

from metaq.backends.rocketmq.batch_writer import BatchWriter
from metaq.backends.rocketmq.body_limits import BODY_BYTES_MAX
from metaq.backends.rocketmq.errors import BatchNotStored, RequestRefused
from metaq.backends.rocketmq.pool import SessionPool
from metaq.backends.rocketmq.reads.pull_reader import pull_range
from metaq.discovery.name_server import NameServerDirectory
from metaq.errors import DeadlineExceeded
from metaq.formats.rocketmq.batches import BatchElement, encode_batch
from metaq.formats.rocketmq.records import Record, read_records
from metaq.model import Address, OffsetRange, Partition
from metaq.net.retry import RetryPolicy, TimeLimit
from metaq.net.transport import Timeouts
from metaq.protocols.remoting.headers.sends import SEND_BATCH_MESSAGE
from metaq.testing.rocketmq_server import ScriptedCluster

BATCH = SEND_BATCH_MESSAGE


def batch(*bodies: bytes) -> bytes:
    return encode_batch(BatchElement(body, b"TAGS\x01t") for body in bodies)


def write_and_flush(writer: BatchWriter, queue_id: int, *bodies: bytes) -> None:
    """A refusal may come with either."""
    writer.write("orders", queue_id, batch(*bodies), len(bodies))
    writer.flush()


class Moving(NameServerDirectory):
    """Has ``old`` as the master's address until it is invalidated, then ``new``."""

    def __init__(self, cluster: ScriptedCluster, pool: SessionPool, old: Address, new: Address) -> None:
        super().__init__(cluster.name_servers, pool)
        self._master, self._new = old, new

    def write_address(self, broker_name: str, *, topic: str | None = None) -> Address:
        return self._master

    def invalidate(self) -> None:
        self._master = self._new


class Bench(ScriptedBench):
    """A broker with a slave and ``orders`` of three queues."""

    def __init__(self, cluster: ScriptedCluster) -> None:
        super().__init__(cluster)
        cluster.create_topic("orders", 3)

    def writer(self, **options: object) -> BatchWriter:
        policy = RetryPolicy(3, 0.1)
        return BatchWriter(self.pool, self.directory, "broker-a", policy=policy, now_ms=lambda: 1234, **options)  # type: ignore[arg-type]

    def sent(self) -> list[str]:
        """The queues that batches were sent to, in the order in which the broker got them."""
        return [command.ext["e"] for command in self.broker.requests if command.code == BATCH]

    def wait_for_answer(self, queue_id: int, end: int) -> None:
        """Return when the queue ends there, and the broker has answered the send that took it there."""
        store = self.broker.store
        wait_until(lambda: store.queue("orders", queue_id).end >= end, f"queue {queue_id} to end at {end}")
        self.cluster.append("orders", Partition("broker-a", 2), [b"behind the answer"])

    def stored(self, queue_id: int = 0) -> list[Record]:
        end = self.broker.store.queue("orders", queue_id).end
        queue = Partition("broker-a", queue_id)
        runs = pull_range(self.pool, self.directory, "orders", queue, OffsetRange(0, end)) if end else ()
        return [record for run in runs for record in read_records(run.data)]

    def bodies(self, queue_id: int = 0) -> list[bytes]:
        return [record.body for record in self.stored(queue_id)]


@pytest.fixture
def bench() -> Iterator[Bench]:
    with on_scripted_cluster(Bench) as bench:
        yield bench


def test_batches_of_several_queues(bench: Bench) -> None:
    writer = bench.writer()
    for number in range(30):
        writer.write("orders", number % 3, batch(b"%d" % number, b"%d!" % number), 2)
    receipts = writer.flush()
    assert [(str(receipt.queue), receipt.offset, receipt.count) for receipt in receipts[:4]] == [
        ("orders/broker-a:0", 0, 2),
        ("orders/broker-a:1", 0, 2),
        ("orders/broker-a:2", 0, 2),
        ("orders/broker-a:0", 2, 2),
    ]
    assert {len(receipt.message_ids) for receipt in receipts} == {2}
    assert bench.bodies(1) == [body for number in range(1, 30, 3) for body in (b"%d" % number, b"%d!" % number)]
    assert writer.flush() == []
    writer.close()
    first = bench.stored()[0]
    assert (first.born_timestamp, first.property_map()["TAGS"]) == (1234, "t")
    sent = [command for command in bench.broker.requests if command.code == BATCH]
    assert {command.ext["n"] for command in sent} == {"broker-a"}
    assert {command.ext["m"] for command in sent} == {"true"}


def test_without_receipts_none_are_kept(bench: Bench) -> None:
    writer = bench.writer(receipts=False)
    for number in range(4):
        writer.write("orders", number % 2, batch(b"%d" % number), 1)
    assert writer.flush() == []
    assert writer.pending_bytes == 0
    writer.close()
    assert (bench.bodies(0), bench.bodies(1)) == ([b"0", b"2"], [b"1", b"3"])


def test_a_single_message_with_what_a_batch_may_not_have(bench: Bench) -> None:
    writer = bench.writer()
    writer.send("orders", 2, b"tea", "DELAY\x013\x02KEYS\x01k", flag=7)
    (receipt,) = writer.flush()
    writer.close()
    (record,) = bench.stored(2)
    assert (record.body, record.flag, receipt.code) == (b"tea", 7, 0)
    assert record.property_map() == {"DELAY": "3", "KEYS": "k", "CLUSTER": "ScriptedCluster"}


@pytest.mark.parametrize("in_order", [True, False])
def test_batches_of_one_queue_overtake_each_other_only_if_allowed(bench: Bench, in_order: bool) -> None:
    bench.broker.latency_s = lambda command: 0.1 if command.code == BATCH else 0.0
    writer = bench.writer(in_order=in_order)
    writer.write("orders", 0, batch(b"first"), 1)
    writer.write("orders", 0, batch(b"second"), 1)
    writer.write("orders", 1, batch(b"other"), 1)
    writer.flush()
    writer.close()
    assert bench.sent() == (["0", "1", "0"] if in_order else ["0", "0", "1"])
    assert bench.bodies() == [b"first", b"second"]


def test_the_next_batch_of_a_queue_goes_when_the_last_is_stored(bench: Bench) -> None:
    writer = bench.writer()
    for number in range(5):
        writer.write("orders", 0, batch(b"%d" % number), 1)
    for number in range(1, 5):
        bench.wait_for_answer(0, number)
        writer.write("orders", 1, batch(b"other"), 1)
    bench.wait_for_answer(0, 5)
    assert bench.bodies() == [b"%d" % number for number in range(5)]
    assert [str(receipt.queue)[-1] for receipt in writer.flush()] == [*"00000", *"1111"]
    writer.close()


def test_a_queue_whose_broker_takes_its_time_holds_no_other_up(bench: Bench) -> None:
    bench.broker.latency_s = lambda command: 0.3 if command.ext.get("e") == "0" else 0.0
    writer = bench.writer()
    for queue_id in (0, 0, 1, 1, 1, 1):
        writer.write("orders", queue_id, batch(b"x"), 1)
    receipts = writer.flush()
    writer.close()
    assert bench.sent() == [*"011110"]
    assert [(str(receipt.queue)[-1], receipt.offset) for receipt in receipts] == [
        ("0", 0), ("0", 1), ("1", 0), ("1", 1), ("1", 2), ("1", 3),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (2, "[REJECTREQUEST]system busy"),
        (1, "[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while"),
        (14, "service not available now"),
        (16, "the broker's sending message is forbidden"),
        (17, "topic not exist, apply first please!"),
        (215, "flow control"),
        (1500, "go away"),
    ],
)
def test_refusals_that_may_pass_are_tried_again_and_then_raised(bench: Bench, code: int, text: str) -> None:
    writer = bench.writer()
    bench.broker.refuse(BATCH, code, text, times=3)
    writer.write("orders", 0, batch(b"a"), 1)
    assert len(writer.flush()) == 1
    assert bench.clock.slept_s == [0.1, 0.2, 0.4]
    bench.broker.refuse(BATCH, code, text, times=99)
    with pytest.raises(BatchNotStored) as caught:
        write_and_flush(writer, 0, b"b", b"c")
    assert caught.value.count == 2
    assert text in str(caught.value)
    with pytest.raises(BatchNotStored):
        writer.write("orders", 0, batch(b"d"), 1)
    writer.close()
    assert bench.bodies() == [b"a"]


@pytest.mark.parametrize(
    ("code", "text"), [(1, "request queueId[7] is illegal"), (13, "the message is illegal"), (3, "?")]
)
def test_other_refusals_are_raised_at_once(bench: Bench, code: int, text: str) -> None:
    writer = bench.writer()
    bench.broker.refuse(BATCH, code, text)
    with pytest.raises(BatchNotStored, match=r"^1 messages for orders/broker-a:1 were not sent: .*refused a send"):
        write_and_flush(writer, 1, b"a")
    assert bench.clock.slept_s == []
    writer.close()


@pytest.mark.parametrize("code", [13, 14])
def test_after_a_refusal_the_other_responses_can_be_waited_for(bench: Bench, code: int) -> None:
    bench.broker.latency_s = lambda command: 0.3 if command.ext.get("e") in ("1", "2") else 0.0
    for queue_id in (0, 2):
        bench.broker.refuse(BATCH, code, f"not queue {queue_id}", times=99, queue=queue_id)
    writer = bench.writer()
    for queue_id in (1, 2, 1):
        writer.write("orders", queue_id, batch(b"%d" % queue_id), 1)
    with pytest.raises(BatchNotStored, match="not queue 0"):
        write_and_flush(writer, 0, b"0")
    assert (writer.settle(), writer.unanswered()) == (None, [])
    assert [str(receipt.queue) for receipt in writer.take_receipts().values()] == ["orders/broker-a:1"]
    assert {number: str(error)[-11:] for number, error in writer.failures().items()} == {
        1: "not queue 2",
        3: "not queue 0",
    }
    writer.close()
    assert bench.sent().count("1") == 1  # the second batch of the queue was not sent any more


def test_a_response_that_is_lost_after_a_refusal_is_the_failure_of_its_send(bench: Bench) -> None:
    bench.broker.latency_s = lambda command: 60.0 if command.ext.get("e") == "1" else 0.0
    bench.broker.refuse(BATCH, 13, queue=0)
    limit = TimeLimit(0.3, bench.clock)
    writer = bench.writer(limit=limit)
    writer.write("orders", 1, batch(b"b"), 1)
    with pytest.raises(BatchNotStored, match="MESSAGE_ILLEGAL"):
        write_and_flush(writer, 0, b"a")
    lost = writer.settle()
    assert isinstance(lost, DeadlineExceeded)
    assert writer.unanswered() == [0]
    assert [type(error) for error in writer.failures().values()] == [DeadlineExceeded, RequestRefused]
    assert writer.settle() is None
    writer.close()


def test_a_refusal_that_says_so_may_be_stored_also_if_its_repetition_is_refused(bench: Bench) -> None:
    bench.broker.refuse(BATCH, 2, "busy; it may be stored", queue=0)
    bench.broker.refuse(BATCH, 13, "too old", queue=0)
    writer = bench.writer()
    with pytest.raises(BatchNotStored, match="too old"):
        write_and_flush(writer, 0, b"a")
    assert writer.unanswered() == [0]
    writer.close()


def test_a_broker_that_is_shutting_down_answers_what_it_has_got(bench: Bench) -> None:
    bench.broker.latency_s = lambda command: 0.3 if command.ext.get("e") == "1" else 0.0
    bench.broker.refuse(BATCH, 1500, "go away", queue=0)
    writer = bench.writer()
    writer.write("orders", 1, batch(b"b"), 1)
    write_and_flush(writer, 0, b"a")
    writer.close()
    assert (bench.bodies(0), bench.bodies(1)) == ([b"a"], [b"b"])


def test_a_master_that_has_moved_answers_what_it_has_got() -> None:
    with ScriptedCluster(("broker-a", "broker-b")) as cluster, closing(SessionPool(Timeouts(2.0, 2.0))) as pool:
        cluster.create_topic("orders", 2)
        old, new = cluster.broker("broker-a"), cluster.broker("broker-b")
        routes = Moving(cluster, pool, old.address(), new.address())
        old.latency_s = lambda command: 0.3 if command.ext.get("e") == "1" else 0.0
        old.refuse(BATCH, 14, "no master any more", times=99, queue=0)
        writer = BatchWriter(pool, routes, "broker-a", policy=RetryPolicy(3, 0.01))
        writer.write("orders", 1, batch(b"b"), 1)
        writer.write("orders", 0, batch(b"a"), 1)
        assert len(writer.flush()) == 2
        writer.close()
        ends = [[broker.store.queue("orders", number).end for number in range(2)] for broker in (old, new)]
        assert ends == [[0, 1], [1, 0]]


def test_less_durable_is_stored_and_warned_of_once(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.broker.tamper = lambda request, answer: (
        request.reply(11, answer.ext, remark="slave not available") if request.code == BATCH else answer
    )
    writer = bench.writer()
    for _ in range(3):
        writer.write("orders", 0, batch(b"a"), 1)
    assert [receipt.code for receipt in writer.flush()] == [11, 11, 11]
    assert [record.getMessage() for record in caplog.records if record.name.endswith("batch_writer")] == [
        "broker broker-a stores messages with less durability than it is configured for: "
        "SLAVE_NOT_AVAILABLE (11) slave not available"
    ]
    writer.close()


@pytest.mark.parametrize("carried_out", [False, True])
def test_lost_connections_send_again_what_was_not_acknowledged(bench: Bench, carried_out: bool) -> None:
    writer = bench.writer()
    bench.broker.disconnect(BATCH, carried_out=carried_out)
    for number in range(6):
        writer.write("orders", 0, batch(b"%d" % number), 1)
    assert len(writer.flush()) == 6
    writer.close()
    bodies = bench.bodies()
    assert list(dict.fromkeys(bodies)) == [b"%d" % number for number in range(6)]  # first copies are in order
    assert len(bodies) == (7 if carried_out else 6)


def test_a_master_at_another_address_is_found(bench: Bench) -> None:
    writer = bench.writer()
    writer.write("orders", 0, batch(b"a"), 1)
    writer.flush()
    bench.cluster.move_broker("broker-a", 0)
    writer.write("orders", 0, batch(b"b"), 1)
    writer.flush()
    writer.close()
    assert bench.bodies() == [b"a", b"b"]


def test_a_master_that_is_away_is_an_error_after_retries(bench: Bench) -> None:
    writer = bench.writer()
    bench.cluster.stop_broker("broker-a", 0, is_in_route=True)
    with pytest.raises(BatchNotStored, match="Connection refused"):
        writer.write("orders", 0, batch(b"lost"), 1)
    assert len(bench.clock.slept_s) == 3
    writer.close()


def test_flush_waits_for_every_send(bench: Bench) -> None:
    bench.broker.latency_s = lambda command: 0.05 if command.code == BATCH else 0.0
    writer = bench.writer()
    for number in range(9):
        writer.write("orders", number % 3, batch(b"%d" % number), 1)
    assert writer.pending_bytes > 0
    assert len(writer.flush()) == 9
    assert writer.pending_bytes == 0
    writer.close()
    assert sum(len(bench.bodies(queue_id)) for queue_id in range(3)) == 9


def test_too_much_is_waited_for(bench: Bench) -> None:
    writer = bench.writer(bytes_max=10_000, batches_max=4, in_order=False)
    most = 0
    for number in range(40):
        writer.write("orders", number % 3, batch(b"x" * 1000), 1)
        most = max(most, writer.pending_bytes)
    writer.flush()
    writer.close()
    assert most <= 10_000
    assert sum(len(bench.bodies(queue_id)) for queue_id in range(3)) == 40


def test_what_cannot_be_sent_is_refused_here(bench: Bench) -> None:
    writer = bench.writer()
    with pytest.raises(ValueError, match="at most 4194304"):
        writer.write("orders", 0, b"x" * (BODY_BYTES_MAX + 1), 1)
    with pytest.raises(ValueError, match="at least one"):
        writer.write("orders", 0, b"", 0)
    writer.write("orders", 0, batch(b"fine"), 1)
    assert len(writer.flush()) == 1
    writer.close()


def test_namespaces(bench: Bench) -> None:
    bench.cluster.create_topic("ns%orders", 1)
    directory = NameServerDirectory(bench.cluster.name_servers, bench.pool, namespace="ns")
    writer = BatchWriter(bench.pool, directory, "broker-a", group="loader")
    writer.write("orders", 0, batch(b"a"), 1)
    (receipt,) = writer.flush()
    writer.close()
    assert str(receipt.queue) == "orders/broker-a:0"
    assert (bench.broker.requests[-1].ext["a"], bench.broker.requests[-1].ext["b"]) == ("ns%loader", "ns%orders")


def test_failures_survive_pickling() -> None:
    error = pickle.loads(pickle.dumps(BatchNotStored("orders/b:1", 3, "why")))
    assert str(error) == "3 messages for orders/b:1 were not sent: why"
