"""``metaq reset``: changes the offsets of a consumer group."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from metaq.cli.arguments import parse_start, topic_name
from metaq.cli.output import note, print_rows

if TYPE_CHECKING:
    from metaq.cli.profile import Profile


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands of this module."""
    reset = commands.add_parser(
        "reset", help="set the offsets of a group that is not running (zk://... or rocketmq://...)"
    )
    reset.add_argument("group")
    reset.add_argument("topic", type=topic_name)
    reset.add_argument(
        "--to", required=True, metavar="START", help="as --from of consume: earliest, latest, a time ..."
    )
    reset.add_argument("-p", "--partition", action="append", metavar="PARTITION", help="only this one; repeatable")
    reset.add_argument("--execute", action="store_true", help="do it; without this, only show what would change")
    reset.add_argument("--json", action="store_true", help="one JSON object a line")
    reset.set_defaults(run=_reset)


def _reset(options: argparse.Namespace, profile: Profile) -> int:
    from metaq.model import Partition

    partitions = None if options.partition is None else [Partition.parse_any(name) for name in options.partition]
    start = parse_start(options.to, partitions)
    with profile.connect() as mq:
        planned = mq.cluster.plan_reset(options.group, options.topic, start, partitions)
        if options.execute:
            mq.cluster.reset(options.group, planned)
    rows = [{"partition": str(one.partition), "position": one.position, "to": one.to} for one in planned]
    print_rows(rows, ("partition", "position", "to"), as_json=options.json)
    note("the offsets are set" if options.execute else "nothing is changed; --execute does it")
    return 0
