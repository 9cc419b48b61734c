"""The interface of a format: what a backend module provides, and how it is found by the format's name.

A backend is one object, ``BACKEND``, of a module that is imported when the format is used. Everything that differs
between ``format("metaq")`` and ``format("rocketmq")`` is behind it: options, columns, sources, sinks, lookups.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from metaq.model import TopicPartition
from metaq_spark.offsets import Progress

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from metaq_spark.columns.row_layout import RowLayout
    from metaq_spark.diagnosis.probe import Probe
    from metaq_spark.lag.unread import PartitionLag
    from metaq_spark.options.positions import Notation
    from metaq_spark.options.table import Use
    from metaq_spark.sink.backend import Sink
    from metaq_spark.source.backend import Cluster, Source


@dataclass(frozen=True, slots=True)
class Format:
    """``module`` has the backend. ``brokers_option``: the option with the brokers' addresses, also ``--flag`` of the
    tools, in the form ``syntax``. ``brokers``: what it names, for their help.
    """

    module: str
    brokers_option: str
    flag: str
    syntax: str
    brokers: str


FORMATS: Final[Mapping[str, Format]] = {
    "metaq": Format(
        "metaq_spark.backends.metaq.backend", "brokers", "--brokers", "HOST:PORT,...", "all brokers of the topics"
    ),
    "rocketmq": Format(
        "metaq_spark.backends.rocketmq.backend",
        "nameServers",
        "--name-servers",
        "HOST:PORT;...",
        "the name servers of RocketMQ's brokers",
    ),
}
"""Every format, by its name."""


class LagLookup(Protocol):
    """Measures the lag of partitions."""

    def lags(self, read_to: Progress, others: Iterable[TopicPartition] | None = ()) -> list[PartitionLag]:
        """Return the lag of every partition in ``read_to`` and ``others``, against what the brokers hold now.

        ``others`` = ``None``: all partitions of the topics in ``read_to``.

        Raises:
            MetaqError: A broker could not be asked.
        """


class Backend(Protocol):
    """One format. Options are raw here, as Spark passes them."""

    name: str
    """Of the format."""

    system: str
    """Its name in messages."""

    notation: Notation
    """The notation of its partitions and offsets."""

    def layout(self, raw: Mapping[str, str]) -> RowLayout:
        """Return the columns of a read, after the checks that do not depend on batch or stream.

        Raises:
            OptionError: An option is wrong.
        """

    def source(self, raw: Mapping[str, str], use: Use) -> Source:
        """Return a read; no broker is asked yet. Raises as ``layout``."""

    def sink(self, raw: Mapping[str, str], use: Use, schema: StructType) -> Sink:
        """Return a write of a DataFrame with ``schema``.

        Raises:
            OptionError, ColumnError: Options or columns are wrong.
            MetaqError: A broker could not be asked, or does not accept the topic.
        """

    def cluster(self, raw: Mapping[str, str]) -> Cluster:
        """Return the brokers that the connection options lead to. Raises as ``layout``."""

    def lag_lookup(self, raw: Mapping[str, str]) -> LagLookup:
        """Lookups of lags, by the same options. Raises as ``layout``."""

    def probe(self, raw: Mapping[str, str]) -> Probe:
        """Return what a diagnosis asks the brokers; ``raw`` may have all options of a streaming read. Raises as
        ``layout``.
        """


def backend_named(name: str) -> Backend:
    """The backend of the format ``name``."""
    backend: Backend = importlib.import_module(FORMATS[name].module).BACKEND
    return backend


def format_of(progress: Progress) -> str:
    """Return the format of the source with this ``progress``, by the names of its partitions; MetaQ's if it
    has none.
    """
    first = next(iter(progress.offsets), None)
    return "rocketmq" if first is not None and isinstance(first.partition.broker, str) else "metaq"
