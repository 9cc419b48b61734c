"""Stories of ``messageTypes``: the broker leaves the others out, or does not offer to; the rows are the same."""

from __future__ import annotations

import random

import pytest
from metaq_harness import ADDRESSES, NO_EXTENSIONS, Harness
from metaq_harness import offsets as at

from metaq.errors import MetaqError
from metaq.formats.frames import encode_body, encode_frame
from metaq.model import Message
from metaq.protocols.text.commands import Command, Get, GetFiltered, Result
from metaq.protocols.text.extensions import EXT_FILTER
from metaq_spark.backends.metaq.source import MetaQSource
from metaq_spark.errors import DataLoss, OptionError, ReadFailed
from metaq_spark.options.table import Use
from metaq_spark.source.batch_reader import BatchReader

TYPES = [None, "", "paid", "open", "paid late", "paid_late", "é"]


def fill(harness: Harness, count: int = 300, size: int = 40) -> list[tuple[int, str | None, bytes]]:
    """Messages of all kinds in one partition: (offset, attribute, payload) of each."""
    chance = random.Random(3)
    store, messages = harness.brokers[0].partition("orders", 0), []
    for number in range(count):
        message = Message(chance.randbytes(chance.randrange(size)), TYPES[number % len(TYPES)])
        offset = store.append(encode_frame(number << 22, *encode_body(message)))
        messages.append((offset, message.attribute, message.payload))
    return messages


def rows(harness: Harness, **options: str) -> list[tuple[int, str | None, bytes]]:
    reader = BatchReader(MetaQSource(harness.options(Use.BATCH_READ, **options), harness.pool, harness.clock))
    batches = [batch for task in reader.partitions() for batch in reader.read(task)]
    return [(row["offset"], row["attribute"], row["value"]) for batch in batches for row in batch.to_pylist()]


@pytest.fixture(params=["ours", "java"])
def harness(request: pytest.FixtureRequest) -> Harness:
    return Harness() if request.param == "ours" else Harness(extensions=NO_EXTENSIONS)


@pytest.mark.parametrize("fetch_bytes", ["1", "100", "1000", "1m"])
@pytest.mark.parametrize("types", ["paid", "paid,open", "paid_late,nobody", "nobody"])
def test_only_messages_of_the_types_come(harness: Harness, types: str, fetch_bytes: str) -> None:
    messages = fill(harness, 70)
    want = [message for message in messages if message[1] in types.split(",")]
    assert rows(harness, messageTypes=types, fetchBytes=fetch_bytes) == want


def test_the_attribute_need_not_be_among_the_columns(harness: Harness) -> None:
    messages = fill(harness)
    reader = BatchReader(
        MetaQSource(harness.options(Use.BATCH_READ, messageTypes="paid", columns="offset"), harness.pool, harness.clock)
    )
    batches = [batch for task in reader.partitions() for batch in reader.read(task)]
    assert {name for batch in batches for name in batch.schema.names} == {"offset"}
    found = [offset for batch in batches for offset in batch["offset"].to_pylist()]
    assert found == [offset for offset, attribute, _ in messages if attribute == "paid"]


@pytest.mark.parametrize("inside", [0, 1, 20])
def test_a_range_is_exact_whatever_a_reply_looks_at(harness: Harness, inside: int) -> None:
    messages = fill(harness)
    start, end = messages[50][0], messages[200][0] + inside
    want = [message for message in messages if start <= message[0] < end and message[1] == "open"]
    given = {"startingOffsets": f'{{"orders": {{"0-0": {start}}}}}', "endingOffsets": f'{{"orders": {{"0-0": {end}}}}}'}
    for fetch_bytes in ("1", "500", "1m"):
        assert rows(harness, messageTypes="open", fetchBytes=fetch_bytes, **given) == want


def test_the_broker_is_asked_to_filter_if_it_can() -> None:
    ours, java = Harness(), Harness(extensions=NO_EXTENSIONS)
    assert fill(ours) == fill(java)
    assert rows(ours, messageTypes="paid") == rows(java, messageTypes="paid")
    assert (ours.count(GetFiltered) > 0, ours.count(Get)) == (True, 0)
    assert (java.count(GetFiltered), java.count(Get) > 0) == (0, True)


def test_progress_does_not_depend_on_what_is_kept(harness: Harness) -> None:
    fill(harness)
    end = harness.brokers[0].partition("orders", 0).end
    reader = harness.stream(startingOffsets="earliest", messageTypes="nobody")
    position, values = harness.micro_batch(reader, reader.initialOffset())
    assert (at(position), values) == ({"0-0": end}, [])
    harness.brokers[0].partition("orders", 0).append(encode_frame(1, *encode_body(Message(b"x", "nobody"))))
    assert harness.micro_batch(reader, position)[1] == [b"x"]


def test_a_broker_that_restarts_in_the_middle_costs_nothing(harness: Harness) -> None:
    messages = fill(harness)
    broker = harness.brokers[0]
    cut = iter([False, True, False, True, True, False])

    def restart(command: Command) -> None:
        if isinstance(command, Get | GetFiltered) and next(cut, False):
            broker.kill()
            broker.start()

    broker.before_command = restart
    want = [message for message in messages if message[1] == "paid"]
    assert rows(harness, messageTypes="paid", fetchBytes="600") == want
    assert next(cut, None) is None


def test_a_broker_that_comes_back_without_the_extension_is_read_completely() -> None:
    harness = Harness()
    messages = fill(harness)
    broker, seen = harness.brokers[0], []

    def replace(command: Command) -> None:
        if isinstance(command, GetFiltered):
            seen.append(command)
            if len(seen) == 3:
                broker.kill()
                broker.extensions = broker.extensions - {EXT_FILTER}
                broker.start()

    broker.before_command = replace
    want = [message for message in messages if message[1] == "paid"]
    assert rows(harness, messageTypes="paid", fetchBytes="600") == want
    assert (len(seen), harness.count(Get) > 0) == (3, True)


def test_messages_removed_while_a_task_reads(harness: Harness) -> None:
    harness.brokers[0].segment_bytes_max = 2000
    messages = fill(harness)
    store = harness.brokers[0].partition("orders", 0)
    reader = BatchReader(MetaQSource(harness.options(Use.BATCH_READ, messageTypes="paid"), harness.pool, harness.clock))
    lenient = BatchReader(
        MetaQSource(
            harness.options(Use.BATCH_READ, messageTypes="paid", failOnDataLoss="false"), harness.pool, harness.clock
        )
    )
    tasks = reader.partitions()
    store.drop_segments(2)
    with pytest.raises(DataLoss, match=r"orders/0-0.*moved on to offset"):
        harness.values(reader, tasks)
    kept = [payload for offset, attribute, payload in messages if attribute == "paid" and offset >= store.start]
    assert harness.values(lenient, tasks) == kept


def test_a_damaged_message_is_found_among_those_that_are_left_out(harness: Harness) -> None:
    messages = fill(harness)
    damaged = next(
        offset for offset, attribute, payload in messages if attribute == "open" and payload and offset > 900
    )
    harness.brokers[0].partition("orders", 0).segments[0][1][damaged + 20 + 4 + 4] ^= 1
    with pytest.raises(MetaqError, match=rf"corrupt frame in orders/0-0 at offset {damaged}"):
        rows(harness, messageTypes="paid", fetchBytes="500")
    rest = [message for message in messages if message[1] == "paid"]
    assert rows(harness, messageTypes="paid", fetchBytes="500", onCorrupt="skip") == rest


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (Result(403, "the partition is closed", 0), "refused get of types in orders partition 0 at offset 0 with 403"),
        (Result(200, "fine", 0), "answered with 200 and a text"),
        (Result(301, "soon", 0), "moved (301) to 'soon'"),
    ],
)
def test_other_answers_name_the_place(answer: Result, words: str) -> None:
    harness = Harness()
    fill(harness, 3)
    broker, plain = harness.brokers[0], harness.brokers[0].answer
    broker.answer = lambda command: (  # type: ignore[method-assign]
        answer._replace(opaque=command.opaque) if isinstance(command, GetFiltered) else plain(command)
    )
    with pytest.raises(ReadFailed) as caught:
        rows(harness, messageTypes="paid")
    assert words in str(caught.value)
    assert str(caught.value).startswith(f"orders/0-0 could not be read from offset 0 on: broker {ADDRESSES[0]}")


@pytest.mark.parametrize("types", ["", " , ", "a b", "a;b", "é", "a,b-c", "x" * 201])
def test_names_that_are_no_types(types: str) -> None:
    with pytest.raises(OptionError, match=r"messageTypes.*letters, digits and underscores"):
        Harness().options(Use.BATCH_READ, messageTypes=types)
