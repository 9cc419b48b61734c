"""Ten jobs that people run with Spark's Kafka connector, as they are with this one."""

from __future__ import annotations

import time
from typing import Final

from moved_place import ORDERS, TOPIC, Job, Place
from pyspark.sql import functions as f

from metaq import MetaQ

SCHEMA: Final = "who string, what string, number int"
EARLIEST: Final = {"subscribe": TOPIC, "startingOffsets": "earliest"}
LIMIT: Final = 2


def read_a_topic(place: Place, here: dict[str, str]) -> dict[str, int]:
    rows = place.collect(place.read(**here).selectExpr("from_json(string(value), 'what string').what AS what"))
    equal(sorted(row.what for row in rows), sorted(what for _, what, _ in ORDERS))
    return {"rows": len(rows)}


def write_a_topic(place: Place, here: dict[str, str]) -> dict[str, int]:
    rows = [(f"customer {n % 5}", f"order {n}") for n in range(20)]
    frame = place.spark.createDataFrame(rows, "key string, value string")
    place.write(frame, **here)
    found = place.collect(place.read(subscribe="written").selectExpr("string(value) AS value", "partition"))
    equal(sorted(row.value for row in found), sorted(value for _, value in rows))
    by_key: dict[int, set[int]] = {}
    for row in found:
        by_key.setdefault(int(row.value.split()[1]) % 5, set()).add(row.partition)
    equal({len(partitions) for partitions in by_key.values()}, {1})
    return {"rows": len(found), "keys": len(by_key)}


def stream_to_files(place: Place, here: dict[str, str]) -> dict[str, int]:
    place.write(place.read(**EARLIEST).select("value"), topic="growing")
    frame = place.stream(**here).selectExpr("string(value) AS value")
    place.run(place.to_files(frame))
    first = place.spark.read.parquet(str(place.folder / "rows")).count()
    place.write(place.spark.createDataFrame([("one more",)], "value string"), topic="growing")
    place.run(place.to_files(frame))
    rows = [row.value for row in place.spark.read.parquet(str(place.folder / "rows")).collect()]
    equal((len(set(rows)), "one more" in rows), (len(rows), True))
    return {"first": first, "then": len(rows) - first}


def filter_json(place: Place, here: dict[str, str]) -> dict[str, int]:
    order = f.from_json(f.col("value").cast("string"), SCHEMA)
    teas = place.stream(**here).select(order.alias("order")).where("order.what = 'tea'")
    place.run(place.to_topic(teas.selectExpr("to_json(order) AS value", "order.who AS key"), "teas"))
    rows = place.collect(place.read(subscribe="teas").select(order.alias("order")).selectExpr("order.number"))
    equal(sorted(row.number for row in rows), sorted(number for _, what, number in ORDERS if what == "tea"))
    return {"read": len(ORDERS), "rows": len(rows)}


def window(place: Place, here: dict[str, str]) -> dict[str, int]:
    order = f.from_json(f.col("value").cast("string"), SCHEMA)
    counts = (
        place.stream(**here)
        .select("timestamp", order.alias("order"))
        .withWatermark("timestamp", "10 minutes")
        .groupBy(f.window("timestamp", "1 day"), "order.what")
        .agg(f.sum("order.number").alias("number"))
    )
    counted: dict[str, int] = {}

    def note(rows: object, _: int) -> None:
        for row in rows.collect():  # type: ignore[attr-defined]
            counted[row.what] = row.number

    place.run(counts.writeStream.outputMode("update").foreachBatch(note))
    wanted: dict[str, int] = {}
    for _, what, number in ORDERS:
        wanted[what] = wanted.get(what, 0) + number
    equal(counted, wanted)
    return {"groups": len(counted)}


def headers(place: Place, here: dict[str, str]) -> dict[str, int]:
    rows = place.collect(place.read(**here))
    equal({bytes(header.value).decode() for row in rows for header in row.headers if header.key == "shop"}, {"north"})
    return {"rows": len(rows), "pairs": len(rows[0].headers)}


def start_at_a_time(place: Place, here: dict[str, str]) -> dict[str, int]:
    place.write(place.spark.createDataFrame([("old", 0), ("old", 1)], "value string, partition int"), topic="timed")
    time.sleep(0.02)
    start = int(time.time() * 1000)
    time.sleep(0.02)
    place.write(place.spark.createDataFrame([("new", 0), ("new", 1)], "value string, partition int"), topic="timed")
    given = here | {"startingTimestamp": str(start)}
    rows = place.collect(place.read(**given).selectExpr("string(value) AS value"))
    equal([row.value for row in rows], ["new", "new"])
    return {"rows": len(rows), "all": len(place.collect(place.read(subscribe="timed")))}


def replay_a_range(place: Place, here: dict[str, str]) -> dict[str, int]:
    rows = [(f"{n}", 1) for n in range(10)]
    place.write(place.spark.createDataFrame(rows, "value string, partition int").coalesce(1), topic="replayed")
    places = sorted(row.offset for row in place.collect(place.read(subscribe="replayed").select("offset")))
    given = {
        "assign": here["assign"],
        "startingOffsets": f'{{"replayed": {{"0-1": {places[3]}}}}}',
        "endingOffsets": f'{{"replayed": {{"0-1": {places[7]}}}}}',
    }
    found = place.collect(place.read(**given).selectExpr("string(value) AS value"))
    equal([row.value for row in found], ["3", "4", "5", "6"])
    return {"rows": len(found), "all": len(rows)}


def limit_batches(place: Place, here: dict[str, str]) -> dict[str, int]:
    query = place.run(place.to_files(place.stream(**here).select("value")))
    sizes = [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]
    equal((sum(sizes), max(sizes)), (len(ORDERS), LIMIT))
    return {"rows": sum(sizes), "batches": len(sizes)}


def copy_exactly_once(place: Place, here: dict[str, str]) -> dict[str, int]:
    """A batch is decided, and Spark does not hear of it: it repeats the batch."""
    frame = place.stream(**EARLIEST).select("value", "attribute")
    place.run(place.to_topic(frame, **here))
    for name in ("0", ".0.crc"):  # as if the driver had died after the write
        (place.folder / "checkpoint" / "commits" / name).unlink()
    place.run(place.to_topic(frame, **here))
    with MetaQ(place.servers) as mq:
        copies = sorted(message.data for message in mq.browse(here["topic"]))
        equal(copies, sorted(message.data for message in mq.browse(TOPIC)))
    return {"rows": len(copies), "runs": 2}


def equal(found: object, wanted: object) -> None:
    if found != wanted:
        raise AssertionError(f"{found!r} instead of {wanted!r}")


JOBS: Final = (
    Job(
        "read a topic as a batch",
        {"subscribe": TOPIC},
        "{rows} rows: every message that was there",
        read_a_topic,
    ),
    Job(
        "write a batch with keys",
        {"topic": "written"},
        "{rows} messages; each of {keys} keys is in one partition",
        write_a_topic,
    ),
    Job(
        "a stream into Parquet, stopped and started again",
        {"subscribe": "growing", "startingOffsets": "earliest"},
        "{first} rows, then the {then} that is new",
        stream_to_files,
    ),
    Job(
        "parse JSON, filter, write to another topic",
        EARLIEST,
        "{read} read, {rows} written",
        filter_json,
    ),
    Job(
        "sums in windows of the message's time, with a watermark",
        EARLIEST,
        "{groups} groups with the right sums",
        window,
    ),
    Job(
        "headers",
        {"subscribe": TOPIC, "columns": "value,headers"},
        "{rows} rows with {pairs} pairs each, in Kafka's type",
        headers,
    ),
    Job(
        "start at a time",
        {"subscribe": "timed", "startingTimestamp": "1795156200000"},
        "{rows} of {all} rows: those stored since",
        start_at_a_time,
    ),
    Job(
        "read a range of one partition again",
        {
            "assign": '{"replayed": ["0-1"]}',
            "startingOffsets": '{"replayed": {"0-1": 72}}',
            "endingOffsets": '{"replayed": {"0-1": 168}}',
        },
        "{rows} of {all} rows: those of the range",
        replay_a_range,
    ),
    Job(
        "`availableNow` in limited micro-batches",
        EARLIEST | {"maxOffsetsPerTrigger": str(LIMIT)},
        "{rows} rows in {batches} micro-batches",
        limit_batches,
    ),
    Job(
        "copy a topic, with a driver that dies after the write of a micro-batch",
        {"topic": "copies", "delivery": "exactly_once"},
        "{rows} messages after {runs} runs, each once",
        copy_exactly_once,
    ),
)
