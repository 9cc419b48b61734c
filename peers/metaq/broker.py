"""A Java MetaQ broker with its ZooKeeper, for a command that runs beside them.

    python -m peers.metaq.broker COMMAND [ARGUMENTS]

The broker listens on every address of the machine, so all three run in a network namespace (see ``peers.isolation``).
There it has the address 127.0.0.1:8123 and two partitions of the topic ``test``, and acknowledges after fsync. The
command finds ``METAQ_JAVA_BROKER``, ``METAQ_JAVA_ZOOKEEPER`` and ``METAQ_JAVA_LIB`` in its environment. This program
ends with the command, and with its exit status; so do broker and ZooKeeper.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from peers.isolation import isolated, raise_loopback
from peers.jvm import FAST, OPENED, SMALL, JavaServer, fresh
from peers.maven import Unavailable
from peers.metaq.jars import server_jars
from peers.zookeeper import zookeeper_arguments

MODULE: Final = "peers.metaq.broker"
INSIDE: Final = "--inside"
PORT: Final = 8123
ZOOKEEPER_PORT: Final = 2181
TICK_MS: Final = 500
ANSWER_S: Final = 1.0

BROKER: Final = """\
[system]
brokerId={id}
hostName=127.0.0.1
serverPort={port}
numPartitions={partitions}
unflushThreshold=0
unflushInterval=10000
maxSegmentSize=1073741824
maxTransferSize=1048576
flushTxLogAtCommit=1
deletePolicy=delete,168
deleteWhen=0 0 6,18 * * ?
dataPath={data}

[zookeeper]
zk.zkEnable={registers}
zk.zkConnect=127.0.0.1:{zookeeper}
zk.zkSyncTimeMs=500

[topic=test]
"""

LOGGING: Final = """\
log4j.rootLogger=WARN, output
log4j.logger.com.taobao.metamorphosis.server.assembly.MetaMorphosisBroker=INFO
log4j.appender.output=org.apache.log4j.ConsoleAppender
log4j.appender.output.layout=org.apache.log4j.SimpleLayout
"""
STARTED: Final = "Start metamorphosis server successfully"
"""Logged when transactions may begin: until then, a Java broker rolls back open ones."""


class Plugin(NamedTuple):
    """A plug-in of a Java broker: its name, the lines of its file, the folder of its classes, which are not published.

    Source: docs/testing.md, "Java MetaQ".
    """

    name: str
    settings: str
    classes: Path


@contextmanager
def java_broker(folder: Path, lib: Path) -> Iterator[JavaServer]:
    """Run ZooKeeper and the broker during the block, with their files in ``folder``; yields the broker.

    Raises:
        RuntimeError: One of them did not start.
    """
    zookeeper = _zookeeper(fresh(folder / "zookeeper"))
    broker = metaq_server(fresh(folder / "broker"), lib)
    zookeeper.start()
    try:
        broker.start()
        yield broker
    finally:
        broker.stop()  # before its ZooKeeper, which would keep its id until the session expires
        zookeeper.stop()


def _zookeeper(folder: Path) -> JavaServer:
    command = [*SMALL, *zookeeper_arguments(folder, ZOOKEEPER_PORT, TICK_MS)]
    return JavaServer("ZooKeeper", folder, ZOOKEEPER_PORT, command, lambda: _answers(ZOOKEEPER_PORT, b"conf"))


def metaq_server(
    folder: Path,
    lib: Path,
    broker_id: int = 0,
    port: int = PORT,
    partitions: int = 2,
    plugin: Plugin | None = None,
) -> JavaServer:
    """Return a broker with its files in ``folder``, its messages in ``folder/data``, and its ZooKeeper on this machine.

    A broker with a ``plugin`` does not register: a slave would delete the nodes of its master.
    """
    config, logging = folder / "server.ini", folder / "log4j.properties"
    logging.write_text(LOGGING)
    values = {"id": broker_id, "port": port, "partitions": partitions, "registers": str(plugin is None).lower()}
    config.write_text(BROKER.format(**values, data=folder / "data", zookeeper=ZOOKEEPER_PORT))
    program = ["-cp", f"{lib}/*", "com.taobao.metamorphosis.server.MetamorphosisStartup", "-f", str(config)]
    if plugin is not None:
        settings = folder / f"{plugin.name}.properties"
        settings.write_text(plugin.settings)
        main = "com.taobao.metamorphosis.ServerStartup"
        program = ["-cp", f"{plugin.classes}:{lib}/*", main, "-f", str(config), f"-F{plugin.name}={settings}"]
    size = FAST if broker_id == 0 else SMALL
    home = f"-Duser.home={folder}", f"-Dlog4j.configuration=file:{logging}"
    command = [*size, *OPENED, *home, *program]
    return JavaServer("Java broker", folder, port, command, lambda: _answers(port, b"version 1\r\n"))


def _answers(port: int, request: bytes) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), ANSWER_S) as connection:
            connection.sendall(request)
            return bool(connection.recv(1))
    except OSError:
        return False


def _run_beside(command: Sequence[str], lib: Path) -> int:
    raise_loopback()
    environment = {
        "METAQ_JAVA_BROKER": f"127.0.0.1:{PORT}",
        "METAQ_JAVA_ZOOKEEPER": f"127.0.0.1:{ZOOKEEPER_PORT}/meta",
        "METAQ_JAVA_LIB": str(lib),
    }
    with tempfile.TemporaryDirectory(prefix="metaq-java-broker-") as folder, java_broker(Path(folder), lib):
        return subprocess.run(command, env=os.environ | environment).returncode


def main(arguments: Sequence[str]) -> int:
    """Run the command; return its exit status, or 2 if there is none or the broker is not available."""
    if not arguments:
        print(f"usage: python -m {MODULE} COMMAND [ARGUMENTS]", file=sys.stderr)
        return 2
    if arguments[0] == INSIDE:
        return _run_beside(arguments[2:], Path(arguments[1]))
    try:
        command = [sys.executable, "-m", MODULE, INSIDE, str(server_jars()), *arguments]
        return subprocess.run(isolated(command)).returncode
    except Unavailable as error:
        print(f"{MODULE}: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
