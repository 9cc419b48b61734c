"""``python -m faults.java_failover``: a pair of brokers, Java's own clients, and faults; prints a table of times.

RocketMQ's clients find the pair by name servers of four kinds: both members themselves, ``metaq-namesrv``, and
RocketMQ's own of both releases.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from faults import console
from faults.broker_process import BrokerTrouble
from faults.console import count, report
from faults.failover.members import Member, Pair, PairZooKeeper
from faults.java_failover.clients import Clients, Program, metaq_program, rocketmq_program
from faults.java_failover.rounds import Rounds
from metaq.testing.ports import free_port
from peers.maven import Unavailable
from peers.rocketmq.ask import ask
from peers.rocketmq.jars import release
from peers.rocketmq.servers import GET_CLUSTER, Cluster

METAQ: Final = "metaq"
METAQ_TOPIC: Final = "java"
RELEASES: Final = ("4.9.7", "5.5.0")
MEMBERS: Final = "members"
ROOT: Final = "/meta"
NAME_SERVER_S: Final = 30.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; return the exit status: 0 nothing was lost, 1 something was, 2 wrong arguments."""
    parser = console.parser("faults.java_failover", "Break a pair of brokers while Java's own clients use it.")
    parser.add_argument("--rounds", type=count, default=30, help="faults, default %(default)s")
    parser.add_argument("--session-ms", type=count, default=2000, help="sessionMs of the pair, default %(default)s")
    parser.add_argument(
        "--clients", default=",".join([METAQ, *RELEASES]), help="metaq, 4.9.7 and 5.5.0 (RocketMQ), default %(default)s"
    )
    parser.add_argument("--poll-ms", type=count, help="how often RocketMQ's clients ask for routes, default: theirs")
    parser.add_argument("--register-ms", type=count, default=30_000, help="registerNameServerPeriod, %(default)s")
    options = parser.parse_args(arguments)
    options.clients = options.clients.split(",")
    if unknown := set(options.clients) - {METAQ, *RELEASES}:
        parser.error(f"--clients: {', '.join(sorted(unknown))}: expected {METAQ}, {', '.join(RELEASES)}")
    return console.run("java failover", options, lambda base: _run(options, base), Unavailable)


def _run(options: argparse.Namespace, base: Path) -> None:
    with contextlib.ExitStack() as stack:
        zookeeper = PairZooKeeper(base / "zookeeper", "127.0.0.1")
        stack.callback(zookeeper.kill)
        zookeeper.start()
        releases = [each for each in options.clients if each != METAQ]
        servers = _name_servers(base, stack) if releases else {}
        pair = Pair(Member("a", base / "a", "127.0.0.1"), Member("b", base / "b", "127.0.0.1"))
        places = servers | {MEMBERS: ";".join(str(each.rocketmq) for each in pair.members)}
        families = {
            version: [_rocketmq_clients(version, kind) for kind in places]
            for version in releases
        }
        topics = [METAQ_TOPIC, *(each.topic for clients in families.values() for each in clients)]
        more = f"namesrvAddr={';'.join(servers.values())}\nregisterNameServerPeriod={options.register_ms}\n"
        for member in pair.members:
            member.configure(pair.other(member), zookeeper, options.session_ms, topics, more if servers else "")
            stack.callback(member.kill)
            member.start()
        pair.wait_whole()
        programs: list[Program] = []
        if METAQ in options.clients:
            clients = Clients(METAQ_TOPIC, "MetaQ, ZooKeeper")
            programs.append(metaq_program(base / METAQ, zookeeper.address, ROOT, clients))
        for version, family in families.items():
            by_topic = {each.topic: place for each, place in zip(family, places.values(), strict=True)}
            programs.append(rocketmq_program(base / version, version, by_topic, family, options.poll_ms))
        for program in programs:
            stack.callback(program.kill)
        for program in programs:
            program.wait_ready()
        rounds = Rounds(base, pair, programs)
        rounds.run(options.rounds)
        report("seconds without an acknowledged message around the fault, median / longest:")
        for line in rounds.table():
            report(line)


def _rocketmq_clients(version: str, kind: str) -> Clients:
    topic = f"{version}-{kind}".replace(".", "-").replace(" ", "-")
    return Clients(topic, f"RocketMQ {version}, {kind}", stays_with_frozen=kind == MEMBERS)


def _name_servers(base: Path, stack: contextlib.ExitStack) -> dict[str, str]:
    """Start a name server of each kind; return their addresses."""
    found = {"metaq-namesrv": _own_name_server(base / "namesrv", stack)}
    for version in RELEASES:
        cluster = stack.enter_context(Cluster(release(version), base / f"rocketmq-{version}"))
        found[f"name server {version}"] = cluster.start_name_server().address
    return found


def _own_name_server(folder: Path, stack: contextlib.ExitStack) -> str:
    folder.mkdir(parents=True)
    port = free_port()
    address = f"127.0.0.1:{port}"
    lines = {"listenPort": port, "bindAddress": "127.0.0.1", "kvConfigPath": folder / "kvConfig.json"}
    lines["configStorePath"] = folder / "namesrv.properties"
    (folder / "namesrv.conf").write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
    command = [sys.executable, "-m", "metaq_broker.rocketmq.nameserver.cli", "start", "-c", "namesrv.conf"]
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=log)
    stack.callback(process.wait)
    stack.callback(process.kill)
    end = time.monotonic() + NAME_SERVER_S
    while True:
        try:
            ask(address, GET_CLUSTER, {}, timeout_s=1.0)
            return address
        except OSError as reason:
            if process.poll() is not None or time.monotonic() > end:
                log_text = (folder / "log").read_text(errors="replace")
                raise BrokerTrouble(f"metaq-namesrv did not start: {reason}: {log_text}") from reason
            time.sleep(0.05)


if __name__ == "__main__":
    sys.exit(main())
