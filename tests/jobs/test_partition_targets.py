"""Which partition goes where: the list that the connector is given, and the columns made of it."""

import pytest
from partition_targets import (
    assign_partitions,
    ordered_partitions,
    partition_numbers,
    whole_attribute,
)
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from metaq.model import Partition


def named(text: str) -> list[Partition]:
    return [Partition.parse(name) for name in text.split()]


def pairs(text: str) -> dict[Partition, Partition]:
    """``0-0:7-1 0-1:7-0`` as places."""
    return dict(tuple(named(pair.replace(":", " "))) for pair in text.split())


def test_the_list_for_the_connector_names_every_target() -> None:
    targets = named("3-1 0-0 3-0 12-2")
    assert ordered_partitions(targets) == "0:1;3:2;12:3"
    numbers = partition_numbers(targets)
    assert [numbers[target] for target in targets] == [2, 0, 1, 5]


@pytest.mark.spark
def test_columns(spark: SparkSession) -> None:
    assigned = {"orders": pairs("0-0:7-1 0-10:7-0"), "other": pairs("0-0:8-0")}
    rows = [("orders", 0, 0, 5, "a"), ("orders", 0, 10, 6, None), ("other", 0, 0, 7, ""), ("orders", 0, 0, 8, "é")]
    messages = spark.createDataFrame(rows, "topic string, broker_id int, partition int, offset long, attribute string")
    placed = assign_partitions(messages, assigned).select("offset", "partition")
    assert [tuple(row) for row in placed.collect()] == [(5, 1), (6, 0), (7, 2), (8, 1)]
    assert placed.schema["partition"].dataType.simpleString() == "int"
    assert [row.attribute for row in messages.select(whole_attribute()).collect()] == ["a", None, "", "é"]

    stray = spark.createDataFrame([("orders", 1, 0, 5, "x\ufffd")], messages.schema)
    with pytest.raises(PySparkException, match="orders/1-0: no partition of the target was assigned to it"):
        assign_partitions(stray, assigned).collect()
    with pytest.raises(PySparkException, match=r"orders/1-0, offset 5: the attribute holds U\+FFFD"):
        stray.select(whole_attribute()).collect()
