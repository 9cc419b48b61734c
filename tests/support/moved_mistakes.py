"""Twenty mistakes of people who come from Spark's Kafka connector: habits, slips, and what was left in."""

from __future__ import annotations

import re
import shutil
from typing import Final

from moved_place import ORDERS, TOPIC, Mistake, Place

from metaq.testing.broker_process import BrokerProcess

KAFKA_OFFSETS: Final = '{"orders":{"0":3,"1":3}}'


def kafka_servers(place: Place) -> None:
    place.read(**{"brokers": "", "kafka.bootstrap.servers": place.servers, "subscribe": TOPIC})


def kafka_group(place: Place) -> None:
    place.read(**{"subscribe": TOPIC, "kafka.group.id": "billing"})


def include_headers(place: Place) -> None:
    place.read(subscribe=TOPIC, includeHeaders="true")


def misspelt_option(place: Place) -> None:
    place.stream(subscribe=TOPIC, maxOffsetPerTrigger="1000")


def nothing_to_read(place: Place) -> None:
    place.read(startingOffsets="earliest")


def two_selections(place: Place) -> None:
    place.read(subscribe=TOPIC, assign='{"orders": ["0-0"]}')


def misspelt_topic(place: Place) -> None:
    place.collect(place.read(subscribe="ordres"))


def kafka_port(place: Place) -> None:
    place.collect(place.read(brokers="127.0.0.1:1", subscribe=TOPIC, retries="0"))


def rocketmq_port(place: Place) -> None:
    place.folder.mkdir()
    with BrokerProcess(place.folder) as other:
        other.start()
        place.shown[other.name_servers] = "127.0.0.1:10911"
        place.collect(place.read(brokers=other.name_servers, subscribe=TOPIC, retries="0"))


def no_port(place: Place) -> None:
    place.read(brokers="broker-1,broker-2", subscribe=TOPIC)


def kafka_partitions(place: Place) -> None:
    place.read(subscribe=TOPIC, startingOffsets=KAFKA_OFFSETS)


def next_offset(place: Place) -> None:
    first = min(row.offset for row in place.read(subscribe=TOPIC).where("partition = 0").select("offset").collect())
    starts = f'{{"orders": {{"0-0": {first + 1}, "0-1": -2}}}}'
    place.collect(place.read(subscribe=TOPIC, startingOffsets=starts))


def broken_json(place: Place) -> None:
    place.read(subscribe=TOPIC, startingOffsets='{"orders": {"0-0": 23')


def end_of_a_stream(place: Place) -> None:
    place.run(place.to_files(place.stream(subscribe=TOPIC, endingOffsets="latest")))


def all_columns(place: Place) -> None:
    """Kafka's sink ignores columns that it does not know."""
    frame = place.stream(subscribe=TOPIC, startingOffsets="earliest")
    place.run(place.to_topic(frame.drop("topic", "attribute"), "copies"))


def headers_of_bytes(place: Place) -> None:
    rows = place.spark.createDataFrame(ORDERS, "value string, what string, number int")
    pairs = "array(named_struct('key', 'code', 'value', unhex('FF00'))) AS headers"
    place.write(rows.selectExpr("value", pairs), topic="copies")


def overwrite(place: Place) -> None:
    place.write(place.read(subscribe=TOPIC).select("value"), mode="overwrite", topic="copies")


def update_mode(place: Place) -> None:
    counts = place.stream(subscribe=TOPIC).groupBy("attribute").count().selectExpr("string(count) AS value")
    place.run(place.to_topic(counts, "counts").outputMode("update"))


def checkpoint_of_kafka(place: Place) -> None:
    """A checkpoint whose offsets are those of Kafka's source."""
    frame = place.stream(subscribe=TOPIC, startingOffsets="earliest").select("value")
    place.run(place.to_files(frame))
    offsets = place.folder / "checkpoint" / "offsets" / "0"
    lines = offsets.read_text().splitlines()
    offsets.write_text("\n".join([*lines[:-1], KAFKA_OFFSETS]))
    (offsets.parent / ".0.crc").unlink()
    place.run(place.to_files(frame))


def copied_checkpoint(place: Place) -> None:
    """The query goes on after its checkpoint was copied; the copy reads what it has written."""

    def copy(folder: str) -> None:
        frame = place.stream(subscribe="growing", startingOffsets="earliest").select("value")
        place.run(place.to_topic(frame, "copies", delivery="exactly_once"), folder)

    def grow(value: str) -> None:
        place.write(place.spark.createDataFrame([(value,)], "value string"), topic="growing")

    grow("one")
    copy("checkpoint")
    shutil.copytree(place.folder / "checkpoint", place.folder / "second")
    grow("two")
    copy("checkpoint")
    grow("three")
    copy("second")


def plain(error: BaseException) -> str:
    """The sentence in what Spark shows: without the names of its classes, its ids and its stack traces."""
    text = str(error).split("\n\nJVM stacktrace")[0].strip()
    ours = re.findall(r"(?:^|\s)metaq[\w.]*\.\w+: (.*?)(?:\n\s*(?:at |\n)|\nJVM|\Z)", text, re.DOTALL)
    sentence = " ".join((ours[0] if ours else text.splitlines()[0]).split())
    return re.split(r" SQLSTATE: | === Streaming Query", sentence)[0]


MISTAKES: Final = (
    Mistake("`kafka.bootstrap.servers` left in", kafka_servers),
    Mistake("`kafka.group.id` left in", kafka_group),
    Mistake("`includeHeaders` left in", include_headers),
    Mistake("`maxOffsetPerTrigger`: an option misspelt", misspelt_option),
    Mistake("neither `subscribe` nor another selection", nothing_to_read),
    Mistake("both `subscribe` and `assign`", two_selections),
    Mistake("a topic misspelt", misspelt_topic),
    Mistake("a port where nobody listens", kafka_port),
    Mistake("the broker's port for RocketMQ", rocketmq_port),
    Mistake("brokers without ports", no_port),
    Mistake("`startingOffsets` with Kafka's partition numbers", kafka_partitions),
    Mistake("`startingOffsets` from a stored offset + 1", next_offset),
    Mistake("`startingOffsets` with broken JSON", broken_json),
    Mistake("`endingOffsets` in a stream", end_of_a_stream),
    Mistake("all columns of a read written back", all_columns),
    Mistake("headers whose values are no text", headers_of_bytes),
    Mistake('`mode("overwrite")`', overwrite),
    Mistake('`outputMode("update")`', update_mode),
    Mistake("the checkpoint of the query on Kafka", checkpoint_of_kafka),
    Mistake("a copy of the checkpoint for a second query", copied_checkpoint),
)
