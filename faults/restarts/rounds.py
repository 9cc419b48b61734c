"""The rounds of one query: wait for a running task, end the broker, start it again, wait until the query continues."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Final

from faults.console import PromiseBroken
from faults.put_back.rounds import SLOW_MACHINE, STARTS_MAX
from faults.restarts import query
from faults.restarts.servers import Servers

ROOT: Final = Path(__file__).parents[2]
FED: Final = 1200
"""Messages of a round: three micro-batches."""

AWAY_S_MAX: Final = 4.0
"""Longest outage of a broker, in seconds: longer than the connector's default retries."""

PATIENCE_S: Final = 900.0
_POLL_S: Final = 0.02


class Rounds:
    """The rounds of a query of ``format_name`` with ``delivery``, in ``folder``; each puts ``fed`` messages."""

    def __init__(self, folder: Path, format_name: str, delivery: str, seed: int, fed: int = FED) -> None:
        folder.mkdir(parents=True)
        self._folder, self._format, self._delivery, self._fed = folder, format_name, delivery, fed
        self._random = Random(f"{seed} {format_name} {delivery}")
        self._marks = folder / "marks"
        self._marks.mkdir()
        self._said: queue.Queue[str] = queue.Queue()
        self._done: dict[int, int] = {}
        self._process: subprocess.Popen[str] | None = None
        self._servers: Servers | None = None
        self._slow_starts = 0

    def run(self, count: int, report: Callable[[str], None]) -> str:
        """Restart the broker ``count`` times; return a summary.

        Raises:
            PromiseBroken: The query ended or makes no progress, or its copies differ from the input.
        """
        self._servers = servers = Servers(self._folder, self._format)
        self._start(servers)
        in_batch = 0
        try:
            for number in range(1, count + 1):
                in_batch += self._round(servers)
                if number % 10 == 0:
                    report(f"restarts: {self._format}, {self._delivery}: round {number}")
            self._wait(lambda: sum(self._done.values()) == servers.fed, "the query copies the rest")
            return f"{count} restarts, {in_batch} of them with a micro-batch under way; {self._check(servers)}"
        finally:
            self._end()
            servers.close()

    def _end(self) -> None:
        assert self._process is not None
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait(PATIENCE_S)

    def _round(self, servers: Servers) -> bool:
        begun = len(list(self._marks.iterdir()))
        servers.feed(self._fed)
        self._wait(lambda: len(list(self._marks.iterdir())) > begun, "a task begins")
        self._pause(self._random.uniform(0.0, 1.5))
        is_in_batch = len(self._done) < len(list(self._marks.iterdir()))
        if self._random.random() < 0.5:
            servers.broker.kill()
        else:
            servers.broker.stop()
        self._pause(self._random.uniform(0.0, AWAY_S_MAX))
        servers.broker.start()
        before = len(self._done)
        self._wait(lambda: len(self._done) > before or sum(self._done.values()) == servers.fed, "the query goes on")
        return is_in_batch

    def _check(self, servers: Servers) -> str:
        copies = servers.copies()
        missing = [number for number in range(servers.fed) if not copies[number]]
        if missing or len(copies) != servers.fed:
            sentence = f"{len(missing)} of {servers.fed} messages are not copied: {missing[:10]}"
            raise PromiseBroken(self._folder, [sentence])
        repeated = copies.total() - servers.fed
        if repeated and self._delivery == "exactly_once":
            raise PromiseBroken(self._folder, [f"{repeated} copies are there twice"])
        return f"{servers.fed} messages copied, {repeated} of them again"

    def _start(self, servers: Servers) -> None:
        settings = {
            "format": self._format,
            "servers": dict(servers.options),
            "checkpoint": str(self._folder / "checkpoint"),
            "marks": str(self._marks),
            "sink": {"delivery": self._delivery},
            "tries": query.FAILURES_MAX,
        }
        environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_CONF_DIR": str(ROOT / "spark-conf")}
        with (self._folder / "driver.log").open("a") as log:
            self._process = subprocess.Popen(
                [sys.executable, query.__file__, json.dumps(settings)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**environment, "PYTHONPATH": str(ROOT)},
            )
        self._said = queue.Queue()
        threading.Thread(target=self._read, args=[self._process, self._said], daemon=True).start()

    def _read(self, process: subprocess.Popen[str], said: queue.Queue[str]) -> None:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                said.put(line.strip())
        said.put("failed: the driver ended")

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + PATIENCE_S
        while not condition():
            self._pause(_POLL_S)
            if time.monotonic() > end:
                sentence = f"waited {PATIENCE_S:g} s in vain: {what}; copied so far: {sum(self._done.values())}"
                raise PromiseBroken(self._folder, [sentence])

    def _pause(self, seconds: float) -> None:
        """Wait, and read the driver's output meanwhile."""
        end = time.monotonic() + seconds
        while (left_s := end - time.monotonic()) > 0:
            try:
                line = self._said.get(timeout=left_s)
            except queue.Empty:
                return
            if SLOW_MACHINE in line and self._slow_starts < STARTS_MAX:
                self._slow_starts += 1  # Spark's own failure: the query restarts from its checkpoint
                assert self._servers is not None
                self._end()
                self._start(self._servers)
            elif line.startswith("failed: "):
                raise PromiseBroken(self._folder, [f"the query ended: {line.removeprefix('failed: ')}"])
            if line.startswith("done "):
                _, batch_id, rows = line.split()
                self._done[int(batch_id)] = int(rows)
