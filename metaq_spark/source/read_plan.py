"""What batch and stream have in common: from options to first and last offsets, and from ranges to tasks."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from functools import partial

from pyspark.sql.datasource import InputPartition

from metaq.errors import BrokerError, DataMissing
from metaq.model import TopicPartition
from metaq_spark.backends.metaq.cluster import Cluster
from metaq_spark.backends.metaq.frame_lookup import FrameLookup
from metaq_spark.offsets import Offsets, Ranges
from metaq_spark.options.parsing import SourceOptions
from metaq_spark.source.data_loss import is_data_loss, report_data_loss
from metaq_spark.source.group_offsets import GroupOffsets
from metaq_spark.source.partition_reader import RangePartition
from metaq_spark.source.range_groups import RangeGroup, grouped
from metaq_spark.source.resolution import Bound, OffsetLookups
from metaq_spark.source.splits import Splitting, TaskRange, split

_log = logging.getLogger(__name__)


def starting_offsets(
    options: SourceOptions, available: Ranges, cluster: Cluster, groups: GroupOffsets | None
) -> dict[TopicPartition, int]:
    """Where the read begins in every partition of ``available``.

    Raises:
        OptionError: The start options do not fit what is there.
        DataLoss: They name messages that are gone, and the option ``failOnDataLoss`` is true.
    """
    side = Bound(options.start_option, options.start, latest_if_none=options.no_message_strategy == "latest")
    found = _resolve(side, options, available, cluster, groups)
    side.check_boundaries(found, available, FrameLookup(cluster))
    return found


def ending_offsets(options: SourceOptions, available: Ranges, cluster: Cluster) -> dict[TopicPartition, int]:
    """Where a batch read stops. Raises as ``starting_offsets``."""
    return _resolve(Bound(options.end_option, options.end, latest_if_none=True), options, available, cluster, None)


def _resolve(
    side: Bound, options: SourceOptions, available: Ranges, cluster: Cluster, groups: GroupOffsets | None
) -> dict[TopicPartition, int]:
    def of_group(partitions: Collection[TopicPartition]) -> Offsets:
        assert groups is not None  # the options were checked
        assert options.group is not None
        return groups.positions(options.group, partitions)

    report_loss = partial(report_data_loss, fail=options.fail_on_data_loss)
    return side.resolve(available, OffsetLookups(FrameLookup(cluster).first_at, of_group), report_loss)


def tasks(
    ranges: Ranges, incarnations: Mapping[TopicPartition, str], options: SourceOptions, cluster: Cluster
) -> list[InputPartition]:
    """One task for each range, or more or fewer as the options say; in the order of partitions and offsets.

    Where a partition has vanished in the meantime, nothing is cut: its task is the one to tell.
    """
    try:
        task_ranges = split(ranges, Splitting(options.task_count_min, options.task_bytes_max), FrameLookup(cluster))
    except (BrokerError, DataMissing) as error:
        if not is_data_loss(error):
            raise
        _log.warning("%s. The batch is not cut into smaller tasks", error)
        task_ranges = split(ranges, Splitting(), FrameLookup(cluster))

    def part(task_range: TaskRange) -> RangePartition:
        return RangePartition(
            task_range.where,
            cluster.address_of(task_range.where),
            task_range.offsets,
            incarnations.get(task_range.where),
        )

    least, most, count = options.task_bytes_min, options.task_bytes_max, options.task_count_min
    groups = grouped(task_ranges, least, count_min=count, bytes_max=most)
    return [part(group[0]) if len(group) == 1 else RangeGroup(tuple(map(part, group))) for group in groups]
