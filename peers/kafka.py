"""A Kafka broker of one node (KRaft) on 127.0.0.1 with its files in a temporary folder, from jars of Maven Central.

Spark's own Ivy fetches the jars, once; they stay in the user's cache.
"""

from __future__ import annotations

import base64
import os
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyspark

CACHE: Final = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "metaq-bench"
FETCH_DEADLINE_S: Final = 300


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
        done = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_DEADLINE_S)
    except subprocess.TimeoutExpired:
        raise NoJars(f"{artifact}: not fetched within {FETCH_DEADLINE_S} s") from None
    if done.returncode or not any(folder.glob("*.jar")):
        raise NoJars(f"{artifact}: {' '.join(done.stdout.split()[-60:])}")


KAFKA: Final = "org.apache.kafka:kafka_2.13:4.3.1"
DEADLINE_S: Final = 60.0

PROPERTIES: Final = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
controller.listener.names=CONTROLLER
log.dirs={data}
num.partitions={partitions}
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
{more}
"""
FLUSH_EACH: Final = "log.flush.interval.messages=1"
"""Makes Kafka sync a partition's log before it acknowledges anything."""


def kafka_jars(version: str = KAFKA) -> list[Path]:
    """The jars of the server.

    Raises:
        NoJars: as ``fetch``.
    """
    return fetch([Artifact.parse(version, whole=True)])


@contextmanager
def local_kafka(jars: Sequence[Path], partitions: int, more: str = "") -> Iterator[str]:
    """Run one with ``more`` lines of configuration; yields its address. Topics are made when first used."""
    with tempfile.TemporaryDirectory(prefix="metaq-bench-kafka-") as name:
        folder = Path(name)
        port, controller = _free_ports(2)
        settings = folder / "server.properties"
        settings.write_text(
            PROPERTIES.format(port=port, controller=controller, data=folder / "data", partitions=partitions, more=more)
        )
        java = ["java", "-Xms1g", "-Xmx1g", "-cp", ":".join(map(str, jars))]
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        format_storage = [*java, "kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(settings)]
        subprocess.run(format_storage, check=True, capture_output=True, timeout=DEADLINE_S)
        with open(folder / "log", "wb") as log:
            process = subprocess.Popen([*java, "kafka.Kafka", str(settings)], stdout=log, stderr=log)
        try:
            _wait_for(port, process)
            yield f"127.0.0.1:{port}"
        finally:
            process.terminate()
            try:
                process.wait(DEADLINE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _free_ports(count: int) -> list[int]:
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + DEADLINE_S
    while process.poll() is None and time.monotonic() < end:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.1)
    raise SystemExit("Kafka did not get ready")
