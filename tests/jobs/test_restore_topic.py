"""From a broker to an archive to another broker: the same messages in the same order, however often."""

from __future__ import annotations

from pathlib import Path

import archive_topics
import pytest
from archive_manifests import ArchiveError
from fix_broker import StartBroker
from older_archive import to_older_form
from plain_client import put_all, stored
from pyspark.sql import SparkSession
from restore_topic import files_of, parse_arguments, restore_name, run

from metaq.model import Message
from metaq.operate.mirror.targets import TooFewPartitions


def test_files_are_those_that_manifests_name() -> None:
    def entry(topic: str, *files: str) -> dict[str, object]:
        return {"topic": topic, "files": [*files]}

    manifests = [
        {"batch": 0, "ranges": [entry("orders", "b"), entry("orders", "a"), entry("paid", "c")]},
        {"batch": 12, "ranges": [entry("orders", "d")]},
    ]
    expected = ["data/batch=00000000/a", "data/batch=00000000/b", "data/batch=00000012/d"]
    assert files_of("orders", manifests) == expected
    assert files_of("nothing", manifests) == []


BASE = ["--archive", "a", "--topic", "orders", "--brokers", "h:1", "--to-topic", "again"]


def test_an_archive_that_has_grown_is_another_restore() -> None:
    base = parse_arguments(BASE)
    names = {restore_name(base, 3), restore_name(base, 4), restore_name(parse_arguments([*BASE, "--archive", "b"]), 3)}
    assert len(names) == 3
    assert restore_name(base, 3) in names
    assert restore_name(parse_arguments([*BASE, "--name", "mine"]), 3) == "mine"


@pytest.mark.spark
@pytest.mark.process
@pytest.mark.slow
def test_restore(
    spark: SparkSession, start_broker: StartBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = start_broker("dev", tmp_path / "home", "--port", "0", "--partitions", "3").address
    away = start_broker("dev", tmp_path / "away", "--port", "0", "--partitions", "2").address
    folder = str(tmp_path / "archive")
    archive = ["--output", folder, "--brokers", str(home), "--topics", "orders,other", "--partition-bytes-max", "900"]
    odd = [Message(b"\xff\x00", "a"), Message(b""), Message(b"x", ""), Message("é".encode(), "é=1")]
    sent = {
        0: [*odd, *(Message(f"0-{n}".encode()) for n in range(60))],
        2: [Message(b"%d" % n, "t") for n in range(60)],
    }
    for index, messages in sent.items():
        put_all(home, "orders", index, messages)
    put_all(home, "other", 1, odd)
    assert archive_topics.Archive(spark, archive_topics.parse_arguments(archive)).catch_up() > 1
    to_older_form(Path(folder), 0)

    base = ["--archive", folder, "--topic", "orders", "--to-topic", "restored"]
    with pytest.raises(ArchiveError, match="'orderz': the archive has nothing of it; its topics are: orders, other"):
        run(spark, parse_arguments([*base, "--topic", "orderz", "--brokers", str(away)]))
    restore = parse_arguments([*base, "--brokers", str(away)])
    run(spark, restore)
    run(spark, restore)
    assert "was written before, with 124 rows for topic restored; nothing was written now" in capsys.readouterr().out
    assert stored(away, "restored") == {0: sent[0], 1: sent[2]}

    put_all(home, "orders", 1, odd)
    archive_topics.Archive(spark, archive_topics.parse_arguments(archive)).catch_up()
    with pytest.raises(TooFewPartitions, match="3 partitions at the source, only 2 at the target"):
        run(spark, restore)
    run(spark, parse_arguments([*base, "--brokers", str(home)]))
    assert stored(home, "restored") == sent | {1: odd}
    (Path(folder) / "manifests" / "00000000.json").unlink()
    with pytest.raises(ArchiveError, match="not in order, so nothing is restored: manifest 0 is missing"):
        run(spark, restore)
