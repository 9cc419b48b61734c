"""Commands that change what a consumer group will read: ``reset``, and ``dlq`` for messages that it gave up."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from metaq.cli.consume import parse_start
from metaq.cli.output import json_value, note, print_rows, time_text

if TYPE_CHECKING:
    from metaq.cli.profile import Profile
    from metaq.client.groups.parking import ParkedMessages
    from metaq.client.metaq import MetaQ


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands of this module."""
    reset = commands.add_parser("reset", help="set the offsets of a group that is not running (zk://... only)")
    reset.add_argument("group")
    reset.add_argument("topic")
    reset.add_argument(
        "--to", required=True, metavar="START", help="as --from of consume: earliest, latest, a time ..."
    )
    reset.add_argument("-p", "--partition", action="append", metavar="PARTITION", help="only this one; repeatable")
    reset.add_argument("--execute", action="store_true", help="do it; without this, only show what would change")
    reset.add_argument("--json", action="store_true", help="one JSON object a line")
    reset.set_defaults(run=_reset)
    dlq = commands.add_parser("dlq", help="messages that a group of this machine gave up and parked")
    dlq.add_argument("action", choices=("list", "resend", "discard"))
    dlq.add_argument("group")
    dlq.add_argument("numbers", nargs="*", type=int, metavar="NUMBER", help="only these, as list shows them")
    dlq.add_argument("--topic", metavar="TOPIC", help="resend to this topic instead of the message's own")
    dlq.add_argument("--all", action="store_true", help="discard all")
    dlq.add_argument("--json", action="store_true", help="one JSON object a line")
    dlq.set_defaults(run=_dlq, list_name="numbers")


def _reset(options: argparse.Namespace, profile: Profile) -> int:
    from metaq.model import Partition

    partitions = None if options.partition is None else [Partition.parse(name) for name in options.partition]
    start = parse_start(options.to, partitions)
    with profile.connect_metaq("reset") as mq:
        planned = mq.cluster.plan_reset(options.group, options.topic, start, partitions)
        if options.execute:
            mq.cluster.reset(options.group, planned)
    rows = [{"partition": str(one.partition), "position": one.position, "to": one.to} for one in planned]
    print_rows(rows, ("partition", "position", "to"), as_json=options.json)
    note("the offsets are set" if options.execute else "nothing is changed; --execute does it")
    return 0


def _dlq(options: argparse.Namespace, profile: Profile) -> int:
    with profile.connect_metaq("dlq") as mq:
        parked = mq.parked(options.group)
        match options.action:
            case "list":
                _list(parked, options)
            case "resend":
                _resend(mq, parked, options)
            case _:
                if bool(options.numbers) == options.all:
                    raise ValueError("dlq discard: name numbers, or --all")
                gone = sum(parked.discard(one.number) for one in list(parked) if _is_named(one.number, options))
                note(f"{gone} messages discarded")
    return 0


def _is_named(number: int, options: argparse.Namespace) -> bool:
    return not options.numbers or number in options.numbers


def _list(parked: ParkedMessages, options: argparse.Namespace) -> None:
    rows: list[dict[str, object]] = []
    for one in parked:
        if _is_named(one.number, options):
            message = one.message
            row: dict[str, object] = {"number": one.number, "topic": message.topic, "partition": str(message.partition)}
            row |= {"offset": message.offset, "parked": time_text(one.parked_ms), "reason": one.reason}
            rows.append(row | json_value(message.data) if options.json else row)
    print_rows(rows, ("number", "topic", "partition", "offset", "parked", "reason"), as_json=options.json)


def _resend(mq: MetaQ, parked: ParkedMessages, options: argparse.Namespace) -> None:
    from metaq.model import Message

    producer, count = mq.producer(), 0
    try:
        for one in parked:
            if _is_named(one.number, options):
                message = one.message
                producer.send_many(options.topic or message.topic, [Message(message.data, message.attribute)])
                parked.discard(one.number)
                count += 1
    finally:
        note(f"{count} messages sent again")
