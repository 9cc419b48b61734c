"""A Kafka broker of one node (KRaft) on 127.0.0.1 with its files in a temporary folder, from jars of Maven Central.

Spark's own Ivy fetches the jars once; they stay in the user's cache.
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

from metaq.testing.ports import free_port

CACHE: Final = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "metaq-bench"
FETCH_DEADLINE_S: Final = 300


@dataclass(frozen=True, slots=True)
class Artifact:
    """``group:name:version``; ``whole``: with its dependencies."""

    group: str
    name: str
    version: str
    whole: bool = False

    @classmethod
    def parse(cls, text: str, whole: bool = False) -> Artifact:
        """Parse ``group:name:version``.

        Raises:
            ValueError: The text does not have three parts.
        """
        parts = text.split(":")
        if len(parts) != 3 or not all(parts):
            raise ValueError(f"{text!r}: expected group:name:version")
        group, name, version = parts
        return cls(group, name, version, whole)

    def __str__(self) -> str:
        return f"{self.group}:{self.name}:{self.version}"


class NoJars(Exception):
    """Jars could not be fetched; the text names them and has the end of Ivy's output."""


def fetch(artifacts: Iterable[Artifact], cache: Path = CACHE) -> list[Path]:
    """Return the jars of these artifacts; fetch them if they are not in the cache.

    Raises:
        NoJars: Maven Central does not have one, or cannot be reached.
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
_LINES_SHOWN: Final = 30

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
"""Configuration with which Kafka syncs a partition's log before it acknowledges."""


def kafka_jars(version: str = KAFKA) -> list[Path]:
    """Return the jars of the server.

    Raises:
        NoJars: As ``fetch``.
    """
    return fetch([Artifact.parse(version, whole=True)])


@contextmanager
def local_kafka(jars: Sequence[Path], partitions: int, more: str = "") -> Iterator[str]:
    """Run a broker with ``more`` lines of configuration; yields its address. Topics are created when first used."""
    with tempfile.TemporaryDirectory(prefix="metaq-bench-kafka-") as name:
        folder = Path(name)
        port = free_port((0, 1))
        settings = folder / "server.properties"
        settings.write_text(
            PROPERTIES.format(port=port, controller=port + 1, data=folder / "data", partitions=partitions, more=more)
        )
        java = ["java", "-Xms1g", "-Xmx1g", "-cp", ":".join(map(str, jars))]
        _format_storage(java, settings)
        log_file = folder / "log"
        with log_file.open("wb") as log:
            process = subprocess.Popen([*java, "kafka.Kafka", str(settings)], stdout=log, stderr=log)
        try:
            _wait_for(port, process, log_file)
            yield f"127.0.0.1:{port}"
        finally:
            process.terminate()
            try:
                process.wait(DEADLINE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def cluster_id(random: bytes) -> str:
    """Return 16 random bytes as a Kafka cluster id that does not look like a command-line option."""
    text = base64.urlsafe_b64encode(random).decode().rstrip("=")
    return "A" + text[1:] if text.startswith("-") else text


def _format_storage(java: Sequence[str], settings: Path) -> None:
    command = [*java, "kafka.tools.StorageTool", "format", "-t", cluster_id(uuid.uuid4().bytes), "-c", str(settings)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=DEADLINE_S)
    if done.returncode:
        raise SystemExit(f"Kafka's storage was not formatted, exit status {done.returncode}:\n{_end_of(done.stdout)}")


def _end_of(text: str) -> str:
    return "\n".join(text.splitlines()[-_LINES_SHOWN:])


def _wait_for(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + DEADLINE_S
    while process.poll() is None and time.monotonic() < end:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.1)
    state = "did not listen in time" if process.poll() is None else f"ended with status {process.returncode}"
    raise SystemExit(f"Kafka {state}; the end of its log:\n{_end_of(log.read_text(errors='replace'))}")
