"""Counts the functions of this project, and their files, that a request passes through on each of the ways below.

python benchmarks/hops.py [--root DIR] [--list WAY]

``--root`` counts another checkout, for a comparison. ``--list`` names the functions of one way in the order of their
first calls. Each way runs a few times before it is counted, so that one-time initialisation is not counted; the lowest
of three counts is printed, which excludes timers. Comprehensions and lambdas count.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
WARM: Final = 8
COUNTS: Final = 3
DEADLINE_S: Final = 30.0
TOPIC: Final = "hops"
FRAMES: Final = 100
"""Messages of a block, and of the range that is read."""
PULLED: Final = 32
"""Messages of a pull, as RocketMQ's clients ask for."""

Name = tuple[str, int, str]
"""File below the root, line, function."""


class Recorder:
    """Records the functions below ``root`` that are called between ``start`` and ``stop``, in order.

    It records this thread and all threads that start later.
    """

    def __init__(self, root: Path) -> None:
        self._root = f"{root}/"
        self._counting = False
        self._calls: list[Name] = []
        threading.setprofile(self._note)
        sys.setprofile(self._note)

    def start(self) -> None:
        self._calls, self._counting = [], True

    def stop(self) -> list[Name]:
        """Return the recorded calls."""
        self._counting = False
        return self._calls

    def _note(self, frame: FrameType, event: str, argument: object) -> None:
        if self._counting and event == "call" and frame.f_code.co_filename.startswith(self._root):
            file = frame.f_code.co_filename.removeprefix(self._root)
            if not file.startswith((".venv/", "benchmarks/")):
                self._calls.append((file, frame.f_code.co_firstlineno, frame.f_code.co_qualname))


# ---- the broker, in a process of its own that counts on request


def serve(root: Path, ini: Path, calls: Path) -> None:
    """Run a broker; SIGUSR1 begins a count, SIGUSR2 writes its calls to a file."""
    recorder = Recorder(root)

    def write(_number: int, _frame: object) -> None:
        found = recorder.stop()
        calls.with_suffix(".new").write_text(json.dumps(found))
        calls.with_suffix(".new").rename(calls)

    def begin(_number: int, _frame: object) -> None:
        recorder.start()
        calls.with_suffix(".new").write_text("[]")
        calls.with_suffix(".new").rename(calls)

    signal.signal(signal.SIGUSR1, begin)
    signal.signal(signal.SIGUSR2, write)
    from metaq_broker.cli import main

    sys.exit(main(["start", "-f", str(ini)]))


class CountingBroker:
    """The running broker: ``count`` returns the functions that it calls while ``act`` runs."""

    def __init__(self, process: subprocess.Popen[str], port: int, rocketmq_port: int, calls: Path) -> None:
        self._process, self.port, self.rocketmq_port, self._calls = process, port, rocketmq_port, calls

    def count(self, act: Callable[[], object]) -> list[Name]:
        self._signal(signal.SIGUSR1)
        act()
        return [(file, line, function) for file, line, function in json.loads(self._signal(signal.SIGUSR2))]

    def _signal(self, number: signal.Signals) -> str:
        self._calls.unlink(missing_ok=True)
        self._process.send_signal(number)
        end = time.monotonic() + DEADLINE_S
        while not self._calls.exists():
            if time.monotonic() > end or self._process.poll() is not None:
                raise SystemExit("the broker does not count")
            time.sleep(0.002)
        time.sleep(0.05)  # excludes work after the acknowledgement
        return self._calls.read_text()


@contextmanager
def counting_broker(root: Path, folder: Path) -> Iterator[CountingBroker]:
    ini, calls = folder / "server.ini", folder / "calls.json"
    with socket.create_server(("127.0.0.1", 0)) as probe:
        rocketmq_port = probe.getsockname()[1]
    ini.write_text(
        f"[system]\nbrokerId=1\nnumPartitions=1\nserverPort=0\ndataPath={folder / 'data'}\nunflushThreshold=0\n"
        "unflushInterval=10000\nmaxSegmentSize=64*1024*1024\nmaxTransferSize=1024*1024\ndeleteWhen=0 0 6 * * ?\n"
        f"[zookeeper]\nzk.zkEnable=false\n[topic={TOPIC}]\n"
        f"[rocketmq]\nenabled=true\nbrokerIP1=127.0.0.1\nport={rocketmq_port}\n"
    )
    arguments = [sys.executable, __file__, "--root", str(root), "--serve", str(ini), str(calls)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            port = int(line.split(",")[0].rpartition(":")[2])
            yield CountingBroker(process, port, rocketmq_port, calls)
        finally:
            process.terminate()


# ---- the ways


def ask(connection: socket.socket, command: bytes) -> bytes:
    """Send one command and return its reply, which has no more than a line and a short body."""
    connection.sendall(command)
    received = b""
    while b"\r\n" not in received:
        received += connection.recv(1 << 16)
    line = received.split(b"\r\n")[0].split(b" ")
    length = int(line[2] if line[0] == b"result" else line[1])
    while len(received) < received.index(b"\r\n") + 2 + length:
        received += connection.recv(1 << 16)
    if line[0] == b"result" and line[1] != b"200":
        raise SystemExit(f"the broker answers {received!r}")
    return received


def lowest(counted: Callable[[], list[Name]], before: Callable[[], object] = lambda: None) -> list[Name]:
    """Return the shortest of ``COUNTS`` counts; ``before`` is called before each and not counted."""
    found: list[list[Name]] = []
    for _ in range(COUNTS):
        before()
        found.append(counted())
    return min(found, key=lambda calls: len(set(calls)))


def puts(broker: CountingBroker, connection: socket.socket) -> Iterator[tuple[str, list[Name]]]:
    """Count one put, one block, and the commit of one transaction, in the broker."""
    body = b"x" * 100
    block = struct.pack(">iiqi", len(body), zlib.crc32(body) & 0x7FFFFFFF, -1, 0) + body
    block *= FRAMES
    put = b"put %b 0 %d 0 -1 9\r\n%b" % (TOPIC.encode(), len(body), body)
    mput = b"mput %b 0 %d %d 9\r\n%b" % (TOPIC.encode(), len(block), FRAMES, block)
    for way, command in (("put to acknowledgement", put), ("block of puts to acknowledgement", mput)):
        for _ in range(WARM):
            ask(connection, command)
        yield way, lowest(lambda command=command: broker.count(lambda: ask(connection, command)))  # type: ignore[misc]

    numbers = iter(range(100))
    key = b""

    def prepare() -> None:
        nonlocal key
        key = b"XID:1:%02x:01:q" % next(numbers)
        ask(connection, b"transaction %b s BEGIN 30 q 3\r\n" % key)
        ask(connection, b"put %b 0 %d 0 -1 %b 4\r\n%b" % (TOPIC.encode(), len(body), key, body))
        ask(connection, b"transaction %b s PREPARE 5\r\n" % key)

    def commit() -> None:
        ask(connection, b"transaction %b s COMMIT_TWO_PHASE 7\r\n" % key)

    for _ in range(WARM):
        prepare()
        commit()
    yield "COMMIT of a prepared branch", lowest(lambda: broker.count(commit), prepare)


def rocketmq(broker: CountingBroker, topic: str) -> Iterator[tuple[str, list[Name]]]:
    """Count one send and one pull of a RocketMQ client, in the broker; nobody else uses the topic."""
    fields = {"a": "PG", "b": topic, "c": "TBW102", "d": "1", "e": "0", "f": "0", "g": "1795425834392", "h": "0"}
    fields |= {"i": "KEYS\x01k", "j": "0", "k": "false", "m": "false"}
    with socket.create_connection(("127.0.0.1", broker.rocketmq_port), timeout=DEADLINE_S) as connection:
        send = partial(ask_rocketmq, connection, rocketmq_frame(310, fields, b"x" * 100))
        for _ in range(PULLED):
            send()
        yield "RocketMQ send to acknowledgement", lowest(lambda: broker.count(send))
        fields = {"consumerGroup": "CG", "topic": topic, "queueId": "0", "maxMsgNums": str(PULLED), "sysFlag": "4"}
        fields |= {"subscription": "*", "expressionType": "TAG", "subVersion": "0", "suspendTimeoutMillis": "0"}
        fields |= {"commitOffset": "0", "queueOffset": "0"}
        pull = partial(ask_rocketmq, connection, rocketmq_frame(11, fields, b""))
        for _ in range(WARM):
            pull()
        yield f"RocketMQ pull of {PULLED} messages", lowest(lambda: broker.count(pull))


def rocketmq_frame(code: int, fields: dict[str, str], body: bytes) -> bytes:
    more = {"flag": 0, "language": "JAVA", "opaque": 7, "serializeTypeCurrentRPC": "JSON", "version": 407}
    header = json.dumps({"code": code, "extFields": fields, **more}, separators=(",", ":")).encode()
    return struct.pack(">ii", 4 + len(header) + len(body), len(header)) + header + body


def ask_rocketmq(connection: socket.socket, frame: bytes) -> None:
    connection.sendall(frame)
    received = b""
    while len(received) < 4 or len(received) < 4 + int.from_bytes(received[:4]):
        received += connection.recv(1 << 16)
    if b'"code":0,' not in received:
        raise SystemExit(f"the broker answers {received!r}")


def reads(address: str, recorder: Recorder, **options: str) -> list[Name]:
    """Count the task of a batch read: one partition's range to rows, over the network, in the worker's process."""
    source = _source({"brokers": address, "subscribe": TOPIC, **options})
    reader = source.reader(_columns(source.schema()))
    [partition] = reader.partitions()

    def read() -> int:
        return sum(batch.num_rows for batch in reader.read(partition))

    for _ in range(WARM):
        assert read() > FRAMES

    def counted() -> list[Name]:
        recorder.start()
        read()
        return recorder.stop()

    return lowest(counted)


def exactly_once(address: str, recorder: Recorder) -> list[Name]:
    """Count the driver's commit of an exactly-once batch write with one branch, in the driver's process."""
    import pyarrow as pa

    numbers = iter(range(100))
    writer: Any = None
    messages: list[object] = []

    def write() -> None:
        nonlocal writer, messages
        version = str(next(numbers))
        options = {"brokers": address, "topic": TOPIC, "delivery": "exactly_once"}
        source = _source(options | {"txnAppId": "hops", "txnVersion": version})
        schema = pa.schema([("value", pa.binary())])
        writer = source.writer(_columns("value BINARY"), overwrite=False)
        rows = pa.RecordBatch.from_arrays([pa.array([b"x" * 100] * FRAMES)], schema=schema)
        messages = [writer.write(iter([rows]))]

    def commit() -> None:
        writer.commit(messages)

    def counted() -> list[Name]:
        recorder.start()
        commit()
        return recorder.stop()

    for _ in range(WARM):
        write()
        commit()
    return lowest(counted, write)


def _source(options: dict[str, str]) -> Any:
    from pyspark_metaq import DefaultSource

    return DefaultSource(options)


def _columns(ddl: str) -> Any:
    """Return the columns of a flat DDL text as Spark's type, without the session that Spark needs for that."""
    from pyspark.sql import types

    kinds = {"STRING": "String", "INT": "Integer", "BIGINT": "Long", "TIMESTAMP": "Timestamp", "BINARY": "Binary"}
    pairs = [pair.split() for pair in ddl.replace("`", "").split(",")]
    fields = [types.StructField(name, getattr(types, f"{kinds[kind.upper()]}Type")()) for name, kind in pairs]
    return types.StructType(fields)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=ROOT, help="the checkout that is counted")
    parser.add_argument("--list", metavar="WAY", help="name the functions of the ways whose name contains this")
    parser.add_argument("--serve", nargs=2, type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    root = arguments.root.resolve()
    sys.path[:0] = [str(root), str(root / "broker")]
    os.environ["PYTHONPATH"] = f"{root}:{root / 'broker'}"
    if arguments.serve:
        serve(root, *arguments.serve)
        return
    with tempfile.TemporaryDirectory(prefix="hops-") as folder, counting_broker(root, Path(folder)) as broker:
        address = f"127.0.0.1:{broker.port}"
        with socket.create_connection(("127.0.0.1", broker.port), timeout=DEADLINE_S) as connection:
            found = dict(puts(broker, connection))
        found.update(rocketmq(broker, "hops-r"))
        recorder = Recorder(root)
        found["byte range to rows, in the worker"] = reads(address, recorder)
        found["byte range above a request to rows, in the worker"] = reads(address, recorder, fetchBytes="65536")
        found["exactly-once commit, in the driver"] = exactly_once(address, recorder)
    print("| way | functions | files | calls |\n|---|---|---|---|")
    for way, calls in found.items():
        print(f"| {way} | {len(set(calls))} | {len({file for file, _, _ in calls})} | {len(calls)} |")
    for way in (way for way in found if arguments.list and arguments.list in way):
        print(f"\n{way}:")
        for file, line, function in dict.fromkeys(found[way]):
            print(f"  {file}:{line} {function} x{found[way].count((file, line, function))}")


if __name__ == "__main__":
    main()
