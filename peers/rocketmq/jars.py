"""Fetches a release of RocketMQ by package name with Maven, and compiles the Java programs beside this file against it.

Both are kept outside the repository, in ``$METAQ_ROCKETMQ_CACHE/VERSION`` or, without it, below ``$XDG_CACHE_HOME`` or
``~/.cache`` in ``metaq-spark/rocketmq/VERSION``. Concurrent processes fetch a release only once.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from peers import maven
from peers.maven import Unavailable, alone, fetched

__all__ = ["MODULES", "Release", "Unavailable", "alone", "cache", "release"]

MODULES: Final = {
    "4.9.7": ("client", "namesrv", "broker", "acl", "tools"),
    "5.5.0": ("client", "namesrv", "broker", "tools", "proxy"),
}
"""The releases that are tested against, and the packages ``org.apache.rocketmq:rocketmq-NAME`` of each."""

COMPILE_DEADLINE_S: Final = 120
PROGRAMS: Final = Path(__file__).with_name("java")


@dataclass(frozen=True, slots=True)
class Release:
    """A fetched release: ``lib`` has its jars, ``classes`` the compiled programs."""

    version: str
    lib: Path
    classes: Path

    @property
    def class_path(self) -> str:
        """The class path for ``java -cp``, the programs first."""
        return f"{self.classes}:{self.lib}/*"


def cache() -> Path:
    """Return the folder of all releases."""
    named = os.environ.get("METAQ_ROCKETMQ_CACHE")
    if named:
        return Path(named)
    return maven.cache() / "rocketmq"


def release(version: str) -> Release:
    """Return a release; fetch it if necessary.

    Raises:
        Unavailable: The release is not known, there is no JDK or no Maven, or Maven could not fetch the packages.
    """
    if version not in MODULES:
        raise Unavailable(f"RocketMQ {version}: known releases are {', '.join(MODULES)}")
    for tool in ("java", "javac"):
        if shutil.which(tool) is None:
            raise Unavailable(f"RocketMQ {version}: there is no {tool} on this machine")
    folder = cache() / version
    packages = [f"org.apache.rocketmq:rocketmq-{each}:{version}" for each in MODULES[version]]
    lib = fetched(f"RocketMQ {version}", folder, packages)
    with alone(folder / "lock"):
        return Release(version, lib, _compiled(folder, lib))


def _compiled(folder: Path, lib: Path) -> Path:
    sources = sorted(PROGRAMS.glob("*.java"))
    digest = hashlib.sha256(b"\0".join(path.read_bytes() for path in sources)).hexdigest()[:16]
    classes = folder / f"classes-{digest}"
    if not classes.exists():
        made = folder / f"classes-{digest}.new"
        shutil.rmtree(made, ignore_errors=True)
        command = ["javac", "-nowarn", "-Xlint:none", "-cp", f"{lib}/*", "-d", str(made), *map(str, sources)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_DEADLINE_S)
        if done.returncode:
            raise RuntimeError(f"javac: {done.stderr}")
        made.rename(classes)
    return classes
