"""Stories of the source over brokers in memory: what the driver plans, what the tasks then read."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from metaq_harness import NO_EXTENSIONS, Harness, Tree

from metaq.errors import ConnectionFailed, CorruptFrame, TopicNotFound
from metaq.protocols.text.commands import Command, Get, Stats
from metaq.testing.memory import MemoryBroker
from metaq_spark.errors import BrokerNotNamed, CheckpointError, DataLoss, OptionError
from metaq_spark.source.stream_reader import StreamReader
from metaq_spark.spark_version import ReadAllAvailable, ReadMaxBytes


@pytest.fixture(params=["ours", "java"])
def harness(request: pytest.FixtureRequest) -> Harness:
    return Harness() if request.param == "ours" else Harness(extensions=NO_EXTENSIONS)


def test_a_batch_reads_all_partitions_of_all_brokers_in_order(harness: Harness) -> None:
    harness.put("orders", 1, 0, b"x", b"y")
    harness.put("orders", 0, 1, b"a", b"", b"b")
    harness.put("carts", 0, 0, b"no")
    assert harness.batch() == [b"a", b"", b"b", b"x", b"y"]
    assert harness.batch(subscribe="carts,orders") == [b"no", b"a", b"", b"b", b"x", b"y"]


def test_a_batch_between_given_offsets(harness: Harness) -> None:
    middle = harness.put("orders", 0, 0, b"1", b"22")
    harness.put("orders", 0, 0, b"333", b"4444")
    harness.put("orders", 0, 1, b"other")
    after_one = '{"orders": {"0-0": 21, "0-1": -1}}'
    assert harness.batch(startingOffsets=after_one) == [b"22", b"333", b"4444"]
    assert harness.batch(endingOffsets=f'{{"orders": {{"0-0": {middle}, "0-1": -2}}}}') == [b"1", b"22"]
    # An end inside a message: the message begins before it, so it belongs to the range.
    assert harness.batch(startingOffsets=after_one, endingOffsets='{"orders": {"0-0": 22, "0-1": -1}}') == [b"22"]


@pytest.mark.parametrize(
    ("offsets", "words"),
    [
        ('{"orders": {"0-0": 5}}', "offset 5 of orders/0-0 is inside a message; the message starts at 0"),
        ('{"orders": {"0-1": 0}}', "no value for orders/0-0; expected one for every partition"),
        ('{"orders": {"0-0": 0, "1-7": 20}}', "orders/1-7: no messages, or not subscribed"),
    ],
)
def test_offsets_given_wrongly(harness: Harness, offsets: str, words: str) -> None:
    harness.put("orders", 0, 0, b"payload")
    with pytest.raises(OptionError) as caught:
        harness.batch(startingOffsets=offsets)
    assert words in str(caught.value)
    with pytest.raises(OptionError):
        harness.stream(startingOffsets=offsets).initialOffset()


def test_an_empty_topic_is_an_empty_batch_an_unknown_one_an_error(harness: Harness) -> None:
    assert harness.batch() == []
    with pytest.raises(TopicNotFound, match=r"topic 'ordres' does not exist.*topics there: carts, orders"):
        harness.batch(subscribe="ordres")
    with pytest.raises(TopicNotFound, match="topics there: carts, orders"):
        harness.stream(subscribe="orders,ordres").initialOffset()


def test_a_stream_from_earliest_follows_what_is_written(harness: Harness) -> None:
    harness.put("orders", 0, 0, b"1")
    reader = harness.stream(startingOffsets="earliest")
    start = reader.initialOffset()
    assert start["topics"] == {"orders": {"0-0": 0}}
    end, values = harness.micro_batch(reader, start)
    assert values == [b"1"]
    assert harness.micro_batch(reader, end) == (end, [])
    harness.put("orders", 0, 0, b"2")
    assert harness.micro_batch(reader, end)[1] == [b"2"]


def behind_an_old_message(harness: Harness) -> tuple[StreamReader, Tree]:
    """A stream that begins where a partition with one message ends."""
    harness.put("orders", 0, 0, b"old")
    reader = harness.stream()
    return reader, reader.initialOffset()


def test_a_stream_from_latest_begins_at_the_end_and_says_so_twice(harness: Harness) -> None:
    reader, start = behind_an_old_message(harness)
    harness.put("orders", 0, 0, b"new")
    assert reader.initialOffset() == start
    assert harness.micro_batch(reader, start)[1] == [b"new"]


def test_a_new_partition_is_read_from_its_first_byte(harness: Harness) -> None:
    reader, start = behind_an_old_message(harness)
    harness.put("orders", 1, 1, b"first of its partition")
    noted, values = harness.micro_batch(reader, start)
    assert (values, noted["topics"]["orders"]) == ([], {"0-0": 23, "1-1": 0})
    assert harness.micro_batch(reader, noted)[1] == [b"first of its partition"]


def test_a_stream_waits_for_a_topic_without_messages(harness: Harness) -> None:
    reader = harness.stream()
    start = reader.initialOffset()
    assert start["topics"] == start["incarnations"] == {}
    assert harness.micro_batch(reader, start) == (start, [])
    harness.put("orders", 0, 0, b"at last")
    noted, _ = harness.micro_batch(reader, start)
    assert harness.micro_batch(reader, noted)[1] == [b"at last"]


def test_a_partition_that_a_lookup_came_without_keeps_its_place(harness: Harness) -> None:
    end = harness.put("orders", 0, 0, b"1")
    reader = harness.stream(startingOffsets="earliest")
    position, _ = harness.micro_batch(reader, reader.initialOffset())
    store = harness.brokers[0].partitions.pop(("orders", 0))
    assert harness.micro_batch(reader, position) == (position, [])
    harness.brokers[0].partitions["orders", 0] = store
    harness.put("orders", 0, 0, b"2")
    after, values = harness.micro_batch(reader, position)
    assert values == [b"2"]
    assert after["topics"]["orders"]["0-0"] == end + 21


def test_a_partition_that_is_missed_is_warned_about_once(harness: Harness, caplog: pytest.LogCaptureFixture) -> None:
    harness.put("orders", 0, 0, b"1")
    reader = harness.stream(startingOffsets="earliest")
    position, _ = harness.micro_batch(reader, reader.initialOffset())
    store = harness.brokers[0].partitions.pop(("orders", 0))
    for _ in range(3):
        harness.micro_batch(reader, position)
    harness.brokers[0].partitions["orders", 0] = store
    harness.micro_batch(reader, position)
    harness.brokers[0].partitions.clear()
    harness.micro_batch(reader, position)
    warnings = [record.getMessage() for record in caplog.records]
    assert [text for text in warnings if "does not list it" not in text] == 2 * [
        "the brokers do not list orders/0-0 any more; the query waits there until they do"
    ]


def test_a_limit_ends_at_messages_and_gets_everything_in_the_end(harness: Harness) -> None:
    payloads = [bytes([65 + n]) * (7 * n % 40) for n in range(30)]
    harness.put("orders", 0, 0, *payloads[:20])
    harness.put("orders", 1, 0, *payloads[20:])
    reader = harness.stream(startingOffsets="earliest")
    position, seen, batches = reader.initialOffset(), [], 0
    while True:
        after, values = harness.micro_batch(reader, position, ReadMaxBytes(150))
        if after == position:
            break
        assert 0 < sum(20 + len(value) for value in values) <= 150
        position, seen, batches = after, seen + values, batches + 1
    assert sorted(seen) == sorted(payloads)
    assert batches > 5


def test_available_now_stops_at_what_was_there(harness: Harness) -> None:
    harness.put("orders", 0, 0, b"1", b"2", b"3")
    reader = harness.stream(startingOffsets="earliest", maxBytesPerTrigger="25")
    reader.prepareForTriggerAvailableNow()
    harness.put("orders", 0, 0, b"too late")
    harness.put("orders", 0, 1, b"too late")
    position, seen = reader.initialOffset(), []
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxBytes(25)
    # "0-1" is known from the start here, since the first offset was looked up after it came; it is not read.
    while (step := harness.micro_batch(reader, position, limit))[0] != position:
        position, seen = step[0], seen + step[1]
    assert seen == [b"1", b"2", b"3"]


def test_an_idle_query_asks_the_brokers_rarely() -> None:
    harness = Harness()
    reader = harness.stream(offsetPollMs="100")
    position = reader.initialOffset()
    before = harness.count(Stats)
    for _ in range(50):  # half a second at Spark's pace
        harness.clock.advance(0.01)
        assert reader.latestOffset(position, ReadAllAvailable()) == position
        reader.reportLatestOffset()
    rounds = (harness.count(Stats) - before) / len(harness.brokers)  # who a broker is, is asked once for a connection
    assert 4 <= rounds <= 5


@pytest.mark.parametrize(("took_s", "pause_s"), [(0.0, 0.02), (0.0005, 0.02), (0.002, 0.04), (0.004, 0.08), (3.0, 0.1)])
def test_brokers_that_answer_slowly_are_asked_more_rarely(took_s: float, pause_s: float) -> None:
    harness = Harness()
    reader = harness.stream(subscribe="orders")
    position = reader.initialOffset()

    def takes_long(command: Command) -> None:
        if isinstance(command, Stats) and command.item != "":  # once in each lookup
            harness.clock.advance(took_s)

    harness.brokers[0].before_command = takes_long
    harness.clock.advance(1)
    reader.latestOffset(position, ReadAllAvailable())
    before = harness.count(Stats)
    harness.clock.advance(pause_s - 0.001)
    reader.latestOffset(position, ReadAllAvailable())
    assert harness.count(Stats) == before
    harness.clock.advance(0.002)
    reader.latestOffset(position, ReadAllAvailable())
    assert harness.count(Stats) > before


def test_progress_shows_how_far_behind_a_limited_query_is(harness: Harness) -> None:
    end = harness.put("orders", 0, 0, *[b"x"] * 10)
    reader = harness.stream(startingOffsets="earliest")
    after, _ = harness.micro_batch(reader, reader.initialOffset(), ReadMaxBytes(21))
    assert after["topics"]["orders"]["0-0"] == 21
    assert reader.reportLatestOffset()["topics"]["orders"]["0-0"] == end


def test_partitions_depend_on_their_arguments_alone(harness: Harness) -> None:
    harness.put("orders", 0, 0, b"1", b"2", b"3")
    replayed = {"v": 1, "topics": {"orders": {"0-0": 21}}}, {"v": 1, "topics": {"orders": {"0-0": 42}}}
    for reader in (harness.stream(), harness.stream(startingOffsets="earliest")):
        assert harness.values(reader, reader.partitions(*replayed)) == [b"2"]


def retention(harness: Harness) -> dict:
    """Five messages in segments of two; the oldest segment is gone."""
    harness.put("orders", 0, 0, b"1", b"2", b"3", b"4", b"5")
    store = harness.brokers[0].partition("orders", 0)
    store.drop_segments(1)
    assert store.start == 42
    return {"v": 1, "topics": {"orders": {"0-0": 21}}}


def test_messages_removed_before_they_were_read_fail_the_query() -> None:
    harness = Harness(segment_bytes_max=42)
    start = retention(harness)
    with pytest.raises(DataLoss, match=r"orders/0-0: offset 21 was to be read next, but the broker holds \[42, 105\)"):
        harness.micro_batch(harness.stream(), start)
    assert harness.micro_batch(harness.stream(failOnDataLoss="false"), start)[1] == [b"3", b"4", b"5"]


def test_messages_removed_while_a_task_reads_fail_it() -> None:
    harness = Harness(segment_bytes_max=42)
    start = retention(harness)
    end = {"v": 1, "topics": {"orders": {"0-0": 105}}}
    strict, lenient = harness.stream(), harness.stream(failOnDataLoss="false")
    with pytest.raises(DataLoss, match=r"orders/0-0.*offset 21.*moved on to offset 42.*failOnDataLoss"):
        harness.values(strict, strict.partitions(start, end))
    assert harness.values(lenient, lenient.partitions(start, end)) == [b"3", b"4", b"5"]


def test_a_partition_that_ends_too_early_fails_the_task(harness: Harness) -> None:
    harness.put("orders", 0, 0, b"1", b"2")
    start, end = {"v": 1, "topics": {"orders": {"0-0": 0}}}, {"v": 1, "topics": {"orders": {"0-0": 99}}}
    strict, lenient = harness.stream(), harness.stream(failOnDataLoss="false")
    with pytest.raises(DataLoss, match=r"orders/0-0.*42.*99"):
        harness.values(strict, strict.partitions(start, end))
    assert harness.values(lenient, lenient.partitions(start, end)) == [b"1", b"2"]


def test_a_topic_made_again_fails_the_query(harness: Harness) -> None:
    harness.put("orders", 0, 0, b"new")
    start = {"v": 1, "topics": {"orders": {"0-0": 5000}}}
    strict, reader = harness.stream(), harness.stream(failOnDataLoss="false")
    for waiting in (strict, reader):
        assert harness.micro_batch(waiting, start) == (start, [])
    harness.clock.advance(30)
    with pytest.raises(DataLoss, match=r"offset 5000.*the topic was deleted and made again"):
        harness.micro_batch(strict, start)
    after, values = harness.micro_batch(reader, start)
    assert (values, after["topics"]["orders"]["0-0"]) == ([], 23)
    harness.put("orders", 0, 0, b"newer")
    assert harness.micro_batch(reader, after)[1] == [b"newer"]


def test_before_an_end_that_went_back_is_called_loss_it_is_looked_up_again(harness: Harness) -> None:
    harness.put("orders", 0, 0, b"1")
    reader = harness.stream(startingOffsets="earliest", offsetPollMs="60000")
    reader.initialOffset()
    end = harness.put("orders", 0, 0, b"2")
    ahead_of_memory = {"v": 1, "topics": {"orders": {"0-0": end}}}
    assert reader.latestOffset(ahead_of_memory, ReadAllAvailable())["topics"] == ahead_of_memory["topics"]


def test_a_damaged_message_is_named(harness: Harness) -> None:
    harness.put("orders", 0, 0, b"good", b"evil")
    content = harness.brokers[0].partition("orders", 0).segments[0][1]
    content[-1] ^= 1
    with pytest.raises(CorruptFrame, match=r"corrupt frame in orders/0-0 at offset 24: .*checksum"):
        harness.batch()


def test_a_broker_that_restarts_while_a_task_reads_costs_nothing(harness: Harness) -> None:
    payloads = [bytes([n]) * 100 for n in range(50)]
    harness.put("orders", 0, 0, *payloads)
    broker = harness.brokers[0]
    cut = iter([False, True, False, True, True, False])

    def restart(command: Command) -> None:
        if isinstance(command, Get) and next(cut, False):
            broker.kill()
            broker.start()

    broker.before_command = restart
    assert harness.batch(fetchBytes="300") == payloads


def refuse_lookups(broker: MemoryBroker) -> Callable[[Command], None]:
    def refuse(command: Command) -> None:
        if isinstance(command, Stats):
            broker.kill()

    return refuse


def test_a_broker_that_is_gone_is_named_after_the_retries(harness: Harness) -> None:
    harness.brokers[1].kill()
    with pytest.raises(ConnectionFailed, match=r"broker b1:1: connect failed.*check that a broker listens there"):
        harness.batch(retries="2", retryIntervalMs="50")
    assert harness.clock.slept_s == [0.05, 0.1]


def test_a_lookup_survives_a_restart(harness: Harness) -> None:
    harness.put("orders", 0, 0, b"1")
    reader = harness.stream(startingOffsets="earliest")
    harness.brokers[0].before_command = refuse_lookups(harness.brokers[0])
    slept = harness.clock.sleep

    def sleep(seconds: float) -> None:
        slept(seconds)
        harness.brokers[0].before_command = lambda command: None
        harness.brokers[0].start()

    harness.clock.sleep = sleep  # type: ignore[method-assign]
    assert reader.initialOffset()["topics"] == {"orders": {"0-0": 0}}


def test_a_partition_of_a_broker_that_is_not_named(harness: Harness) -> None:
    reader = harness.stream()
    start, end = {"v": 1, "topics": {"orders": {"9-0": 0}}}, {"v": 1, "topics": {"orders": {"9-0": 20}}}
    with pytest.raises(BrokerNotNamed, match=r"orders/9-0 is on broker 9.*b0:1.*b1:1.*add the missing broker"):
        reader.partitions(start, end)


def test_the_checkpoint_of_another_source_is_refused(harness: Harness) -> None:
    with pytest.raises(CheckpointError, match="checkpoint of another source"):
        harness.stream().latestOffset({"orders": {"0": 5}}, ReadAllAvailable())
