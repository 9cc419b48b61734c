"""``python -m faults.failover``: a pair of brokers, clients of every kind, and faults; prints a table of times."""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from faults import console
from faults.console import PromiseBroken, count, report
from faults.failover.consumers import GroupMember, MetaqMember, RocketmqMember
from faults.failover.copies import Copy, SparkCopies
from faults.failover.disks import Disk, can_mount
from faults.failover.kinds import ZOOKEEPER, Stage
from faults.failover.load import Family, HalfMessageFamily, MetaqFamily, RocketmqFamily, TransactionFamily
from faults.failover.members import Member, Pair, PairZooKeeper
from faults.failover.network import Network, available
from faults.failover.rounds import Rounds

NAMES: Final = ("a", "b")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; return the exit status: 0 every promise was kept, 1 one was broken, 2 wrong arguments."""
    options = _parser().parse_args(arguments)
    return console.run("failover", options, lambda base: _run(options, base))


def _parser() -> argparse.ArgumentParser:
    parser = console.parser("faults.failover", "Break a pair of brokers, and look for lost messages.")
    parser.add_argument("--rounds", type=count, default=48, help="faults, default %(default)s: every kind twice")
    parser.add_argument("--session-ms", type=count, default=2000, help="sessionMs of the pair, default %(default)s")
    parser.add_argument("--only", default="", help="only faults whose name contains this text")
    parser.add_argument("--no-network", action="store_true", help="no network namespaces, so no cuts")
    parser.add_argument("--spark", action="store_true", help="with streaming queries that copy topics exactly once")
    parser.add_argument("--limits", action="store_true", help="fail if clients wait longer than is promised")
    return parser


def _run(options: argparse.Namespace, base: Path) -> None:
    os.environ["XDG_STATE_HOME"] = str(base / "state")  # consumers may keep something on this machine
    with contextlib.ExitStack() as stack:
        with_network = available() and not options.no_network
        network = stack.enter_context(Network((*NAMES, ZOOKEEPER))) if with_network else None
        disks = {name: stack.enter_context(Disk(base / name)) for name in NAMES} if can_mount() else {}
        stage = _stage(base, network, disks, options)
        stack.callback(stage.zookeeper.kill)
        stage.zookeeper.start()
        for member in stage.pair.members:
            member.configure(stage.pair.other(member), stage.zookeeper, options.session_ms)
            stack.callback(member.kill)
            member.start()
        stage.pair.wait_whole()
        families, consumers, copies = _clients(stage)
        clients: list[Family | GroupMember] = [*families, *consumers]
        for client in clients:
            client.start()
            stack.callback(client.leave)
        spark = SparkCopies(base / "spark", copies) if options.spark else None
        if spark is not None:
            spark.start()
            stack.callback(spark.stop)
        rounds = Rounds(base, stage, families, consumers, spark, options.only)
        rounds.run(options.rounds)
        late = rounds.late()
        for line in late:
            report(f"later than promised: {line}")
        if late and options.limits:
            raise PromiseBroken(base, late)


def _stage(base: Path, network: Network | None, disks: Mapping[str, Disk], options: argparse.Namespace) -> Stage:
    if network is None:
        members = [Member(name, base / name, "127.0.0.1") for name in NAMES]
        zookeeper = PairZooKeeper(base / "zookeeper", "127.0.0.1")
    else:
        hosts = network.hosts
        members = [Member(name, base / name, hosts[name].address, hosts[name].command) for name in NAMES]
        zookeeper = PairZooKeeper(base / "zookeeper", hosts[ZOOKEEPER].address, hosts[ZOOKEEPER].command)
    seed, session_s = options.seed, options.session_ms / 1000
    return Stage(Pair(*members), zookeeper, network, disks, random.Random(seed), session_s)


def _clients(stage: Stage) -> tuple[list[Family], list[GroupMember], list[Copy]]:
    brokers = ",".join(str(each.address) for each in stage.pair.members)
    name_servers = ";".join(str(each.rocketmq) for each in stage.pair.members)
    tree = f"zk://{stage.zookeeper.address}/meta"
    families = [
        MetaqFamily("brokers", brokers),
        MetaqFamily("zookeeper", tree),
        TransactionFamily("transactions", brokers),
        RocketmqFamily(name_servers),
        HalfMessageFamily(name_servers),
    ]
    consumers = [
        MetaqMember("brokers", brokers),
        MetaqMember("zookeeper", tree),
        RocketmqMember("rocketmq", name_servers),
    ]
    copies = [
        Copy("brokers", "metaq", {"brokers": brokers}, "brokers"),
        Copy("zookeeper", "metaq", {"zookeeper": tree.removeprefix("zk://")}, "zookeeper"),
        Copy("rocketmq", "rocketmq", {"nameServers": name_servers}, "rocketmq"),
    ]
    return families, consumers, copies


if __name__ == "__main__":
    sys.exit(main())
