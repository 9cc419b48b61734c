"""ZooKeeper from the jars that PySpark brings along: what runs one server, for tests and benchmarks."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pyspark

JARS: Final = ("zookeeper", "slf4j-api", "metrics-core", "snappy-java", "netty")
"""What the names of its jars begin with."""

MAIN: Final = "org.apache.zookeeper.server.quorum.QuorumPeerMain"

CONFIG: Final = """\
tickTime={tick_ms}
dataDir={data}
clientPort={port}
clientPortAddress=127.0.0.1
maxClientCnxns=0
admin.enableServer=false
4lw.commands.whitelist=conf
"""


def zookeeper_arguments(folder: Path, port: int, tick_ms: int) -> list[str]:
    """Write the configuration of a server into ``folder``, where its data will be, too; return what ``java`` is given
    behind options of its own.

    It listens on 127.0.0.1 only. ``tick_ms``: sessions are as long as two of them at least.
    """
    config = folder / "zoo.cfg"
    config.write_text(CONFIG.format(tick_ms=tick_ms, data=folder / "data", port=port))
    jars = Path(pyspark.__path__[0]) / "jars"
    path = ":".join(str(jar) for name in JARS for jar in jars.glob(f"{name}-*.jar"))
    return ["-cp", path, MAIN, str(config)]
