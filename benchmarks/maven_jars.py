"""Fetches jars from Maven Central with the Ivy that PySpark brings along, into a folder that keeps them.

Nothing of them is part of the project; only peers of benchmarks need them. Needs Java and, the first time, the network.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyspark

CACHE: Final = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "metaq-bench"
DEADLINE_S: Final = 300


@dataclass(frozen=True, slots=True)
class Artifact:
    """``group:name:version``; ``whole`` says whether what it depends on comes along."""

    group: str
    name: str
    version: str
    whole: bool = False

    @classmethod
    def parse(cls, text: str, whole: bool = False) -> Artifact:
        """Read ``group:name:version``.

        Raises:
            ValueError: The text has not three parts.
        """
        parts = text.split(":")
        if len(parts) != 3 or not all(parts):
            raise ValueError(f"{text!r}: expected group:name:version")
        group, name, version = parts
        return cls(group, name, version, whole)

    def __str__(self) -> str:
        return f"{self.group}:{self.name}:{self.version}"


class NoJars(Exception):
    """What could not be fetched, and what Ivy said at the end."""


def fetch(artifacts: Iterable[Artifact], cache: Path = CACHE) -> list[Path]:
    """The jars of these artifacts; taken from the folder of an earlier time if they are there.

    Raises:
        NoJars: Maven Central has not got one, or cannot be reached.
    """
    return [jar for artifact in artifacts for jar in _jars(artifact, cache)]


def _jars(artifact: Artifact, cache: Path) -> list[Path]:
    folder = cache / str(artifact).replace(":", "_")
    complete = folder / "complete"
    if not complete.exists():
        _retrieve(artifact, folder, cache / "ivy")
        complete.touch()
    return sorted(folder.glob("*.jar"))


def _retrieve(artifact: Artifact, folder: Path, ivy_cache: Path) -> None:
    (ivy,) = (Path(pyspark.__path__[0]) / "jars").glob("ivy-*.jar")
    command = ["java", "-cp", str(ivy), "org.apache.ivy.Main", "-cache", str(ivy_cache), "-confs", "default"]
    command += ["-dependency", artifact.group, artifact.name, artifact.version]
    command += ["-retrieve", f"{folder}/[artifact]-[revision].[ext]", *([] if artifact.whole else ["-notransitive"])]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)
    except subprocess.TimeoutExpired:
        raise NoJars(f"{artifact}: not fetched within {DEADLINE_S} s") from None
    if done.returncode or not any(folder.glob("*.jar")):
        raise NoJars(f"{artifact}: {' '.join(done.stdout.split()[-60:])}")
