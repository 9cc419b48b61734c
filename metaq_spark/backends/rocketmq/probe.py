"""What a diagnosis asks RocketMQ brokers: implements ``diagnosis.probe.Probe``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from itertools import islice

from metaq.client.checkup.reach import ConnectSettings
from metaq.client.checkup.rocketmq import RocketmqCheckup
from metaq.client.rocketmq.browser import RocketBrowser
from metaq.errors import MetaqError
from metaq.model import OffsetRange, TopicPartition
from metaq_spark.backends.rocketmq.cluster import Cluster
from metaq_spark.backends.rocketmq.connections import connections_of
from metaq_spark.backends.rocketmq.lag_lookup import LagLookup
from metaq_spark.backends.rocketmq.options import ServerOptions
from metaq_spark.diagnosis.evidence import ServerFault
from metaq_spark.diagnosis.probe import SAMPLED_MAX
from metaq_spark.lag.unread import PartitionLag
from metaq_spark.offsets import Progress


class QueueProbe:
    """Asks the servers that ``options`` lead to."""

    def __init__(self, options: ServerOptions) -> None:
        self._options = options
        self._pool, self._directory = connections_of(options)
        self._cluster = Cluster(options)
        self._lookup = LagLookup(options, self._cluster)

    def lags_now(self, read_to: Progress) -> tuple[list[PartitionLag], Mapping[str, MetaqError]]:
        return self._lookup.lags_now(read_to)

    def offsets_at(self, partitions: Collection[TopicPartition], ms: int) -> dict[TopicPartition, int]:
        return self._cluster.positions.first_at(dict.fromkeys(partitions, ms))

    def last_put_ms(self, stored: Mapping[TopicPartition, OffsetRange]) -> dict[TopicPartition, int]:
        return self._cluster.positions.store_times_ms({where: span.end - 1 for where, span in stored.items()})

    def types(self, where: TopicPartition, stored: OffsetRange) -> dict[str, int]:
        browser = RocketBrowser(
            self._directory,
            self._pool,
            where.topic,
            partitions=[where.partition],
            start={where.partition: max(stored.start, stored.end - SAMPLED_MAX)},
            group=self._options.asking_group,
        )
        return dict(Counter(message.tag or "" for message in islice(browser, SAMPLED_MAX)))

    def faults(self) -> Iterator[ServerFault]:
        options = self._options
        settings = ConnectSettings(options.tls, options.request_timeout_ms / 1000)
        for finding in RocketmqCheckup(options.name_servers, settings, options.credentials).findings():
            if finding.level != "ok":
                yield ServerFault(finding.what, finding.detail, finding.level == "fail")
