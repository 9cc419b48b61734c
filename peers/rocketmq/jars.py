"""Fetches a release of RocketMQ by package name with Maven, and compiles the Java programs beside this file against it.

Both are kept outside the repository, in ``$METAQ_ROCKETMQ_CACHE/VERSION`` or, without it, below ``$XDG_CACHE_HOME`` or
``~/.cache`` in ``metaq-spark/rocketmq/VERSION``. Processes that want the same release at a time fetch it once.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

MODULES: Final = {
    "4.9.7": ("client", "namesrv", "broker", "acl", "tools"),
    "5.5.0": ("client", "namesrv", "broker", "tools", "proxy"),
}
"""The releases that are tested against, and the packages ``org.apache.rocketmq:rocketmq-NAME`` of each."""

FETCH_DEADLINE_S: Final = 600
COMPILE_DEADLINE_S: Final = 120
PROGRAMS: Final = Path(__file__).with_name("java")

POM: Final = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>metaq-spark</groupId><artifactId>rocketmq-peer</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>
{dependencies}
  </dependencies>
</project>
"""
DEPENDENCY: Final = (
    "    <dependency><groupId>org.apache.rocketmq</groupId>"
    "<artifactId>rocketmq-{module}</artifactId><version>{version}</version></dependency>"
)


class Unavailable(Exception):
    """A release cannot be had here; the text says why."""


@dataclass(frozen=True, slots=True)
class Release:
    """A release that is there: ``lib`` has its jars, ``classes`` the compiled programs."""

    version: str
    lib: Path
    classes: Path

    @property
    def class_path(self) -> str:
        """What ``java -cp`` takes: the programs first."""
        return f"{self.classes}:{self.lib}/*"


def cache() -> Path:
    """The folder that keeps all releases."""
    named = os.environ.get("METAQ_ROCKETMQ_CACHE")
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "metaq-spark" / "rocketmq"


def release(version: str) -> Release:
    """Return a release, fetched now unless it was before.

    Raises:
        Unavailable: The release is not known, there is no JDK or no Maven, or Maven did not get the packages.
    """
    if version not in MODULES:
        raise Unavailable(f"RocketMQ {version}: known releases are {', '.join(MODULES)}")
    for tool in ("java", "javac"):
        if shutil.which(tool) is None:
            raise Unavailable(f"RocketMQ {version}: there is no {tool} on this machine")
    folder = cache() / version
    folder.mkdir(parents=True, exist_ok=True)
    with alone(folder / "lock"):
        lib = folder / "lib"
        if not (folder / "complete").exists():
            _fetch(version, folder, lib)
            (folder / "complete").touch()
        return Release(version, lib, _compiled(folder, lib))


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Wait until no other process is in here."""
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _fetch(version: str, folder: Path, lib: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise Unavailable(f"RocketMQ {version}: it is not in {folder}, and there is no Maven (mvn) to fetch it")
    dependencies = "\n".join(DEPENDENCY.format(module=each, version=version) for each in MODULES[version])
    (folder / "pom.xml").write_text(POM.format(dependencies=dependencies))
    shutil.rmtree(lib, ignore_errors=True)
    command = [maven, "--quiet", "--batch-mode", "dependency:copy-dependencies", f"-DoutputDirectory={lib}"]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=FETCH_DEADLINE_S)
    except subprocess.TimeoutExpired:
        raise Unavailable(f"RocketMQ {version}: Maven did not end within {FETCH_DEADLINE_S} s") from None
    if done.returncode:
        said = " ".join(done.stdout.split()[:60])
        raise Unavailable(f"RocketMQ {version}: Maven could not fetch it: {said}")


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
