"""The Spark program that runs beside the rounds: it copies topics to others with ``delivery=exactly_once``.

Usage: ``query.py SETTINGS``, in JSON: ``copies``, a list of ``name``, ``format``, ``servers`` (options for the
brokers), ``source``, ``target``, ``row`` (the SQL expression of the written value), ``checkpoint``. A query that ends
is started again from its checkpoint, after a line ``ended NAME: REASON``. A line on standard input has it copy all that
is there, and print ``drained``; at the end of standard input it stops.
"""

from __future__ import annotations

import json
import sys
import threading
from typing import Any, Final

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from faults.exactly_once.query import reason_of

TRIGGER: Final = "1 second"
LOOK_S: Final = 1.0
ENDED: Final = "ended "
DRAINED: Final = "drained"


class Copies:
    """The running queries by name. A task runs once: that an attempt fails must not be hidden by the next one."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._spark = (
            SparkSession.builder.master("local[2,1]")
            .config("spark.ui.enabled", "false")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.python.unix.domain.socket.enabled", "true")
            .config("spark.python.authenticate.socketTimeout", "10m")
            .getOrCreate()
        )
        self._copies = {copy["name"]: copy for copy in settings["copies"]}
        self._queries = {name: self._start(name) for name in self._copies}
        self._reported: list[StreamingQuery] = []

    def _start(self, name: str) -> StreamingQuery:
        copy = self._copies[name]
        rows = (
            self._spark.readStream.format(copy["format"])
            .options(subscribe=copy["source"], startingOffsets="earliest", **copy["servers"])
            .load()
        )
        return (
            rows.selectExpr(f"{copy['row']} as value")
            .writeStream.format(copy["format"])
            .options(topic=copy["target"], checkpointLocation=copy["checkpoint"], delivery="exactly_once")
            .options(**copy["servers"])
            .trigger(processingTime=TRIGGER)
            .start()
        )

    def belong_to_this_thread(self) -> None:
        """Make the session the active one of this thread: Spark looks for sinks written in Python there alone."""
        self._spark.createDataFrame([], "a int")

    def look(self) -> None:
        """Start the queries again that have ended. What could not be started is tried again by the next call."""
        for name, query in self._queries.items():
            if not query.isActive:
                if query not in self._reported:
                    self._reported.append(query)
                    print(f"{ENDED}{name}: {reason_of(str(query.exception()))}", flush=True)
                try:
                    self._queries[name] = self._start(name)
                except Exception as error:
                    print(f"{name} is not started: {reason_of(str(error))}", file=sys.stderr, flush=True)

    def drain(self) -> None:
        """Return when everything is copied that was there."""
        for name in self._queries:
            while True:
                self.look()
                try:
                    self._queries[name].processAllAvailable()
                except StreamingQueryException:
                    continue
                break

    def stop(self) -> None:
        for query in self._queries.values():
            query.stop()


def main(settings: dict[str, Any]) -> None:
    """Copy until standard input ends."""
    copies = Copies(settings)
    over, using = threading.Event(), threading.Lock()

    def look() -> None:
        copies.belong_to_this_thread()
        while not over.wait(LOOK_S):
            with using:
                copies.look()

    threading.Thread(target=look, daemon=True).start()
    for _ in sys.stdin:
        with using:
            copies.drain()
        print(DRAINED, flush=True)
    over.set()
    with using:
        copies.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
