"""The options of ``format("rocketmq")``: their table, and the frozen objects that hold them.

Most rows are shared with other formats (``options/parsing.py``). ``docs/rocketmq.md`` is made from the table.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from pyspark.sql.types import DataType

from metaq.backends.rocketmq.names import check_group
from metaq.backends.rocketmq.reads.pulls import GROUP, Subscription
from metaq.discovery.name_server import parse_name_servers
from metaq.formats.rocketmq.tags import EXPECTED
from metaq.formats.topic_names import (
    GROUP_BYTES_MAX,
    ROCKETMQ_ALLOWED,
    ROCKETMQ_CHARS,
    ROCKETMQ_CHARS_MAX,
    rocketmq_fault,
)
from metaq.model import Address, Partition
from metaq.protocols.remoting.acl import Credentials
from metaq_spark.backends.rocketmq.habits import HABITS
from metaq_spark.columns.json_rules import JsonRules
from metaq_spark.columns.rocketmq.layout import MORE_TYPES, RECORD_COLUMNS
from metaq_spark.columns.row_layout import RowLayout, type_of_values
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
from metaq_spark.options.table import ANY, READ, UNSET, OptionTable, Use, option


def _is_topic(text: str) -> bool:
    return rocketmq_fault(text, of_groups=True) is None


def _is_namespace(text: str) -> bool:
    return rocketmq_fault(text) is None


_TOPIC: Final = values.Name(_is_topic, f", up to {ROCKETMQ_CHARS_MAX} {ROCKETMQ_ALLOWED}")
_NAMESPACE: Final = values.Name(_is_namespace, _TOPIC.allowed, "namespace")
NOTATION: Final = Notation(
    Partition.parse_queue,
    _TOPIC,
    values.Name(re.compile(f"{ROCKETMQ_CHARS}+").fullmatch, f", {ROCKETMQ_ALLOWED}", "group"),  # see ``check_group``
    {**RECORD_COLUMNS, **MORE_TYPES},
    {
        "first": "broker-a:0",
        "second": "broker-a:1",
        "offset": "queue offset",
        "brokers": "names such as `broker-a`",
        "system": "RocketMQ",
        "pushed": "`tags`, `queue_offset` and `store_timestamp`",
        "request": "a queue in one batch",
    },
)
"""How the options write topics, queues and offsets."""

BLOCK_BYTES_MAX: Final = 3 << 20
"""A broker accepts batches of 4 MiB, including what it adds to each stored message."""


def _tags(text: str) -> Subscription:
    try:
        return Subscription(text)
    except ValueError:
        raise ValueError(EXPECTED) from None


def _sql(text: str) -> Subscription:
    return Subscription(text.strip(), "SQL92")


_CHANGES: Final[Mapping[str, Mapping[str, Any]]] = {
    "subscribePattern": {
        "doc": "Regular expression (Python's) for the whole name of a topic; topics that appear later are read too. "
        "Needs a name server that lists topics: proxies and hosted services do not."
    },
    "waitForTopic": {
        "doc": "Whether to wait for a topic that no name server knows yet (a batch reads nothing from it). If not, it "
        "is an error."
    },
    "maxBytesPerTrigger": {
        "doc": "Most bytes of one micro-batch, shared out over the queues in proportion to their backlog. Bytes are "
        "estimated from the size of a few messages of each range."
    },
    "failOnDataLoss": {
        "doc": "Whether a query fails when messages that it had to read are gone; `false` logs a warning and reads on."
    },
    "onCorrupt": {
        "doc": "What is done with a message that does not match its checksum, or is not what was asked for: `fail`, "
        "`skip` it with a warning, or store its bytes in `deadLetterTopic` and go on."
    },
    "deadLetterTopic": {
        "doc": "Topic for what `onCorrupt` = `deadletter` sets aside, with place and reason in the properties."
    },
    "fetchBytes": {"default": "8m", "doc": "Bytes of messages that are under way to a task at a time."},
    "delivery": {
        "doc": "`at_least_once`, or `exactly_once`: every micro-batch is one transaction over all its tasks and "
        "brokers. Only the bundled broker can do that; a broker of RocketMQ has no transaction over several messages."
    },
    "blockBytes": {"parse": values.Size(BLOCK_BYTES_MAX)},
    "tlsCaFile": {
        "doc": "Turns TLS on, to name servers and brokers: PEM file of the authority that signs their certificates, "
        "on the driver and on every executor; `system` = those that the machine trusts."
    },
}
"""Differences to the rows that formats share."""


@dataclass(frozen=True, kw_only=True)
class ServerOptions(ConnectionOptions):
    """How to reach the servers, and the client's identity."""

    # fmt: off
    name_servers: tuple[Address, ...] = option(
        "nameServers", parse_name_servers, UNSET, ANY,
        "Name servers: `host:port`, separated by `;` or `,`. One that answers is enough. Required.",
    )
    namespace: str | None = option(
        "namespace", _NAMESPACE, UNSET, ANY,
        "Namespace of topics and groups: `NAMESPACE%` before each.",
    )
    access_key: str | None = option(
        "accessKey", str.strip, UNSET, ANY,
        "Name of the account, where servers ask for one; with `secretKey`.", secret=True,
    )
    secret_key: str | None = option(
        "secretKey", str.strip, UNSET, ANY,
        "Its key; not shown in logs and plans.", secret=True,
    )
    security_token: str | None = option(
        "securityToken", str.strip, UNSET, ANY,
        "Token of a temporary account, with both keys; not shown in logs and plans.", secret=True,
    )
    group: str | None = option(
        "group", Notation.group, UNSET, ANY,
        "Group in whose name servers are asked (`metaq-spark` if not given), for `startingOffsets` = `group`, "
        "`commitGroupOffsets` and accounts. The read is no member of it.",
    )
    # fmt: on

    @cached_property
    def credentials(self) -> Credentials | None:
        if self.access_key is None or self.secret_key is None:
            return None
        return Credentials(self.access_key, self.secret_key, self.security_token)

    @property
    def found_by(self) -> str:
        return f"the name servers {', '.join(map(str, self.name_servers))}"

    @property
    def asking_group(self) -> str:
        """The group named in requests to brokers."""
        return self.group or GROUP


@dataclass(frozen=True, kw_only=True)
class SourceOptions(ServerOptions, ReadOptions):
    """A read of RocketMQ."""

    # fmt: off
    tags: Subscription | None = option(
        "tags", _tags, UNSET, READ,
        "Read only messages with one of these tags, `a || b`; the broker leaves the others out, and tags are compared "
        "again. A single bar is part of a tag; `*` alone is every message.",
    )
    sql: Subscription | None = option(
        "sql", _sql, UNSET, READ,
        "Read only messages whose properties fulfil this SQL92 condition; for brokers with `enablePropertyFilter`. A "
        "condition that the broker cannot compile fails the read.",
    )
    compacted_topics: bool = option(
        "compactedTopics", values.boolean, "false", READ,
        "Whether messages may be missing between others, as in a compacted topic; otherwise that is data loss.",
    )
    drop_repeated_within: int | None = option(
        "dropRepeatedWithin", values.messages, UNSET, READ,
        "Drop a message whose `message_id` another one had among so many messages before it in its queue: what an "
        "at-least-once sink wrote twice. That many messages are read again before each range.",
    )
    read_from: str = option(
        "readFrom", values.OneOf("suggested", "master"), "suggested", READ,
        "Which of a broker's servers is read from: the one that it suggests (a slave when messages have left its "
        "memory), or its `master` as long as that answers.",
    )
    pull_messages: int = option(
        "pullMessages", values.Whole("messages", 1, 1 << 16), "32", READ,
        "Messages asked of a broker at a time; it gives 32 at most, unless it is configured to give more.",
    )
    pulls_in_flight: int = option(
        "pullsInFlight", values.Whole("pulls", 1, 64), "32", READ,
        "Such questions that are under way at a time for a queue.",
    )
    # fmt: on

    @cached_property
    def row_layout(self) -> RowLayout:
        rules = json_rules(self.json_mode, self.corrupt_field)
        return _row_layout(self.columns, self.value_format, self.value_schema, rules)

    @cached_property
    def subscription(self) -> Subscription:
        """Which messages a broker sends."""
        return self.sql or self.tags or Subscription()


@dataclass(frozen=True, kw_only=True)
class SinkOptions(ServerOptions, TransactionOptions):
    """A write to RocketMQ."""


TABLE: Final = OptionTable(
    (ServerOptions, ReadOptions, SourceOptions, TransactionOptions, WriteOptions, ConnectionOptions),
    NOTATION,
    HABITS,
    "nameServers subscribe startingOffsets endingOffsets tags group accessKey topic",
    "docs/rocketmq.md",
    _CHANGES,
)
OPTIONS: Final = TABLE.rows


def source_layout(raw: Mapping[str, str]) -> RowLayout:
    """Check the options that do not depend on batch or stream; return the columns of the read.

    Raises:
        OptionError: An option is unknown, is for writing, is missing or cannot be read.
    """
    found = _checked(TABLE.read(raw, Use.BATCH_READ, READ), raw)
    check_choice(found)
    columns, value_format, value_schema = (found[name] for name in ("columns", "value_format", "value_schema"))
    mode, corrupt_field = found["json_mode"], found["corrupt_field"]
    check_value(value_format, value_schema, mode, corrupt_field)
    return _row_layout(columns, value_format, value_schema, json_rules(mode, corrupt_field))


def parse_source_options(raw: Mapping[str, str], use: Use) -> SourceOptions:
    """The options of a batch read or a streaming read.

    Raises:
        OptionError: An option is unknown, is not for this use, is missing or cannot be read, or contradicts another.
    """
    found = _checked(TABLE.read(raw, use), raw)
    check_choice(found)
    options = SourceOptions(**found, streaming=use is Use.STREAM_READ)
    check_read(options, use)
    if options.sql is not None and options.tags is not None and not options.tags.is_all:
        raise OptionError("tags, sql", "only one of them can say which messages to read")
    return options


def parse_sink_options(raw: Mapping[str, str], use: Use) -> SinkOptions:
    """The options of a batch write or a streaming write. Raises as ``parse_source_options``."""
    values, place = _checked(TABLE.read(raw, use), raw), checkpoint_location(raw)
    options = SinkOptions(**values, streaming=use is Use.STREAM_WRITE, checkpoint_location=place)
    check_write(options)
    return options


def parse_server_options(raw: Mapping[str, str]) -> ServerOptions:
    """Parse the connection options, for uses other than reads and writes.

    Raises:
        OptionError: An option is unknown, is for a read or a write, is missing or cannot be read.
    """
    options = ServerOptions(**_checked(TABLE.read_reach(raw, "servers"), raw))
    check_tls(options)
    return options


def _checked(found: dict[str, Any], raw: Mapping[str, str]) -> dict[str, Any]:
    """Check that there are name servers, and whole accounts."""
    if found["name_servers"] is None:
        advice = "; in SQL, INSERT INTO a temporary view with columns and OPTIONS" if not raw else ""
        raise OptionError("nameServers", "it is required: host:port of each name server, separated by ;" + advice)
    if (not found["access_key"]) != (not found["secret_key"]):
        raise OptionError("accessKey, secretKey", "they are given together or not at all")
    if found["security_token"] and not found["access_key"]:
        raise OptionError("securityToken", "it has no effect without accessKey and secretKey; give those as well")
    if found["group"] is not None:
        try:
            check_group(found["group"], found["namespace"], GROUP_BYTES_MAX)
        except ValueError as error:
            raise OptionError("group, namespace", str(error)) from None
    return found | {name: found[name] or None for name in ("access_key", "secret_key", "security_token")}


def _row_layout(
    columns: tuple[str, ...] | None, value_format: str, value_schema: DataType | None, json: JsonRules
) -> RowLayout:
    types = {**RECORD_COLUMNS, **MORE_TYPES, "value": type_of_values(value_format, value_schema)}
    return RowLayout.of(types, columns or tuple(RECORD_COLUMNS), json)
