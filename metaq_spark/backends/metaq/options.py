"""The options of ``format("metaq")``: their table, and the frozen objects that hold them.

Most rows are shared with other formats (``options/parsing.py``). ``docs/connector-reference.md`` is made
from the table.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from pyspark.sql.types import DataType, StringType

from metaq.discovery.zk_layout import ZooKeeperAddress
from metaq.model import Address, Partition
from metaq_spark.columns.json_rules import JsonRules
from metaq_spark.columns.row_layout import (
    ATTRIBUTE_MAP,
    COLUMN_TYPES,
    MORE_TYPES,
    RowLayout,
    message_layout,
    type_of_values,
)
from metaq_spark.errors import OptionError
from metaq_spark.options import values
from metaq_spark.options.parsing import (
    ConnectionOptions,
    ReadOptions,
    TransactionOptions,
    WriteOptions,
    check_choice,
    check_read,
    check_tls,
    check_value,
    check_write,
    checkpoint_location,
    json_rules,
)
from metaq_spark.options.positions import Notation
from metaq_spark.options.table import (
    ANY,
    READ,
    SHARED_HABITS,
    UNSET,
    USE_LIMITS,
    WRITE,
    Habits,
    OptionTable,
    Use,
    option,
)

_NAME: Final = values.Name(re.compile(r"[^\s,/@*]+").fullmatch, " without spaces and without any of , / @ *")
NOTATION: Final = Notation(
    Partition.parse,
    _NAME,
    _NAME.of("group"),
    {**COLUMN_TYPES, **MORE_TYPES},
    {
        "first": "0-0",
        "second": "0-1",
        "offset": "byte offset",
        "brokers": "broker ids",
        "system": "MetaQ",
        "pushed": "`attribute`, `offset` and `timestamp`",
        "request": "a partition in one request",
    },
)
"""How the options write topics, partitions and offsets."""

_USE_BROKERS: Final = "use brokers: host:port of each broker, separated by commas"
_USE_TOPICS: Final = ("use subscribe: topics, separated by commas", "use topic: one topic, or a column topic for more")
_HABITS: Final[Habits] = {
    **SHARED_HABITS,
    "kafka.bootstrap.servers": _USE_BROKERS,
    "bootstrap.servers": _USE_BROKERS,
    "bootstrapservers": _USE_BROKERS,
    "servers": _USE_BROKERS,
    "broker": _USE_BROKERS,
    "host": _USE_BROKERS,
    "url": _USE_BROKERS,
    "nameserver": _USE_BROKERS,
    "nameservers": _USE_BROKERS,
    "zk": "use zookeeper: host:port,host:port/root",
    "zkconnect": "use zookeeper: host:port,host:port/root",
    "zk.zkconnect": "use zookeeper: host:port,host:port/root",
    "topic": _USE_TOPICS,
    "partitions": 'use assign: JSON such as {"orders": ["0-0", "0-1"]}',
    "checkpointdir": "use checkpointLocation",
    "checkpoint.location": "use checkpointLocation",
    "startingposition": "use startingOffsets",
    "auto.offset.reset": "use startingOffsets: earliest or latest",
    "maxfilespertrigger": USE_LIMITS,
    "maxratepertrigger": USE_LIMITS,
    "tag": "use messageTypes: types, separated by commas",
    "tags": "use messageTypes: types, separated by commas",
    "key": ("a MetaQ message has no key", "use a column key: the same key goes to the same partition"),
}
"""Keys of other connectors, in lower case -> advice; a pair for reads and writes if it differs."""

_FORMER: Final = {
    "localreads": "it is without effect, because brokers send every byte; leave it out",
    "localwrites": "it is without effect, because blocks are always sent; leave it out",
}
"""Former options of this connector, in lower case -> why they are ignored."""


@dataclass(frozen=True, kw_only=True)
class BrokerOptions(ConnectionOptions):
    """How to reach the brokers. ``brokers`` is empty where they are found by ``zookeeper``."""

    # fmt: off
    brokers: tuple[Address, ...] = option(
        "brokers", values.addresses, UNSET, ANY,
        "Brokers to talk to: `host:port`, separated by commas. Every broker of the topics must be named. Exactly one "
        "of `brokers` and `zookeeper` is needed.",
    )
    zookeeper: ZooKeeperAddress | None = option(
        "zookeeper", ZooKeeperAddress.parse, UNSET, ANY,
        "Where brokers register, `host:port,host:port/root`; the root is `/meta` if it is left out. Brokers are found "
        "there, and masters are preferred to slaves.",
    )
    # fmt: on

    @cached_property
    def places(self) -> tuple[str, ...]:
        """The user's brokers or ZooKeeper, as text."""
        return tuple(map(str, self.brokers)) if self.zookeeper is None else (str(self.zookeeper),)

    @property
    def found_by(self) -> str:
        return f"{'the option brokers' if self.zookeeper is None else 'ZooKeeper'} ({', '.join(self.places)})"

    @property
    def finds_brokers(self) -> bool:
        """Whether brokers are found, not named one by one: then one that is away may be missing."""
        return self.zookeeper is not None


@dataclass(frozen=True, kw_only=True)
class SourceOptions(BrokerOptions, ReadOptions):
    """A read of MetaQ."""

    # fmt: off
    message_types: tuple[str, ...] | None = option(
        "messageTypes", values.message_types, UNSET, READ,
        "Read only messages whose attribute is one of these, separated by commas; the broker leaves the others out.",
    )
    attribute_format: str = option(
        "attributeFormat", values.OneOf("string", "map"), "string", READ,
        "What the column `attribute` is: the text, or a map read from `k=v;k2=v2`.",
    )
    # fmt: on

    @cached_property
    def row_layout(self) -> RowLayout:
        rules = json_rules(self.json_mode, self.corrupt_field)
        return _row_layout(self.columns, self.value_format, self.value_schema, rules, self.attribute_format)


@dataclass(frozen=True, kw_only=True)
class SinkOptions(BrokerOptions, TransactionOptions):
    """A write to MetaQ; ``None`` = not given."""

    # fmt: off
    ordered_partitions: tuple[Partition, ...] | None = option(
        "orderedPartitions", values.ordered_partitions, UNSET, WRITE,
        "Fixed list of partitions for `key` and `partition`, as MetaQ's ordered producer has: `BROKER_ID:COUNT;...`. A "
        "message whose partition is away fails the write instead of going elsewhere.",
    )
    # fmt: on


TABLE: Final = OptionTable(
    (BrokerOptions, ReadOptions, SourceOptions, TransactionOptions, WriteOptions, SinkOptions, ConnectionOptions),
    NOTATION,
    _HABITS,
    "brokers zookeeper subscribe startingOffsets endingOffsets maxBytesPerTrigger topic delivery",
    "docs/connector-reference.md",
    {"blockBytes": {"doc": "Bytes of messages sent to {request}; not above the broker's `maxBatchSize`."}},
    _FORMER,
)
OPTIONS: Final = TABLE.rows


def source_layout(raw: Mapping[str, str]) -> RowLayout:
    """Check the options that do not depend on batch or stream; return the columns of the read.

    Raises:
        OptionError: An option is unknown, is for writing, is missing or cannot be read.
    """
    values = _with_brokers(TABLE.read(raw, Use.BATCH_READ, READ), raw)
    check_choice(values)
    columns, value_format, value_schema = (values[field] for field in ("columns", "value_format", "value_schema"))
    mode, corrupt_field = values["json_mode"], values["corrupt_field"]
    check_value(value_format, value_schema, mode, corrupt_field)
    rules = json_rules(mode, corrupt_field)
    return _row_layout(columns, value_format, value_schema, rules, values["attribute_format"])


def parse_source_options(raw: Mapping[str, str], use: Use) -> SourceOptions:
    """The options of a batch read or a streaming read.

    Raises:
        OptionError: An option is unknown, is not for this use, is missing or cannot be read, or contradicts another.
    """
    values = _with_brokers(TABLE.read(raw, use), raw)
    check_choice(values)
    options = SourceOptions(**values, streaming=use is Use.STREAM_READ)
    check_read(options, use)
    return options


def parse_sink_options(raw: Mapping[str, str], use: Use) -> SinkOptions:
    """The options of a batch write or a streaming write.

    Raises:
        OptionError: An option is unknown, is not for this use, is missing or cannot be read, or contradicts another.
    """
    values = _with_brokers(TABLE.read(raw, use), raw)
    place = checkpoint_location(raw)
    options = SinkOptions(**values, streaming=use is Use.STREAM_WRITE, checkpoint_location=place)
    check_write(options)
    return options


def parse_broker_options(raw: Mapping[str, str]) -> BrokerOptions:
    """Parse the connection options, for uses other than reads and writes.

    Raises:
        OptionError: An option is unknown, is for a read or a write, is missing or cannot be read.
    """
    options = BrokerOptions(**_with_brokers(TABLE.read_reach(raw, "brokers"), raw))
    check_tls(options)
    return options


def _with_brokers(values: dict[str, Any], raw: Mapping[str, str]) -> dict[str, Any]:
    """Check that exactly one option names the brokers."""
    if values["brokers"] is None and values["zookeeper"] is None:
        raise OptionError("brokers", "it is required, or instead of it zookeeper: where the brokers are" + _in_sql(raw))
    if values["brokers"] is not None and values["zookeeper"] is not None:
        raise OptionError("brokers, zookeeper", "only one of them can say where the brokers are")
    return values | {"brokers": values["brokers"] or ()}


def _in_sql(raw: Mapping[str, str]) -> str:
    """Return the error for INSERT INTO a table: Spark does not pass the options of a table."""
    advice = "; in SQL, INSERT INTO a temporary view with columns and OPTIONS, or INSERT INTO ... WITH (...) options"
    return "" if raw else advice


def _row_layout(
    columns: tuple[str, ...] | None,
    value_format: str,
    value_schema: DataType | None,
    json: JsonRules,
    attribute_format: str,
) -> RowLayout:
    attribute_type = ATTRIBUTE_MAP if attribute_format == "map" else StringType()
    return message_layout(columns, attribute_type, type_of_values(value_format, value_schema), json)
