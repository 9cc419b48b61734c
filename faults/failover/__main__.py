"""``python -m faults.failover``: a pair of brokers, clients of every kind, and faults; prints a table of times."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path

from faults import console
from faults.console import count, report
from faults.failover.load import Family, MetaqFamily, RocketmqFamily, TransactionFamily
from faults.failover.members import Member, Pair, PairZooKeeper
from faults.failover.network import Network, available
from faults.failover.rounds import Rounds


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; return the exit status: 0 nothing was lost, 1 something was, 2 wrong arguments."""
    parser = console.parser("faults.failover", "Break a pair of brokers, and look for lost messages.")
    parser.add_argument("--rounds", type=count, default=22, help="faults, default %(default)s: every kind twice")
    parser.add_argument("--session-ms", type=count, default=2000, help="sessionMs of the pair, default %(default)s")
    parser.add_argument("--only", default="", help="only faults whose name contains this text")
    parser.add_argument("--no-network", action="store_true", help="no network namespaces, so no cuts")
    options = parser.parse_args(arguments)
    return console.run("failover", options, lambda base: _run(options, base))


def _run(options: argparse.Namespace, base: Path) -> None:
    with contextlib.ExitStack() as stack:
        network = None if options.no_network or not available() else stack.enter_context(Network(("a", "b")))
        host = "127.0.0.1" if network is None else network.own_address
        zookeeper = PairZooKeeper(base / "zookeeper", host)
        stack.callback(zookeeper.kill)
        zookeeper.start()
        pair = _pair(base, network)
        for member in pair.members:
            member.configure(pair.other(member), zookeeper, options.session_ms)
            stack.callback(member.kill)
            member.start()
        pair.wait_whole()
        families = _families(pair, zookeeper)
        for family in families:
            family.start()
            stack.callback(family.stop)
        rounds = Rounds(base, pair, families, network, host, options.seed, options.only)
        rounds.run(options.rounds)
        report("seconds from the fault to the first acknowledged message, median / 99th percentile:")
        for line in rounds.table():
            report(line)


def _pair(base: Path, network: Network | None) -> Pair:
    if network is None:
        return Pair(Member("a", base / "a", "127.0.0.1"), Member("b", base / "b", "127.0.0.1"))
    a, b = (network.hosts[name] for name in ("a", "b"))
    return Pair(Member("a", base / "a", a.address, a.command), Member("b", base / "b", b.address, b.command))


def _families(pair: Pair, zookeeper: PairZooKeeper) -> list[Family]:
    both = ",".join(str(each.address) for each in pair.members)
    return [
        MetaqFamily("brokers", both),
        MetaqFamily("zookeeper", f"zk://{zookeeper.connect}/meta"),
        TransactionFamily("transactions", both),
        RocketmqFamily([str(each.rocketmq) for each in pair.members]),
    ]


if __name__ == "__main__":
    sys.exit(main())
