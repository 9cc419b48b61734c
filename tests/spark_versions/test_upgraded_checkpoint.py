"""A query's checkpoint is continued by each later version of Spark, with a batch that the older one left open."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from copying_query import LIMIT
from fix_broker import StartBroker
from fix_spark import spark_environment
from sparks import SPARKS

from metaq import MetaQ

pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.slow, pytest.mark.long]

PROGRAM = Path(__file__).with_name("copying_query.py")
ROWS = 20


def run(python: str, *command: str) -> str:
    environment = os.environ | spark_environment() | {"PYSPARK_PYTHON": python}
    done = subprocess.run([python, *command], env=environment, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr[-6000:]
    return done.stdout


class Topics:
    """The topics of a broker: numbered messages go into one, and come out of the other."""

    def __init__(self, mq: MetaQ) -> None:
        self._mq = mq
        self.sent = 0

    def put(self) -> None:
        producer = self._mq.producer()
        for _ in range(ROWS):
            producer.send("steps", b"%d" % self.sent, attribute="number")
            self.sent += 1

    def copied(self) -> list[int]:
        return sorted(int(message.data) for message in self._mq.browse("copies"))


def leave_open(checkpoint: Path) -> None:
    """Make the last batch one that was planned and written, but not committed: the driver was killed there."""
    commits = checkpoint / "commits"
    last = max(int(file.name) for file in commits.iterdir() if file.name.isdigit())
    for file in (commits / str(last), commits / f".{last}.crc"):
        file.unlink(missing_ok=True)


def test_each_version_goes_on_where_the_last_one_was(start_broker: StartBroker, tmp_path: Path) -> None:
    broker = start_broker("dev", tmp_path / "data", "--port", "0", "--partitions", "2")
    checkpoint = tmp_path / "checkpoint"
    with MetaQ(str(broker.address)) as mq:
        topics = Topics(mq)
        for python in SPARKS.values():
            topics.put()
            run(python, str(PROGRAM), str(broker.address), str(checkpoint))
            assert topics.copied() == list(range(topics.sent))
            assert "steps" in run(python, "-m", "metaq_spark.cli", "checkpoint", "show", str(checkpoint))
            lag = ("lag", "--checkpoint", str(checkpoint))
            assert "steps" in run(python, "-m", "metaq.cli.main", "--cluster", str(broker.address), *lag)
            leave_open(checkpoint)
    assert len(list((checkpoint / "offsets").glob("[0-9]*"))) >= topics.sent // LIMIT
