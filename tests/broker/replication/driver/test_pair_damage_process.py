"""Real processes: one member's files are damaged while both are down. It never leads, and the other one heals it.

A member that was alone in the set leads until the other one, which may have what is damaged, is in sync.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from examples import rarely
from fix_broker import StartBroker, run_broker_command, wait_until
from fix_zookeeper import ZooKeeperRoot
from pair_processes import Load, PairProcess, PairProcesses, put, stored

from metaq import MetaQ
from metaq.errors import OffsetMoved
from metaq.formats.frames import HEADER_BYTES, walk
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
        *(flip_a_bit, shorten_the_journal, empty_the_folder),
        *rarely(shorten_the_last, shorten_the_first, empty_a_partition, lose_the_epochs),
    ],
)
def test_a_damaged_member_waits_for_the_other_one(damage: Callable[[PairProcess], None], pair: PairProcesses) -> None:
    pair.start()
    bodies = [b"%04d" % number * 100 for number in range(150)]
    with MetaQ(brokers=pair.brokers) as mq:
        mq.producer().send_many("t", [Message(body) for body in bodies])
    wait_until(pair.copies_are_equal, "equal copies")
    master = pair.wait_in_sync()
    damaged = pair.other(master)
    pair.kill_both()
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


def test_puts_go_on_while_a_damaged_member_hands_over(pair: PairProcesses) -> None:
    pair.start()
    put(pair, range(20))
    damaged = pair.master
    other = pair.other(damaged)
    other.kill()
    put(pair, range(20, 30))
    damaged.kill()
    flip_a_body(damaged)
    damaged.start()
    pair.wait_master(damaged)
    with Load(pair.brokers) as load:
        load.wait_for_more()
        other.start()
        pair.wait_master(other)
        load.wait_for_more()
    assert load.errors == []


def said_by(*arguments: str | Path) -> str:
    """Return what a command of ``metaq-broker`` prints."""
    return run_broker_command(*arguments).stdout


def test_a_shortened_file_of_a_lone_member_is_reported_and_the_other_copy_is_kept(pair: PairProcesses) -> None:
    """The other member had everything, and was not in sync any more. Readers are not told that nothing was there."""
    pair.start()
    put(pair, range(150))
    wait_until(pair.copies_are_equal, "equal copies")
    with MetaQ(brokers=pair.brokers) as mq:
        before = {int(message.data) for message in mq.browse("t") if message.partition.index == 0}
    shortened = pair.master
    other = pair.other(shortened)
    other.kill()
    wait_until(lambda: shortened.stats()["in_sync"] == str(shortened.address), "alone in sync")
    end = int(segments(shortened)[-1].stem) + segments(shortened)[-1].stat().st_size
    noted = re.compile(rf"^{end} .* t-0$", re.MULTILINE)
    wait_until(lambda: noted.search((shortened.data / "durable-ends").read_text()) is not None, "the end is noted")
    shortened.kill()
    shorten_the_last(shortened)
    assert "bytes that were durable are gone" in said_by("fsck", "--data", shortened.data)
    shortened.start()
    pair.wait_master(shortened)
    assert "data is lost partition=t-0" in shortened.log()
    status = said_by("ctl", "--data", shortened.data, "status")
    assert "NOT REPLICATED  partition t-0 has lost bytes" in status
    assert "DATA LOST       t-0, bytes" in status
    put(pair, range(150, 160))
    other.start()
    pair.wait_master(other)
    pair.wait_in_sync()
    wait_until(pair.copies_are_equal, "equal copies")
    [kept] = (path for path in other.data.glob("lost+found/t-0/*") if path.is_dir())
    for member in pair.members:
        status, checked = said_by("ctl", "--data", member.data, "status"), said_by("fsck", "--data", member.data)
        assert "are not served" in status
        assert "not served: [" in checked
        assert f"{member.data}/lost+found/t-0/" in status
        assert f"{member.data}/lost+found/t-0/" in checked
    assert f"KEPT           {kept}, " in said_by("ctl", "--data", other.data, "status")
    with pytest.raises(OffsetMoved):
        stored(pair)
    assert {int(frame.body) for path in kept.glob("*.meta") for frame in walk(path.read_bytes())} == before
