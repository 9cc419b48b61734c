"""Runs the consumer of MetaQ 2.1's published source with message types at this project's broker.

The broker of that source is no side: it needs packages that were never published.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from metaq.client.metaq import MetaQ
from metaq.model import Partition
from peers.jvm import OPENED, ends_with_us
from peers.rocketmq.bundled import BundledServer
from peers.rocketmq.programs import QUICK
from peers.suites.results import Outcome, Result, Results

SOURCE: Final = Path(__file__).with_name("java") / "types" / "TypesConsumer.java"
TOPIC, GROUP, PARTITIONS, MESSAGES = "test", "types", 3, 60
ALL, WANTED = "abc", "ac"
DEADLINE_S: Final = 90.0
QUIET_S: Final = 3.0
"""Messages of other types would arrive within this time."""
COMPILE_DEADLINE_S: Final = 120


def run_types(class_path: Sequence[str], zookeeper: str, folder: Path) -> Results:
    """Return the results of a consumer of some types: at its start, and after a restart of the broker."""
    classes = folder / "classes"
    path = ":".join(class_path)
    command = ["javac", "-nowarn", "-cp", path, "-d", str(classes), str(SOURCE)]
    subprocess.run(command, check=True, capture_output=True, timeout=COMPILE_DEADLINE_S)
    (classes / "log4j.properties").write_text("log4j.rootLogger=OFF\n")
    sections = {"zookeeper": {"zk.zkConnect": zookeeper}}
    with BundledServer(folder / "broker", {}, {"numPartitions": PARTITIONS}, (TOPIC,), sections) as broker:
        said = folder / "consumer.txt"
        with _consumer(f"{classes}:{path}", zookeeper, said):
            _send(broker.metaq_address, "first")
            first = _result(said, "first")
            broker.stop()
            broker.start()
            _send(broker.metaq_address, "second")
            return {"types": first, "types.after-a-restart": _result(said, "second")}


@contextmanager
def _consumer(class_path: str, zookeeper: str, said: Path) -> Iterator[None]:
    home = f"-Duser.home={said.parent}"  # it keeps files there
    command = [*ends_with_us(), "java", *QUICK, *OPENED, home, "-cp", class_path, "suites.TypesConsumer"]
    with said.open("w") as file:
        process = subprocess.Popen([*command, zookeeper, TOPIC, GROUP, *WANTED], stdout=file, stderr=file)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def _send(address: str, prefix: str) -> None:
    with MetaQ(address) as client:
        producer = client.producer()
        for number in range(MESSAGES):
            partition = Partition(0, number // len(ALL) % PARTITIONS)
            producer.send(TOPIC, f"{prefix}-{number}", attribute=ALL[number % len(ALL)], partition=partition)


def _result(said: Path, prefix: str) -> Result:
    """Wait for the messages of the types; others, repeated ones and missing ones make it a failure."""
    wanted = [f"{prefix}-{number}" for number in range(MESSAGES) if ALL[number % len(ALL)] in WANTED]
    end = time.monotonic() + DEADLINE_S
    while not set(wanted) <= set(_bodies(said, prefix)) and time.monotonic() < end:
        time.sleep(0.2)
    time.sleep(QUIET_S)
    got = sorted(_bodies(said, prefix))
    if got == sorted(wanted):
        return Result(Outcome.PASSED)
    right = len(set(got) & set(wanted))
    return Result(Outcome.FAILED, f"{len(got)} messages, {right} of the {len(wanted)} of its types")


def _bodies(said: Path, prefix: str) -> list[str]:
    lines = [line.split("\t") for line in said.read_text(errors="replace").splitlines()]
    return [line[2] for line in lines if line[0] == "got" and line[2].startswith(f"{prefix}-")]
