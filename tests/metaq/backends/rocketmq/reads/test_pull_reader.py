"""The reader against a scripted broker: every answer that a pull can get, and what comes out of the range."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from rocketmq_clients import PullBench, on_scripted_cluster

from metaq.backends.rocketmq.errors import AccessDenied, OffsetOutOfRange, RequestRefused
from metaq.backends.rocketmq.pool import SessionPool
from metaq.backends.rocketmq.reads.pull_reader import PullSettings, ReadFrom, RecordRun, pull_range
from metaq.backends.rocketmq.reads.pulls import Subscription
from metaq.errors import ConnectionFailed, DataMissing, MetaqError, ProtocolError
from metaq.formats.rocketmq.records import Record, encode_record, read_records
from metaq.model import OffsetRange, Partition
from metaq.protocols.remoting.codes import ResponseCode
from metaq.protocols.remoting.command import RemotingCommand
from metaq.protocols.remoting.headers.pulls import PullMessage
from metaq.testing.rocketmq_server import ScriptedCluster

PULL = PullMessage.CODE
QUEUE = Partition("broker-a", 0)
MESSAGES = [f"message {number}".encode() for number in range(500)]


class Bench(PullBench):
    """A cluster with 500 messages in the only queue of ``orders``, of master and slave."""

    def __init__(self, cluster: ScriptedCluster) -> None:
        super().__init__(cluster, MESSAGES)

    def runs(self, start: int = 0, end: int = 500, **changes: object) -> list[RecordRun]:
        settings = replace(self.settings, **changes)  # type: ignore[arg-type]
        found = []
        position = start
        for run in pull_range(self.pool, self.directory, "orders", QUEUE, OffsetRange(start, end), settings):
            assert run.start == position
            position = run.end
            found.append(run)
        assert position == max(start, end)
        return found

    def bodies(self, start: int = 0, end: int = 500, **changes: object) -> list[bytes]:
        return [record.body for run in self.runs(start, end, **changes) for record in read_records(run.data)]

    def tamper(self, change: Callable[[RemotingCommand, RemotingCommand], RemotingCommand]) -> None:
        """Have answers to pulls changed."""
        self.broker.tamper = lambda request, answer: change(request, answer) if request.code == PULL else answer

    def pulls(self) -> list[int]:
        """The offsets that were asked for."""
        return [int(each.ext["queueOffset"]) for each in self.broker.requests if each.code == PULL]


@pytest.fixture
def bench() -> Iterator[Bench]:
    with on_scripted_cluster(Bench) as bench:
        yield bench


@pytest.mark.parametrize(("start", "end"), [(0, 500), (0, 1), (17, 18), (31, 33), (499, 500), (3, 480), (5, 5), (9, 5)])
@pytest.mark.parametrize("in_flight", [1, 3, 16])
def test_a_range_is_read_once_and_in_order(bench: Bench, start: int, end: int, in_flight: int) -> None:
    assert bench.bodies(start, end, in_flight=in_flight) == MESSAGES[start:end]
    asked = bench.pulls()
    assert asked == list(range(start, end, 32))  # nothing asked twice
    assert bench.pool.idle_count(bench.broker.address()) == (1 if start < end else 0)


def test_every_pull_names_the_broker_and_brings_its_subscription(bench: Bench) -> None:
    bench.bodies(0, 64)
    for command in bench.broker.requests:
        assert command.ext["bname"] == "broker-a"
        assert (command.ext["sysFlag"], command.ext["suspendTimeoutMillis"]) == ("4", "0")


def test_answers_that_overtake_each_other_are_put_in_order(bench: Bench) -> None:
    delays = iter([0.03, 0.0, 0.02, 0.0, 0.01] * 10)
    bench.broker.latency_s = lambda command: next(delays)
    assert bench.bodies() == MESSAGES


def test_fewer_messages_than_asked_leave_a_gap_that_is_read_next(bench: Bench) -> None:
    def shorten(request: RemotingCommand, answer: RemotingCommand) -> RemotingCommand:
        """As a broker that reads from its disk: 8 messages at most."""
        records = list(read_records(answer.body))[:8]
        next_offset = int(request.ext["queueOffset"]) + len(records)
        ext = {**answer.ext, "nextBeginOffset": str(next_offset)}
        return replace(answer, body=b"".join(map(encode_record, records)), ext=ext)

    bench.tamper(shorten)
    assert bench.bodies() == MESSAGES
    assert len(bench.pulls()) < 500 / 8 * 1.5  # it learned to ask for 8


def test_large_messages_limit_what_is_in_flight(bench: Bench) -> None:
    bench.cluster.create_topic("orders", 1)
    large = [b"x" * 100_000] * 40
    bench.cluster.append("orders", QUEUE, large)
    assert bench.bodies(500, 540, bytes_max=400_000) == large


@pytest.mark.parametrize(
    ("expression", "wanted"),
    [("red", {0}), ("red || blue", {0, 2}), ("none", set()), (" * ", {0, 1, 2}), ("", {0, 1, 2})],
)
def test_a_filter_moves_on_where_it_finds_nothing(bench: Bench, expression: str, wanted: set[int]) -> None:
    for number in range(3000):
        bench.cluster.append("orders", QUEUE, [b"%d" % number], tag=("red", "green", "blue")[number // 5 % 3])
    found = bench.bodies(500, 3500, subscription=Subscription(expression))
    assert found == [b"%d" % number for number in range(3000) if number // 5 % 3 in wanted]


def test_sql_is_the_brokers_business(bench: Bench) -> None:
    bench.cluster.append("orders", QUEUE, [b"cheap"], properties={"price": "5"})
    bench.cluster.append("orders", QUEUE, [b"dear"], properties={"price": "50"})
    bench.broker.answers.sql["price > 10"] = lambda properties: int(properties.get("price", "0")) > 10
    assert bench.bodies(0, 502, subscription=Subscription("price > 10", "SQL92")) == [b"dear"]
    with pytest.raises(RequestRefused, match=r"the SQL92 expression 'price >' on topic orders with SUBSCRIPTION_PARSE"):
        bench.bodies(subscription=Subscription("price >", "SQL92"))


def test_a_slave_that_does_not_know_the_topic_yet(bench: Bench) -> None:
    bench.directory.queues("orders")
    bench.cluster.stop_broker("broker-a", 0)
    bench.broker.refuse(PULL, ResponseCode.TOPIC_NOT_EXIST, "topic[orders] not exist", times=20)
    assert bench.bodies() == MESSAGES


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (ResponseCode.SYSTEM_BUSY, "[REJECTREQUEST]system busy, start flow control for a while"),
        (ResponseCode.SYSTEM_ERROR, "[TIMEOUT_CLEAN_QUEUE]broker busy"),
        (ResponseCode.FLOW_CONTROL, "slow down"),
        (ResponseCode.GO_AWAY, "shutting down"),
    ],
)
def test_a_busy_broker_is_asked_again(bench: Bench, code: int, text: str) -> None:
    bench.broker.refuse(PULL, code, text, times=2)
    assert bench.bodies() == MESSAGES
    assert bench.clock.slept_s
    bench.broker.refuse(PULL, code, text, times=100)
    with pytest.raises(RequestRefused, match=f"refused pull of topic orders queue broker-a:0 .*{code}"):
        bench.bodies()


def test_lost_connections_do_not_lose_or_repeat_messages(bench: Bench) -> None:
    for _ in range(3):
        bench.broker.disconnect(PULL)
        assert bench.bodies() == MESSAGES
    bench.broker.disconnect(PULL, times=100)
    with pytest.raises(ConnectionFailed, match="pull of topic orders queue broker-a:0 at offset 0"):
        bench.bodies()


def test_a_master_that_is_gone_is_replaced_by_its_slave(bench: Bench) -> None:
    bench.directory.queues("orders")
    bench.cluster.stop_broker("broker-a", 0)
    assert bench.bodies() == MESSAGES
    bench.cluster.start_broker("broker-a", 0)
    bench.cluster.stop_broker("broker-a", 1)
    assert bench.bodies() == MESSAGES


def test_a_master_that_moved_is_found_in_the_middle_of_a_range(bench: Bench) -> None:
    bench.cluster.stop_broker("broker-a", 1)
    runs = pull_range(
        bench.pool, bench.directory, "orders", QUEUE, OffsetRange(0, 500), replace(bench.settings, in_flight=1)
    )
    count = next(runs).records
    bench.cluster.move_broker("broker-a", 0)
    assert count + sum(run.records for run in runs) == 500


def test_suggestions_are_followed_unless_the_master_is_wanted(bench: Bench) -> None:
    slave, master = bench.broker.address(1), bench.broker.address(0)
    bench.broker.answers.suggested_id = 1
    assert bench.bodies() == MESSAGES
    assert bench.pool.idle_count(slave) == 1
    bench.pool.close()
    bench.pool = SessionPool(clock=bench.clock)
    assert bench.bodies(read_from=ReadFrom.MASTER) == MESSAGES
    assert (bench.pool.idle_count(slave), bench.pool.idle_count(master)) == (0, 1)


@pytest.mark.parametrize("lag", [1, 100, 500])
def test_a_slave_that_is_behind_gives_way_to_its_master(bench: Bench, lag: int) -> None:
    bench.broker.answers.lag, bench.broker.answers.suggested_id = lag, 1
    bench.tamper(lambda request, answer: answer)
    assert bench.bodies(read_from=ReadFrom.SUGGESTED) == MESSAGES


def test_messages_that_come_late_are_waited_for(bench: Bench) -> None:
    def late(seconds: float) -> None:
        bench.clock.advance(seconds)
        if len(bench.clock.slept_s) == 5:
            bench.cluster.append("orders", QUEUE, [b"late"] * 10)
        bench.clock.slept_s.append(seconds)

    bench.clock.sleep = late  # type: ignore[method-assign]
    assert bench.bodies(480, 510) == [*MESSAGES[480:], *[b"late"] * 10]


def test_messages_that_do_not_come_are_reported(bench: Bench) -> None:
    with pytest.raises(DataMissing, match="orders queue broker-a:0 has no data at offset 500, expected up to 510"):
        bench.bodies(480, 510, wait_s=3.0)
    assert sum(bench.clock.slept_s) == pytest.approx(3.0)


def test_removed_messages_are_lost_data(bench: Bench) -> None:
    bench.cluster.remove_below("orders", QUEUE, 100)
    with pytest.raises(OffsetOutOfRange) as caught:
        bench.bodies(50, 200)
    error = caught.value
    assert (error.asked, error.first, error.end, error.lost) == (50, 100, 500, True)
    assert str(error) == "orders queue broker-a:0 has offsets 100 to 500, not 50: older messages were removed"


def test_a_queue_that_ends_before_the_range_was_truncated(bench: Bench) -> None:
    with pytest.raises(OffsetOutOfRange) as caught:
        bench.bodies(600, 700)
    assert (caught.value.asked, caught.value.end, caught.value.lost) == (600, 500, False)
    assert "the queue was created again, or its end was lost" in str(caught.value)


def test_retention_in_the_middle_of_a_read_is_lost_data_where_it_happened(bench: Bench) -> None:
    runs = pull_range(
        bench.pool, bench.directory, "orders", QUEUE, OffsetRange(0, 500), replace(bench.settings, in_flight=1)
    )
    first = next(runs)
    bench.cluster.remove_below("orders", QUEUE, 300)
    with pytest.raises(OffsetOutOfRange) as caught:
        list(runs)
    assert (first.end, caught.value.asked, caught.value.first) == (32, 32, 300)


def _only(offsets: Callable[[int], bool]) -> Callable[[RemotingCommand, RemotingCommand], RemotingCommand]:
    return lambda request, answer: replace(
        answer, body=b"".join(encode_record(each) for each in read_records(answer.body) if offsets(each.queue_offset))
    )


def test_removed_messages_are_no_messages_that_a_filter_left_out(bench: Bench) -> None:
    def removing(request: RemotingCommand, answer: RemotingCommand) -> RemotingCommand:
        if int(request.ext["queueOffset"]) >= 40:
            return answer
        ext = {**answer.ext, "nextBeginOffset": "40"}
        remark = "MESSAGE_WAS_REMOVING"
        return replace(answer, code=ResponseCode.PULL_RETRY_IMMEDIATELY, remark=remark, ext=ext, body=b"")

    bench.tamper(removing)
    with pytest.raises(OffsetOutOfRange) as caught:
        bench.runs(subscription=Subscription("red"))
    assert (caught.value.asked, caught.value.first, caught.value.lost) == (0, 40, True)
    assert bench.bodies(40, 500) == MESSAGES[40:]


def test_missing_offsets_are_lost_data_unless_gaps_are_allowed(bench: Bench) -> None:
    bench.tamper(_only(lambda offset: not 100 <= offset < 110))
    settings = replace(bench.settings, in_flight=1)
    runs = pull_range(bench.pool, bench.directory, "orders", QUEUE, OffsetRange(0, 500), settings)
    assert [next(runs).end for _ in range(4)] == [32, 64, 96, 100]
    with pytest.raises(OffsetOutOfRange) as caught:
        next(runs)
    assert (caught.value.asked, caught.value.first, caught.value.lost) == (100, 110, True)
    assert bench.bodies(gaps_allowed=True) == MESSAGES[:100] + MESSAGES[110:]


def _record(**changes: object) -> bytes:
    return encode_record(Record("orders", 0, 0, b"x")._replace(**changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        ({"body": _record(topic="other")}, "the record at offset 0 or after: it is of topic 'other'"),
        ({"body": _record(queue_id=5)}, "it is of queue 5"),
        ({"body": _record()[:-3]}, "it is cut after"),
        ({"body": _record() + _record()}, "its offset 0 follows 0"),
        ({"body": b"not records, but long enough to be looked at closely" * 3}, "its magic is"),
        ({"next": "0"}, "was answered with offset 0 to go on at"),
        ({"next": "-5"}, "was answered with offset -5 to go on at"),
        ({"next": "none"}, "nextBeginOffset"),
        ({"code": 20, "next": "0", "body": b""}, "was answered with offset 0 to go on at"),
    ],
)
def test_answers_that_no_broker_gives_are_one_sentence(bench: Bench, answer: dict[str, object], sentence: str) -> None:
    def change(request: RemotingCommand, right: RemotingCommand) -> RemotingCommand:
        ext = {**right.ext, "nextBeginOffset": str(answer.get("next", "1"))}
        return replace(right, code=answer.get("code", 0), body=answer.get("body", right.body), ext=ext)  # type: ignore[arg-type]

    bench.tamper(change)
    with pytest.raises(ProtocolError) as caught:
        bench.bodies(0, 1)
    assert sentence in str(caught.value)
    assert str(bench.broker.address()) in str(caught.value)
    assert bench.pool.idle_count(bench.broker.address()) == 0


def test_older_records_than_asked_are_not_delivered(bench: Bench) -> None:
    bench.tamper(lambda request, answer: replace(answer, body=_record() + answer.body))
    assert bench.bodies(10, 20) == MESSAGES[10:20]


def test_an_endless_20_ends_at_the_end_of_the_range(bench: Bench) -> None:
    def nothing(request: RemotingCommand, answer: RemotingCommand) -> RemotingCommand:
        ext = {**answer.ext, "nextBeginOffset": str(int(request.ext["queueOffset"]) + 1)}
        return replace(answer, code=20, body=b"", ext=ext)

    bench.tamper(nothing)
    assert bench.bodies(0, 60, subscription=Subscription("red")) == []
    with pytest.raises(OffsetOutOfRange):  # without a filter there is nothing that could have been left out
        bench.bodies(0, 60)


@pytest.mark.parametrize(
    ("code", "text", "error"),
    [
        (ResponseCode.TOPIC_NOT_EXIST, "topic[orders] not exist, apply first please!", RequestRefused),
        (ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "subscription group [g] does not exist", RequestRefused),
        (ResponseCode.NO_PERMISSION, "the topic[orders] pulling message is forbidden", RequestRefused),
        (ResponseCode.NO_PERMISSION, "user reader has no permission to access Topic:orders", AccessDenied),
        (ResponseCode.SYSTEM_ERROR, "org.apache.rocketmq.acl.common.AclException: No accessKey", AccessDenied),
    ],
)
def test_refusals_are_not_tried_again(bench: Bench, code: int, text: str, error: type[MetaqError]) -> None:
    bench.broker.refuse(PULL, code, text, times=100)
    with pytest.raises(error) as caught:
        bench.bodies(0, 1)
    assert type(caught.value) is error
    assert text in str(caught.value)
    assert bench.clock.slept_s == []
    if error is AccessDenied:
        rights = "that the account has SUB and GET on the topic and SUB on the group"
        advice = rights if "permission" in text else "accessKey and secretKey"
        assert str(caught.value).endswith(f"; check {advice}")


@pytest.mark.parametrize(
    ("name", "value"), [("messages_max", 0), ("in_flight", 0), ("in_flight", 999), ("bytes_max", 0)]
)
def test_wrong_settings(name: str, value: int) -> None:
    with pytest.raises(ValueError, match=f"{name}={value}: expected"):
        PullSettings(**{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [("||", "TAG"), ("a", "LUA"), (" ", "SQL92")])
def test_wrong_subscriptions(wrong: tuple[str, str]) -> None:
    with pytest.raises(ValueError, match="expected"):
        Subscription(*wrong)
