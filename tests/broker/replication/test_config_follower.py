"""A slave that follows its master's topics: what it takes over, when it does not, and how that is told."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from metaq_broker.app import Broker
from metaq_broker.operate.config.configuration import parse
from metaq_broker.replication import config_follower
from metaq_broker.text import peer
from replicated import bodies, client, configured, put_many, running, slave_of, until_caught_up
from waiting import in_loop, until


@asynccontextmanager
async def with_file(folder: Path, role: str = "") -> AsyncIterator[tuple[Broker, Path]]:
    """Run a broker that has a file, and only the topic ``t``."""
    folder.mkdir()
    file = folder / "server.ini"
    file.write_bytes(configured(folder / "store", role=role).text.replace(b"[topic=*]", b"[topic=t]"))
    async with running(parse(file.read_bytes(), str(file)), file) as broker:
        yield broker, file


def follows(master: Broker) -> str:
    """The section of a slave that takes over its master's topics."""
    return slave_of(master, autoSyncMasterConfig="true")


@asynccontextmanager
async def following(folder: Path) -> AsyncIterator[tuple[tuple[Broker, Path], tuple[Broker, Path]]]:
    """Run a master and a slave that follows it, each with its file."""
    async with with_file(folder / "m") as master, with_file(folder / "s", follows(master[0])) as slave:
        yield master, slave


async def change(broker: Broker, file: Path, old: str, new: str) -> None:
    """Change the file of a broker and let it be reloaded."""
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))
    assert broker.admin is not None
    await broker.reloader.reload()


async def until_not_followed(slave: Broker, reason: str) -> None:
    """Return when a slave says why it does not follow."""
    await until(lambda: reason in str(slave.replication.not_followed), f"not followed: {reason}")
    assert slave.replication.facts()["not_followed"] == slave.replication.not_followed
    assert any(line.startswith("not_followed ") and reason in line for line in slave.replication.lines())


async def until_followed(slave: Broker, topic: str, partitions: int) -> None:
    """Return when a slave has a topic."""
    await until(lambda: topic in slave.config.topics and slave.config.topics[topic].num_partitions == partitions, topic)


@pytest.mark.parametrize("reports_checksum", [True, False])
@in_loop
async def test_changes_are_taken_over(tmp_path: Path, reports_checksum: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not reports_checksum:
        monkeypatch.setattr(peer, "_CHECKSUM_LINE", re.compile("(never) told"))

    async with following(tmp_path) as ((master, master_file), (slave, file)), client(master) as link:
        await change(master, master_file, "[topic=t]", "[topic=t]\nnumPartitions=4\n[topic=new]")
        await until_followed(slave, "new", 2)
        await until_followed(slave, "t", 4)
        before = Path(f"{file}.bak").read_text()
        await put_many(link, bodies(5), "new", 1)
        await until_caught_up(slave)
        await change(master, master_file, "[topic=new]", "[topic=new]\nnumPartitions=3")
        await until_followed(slave, "new", 3)
        assert Path(f"{file}.bak").read_text() != before
        assert slave.config.text == file.read_bytes()
        assert follows(master) in file.read_text()
        assert slave.replication.not_followed is None


@in_loop
async def test_what_cannot_be_taken_over_changes_nothing(tmp_path: Path) -> None:
    async with following(tmp_path) as ((master, master_file), (slave, file)):
        await until(lambda: "acceptPublish" in file.read_text(), "the first look")
        text = file.read_bytes()
        await change(master, master_file, "brokerId=3", "brokerId=4")
        await until_not_followed(slave, "[system] brokerId: value 4; expected this slave's, 3")
        await change(master, master_file, "brokerId=4", "brokerId=3")
        await until(lambda: slave.replication.not_followed is None, "the master's file is right again")
        assert file.read_bytes() == text
        backup = Path(f"{file}.bak")
        backup.unlink()
        backup.mkdir()
        await change(master, master_file, "[topic=t]", "[topic=new]\n[topic=t]")
        await until_not_followed(slave, "Is a directory")
        assert (file.read_bytes(), [*slave.config.topics]) == (text, ["t"])
        backup.rmdir()
        await until_followed(slave, "new", 2)
        await until(lambda: slave.replication.not_followed is None, "it is tried again")


@in_loop
async def test_a_reload_that_is_refused_is_made_up_for(tmp_path: Path) -> None:
    async with following(tmp_path) as ((master, master_file), (slave, file)):
        await until(lambda: "acceptPublish" in file.read_text(), "the first look")
        blocked = tmp_path / "blocked"
        blocked.write_text("no folder")
        with file.open("a") as own:
            own.write(f"dataPath={blocked}\n[topic=fresh]\ndataPath={blocked}\n")
        await change(master, master_file, "[topic=t]", "[topic=fresh]\n[topic=t]")
        await until_not_followed(slave, str(blocked))
        assert [*slave.config.topics] == ["t"]
        blocked.unlink()
        await until_followed(slave, "fresh", 2)


@in_loop
async def test_a_broker_without_a_file_says_that_it_cannot_follow(tmp_path: Path) -> None:
    async with (
        running(configured(tmp_path / "m")) as master,
        running(configured(tmp_path / "s", role=follows(master))) as slave,
    ):
        await until_not_followed(slave, "without a configuration file")


@in_loop
async def test_a_promoted_slave_follows_nobody(tmp_path: Path) -> None:
    async with following(tmp_path) as ((master, master_file), (slave, file)):
        await slave.replication.promote(force=True)
        text = file.read_bytes()
        await change(master, master_file, "[topic=t]", "[topic=new]\n[topic=t]")
        assert (slave.replication.follower, file.read_bytes()) == (None, text)


def test_a_link_and_permissions_stay(tmp_path: Path) -> None:
    target, link = tmp_path / "real.ini", tmp_path / "server.ini"
    target.write_bytes(b"old")
    target.chmod(0o600)
    link.symlink_to(target)
    config_follower.rewrite(config_follower.Files(), link, b"old", b"new")
    backup = tmp_path / "real.ini.bak"
    assert (link.is_symlink(), link.read_bytes(), backup.read_bytes()) == (True, b"new", b"old")
    assert [path.stat().st_mode & 0o777 for path in (target, backup)] == [0o600, 0o600]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["real.ini", "real.ini.bak", "server.ini"]
