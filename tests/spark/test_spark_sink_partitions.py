"""Where a write inside Spark puts its messages, when the list of partitions is fixed."""

from __future__ import annotations

import zlib

import pytest
from fix_spark import Topic

pytestmark = [pytest.mark.spark, pytest.mark.process]


def test_keys_go_by_the_fixed_list_and_nowhere_else(topic: Topic) -> None:
    keyed = topic.spark.range(200).selectExpr("cast(id as string) value", "cast(id as string) key")
    topic.write(keyed, orderedPartitions="3:2", blockMessages="7")
    topic.write(keyed, orderedPartitions="3:1")
    placed = sorted((int(row.value), row.partition) for row in topic.read().select("value", "partition").collect())
    assert placed == sorted(
        [*((n, zlib.crc32(str(n).encode()) % 2) for n in range(200)), *((n, 0) for n in range(200))]
    )

    with pytest.raises(Exception, match="/9-0 is in the option orderedPartitions, but no broker takes messages for it"):
        topic.write(keyed.where("id = 3"), orderedPartitions="9:1")
    assert topic.read().count() == 400
