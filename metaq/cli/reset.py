"""``metaq reset``: changes the offsets of a consumer group."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from metaq.cli.arguments import parse_start
from metaq.cli.command import JSON, PARTITIONS, TOPIC, argument, command
from metaq.cli.output import note, print_rows

if TYPE_CHECKING:
    from metaq.cli.profile import CommandProfile


@command(
    "reset",
    "set the offsets of a group that is not running",
    argument("group"),
    TOPIC,
    argument("--to", required=True, metavar="START", help="as --from of consume: earliest, latest, a time ..."),
    PARTITIONS,
    argument("--execute", action="store_true", help="do it; without this, only show what would change"),
    JSON,
    examples=("g t --to earliest",),
    abilities=(("`reset`", "in ZooKeeper or at its brokers", "in ZooKeeper", "yes"),),
)
def _reset(options: argparse.Namespace, profile: CommandProfile) -> int:
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
