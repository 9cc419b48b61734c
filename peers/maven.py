"""Packages of Maven's repository, fetched once into a folder outside this repository, for tests and benchmarks."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

FETCH_DEADLINE_S: Final = 600

POM: Final = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>metaq-spark</groupId><artifactId>peer</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>
{dependencies}
  </dependencies>
</project>
"""
DEPENDENCY: Final = "    <dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version></dependency>"


class Unavailable(Exception):
    """Packages are not available here; the text says why."""


def cache() -> Path:
    """Return the folder for packages: in ``$XDG_CACHE_HOME``, or ``~/.cache``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "metaq-spark"


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Hold a lock that other processes wait for."""
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def fetched(what: str, folder: Path, packages: Sequence[str]) -> Path:
    """Return the folder with the jars of ``packages`` (``GROUP:NAME:VERSION``) and their dependencies.

    They are fetched into ``folder`` if they are not there. ``what`` names them in errors.

    Raises:
        Unavailable: There is no Maven, or it could not fetch them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lib, complete = folder / "lib", folder / "complete"
    with alone(folder / "lock"):
        if not complete.exists() or complete.read_text() not in ("", "\n".join(packages)):
            _fetch(what, folder, lib, packages)
            complete.write_text("\n".join(packages))
    return lib


def _fetch(what: str, folder: Path, lib: Path, packages: Sequence[str]) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise Unavailable(f"{what}: it is not in {folder}, and there is no Maven (mvn) to fetch it")
    dependencies = "\n".join(DEPENDENCY.format(*package.split(":")) for package in packages)
    (folder / "pom.xml").write_text(POM.format(dependencies=dependencies))
    shutil.rmtree(lib, ignore_errors=True)
    command = [maven, "--quiet", "--batch-mode", "dependency:copy-dependencies", f"-DoutputDirectory={lib}"]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=FETCH_DEADLINE_S)
    except subprocess.TimeoutExpired:
        raise Unavailable(f"{what}: Maven did not end within {FETCH_DEADLINE_S} s") from None
    if done.returncode:
        said = " ".join(done.stdout.split()[:60])
        raise Unavailable(f"{what}: Maven could not fetch it: {said}")
