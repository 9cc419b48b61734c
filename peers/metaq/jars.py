"""Fetches MetaQ's Java client, with a driver for storing offsets in MariaDB, and its broker, with Maven.

They are kept outside the repository, in ``~/.cache/metaq-spark`` (``$XDG_CACHE_HOME``): ``java-metaq`` has the client
and the driver, ``java-metaq-server`` the broker and the client. A folder that ``METAQ_JAVA_LIB`` names replaces the
first if it has both.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from peers.maven import Unavailable, cache, fetched

CLIENT: Final = "com.taobao.metamorphosis:metamorphosis-client:1.4.6.2"
SERVER: Final = "com.taobao.metamorphosis:metamorphosis-server:1.4.6.2"
DRIVER: Final = "org.mariadb.jdbc:mariadb-java-client:3.5.11"
COMPILE_DEADLINE_S: Final = 180


def client_jars(*, with_driver: bool = True) -> Path:
    """Return the folder with the jars of the client, and of the driver if it is needed.

    Raises:
        Unavailable: There is no JDK or no Maven, or Maven could not fetch the packages.
    """
    for tool in ("java", "javac"):
        if shutil.which(tool) is None:
            raise Unavailable(f"MetaQ's Java client: there is no {tool} on this machine")
    named = os.environ.get("METAQ_JAVA_LIB")
    if named and (not with_driver or any(Path(named).glob("mariadb-java-client-*.jar"))):
        return Path(named)
    return fetched("MetaQ's Java client", cache() / "java-metaq", [CLIENT, DRIVER])


def server_jars() -> Path:
    """Return the folder with the jars of the broker and of the client.

    Raises:
        Unavailable: There is no Java or no Maven, or Maven could not fetch the packages.
    """
    if shutil.which("java") is None:
        raise Unavailable("MetaQ's Java broker: there is no java on this machine")
    return fetched("MetaQ's Java broker", cache() / "java-metaq-server", [SERVER, CLIENT])


def compiled(sources: Sequence[Path], folder: Path, lib: Path) -> str:
    """Compile programs against the jars in ``lib``; return the class path to run them with."""
    command = ["javac", "-nowarn", "-cp", f"{lib}/*", "-d", str(folder), *map(str, sources)]
    subprocess.run(command, check=True, timeout=COMPILE_DEADLINE_S)
    return f"{lib}/*:{folder}"
