"""Options of other RocketMQ connectors, and of this connector for MetaQ, with the option to use instead."""

from __future__ import annotations

from typing import Final

from metaq_spark.options.table import SHARED_HABITS, USE_LIMITS, Habits

_SERVERS: Final = "use nameServers: host:port of each name server, separated by ;"
_TOPICS: Final = ("use subscribe: topics, separated by commas", "use topic: one topic, or a column topic for more")
_TOPIC: Final = ("use subscribe", "use topic: one topic, or a column topic for more")
_START: Final = "use startingOffsets: earliest, latest, group, or JSON with an offset for each queue"
_START_TIME: Final = "use startingTimestamp: milliseconds since 1970, or ISO 8601"
_END_TIME: Final = "use endingTimestamp: milliseconds since 1970, or ISO 8601"
_GROUP: Final = "use group"
_TAGS: Final = ("use tags: a || b", "use a column tags")
_KEYS: Final = ("the column keys has them", "use a column keys")
_COMMIT: Final = "use commitGroupOffsets: the group's offsets are set to what Spark has completed"
_PULLS: Final = "use pullMessages and pullsInFlight"
_TIMEOUT: Final = "use requestTimeoutMs"
_POP: Final = (
    "POP is not supported: a broker that hands messages out to a group cannot give the same ones again when Spark "
    "repeats a batch. Queues are read by offset, which needs no option"
)
_NOTHING: Final = "leave it out: it is not needed"

HABITS: Final[Habits] = {
    **SHARED_HABITS,
    # common to several connectors
    "nameserver": _SERVERS,
    "namesrv": _SERVERS,
    "namesrvaddr": _SERVERS,
    "namesrv.addr": _SERVERS,
    "nameserver.address": _SERVERS,
    "nameserver.addr": _SERVERS,
    "nameserveraddress": _SERVERS,
    "nameserveraddresses": _SERVERS,
    "brokers": _SERVERS,
    "servers": _SERVERS,
    "endpoints": _SERVERS,
    "kafka.bootstrap.servers": _SERVERS,
    "zookeeper": "RocketMQ has name servers; use nameServers",
    "topic": _TOPIC,
    "partitions": 'use assign: JSON such as {"orders": ["broker-a:0", "broker-a:1"]}',
    "queues": 'use assign: JSON such as {"orders": ["broker-a:0", "broker-a:1"]}',
    "producergroup": _GROUP,
    "tag": _TAGS,
    "messagetypes": _TAGS,
    "key": (
        "the column keys has them",
        "use a column key: the same key goes to the same queue; keys are keys to look messages up by",
    ),
    "keys": _KEYS,
    "pop": _POP,
    "popmode": _POP,
    "consumemode": _POP,
    "localreads": "leave it out: a RocketMQ broker sends every message",
    "attributeformat": "leave it out: the column properties is a map",
    "orderedpartitions": "use a column queue, or a column key",
    # rocketmq-spark's
    "subexpression": _TAGS,
    "pulltimeoutms": _TIMEOUT,
    "pullbatchsize": _PULLS,
    "fetchoffset.numretries": "use retries",
    "fetchoffset.retryintervalms": "use retryIntervalMs",
    "consumer.topic": _TOPICS,
    "consumer.group": _GROUP,
    "consumer.tag": _TAGS,
    "consumer.offset": _START,
    "consumer.offset.reset.to": _START,
    "consumer.offset.from.timestamp": _START_TIME,
    "pull.max.speed.per.partition": USE_LIMITS,
    "pull.max.batch.size": _PULLS,
    "pull.timeout.ms": _TIMEOUT,
    # rocketmq-flink's
    "rocketmq.client.endpoints": _SERVERS,
    "rocketmq.client.namespace": "use namespace",
    "rocketmq.client.accesskey": "use accessKey",
    "rocketmq.client.secretkey": "use secretKey",
    "rocketmq.client.tls.enable": "use tlsCaFile, or tlsVerify = none for certificates that nobody checks",
    "rocketmq.client.partition.discovery.interval.ms": "leave it out: new queues are found by themselves",
    "rocketmq.client.network.timeout.ms": _TIMEOUT,
    "rocketmq.source.group": _GROUP,
    "rocketmq.source.topic": _TOPICS,
    "rocketmq.source.filter.tag": _TAGS,
    "rocketmq.source.filter.sql": "use sql",
    "rocketmq.source.startup.scan.mode": _START,
    "rocketmq.source.startup.offset.specific": _START,
    "rocketmq.source.startup.offset.timestamp": _START_TIME,
    "rocketmq.source.startup.offset.date": _START_TIME,
    "rocketmq.source.stop.offset.timestamp": _END_TIME,
    "rocketmq.source.pull.batch.size": _PULLS,
    "rocketmq.source.pull.threads.num": _PULLS,
    "rocketmq.source.offset.commit.auto": _COMMIT,
    "rocketmq.source.allocate.strategy": _NOTHING,
    "rocketmq.sink.group": _GROUP,
    "rocketmq.sink.topic": ("it is for a write", "use topic"),
    "rocketmq.sink.tag": ("it is for a write", "use a column tags"),
    "rocketmq.sink.key": ("it is for a write", "use a column keys"),
    "rocketmq.sink.delivery.guarantee": ("it is for a write", "use delivery: at_least_once"),
    "rocketmq.sink.send.retry.times": "use retries",
    "rocketmq.sink.send.timeout": _TIMEOUT,
    "startmessageoffset": _START,
    "starttimemills": _START_TIME,
    "starttime": _START_TIME,
    "endtime": _END_TIME,
    "startupmode": _START,
    "commit.offset.auto": _COMMIT,
    "keycolumns": "use a column keys",
    "dynamictagcolumn": "use a column tags",
    "retrytimes": "use retries",
}
"""By the key in lower case: for reads and for writes where that differs."""
