"""The Spark program ``query.py`` as a process, and the comparison of what its queries wrote with what they read."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from faults.broker_process import BrokerTrouble
from faults.failover import query
from metaq import MetaQ
from metaq.client.rocketmq.client import RocketMQ
from peers.jvm import ends_with_us

ROOT: Final = Path(__file__).parents[2]
DRAIN_S: Final = 300.0
STOP_S: Final = 60.0
METAQ_ROW: Final = "concat(cast(concat(partition, ' ', `offset`, ' ') as binary), value)"
ROCKETMQ_ROW: Final = "concat(cast(concat(queue_id, ' ', queue_offset, ' ') as binary), value)"


@dataclass(frozen=True, slots=True)
class Copy:
    """A query from ``source`` to ``target`` over brokers named by ``servers``, options of the connector.

    A row that it writes is the partition, the offset and the value of the message that it has read.
    """

    name: str
    format: str
    servers: Mapping[str, str]
    source: str

    @property
    def target(self) -> str:
        return f"copy-of-{self.source}"

    def settings(self, folder: Path) -> dict[str, Any]:
        return {
            "name": self.name,
            "format": self.format,
            "servers": dict(self.servers),
            "source": self.source,
            "target": self.target,
            "row": METAQ_ROW if self.format == "metaq" else ROCKETMQ_ROW,
            "checkpoint": str(folder / f"checkpoint-{self.name}"),
        }

    def difference(self, metaq: MetaQ, rocketmq: RocketMQ) -> tuple[int, list[str]]:
        """Return the number of rows, and a sentence for each kind of difference."""
        client: Any = metaq if self.format == "metaq" else rocketmq
        read = (b"%d %d %b" % (each.partition.index, each.offset, each.data) for each in client.browse(self.source))
        return compared(read, (each.data for each in client.browse(self.target)))


def compared(read: Iterable[bytes], written: Iterable[bytes]) -> tuple[int, list[str]]:
    """Return how many rows were read, and a sentence for each kind of difference to what was written."""
    expected, found = Counter(read), Counter(written)
    missing, foreign = expected - found, found - expected
    doubled = Counter({row: count for row, count in foreign.items() if row in expected})
    sentences = []
    for what, rows in (("missing", missing), ("there twice", doubled), ("unexpected", foreign - doubled)):
        if rows:
            sentences.append(f"{rows.total()} rows are {what}: {sorted(rows)[:5]}")
    return expected.total(), sentences


class SparkCopies:
    """The process; it is started again if it ends. ``ended`` says what has ended, and why."""

    def __init__(self, folder: Path, copies: Sequence[Copy]) -> None:
        self.copies = copies
        self.ended: list[str] = []
        self._folder = folder
        folder.mkdir(parents=True)
        self._settings = json.dumps({"copies": [each.settings(folder) for each in copies]})
        self._drained: queue.Queue[None] = queue.Queue()
        self._stopping = False

    def start(self) -> None:
        environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_CONF_DIR": str(ROOT / "spark-conf")}
        with open(self._folder / "spark.log", "ab") as log:
            self._process = subprocess.Popen(
                [*ends_with_us(), sys.executable, query.__file__, self._settings],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**environment, "PYTHONPATH": str(ROOT)},
            )
        self._reader = threading.Thread(target=self._read, args=[self._process], daemon=True)
        self._reader.start()

    def batches(self) -> dict[str, int]:
        """Return query -> the number of micro-batches that were committed."""
        folders = {each.name: self._folder / f"checkpoint-{each.name}" / "commits" for each in self.copies}
        return {
            name: max((int(file.name) + 1 for file in folder.glob("[0-9]*")), default=0)
            for name, folder in folders.items()
        }

    def drain(self) -> None:
        """Return when the queries have written everything that was there.

        Raises:
            BrokerTrouble: They have not within ``DRAIN_S``.
        """
        assert self._process.stdin is not None
        self._process.stdin.write("drain\n")
        self._process.stdin.flush()
        try:
            self._drained.get(timeout=DRAIN_S)
        except queue.Empty:
            log = (self._folder / "spark.log").read_text(errors="replace")[-3000:]
            raise BrokerTrouble(f"the queries have not copied everything within {DRAIN_S:g} s\n{log}") from None

    def stop(self) -> None:
        self._stopping = True
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                if line.startswith(query.ENDED):
                    self.ended.append(line.removeprefix(query.ENDED).strip())
                elif line.strip() == query.DRAINED:
                    self._drained.put(None)
        status = process.wait()
        if not self._stopping:
            process.stdin.close()
            self.ended.append(f"the driver has ended with status {status}")
            self.start()
