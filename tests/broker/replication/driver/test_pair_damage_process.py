"""Real processes: one member's files are damaged while both are down. It never leads, and the other one heals it.

A member that was alone in the set leads until the other one, which may have what is damaged, is in sync.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from fix_broker import StartBroker, wait_until
from fix_zookeeper import ZooKeeperRoot
from pair_processes import PairProcess, PairProcesses, put, stored

from metaq import MetaQ
from metaq.formats.frames import HEADER_BYTES
from metaq.model import Message

pytestmark = [pytest.mark.process, pytest.mark.slow]


@pytest.fixture
def pair(tmp_path: Path, zookeeper: ZooKeeperRoot, start_broker: StartBroker) -> PairProcesses:
    return PairProcesses(tmp_path, zookeeper, start_broker)


def segments(member: PairProcess) -> list[Path]:
    return sorted(path for path in member.data.glob("t-0/*.meta") if path.stat().st_size)


def flip_a_bit(member: PairProcess) -> None:
    path = segments(member)[-1]
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


def flip_a_body(member: PairProcess) -> None:
    """Of the first message."""
    path = segments(member)[-1]
    data = bytearray(path.read_bytes())
    data[HEADER_BYTES] ^= 4
    path.write_bytes(data)


def shorten_the_last(member: PairProcess) -> None:
    path = segments(member)[-1]
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def shorten_the_first(member: PairProcess) -> None:
    path = segments(member)[0]
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def empty_a_partition(member: PairProcess) -> None:
    shutil.rmtree(member.data / "t-0")


def shorten_the_journal(member: PairProcess) -> None:
    path = max((member.data / "transactions").glob("*.journal"))
    path.write_bytes(path.read_bytes()[:10])


def lose_the_epochs(member: PairProcess) -> None:
    (member.data / "stream-epochs").unlink()


def empty_the_folder(member: PairProcess) -> None:
    shutil.rmtree(member.data)
    member.data.mkdir()


@pytest.mark.parametrize(
    "damage",
    [
        *(flip_a_bit, shorten_the_last, shorten_the_first, empty_a_partition),
        *(shorten_the_journal, lose_the_epochs, empty_the_folder),
    ],
)
def test_a_damaged_member_waits_for_the_other_one(damage: Callable[[PairProcess], None], pair: PairProcesses) -> None:
    pair.start()
    bodies = [b"%04d" % number * 100 for number in range(150)]
    with MetaQ(brokers=pair.brokers) as mq:
        mq.producer().send_many("t", [Message(body) for body in bodies])
    wait_until(pair.copies_are_equal, "equal copies")
    master = pair.master
    damaged = pair.other(master)
    for member in pair.members:
        member.kill()
    damage(damaged)
    damaged.start()
    wait_until(lambda: damaged.role == "learner", f"a learner: {pair.states()}")
    master.start()
    pair.wait_in_sync()
    assert pair.master is master
    wait_until(pair.copies_are_equal, "equal copies")
    master.kill()
    pair.wait_master(damaged)  # it was healed
    with MetaQ(brokers=[str(damaged.address)]) as mq:
        assert sorted(bytes(message.data) for message in mq.browse("t")) == sorted(bodies)


def test_a_damaged_lone_member_hands_over_and_is_healed(pair: PairProcesses) -> None:
    pair.start()
    put(pair, range(150))
    wait_until(pair.copies_are_equal, "equal copies")
    damaged = pair.master
    other = pair.other(damaged)
    other.kill()
    put(pair, range(150, 160))  # the other one lacks these
    damaged.kill()
    flip_a_body(damaged)
    damaged.start()
    pair.wait_master(damaged)
    assert "the other member takes over" in damaged.stats()["trouble"]
    other.start()
    pair.wait_master(other)
    pair.wait_in_sync()
    wait_until(pair.copies_are_equal, "equal copies")
    put(pair, range(160, 170))
    assert stored(pair) == list(range(170))
    wait_until(pair.copies_are_equal, "equal copies")
    damaged.kill()
    damaged.start()
    pair.wait_in_sync()
    assert pair.master is other
    assert "trouble" not in damaged.stats()
