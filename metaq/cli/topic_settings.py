"""``metaq create``, ``alter`` and ``delete``: topics of RocketMQ brokers, including the bundled broker.

MetaQ's protocol has no such requests: its brokers configure topics in server.ini.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

from metaq.cli.arguments import above_zero, topic_name
from metaq.cli.output import note, print_rows

if TYPE_CHECKING:
    from metaq.cli.profile import Profile
    from metaq.client.rocketmq.client import RocketMQ
    from metaq.client.rocketmq.topics import TopicSettings

_PERMISSIONS: Final = ("rw", "r", "w", "none")
_COLUMNS: Final = ("broker", "read_queues", "write_queues", "permissions")
_ON_DISK: Final = "(metaq-broker ctl delete, metaServer.sh delete-partitions)"
_RELOAD: Final = "(metaq-broker ctl reload, metaServer.sh reload)"
_INSTEAD: Final = {
    "create": f"add [topic={{0}}] to the broker's server.ini and reload it {_RELOAD}",
    "alter": f"change [topic={{0}}] in the broker's server.ini and reload it {_RELOAD}",
    "delete": f"delete its partitions on the broker's machine {_ON_DISK}",
}


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands of this module."""
    create = _add(commands, "create", "make a topic (rocketmq://... only)")
    create.add_argument("--partitions", type=above_zero, default=8, metavar="N", help="at each broker (default: 8)")
    _add_settings(create)
    create.set_defaults(run=_create)
    alter = _add(commands, "alter", "change queues and permissions of a topic (rocketmq://... only)")
    alter.add_argument("--partitions", type=above_zero, metavar="N", help="at each broker, for readers and writers")
    alter.add_argument("--write-partitions", type=above_zero, metavar="N", help="those that take messages")
    alter.add_argument("--force", action="store_true", help="also where messages could not be read any more")
    _add_settings(alter)
    alter.set_defaults(run=_alter)
    delete = _add(commands, "delete", "delete a topic with its messages (rocketmq://... only)")
    delete.add_argument("--execute", action="store_true", help="do it; without this, only show what would be deleted")
    delete.set_defaults(run=_delete)


def _add(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str, help_text: str
) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=help_text)
    parser.add_argument("topic", type=topic_name)
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    return parser


def _add_settings(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--permissions", choices=_PERMISSIONS, help="for readers and writers (new topics: rw)")
    parser.add_argument("--broker", action="append", metavar="NAME", help="only at this one; repeatable")


def _connect(profile: Profile, what: str, topic: str) -> RocketMQ:
    from metaq.client.rocketmq.client import RocketMQ

    mq = profile.connect()
    if not isinstance(mq, RocketMQ):
        mq.close()
        raise ValueError(f"{what}: MetaQ's protocol has no request for it; {_INSTEAD[what].format(topic)}")
    return mq


def _create(options: argparse.Namespace, profile: Profile) -> int:
    from metaq.errors import TopicNotFound

    with _connect(profile, "create", options.topic) as mq:
        try:
            there = mq.topics.settings(options.topic, options.broker)
        except TopicNotFound:
            there = []
        if there:
            raise ValueError(f"topic {options.topic!r} exists at {there[0].broker}; metaq alter changes it")
        mq.topics.create(options.topic, options.partitions, options.permissions or "rw", options.broker)
        _print(mq.topics.settings(options.topic, options.broker), options)
    return 0


def _alter(options: argparse.Namespace, profile: Profile) -> int:
    if options.partitions is None and options.write_partitions is None and options.permissions is None:
        raise ValueError("alter: name --partitions, --write-partitions or --permissions")
    with _connect(profile, "alter", options.topic) as mq:
        if options.partitions is not None and not options.force:
            _require_readable(mq, options)
        changed = mq.topics.alter(
            options.topic,
            read_queues=options.partitions,
            write_queues=options.write_partitions or options.partitions,
            permissions=options.permissions,
            brokers=options.broker,
        )
        _print(changed, options)
    return 0


def _require_readable(mq: RocketMQ, options: argparse.Namespace) -> None:
    """Refuse to hide queues that have messages."""
    for one in mq.cluster.describe(options.topic):
        named = options.broker is None or one.partition.broker_name in options.broker
        if named and one.partition.index >= options.partitions and one.messages:
            raise ValueError(
                f"--partitions {options.partitions}: nobody could read the {one.messages:,} messages of "
                f"{one.partition}; lower --write-partitions first, or give --force"
            )


def _delete(options: argparse.Namespace, profile: Profile) -> int:
    with _connect(profile, "delete", options.topic) as mq:
        mq.topics.settings(options.topic)  # raises TopicNotFound: brokers accept the deletion of unknown topics
        found = mq.cluster.describe(options.topic)
        if options.execute:
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
