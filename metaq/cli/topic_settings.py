"""``metaq create``, ``alter`` and ``delete``: topics of RocketMQ brokers, including the bundled broker.

MetaQ's protocol has no such requests: its brokers configure topics in server.ini. The bundled broker takes them at its
port for RocketMQ's clients, which its ``stats`` names, and has the topic for MetaQ's clients, too.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Final, NamedTuple

from metaq.cli.arguments import above_zero
from metaq.cli.command import JSON, TOPIC, Ability, argument, command
from metaq.cli.output import note, print_rows
from metaq.client.profile import ROCKETMQ_SCHEME

if TYPE_CHECKING:
    from metaq.cli.profile import CommandProfile
    from metaq.client.rocketmq.client import RocketMQ
    from metaq.client.rocketmq.topics import TopicSettings
    from metaq.client.statistics import BrokerStatistics

_PERMISSIONS: Final = ("rw", "r", "w", "none")
_COLUMNS: Final = ("broker", "read_queues", "write_queues", "permissions")
_ON_DISK: Final = "(metaq-broker ctl delete, metaServer.sh delete-partitions)"
_RELOAD: Final = "(metaq-broker ctl reload, metaServer.sh reload)"
_INSTEAD: Final = {
    "create": f"enable [rocketmq] or add [topic={{0}}] in its server.ini; a topic needs only a reload {_RELOAD}",
    "alter": f"change [topic={{0}}] in the broker's server.ini and reload it {_RELOAD}",
    "delete": f"delete its partitions on the broker's machine {_ON_DISK}",
}


_PERMISSION: Final = argument("--permissions", choices=_PERMISSIONS, help="for readers and writers (new topics: rw)")
_BROKER: Final = argument("--broker", action="append", metavar="NAME", help="only at this one; repeatable")


def _abilities(name: str) -> tuple[Ability, ...]:
    return ((f"`{name}`", "with `[rocketmq]`, as `dev` has it", "no: see `metaServer.sh`", "yes"),)


class _Administered(NamedTuple):
    """Where topics are made: a cluster, and the names of its brokers (``None``: all of them)."""

    mq: RocketMQ
    brokers: Sequence[str] | None


@contextmanager
def _administered(profile: CommandProfile, what: str, options: argparse.Namespace) -> Iterator[list[_Administered]]:
    """Connect to the cluster; of MetaQ brokers, to the port of each for RocketMQ's clients, whose topics are the same.

    Raises:
        ValueError: A MetaQ broker has no such port.
    """
    from metaq.client.metaq import MetaQ

    chosen: list[str] | None = getattr(options, "broker", None)
    with ExitStack() as stack:
        mq = profile.connect()
        stack.enter_context(mq)
        if not isinstance(mq, MetaQ):
            yield [_Administered(mq, chosen)]
            return
        brokers = {str(one.broker): one for one in mq.cluster.statistics()}
        if unknown := sorted(set(chosen or ()) - brokers.keys()):
            raise ValueError(f"no broker {unknown[0]!r} is found; there are {', '.join(sorted(brokers))}")
        yield [
            _Administered(
                stack.enter_context(_at_broker(profile, one, what, options.topic)), [one.figures["rocketmq_broker"]]
            )
            for name, one in brokers.items()
            if chosen is None or name in chosen
        ]


def _at_broker(profile: CommandProfile, one: BrokerStatistics, what: str, topic: str) -> RocketMQ:
    from metaq.client.rocketmq.client import RocketMQ
    from metaq.model import Address

    port = one.number("rocketmq_port")
    if port is None:
        raise ValueError(
            f"{what}: broker {one.address} does not serve RocketMQ's requests, and MetaQ's protocol has none for it; "
            f"{_INSTEAD[what].format(topic)}"
        )
    mq = replace(profile, cluster=f"{ROCKETMQ_SCHEME}{Address(one.address.host, port)}").connect()
    assert isinstance(mq, RocketMQ)
    return mq


@command(
    "create",
    "make a topic, at RocketMQ's brokers or the bundled one",
    TOPIC,
    argument("--partitions", type=above_zero, default=8, metavar="N", help="at each broker (default: 8)"),
    _PERMISSION,
    _BROKER,
    JSON,
    examples=("new --partitions 2",),
    abilities=_abilities("create"),
)
def _create(options: argparse.Namespace, profile: CommandProfile) -> int:
    with _administered(profile, "create", options) as admins:
        for each in admins:
            if there := _settings(each, options.topic):
                raise ValueError(f"topic {options.topic!r} exists at {there[0].broker}; metaq alter changes it")
        made = []
        for mq, brokers in admins:
            mq.topics.create(options.topic, options.partitions, options.permissions or "rw", brokers)
            made += mq.topics.settings(options.topic, brokers)
        _print(made, options)
    return 0


def _settings(admin: _Administered, topic: str) -> list[TopicSettings]:
    from metaq.errors import TopicNotFound

    try:
        return admin.mq.topics.settings(topic, admin.brokers)
    except TopicNotFound:
        return []


@command(
    "alter",
    "change queues and permissions of a topic",
    TOPIC,
    argument("--partitions", type=above_zero, metavar="N", help="at each broker, for readers and writers"),
    argument("--write-partitions", type=above_zero, metavar="N", help="those that take messages"),
    argument("--force", action="store_true", help="also where messages could not be read any more"),
    _PERMISSION,
    _BROKER,
    JSON,
    examples=("t --permissions rw",),
    abilities=_abilities("alter"),
)
def _alter(options: argparse.Namespace, profile: CommandProfile) -> int:
    if options.partitions is None and options.write_partitions is None and options.permissions is None:
        raise ValueError("alter: name --partitions, --write-partitions or --permissions")
    with _administered(profile, "alter", options) as admins:
        if options.partitions is not None and not options.force:
            for each in admins:
                _require_readable(each, options)
        changed = []
        for mq, brokers in admins:
            changed += mq.topics.alter(
                options.topic,
                read_queues=options.partitions,
                write_queues=options.write_partitions or options.partitions,
                permissions=options.permissions,
                brokers=brokers,
            )
        _print(changed, options)
    return 0


def _require_readable(admin: _Administered, options: argparse.Namespace) -> None:
    """Refuse to hide queues that have messages."""
    for one in admin.mq.cluster.describe(options.topic):
        named = admin.brokers is None or one.partition.broker_name in admin.brokers
        if named and one.partition.index >= options.partitions and one.messages:
            raise ValueError(
                f"--partitions {options.partitions}: nobody could read the {one.messages:,} messages of "
                f"{one.partition}; lower --write-partitions first, or give --force"
            )


@command(
    "delete",
    "delete a topic with its messages",
    TOPIC,
    argument("--execute", action="store_true", help="do it; without this, only show what would be deleted"),
    JSON,
    examples=("t",),
    abilities=_abilities("delete"),
)
def _delete(options: argparse.Namespace, profile: CommandProfile) -> int:
    with _administered(profile, "delete", options) as admins:
        found = []
        for mq, _ in admins:
            mq.topics.settings(options.topic)  # raises TopicNotFound: brokers accept the deletion of unknown topics
            found += mq.cluster.describe(options.topic)
        for mq, _ in admins if options.execute else ():
            mq.topics.delete(options.topic)
    rows = [
        {"partition": str(one.partition), "start": one.start, "end": one.end, "messages": one.messages}
        for one in found
    ]  # fmt: skip
    print_rows(rows, ("partition", "start", "end", "messages"), as_json=options.json)
    note("the topic is deleted" if options.execute else "nothing is deleted; --execute does it")
    return 0


def _print(settings: list[TopicSettings], options: argparse.Namespace) -> None:
    print_rows([asdict(one) for one in settings], _COLUMNS, as_json=options.json)
