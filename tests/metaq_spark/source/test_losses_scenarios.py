"""Stories of brokers that go away, forget, or begin anew while a query runs; over brokers in memory."""

from __future__ import annotations

import logging

import pytest
from metaq_harness import NO_EXTENSIONS, Harness
from metaq_harness import offsets as at

from metaq.errors import BrokersMissing, ConnectionFailed
from metaq.protocols.text.commands import Command, GetOffset, Stats
from metaq_spark.errors import BrokerNotNamed, DataLoss, NotSelected
from metaq_spark.spark_version import ReadAllAvailable


@pytest.fixture(params=["ours", "java"])
def harness(request: pytest.FixtureRequest) -> Harness:
    return Harness() if request.param == "ours" else Harness(extensions=NO_EXTENSIONS)


def test_one_broker_away_holds_its_partitions_and_no_others(harness: Harness, caplog: pytest.LogCaptureFixture) -> None:
    harness.put("orders", 0, 0, b"a1")
    harness.put("orders", 1, 0, b"b1", b"b2")
    reader = harness.stream(startingOffsets="earliest")
    start = reader.initialOffset()
    harness.brokers[1].kill()
    position, values = harness.micro_batch(reader, start)
    assert values == [b"a1"]
    assert at(position) == {"0-0": 22, "1-0": 0}
    harness.put("orders", 0, 0, b"a2")
    slept = len(harness.clock.slept_s)
    position, values = harness.micro_batch(reader, position)
    assert values == [b"a2"]
    assert len(harness.clock.slept_s) == slept  # the others do not wait for it with every look
    harness.brokers[1].start()
    assert harness.micro_batch(reader, position)[1] == [b"b1", b"b2"]
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    warnings = [text for text in warnings if "does not list it" not in text]  # of partitions without messages
    assert [text.split(":")[0] for text in warnings] == ["broker b1"] * 2
    assert "Its partitions wait; the query continues with the others" in warnings[0]
    assert "is back after" in warnings[1]


def test_a_broker_that_is_away_for_too_long_is_named(harness: Harness) -> None:
    harness.put("orders", 0, 0, b"a1")
    harness.put("orders", 1, 0, b"b1")
    reader = harness.stream(startingOffsets="earliest", brokerWaitMs="20s", lossGraceMs="1s")
    position, _ = harness.micro_batch(reader, reader.initialOffset())
    harness.brokers[1].kill()
    for _ in range(15):
        assert harness.micro_batch(reader, position) == (position, [])
    harness.clock.advance(10)
    with pytest.raises(ConnectionFailed, match=r"broker b1:1: connect failed"):
        harness.micro_batch(reader, position)


def test_a_rebooting_broker_is_waited_for_and_its_return_logged(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    harness.put("orders", 1, 0, b"b1")
    reader = harness.stream(startingOffsets="earliest")
    position, _ = harness.micro_batch(reader, reader.initialOffset())
    harness.brokers[1].kill()
    for _ in range(3):
        assert harness.micro_batch(reader, position) == (position, [])
        harness.clock.advance(120)
    harness.brokers[1].start()
    harness.put("orders", 1, 0, b"b2")
    assert harness.micro_batch(reader, position)[1] == [b"b2"]
    assert "broker b1:1 is back after" in caplog.text


def test_a_run_that_ends_by_itself_does_not_end_without_a_broker(harness: Harness) -> None:
    harness.put("orders", 1, 0, b"b1")
    ending = harness.stream(startingOffsets="earliest")
    ending.prepareForTriggerAvailableNow()
    position = ending.initialOffset()
    once = harness.stream(startingOffsets="earliest")
    once.initialOffset()
    harness.brokers[1].kill()
    with pytest.raises(ConnectionFailed, match="b1:1"):
        harness.micro_batch(ending, position)
    with pytest.raises(ConnectionFailed, match="b1:1"):
        harness.micro_batch(once, position, ReadAllAvailable())
    with pytest.raises(ConnectionFailed, match="b1:1"):
        harness.stream().prepareForTriggerAvailableNow()


NARROWED = [
    ({"subscribe": "orders"}, "subscribe", "carts/0-0, carts/1-0"),
    ({"subscribePattern": "ord.*"}, "subscribePattern", "carts/0-0, carts/1-0"),
    ({"assign": '{"orders": ["0-0"], "carts": ["0-0", "1-0"]}'}, "assign", "orders/0-1, orders/1-0"),
]


@pytest.mark.parametrize(("narrowed", "option", "names"), NARROWED)
def test_a_narrowed_selection_is_no_loss_and_nothing_waits(
    harness: Harness, caplog: pytest.LogCaptureFixture, narrowed: dict[str, str], option: str, names: str
) -> None:
    for topic, broker, index in (
        ("orders", 0, 0),
        ("orders", 0, 1),
        ("orders", 1, 0),
        ("carts", 0, 0),
        ("carts", 1, 0),
    ):
        harness.put(topic, broker, index, b"1")
    before, _ = harness.drain(harness.stream(subscribe="orders,carts", startingOffsets="earliest"))
    harness.put("orders", 0, 0, b"2")
    before_s = harness.clock.monotonic()
    for run in (harness.stream, harness.available_now):
        with pytest.raises(
            NotSelected, match=f"checkpoint has {names}, which the option {option} does not sel.*drop D"
        ):
            harness.drain(run(**narrowed), before) if run == harness.stream else run(before, **narrowed)
    position, read = harness.available_now(before, failOnDataLoss="false", **narrowed)
    assert read == [[b"2"]]
    assert harness.clock.monotonic() - before_s < 10
    said = f"the option {option} does not select {names}, so nothing of it is read"
    assert [record.message for record in caplog.records].count(said) == 1
    harness.put("carts", 1, 0, b"3")  # what is selected again goes on where it was
    assert harness.available_now(position, subscribe="orders,carts")[1] == [[b"3"]]


def test_the_checkpoint_of_another_topic_is_said_to_be_that(harness: Harness) -> None:
    harness.put("carts", 0, 0, b"1")
    position, _ = harness.drain(harness.stream(subscribe="carts", startingOffsets="earliest"))
    with pytest.raises(NotSelected, match=r"carts/0-0, which the option subscribe.*; for another query, give"):
        harness.drain(harness.stream(subscribe="orders"), position)


def test_a_broker_that_a_read_requires_and_nobody_finds(harness: Harness) -> None:
    harness.put("orders", 0, 0, b"1")
    words = r"option requireBrokers: broker 7 is none of the brokers found by the option brokers \(b0:1, b1:1\)"
    for read in (harness.batch, lambda **more: harness.stream(**more).initialOffset()):
        with pytest.raises(BrokersMissing, match=words):
            read(requireBrokers="0,7")
    assert harness.batch(requireBrokers="0,1") == [b"1"]


@pytest.mark.parametrize("named", [{"startingOffsets": '{"orders": {"0-0": 0, "7-0": -2}}'}])
def test_a_partition_of_an_unknown_broker_is_refused_at_any_offset(harness: Harness, named: dict[str, str]) -> None:
    harness.put("orders", 0, 0, b"1")
    with pytest.raises(BrokerNotNamed, match="orders/7-0 is on broker 7, but the options name only"):
        harness.batch(**named)
    with pytest.raises(BrokerNotNamed, match="orders/7-0 is on broker 7, but the options name only"):
        harness.stream(**named).initialOffset()


def went_back(harness: Harness) -> bytearray:
    """A broker comes back with less than it had: the last of three messages is missing; returns its bytes."""
    content = harness.brokers[0].partition("orders", 0).segments[0][1]
    tail = content[42:]
    del content[42:]
    return tail


def test_an_end_that_goes_back_and_returns_is_no_loss(harness: Harness) -> None:
    harness.put("orders", 0, 0, b"1", b"2", b"3")
    reader = harness.stream(startingOffsets="earliest")
    position, _ = harness.drain(reader)
    tail = went_back(harness)
    for _ in range(10):
        assert harness.micro_batch(reader, position) == (position, [])
    harness.brokers[0].partition("orders", 0).append(tail)
    harness.put("orders", 0, 0, b"4")
    assert harness.drain(reader, position)[1] == [[b"4"]]
    # It had recovered, so the next time the clock starts anew.
    harness.clock.advance(25)
    assert harness.micro_batch(reader, position)[1] == [b"4"]


def test_an_end_that_stays_back_is_loss_after_the_grace(harness: Harness) -> None:
    harness.put("orders", 0, 0, b"1", b"2", b"3")
    harness.put("orders", 0, 1, b"other")
    strict = harness.stream(startingOffsets="earliest")
    lenient = harness.stream(failOnDataLoss="false")
    position, _ = harness.drain(strict)
    went_back(harness)
    for reader in (strict, lenient):
        harness.micro_batch(reader, position)
    harness.clock.advance(30)
    with pytest.raises(DataLoss, match=r"orders/0-0: offset 63 was to be read next, but the broker holds \[0, 42\)"):
        harness.micro_batch(strict, position)
    position, _ = harness.micro_batch(lenient, position)
    assert at(position) == {"0-0": 42, "0-1": 25}
    harness.put("orders", 0, 0, b"33")
    assert harness.drain(lenient, position)[1] == [[b"33"]]


def test_an_unreachable_partition_does_not_flood_the_brokers(harness: Harness) -> None:
    harness.put("orders", 0, 0, b"1", b"2", b"3")
    reader = harness.stream(startingOffsets="earliest", offsetPollMs="100")
    position, _ = harness.drain(reader)
    went_back(harness)
    before = harness.count(Stats)
    for _ in range(100):  # one second at Spark's pace
        harness.clock.advance(0.01)
        assert reader.latestOffset(position, reader.getDefaultReadLimit()) == position
    rounds = (harness.count(Stats) - before) / (2 * len(harness.brokers))
    assert rounds <= 12


def test_available_now_waits_for_an_end_that_went_back(harness: Harness) -> None:
    harness.put("orders", 0, 0, b"1", b"2", b"3")
    position, _ = harness.available_now()
    tail, sleep = went_back(harness), harness.clock.sleep

    def comes_back(seconds: float) -> None:
        sleep(seconds)
        if len(harness.clock.slept_s) == 5:
            harness.brokers[0].partition("orders", 0).append(tail)
            harness.put("orders", 0, 0, b"4")

    harness.clock.sleep = comes_back  # type: ignore[method-assign]
    position, batches = harness.available_now(position)
    assert batches == []  # what came after the run began is for the next one
    assert harness.available_now(position)[1] == [[b"4"]]


def test_available_now_reports_a_loss_instead_of_ending_in_silence(harness: Harness) -> None:
    harness.put("orders", 0, 0, b"1", b"2", b"3")
    position, _ = harness.available_now()
    went_back(harness)
    with pytest.raises(DataLoss, match="the broker lost its end"):
        harness.available_now(position)
    after, _ = harness.available_now(position, failOnDataLoss="false")
    assert at(after) == {"0-0": 42}


def test_a_topic_deleted_while_running(harness: Harness, caplog: pytest.LogCaptureFixture) -> None:
    harness.put("orders", 0, 0, b"1", b"2")
    strict, lenient = harness.stream(startingOffsets="earliest"), harness.stream(failOnDataLoss="false")
    position, _ = harness.drain(strict)
    harness.put("orders", 0, 0, b"never read")
    harness.clock.advance(1)
    planned = strict.latestOffset(position, strict.getDefaultReadLimit())
    harness.brokers[0].partitions.clear()
    with pytest.raises(DataLoss):  # by the tasks of a batch under way
        harness.replay(strict, position, planned)
    assert harness.replay(lenient, position, planned) == []
    for reader in (strict, lenient):
        assert harness.micro_batch(reader, position) == (position, [])
    harness.clock.advance(30)
    with pytest.raises(DataLoss, match=r"orders/0-0: the brokers do not list it any more\. Either it was deleted, or"):
        harness.micro_batch(strict, position)
    caplog.clear()
    for _ in range(5):
        assert harness.micro_batch(lenient, position) == (position, [])
    assert len(caplog.records) == 1


def test_a_partition_that_vanishes_between_requests_is_looked_up(harness: Harness) -> None:
    harness.put("orders", 0, 0, *[b"%d" % n for n in range(10)])
    harness.put("orders", 1, 0, *[b"%d" % n for n in range(10)])
    reader = harness.stream(startingOffsets="earliest", maxBytesPerTrigger="100")
    start = reader.initialOffset()
    broker = harness.brokers[0]

    def vanish(command: Command) -> None:
        if isinstance(command, GetOffset):
            broker.partitions.clear()

    broker.before_command = vanish
    position, values = harness.micro_batch(reader, start)
    assert at(position)["0-0"] == 0
    assert values == [b"0", b"1", b"2", b"3"]


def test_a_partition_that_vanishes_before_planning_is_left_to_its_task(harness: Harness) -> None:
    harness.put("orders", 0, 0, *[b"%d" % n for n in range(10)])
    harness.put("orders", 1, 0, *[b"%d" % n for n in range(10)])
    options = {"startingOffsets": "earliest", "minPartitions": "6"}
    strict, lenient = harness.stream(**options), harness.stream(**options, failOnDataLoss="false")
    start = strict.initialOffset()
    end, values = harness.micro_batch(strict, start)
    assert len(values) == 20
    harness.brokers[0].partitions.clear()
    with pytest.raises(DataLoss, match="orders/0-0"):
        harness.replay(strict, start, end)
    assert harness.replay(lenient, start, end) == [b"%d" % n for n in range(10)]


def test_a_recreated_topic_under_a_limit_loses_none_of_its_messages() -> None:
    harness = Harness()
    harness.put("orders", 0, 0, b"1", b"2")
    position, _ = harness.drain(harness.stream(startingOffsets="earliest"))
    harness.brokers[0].recreate("orders", 0)
    payloads = [b"new %d" % n for n in range(20)]
    harness.put("orders", 0, 0, *payloads)
    lenient = harness.stream(failOnDataLoss="false", maxOffsetsPerTrigger="6", minOffsetsPerTrigger="2")
    after, batches = harness.drain(lenient, position)
    assert batches == [payloads[:6], payloads[6:12], payloads[12:18], payloads[18:]]
    incarnation = harness.brokers[0].partition("orders", 0).incarnation
    assert after["incarnations"] == {"orders": {"0-0": incarnation}}


def test_a_topic_made_again_during_available_now_is_reported() -> None:
    harness = Harness()
    harness.put("orders", 0, 0, *[b"%d" % n for n in range(10)])
    for fail in ("true", "false"):
        reader = harness.stream(startingOffsets="earliest", maxOffsetsPerTrigger="4", failOnDataLoss=fail)
        reader.prepareForTriggerAvailableNow()
        position, _ = harness.micro_batch(reader, reader.initialOffset())
        harness.brokers[0].recreate("orders", 0)
        harness.put("orders", 0, 0, *[b"new %d" % n for n in range(30)])
        if fail == "true":
            with pytest.raises(DataLoss, match="of another incarnation"):
                harness.micro_batch(reader, position)
        else:
            position, batches = harness.drain(reader, position)
            assert (at(position), batches) == ({"0-0": 0}, [])


def test_a_checkpoint_of_the_first_form_goes_on_and_learns_incarnations() -> None:
    harness = Harness()
    harness.put("orders", 0, 0, b"1", b"2")
    old = {"v": 1, "topics": {"orders": {"0-0": 21}}}
    position, batches = harness.drain(harness.stream(), old)
    assert batches == [[b"2"]]
    assert position["v"] == 3
    assert position["incarnations"] == {"orders": {"0-0": harness.brokers[0].partition("orders", 0).incarnation}}
    old = {"v": 1, "topics": {"orders": {"0-0": 42}}}
    adopted, values = harness.micro_batch(harness.stream(), old)
    assert (adopted, values) == (position, [])


def test_a_checkpoint_of_the_first_form_stays_as_it_is_with_a_java_broker() -> None:
    harness = Harness(extensions=NO_EXTENSIONS)
    harness.put("orders", 0, 0, b"1", b"2")
    old = {"v": 1, "topics": {"orders": {"0-0": 42}}}
    assert harness.micro_batch(harness.stream(), old) == (old, [])  # equal text: Spark makes no batch of it
