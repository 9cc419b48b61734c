"""The kinds of faults: what is done to a pair, how it is undone, and how long clients may have to wait."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from faults.failover.disks import Disk
from faults.failover.members import Member, Pair, PairZooKeeper
from faults.failover.network import Host, Network
from metaq.formats.frames import HEADER_BYTES, unpack_header

FULL_S: Final = 1.5
"""How long a disk stays full, and a master away that nobody can replace."""


@dataclass(frozen=True, slots=True)
class Stage:
    """What faults are done to. ``network`` and ``disks`` (member -> its own disk) are missing where root is needed."""

    pair: Pair
    zookeeper: PairZooKeeper
    network: Network | None
    disks: Mapping[str, Disk]
    random: random.Random
    session_s: float
    """``sessionMs`` of the pair, in seconds."""

    def host(self, name: str) -> Host:
        assert self.network is not None
        return self.network.hosts[name]


class Limit(Enum):
    """How long clients may wait for their next acknowledgement, at the 99th percentile."""

    KILL = "2 s"
    SILENCE = "the session + 2 s"
    NONE = "none"

    def seconds(self, session_s: float) -> float:
        return {Limit.KILL: 2.0, Limit.SILENCE: session_s + 2.0}.get(self, float("inf"))


class Needs(Enum):
    """What this machine must allow."""

    NOTHING = "nothing"
    NETWORK = "network"
    DISKS = "disks"


@dataclass(frozen=True, slots=True)
class Fault:
    """``strike`` does it to the pair with this master. ``heal`` undoes it, once all families are acknowledged again.

    ``lasts``: it lasts some random time, up to somewhat longer than a session, even if all families are acknowledged.
    ``hides``: brokers are not registered in ZooKeeper meanwhile, so its clients read nothing and new ones do not begin.
    ``stops``: the fault stops the pair. Then it is undone after ``FULL_S``, and the time is measured from there.
    """

    name: str
    strike: Callable[[Stage, Member], None]
    heal: Callable[[Stage, Member], None] = lambda stage, master: None
    limit: Limit = Limit.NONE
    needs: Needs = Needs.NOTHING
    lasts: bool = False
    stops: bool = False
    hides: bool = False

    def possible(self, stage: Stage) -> bool:
        """Whether it can be done here."""
        return {Needs.NETWORK: stage.network is not None, Needs.DISKS: bool(stage.disks)}.get(self.needs, True)


# ---- processes


def _start(stage: Stage, master: Member) -> None:
    for member in stage.pair.members:
        if not member.runs:
            member.start()


def _kill_slave(stage: Stage, master: Member) -> None:
    stage.pair.other(master).kill()


def _kill_both(stage: Stage, master: Member) -> None:
    for member in stage.pair.members:
        member.kill()
    _start(stage, master)


def _freeze_slave(stage: Stage, master: Member) -> None:
    stage.pair.other(master).freeze()


def _thaw(stage: Stage, master: Member) -> None:
    for member in stage.pair.members:
        member.thaw()


def _kill_zookeeper(stage: Stage, master: Member) -> None:
    stage.zookeeper.kill()


def _start_zookeeper(stage: Stage, master: Member) -> None:
    stage.zookeeper.start()


# ---- the network


def _heal_network(stage: Stage, master: Member) -> None:
    assert stage.network is not None
    stage.network.heal()


ZOOKEEPER: Final = "zk"
"""The name of ZooKeeper's host."""


def _cut(*ways: str) -> Callable[[Stage, Member], None]:
    """Return what cuts ``ways``, each ``FROM TO``: ``master``, ``slave`` or ``zk``."""

    def strike(stage: Stage, master: Member) -> None:
        assert stage.network is not None
        hosts = {
            "master": stage.host(master.name),
            "slave": stage.host(stage.pair.other(master).name),
            ZOOKEEPER: stage.host(ZOOKEEPER),
        }
        for way in ways:
            source, target = way.split()
            stage.network.cut(hosts[source], hosts[target].address)

    return strike


def _unplug(stage: Stage, master: Member) -> None:
    assert stage.network is not None
    stage.network.unplug(stage.host(master.name))


# ---- damage, of the slave


def _empty_slave(stage: Stage, master: Member) -> None:
    slave = stage.pair.other(master)
    slave.kill()
    shutil.rmtree(slave.data)
    slave.start()


def _shorten_slave(stage: Stage, master: Member) -> None:
    """Shorten the newest segments, as a disk that loses its end does."""
    slave = stage.pair.other(master)
    slave.kill()
    for partition in sorted(slave.data.glob("*-[0-9]")):
        newest = max(partition.glob("*.meta"))
        with open(newest, "r+b") as file:
            file.truncate(newest.stat().st_size * 2 // 3)
    slave.start()


def _flip_bits(stage: Stage, member: Member) -> None:
    """Flip a bit in one message of each partition that both members have.

    In a body, which has a checksum; the message id in a MetaQ header has none, and a bit of it may go unnoticed.
    """
    for partition in sorted(member.data.glob("*-[0-9]")):
        newest = max(partition.glob("*.meta"))
        content = bytearray(newest.read_bytes())
        bodies, at = [], 0
        while at + HEADER_BYTES < len(content) // 2:
            length = unpack_header(content, at)[0]
            bodies += [at + HEADER_BYTES] if length else []
            at += HEADER_BYTES + length
        if bodies:
            content[stage.random.choice(bodies)] ^= 1 << stage.random.randrange(8)
            newest.write_bytes(content)


def _flip_bit_of_slave(stage: Stage, master: Member) -> None:
    slave = stage.pair.other(master)
    slave.kill()
    _flip_bits(stage, slave)
    slave.start()


def _flip_bit_of_lone_master(stage: Stage, master: Member) -> None:
    """The slave, which has what is damaged, is back at the end."""
    stage.pair.other(master).kill()
    stage.pair.wait_alone(master)
    master.kill()
    _flip_bits(stage, master)
    master.start()


def _put_slave_back(stage: Stage, master: Member) -> None:
    """Restore the slave's folder from a copy that was made before its last start."""
    slave = stage.pair.other(master)
    copy = slave.data.with_name("copy")
    slave.kill()
    shutil.copytree(slave.data, copy, ignore=shutil.ignore_patterns("*.sock"))
    slave.start()
    stage.pair.wait_whole()
    slave.kill()
    shutil.rmtree(slave.data)
    shutil.move(copy, slave.data)
    slave.start()


DAMAGES: Final = (_empty_slave, _shorten_slave, _flip_bit_of_slave, _put_slave_back)


def _damage_and_kill(stage: Stage, master: Member) -> None:
    """Damage the slave somehow, and kill the master while the slave opens its data or copies."""
    stage.random.choice(DAMAGES)(stage, master)
    time.sleep(stage.random.uniform(0.0, 1.5))
    master.kill()


# ---- full disks


def _fill(*roles: str) -> Callable[[Stage, Member], None]:
    def strike(stage: Stage, master: Member) -> None:
        for role in roles:
            stage.disks[(master if role == "master" else stage.pair.other(master)).name].fill()

    return strike


def _free(stage: Stage, master: Member) -> None:
    for disk in stage.disks.values():
        disk.empty()



def _network(name: str, strike: Callable[[Stage, Member], None]) -> Fault:
    return Fault(name, strike, _heal_network, Limit.SILENCE, Needs.NETWORK, lasts=True)


FAULTS: Final = (
    Fault("kill -9 of the master", lambda stage, master: master.kill(), _start, Limit.KILL),
    Fault("kill -9 of the slave", _kill_slave, _start, Limit.KILL),
    Fault("kill -9 of both", _kill_both),
    Fault("master frozen", lambda stage, master: master.freeze(), _thaw, Limit.SILENCE),
    Fault("slave frozen", _freeze_slave, _thaw, Limit.SILENCE, lasts=True),
    _network("cut between the members", _cut("master slave", "slave master")),
    _network("cut from the master to the slave", _cut("master slave")),
    _network("cut from the slave to the master", _cut("slave master")),
    _network("master cut from ZooKeeper", _cut("master zk", "zk master")),
    _network("cut from the master to ZooKeeper", _cut("master zk")),
    _network("cut from ZooKeeper to the master", _cut("zk master")),
    _network("slave cut from ZooKeeper", _cut("slave zk", "zk slave")),
    replace(_network("both cut from ZooKeeper", _cut("master zk", "zk master", "slave zk", "zk slave")), hides=True),
    _network("master unplugged", _unplug),
    Fault("kill -9 of ZooKeeper", _kill_zookeeper, _start_zookeeper, Limit.KILL, lasts=True, hides=True),
    Fault("slave emptied", _empty_slave, limit=Limit.KILL),
    Fault("slave's files shortened", _shorten_slave, limit=Limit.KILL),
    Fault("a bit of the slave's files flipped", _flip_bit_of_slave, limit=Limit.KILL),
    Fault("slave killed, a bit of the master's files flipped", _flip_bit_of_lone_master, _start),
    Fault("slave's folder put back", _put_slave_back, limit=Limit.KILL),
    Fault("slave damaged, kill -9 of the master", _damage_and_kill, _start, stops=True),
    Fault("slave's disk full", _fill("slave"), _free, Limit.KILL, Needs.DISKS),
    Fault("master's disk full", _fill("master"), _free, needs=Needs.DISKS, stops=True),
    Fault("both disks full", _fill("master", "slave"), _free, needs=Needs.DISKS, stops=True),
)
