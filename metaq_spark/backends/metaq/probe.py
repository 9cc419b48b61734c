"""What a diagnosis asks MetaQ brokers: implements ``diagnosis.probe.Probe``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from itertools import islice
from typing import Final

from metaq.client.browser import Browser
from metaq.client.checkup.metaq import MetaqCheckup
from metaq.client.checkup.reach import ConnectSettings
from metaq.errors import MetaqError
from metaq.model import OffsetRange, TopicPartition
from metaq_spark.backends.metaq.cluster import Cluster, directory_of, pool_with
from metaq_spark.backends.metaq.lag_lookup import LagLookup
from metaq_spark.backends.metaq.options import BrokerOptions
from metaq_spark.diagnosis.evidence import ServerFault
from metaq_spark.diagnosis.probe import SAMPLED_MAX
from metaq_spark.lag.unread import PartitionLag
from metaq_spark.offsets import Progress
from metaq_spark.source.backend import Cuts

TAIL_BYTES: Final = 64 << 10
"""Bytes before the end whose messages are looked at for their types."""


class BrokerProbe:
    """Asks the brokers that ``options`` lead to."""

    def __init__(self, options: BrokerOptions) -> None:
        self._options, self._pool = options, pool_with(options.reach)
        self._lookup = LagLookup(options, self._pool)
        self._cluster = Cluster(options, self._pool)

    def lags_now(self, read_to: Progress) -> tuple[list[PartitionLag], Mapping[str, MetaqError]]:
        return self._lookup.lags_now(read_to)

    def offsets_at(self, partitions: Collection[TopicPartition], ms: int) -> dict[TopicPartition, int]:
        return self._cluster.positions.first_at(dict.fromkeys(partitions, ms))

    def last_put_ms(self, stored: Mapping[TopicPartition, OffsetRange]) -> dict[TopicPartition, int]:
        messages = self._cluster.last_messages
        times = {where: messages.stored_ms(head) for where, head in messages.before(stored).items()}
        return {where: ms for where, ms in times.items() if ms is not None}

    def types(self, where: TopicPartition, stored: OffsetRange) -> dict[str, int]:
        cuts = Cuts(stored.start, [max(stored.start, stored.end - TAIL_BYTES)])
        start = self._cluster.positions.boundaries({where: cuts})[where][0]
        browser = Browser(
            directory_of(self._options, self._pool),
            self._pool,
            where.topic,
            partitions=[where.partition],
            start={where.partition: start},
        )
        return dict(Counter(message.attribute or "" for message in islice(browser, SAMPLED_MAX)))

    def faults(self) -> Iterator[ServerFault]:
        options = self._options
        settings = ConnectSettings(options.tls, options.request_timeout_ms / 1000)
        for finding in MetaqCheckup(options.brokers, options.zookeeper, settings).findings():
            if finding.level != "ok":
                yield ServerFault(finding.what, finding.detail, finding.level == "fail")
