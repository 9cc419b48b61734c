"""Runs a ZooKeeper server from the jars of PySpark, for tests, faults and benchmarks."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Final

import pyspark

from metaq.testing.ports import free_port
from peers.jvm import JavaServer, fresh

ANSWER_S: Final = 1.0
"""A server may never answer a connection that it accepted during its start."""

JARS: Final = ("zookeeper", "slf4j-api", "metrics-core", "snappy-java", "netty")
"""Prefixes of the names of its jars."""

MAIN: Final = "org.apache.zookeeper.server.quorum.QuorumPeerMain"

SESSION_MS_MAX: Final = 60_000
"""Without a limit of its own, a server grants 20 ticks."""

CONFIG: Final = """\
tickTime={tick_ms}
dataDir={data}
clientPort={port}
clientPortAddress=127.0.0.1
maxClientCnxns=0
maxSessionTimeout={session_ms_max}
admin.enableServer=false
4lw.commands.whitelist=conf
"""


def zookeeper_arguments(folder: Path, port: int, tick_ms: int) -> list[str]:
    """Write the configuration of a server into ``folder``, beside its data; return the arguments of ``java``.

    The server listens on 127.0.0.1 only. Sessions last two ``tick_ms`` to ``SESSION_MS_MAX``.
    """
    config = folder / "zoo.cfg"
    keys = {"tick_ms": tick_ms, "session_ms_max": SESSION_MS_MAX, "data": folder / "data", "port": port}
    config.write_text(CONFIG.format(**keys))
    (folder / "data").mkdir(exist_ok=True)
    jars = Path(pyspark.__path__[0]) / "jars"
    path = ":".join(str(jar) for name in JARS for jar in jars.glob(f"{name}-*.jar"))
    return ["-cp", path, MAIN, str(config)]


class ZooKeeperServer(JavaServer):
    """One server with its files in ``folder``. Its port stays the same when it is started again."""

    host = "127.0.0.1"

    def __init__(self, folder: Path, tick_ms: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        port = free_port()
        command = ["-Xmx64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        super().__init__(
            "ZooKeeper", folder, port, [*command, *zookeeper_arguments(folder, port, tick_ms)], self._serves
        )

    def _serves(self) -> bool:
        try:
            with socket.create_connection((self.host, self.port), ANSWER_S) as connection:
                connection.sendall(b"conf")
                told = b"".join(iter(lambda: connection.recv(1 << 16), b""))
        except OSError:
            return False
        return f"dataDir={self.folder / 'data'}".encode() in told

    def empty(self) -> None:
        """Delete everything that it has stored; it must not run."""
        assert not self.running
        fresh(self.folder / "data")
