"""Runs every command of mqadmin, of 4.9.7 and of 5.5.0, on RocketMQ of the same release and on this project's broker.

A command's verdict is its outcome: the error that it reported, or none. On the original, a refused command counts as
skipped; its answer is what the other side must give, too.
"""

from __future__ import annotations

import base64
import json
import re
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from peers.jvm import OPENED, ends_with_us
from peers.rocketmq.bundled import BundledServer
from peers.rocketmq.clients import client
from peers.rocketmq.conversation import Conversation, Event
from peers.rocketmq.jars import release
from peers.rocketmq.programs import QUICK
from peers.rocketmq.servers import Cluster, write_logging
from peers.suites.admin_commands import COMMANDS
from peers.suites.results import Outcome, Result, Results

PATIENCE_MS: Final = 30_000
TRIES: Final = 3
"""Attempts for a command that ran into a deadline of its own, as on a busy machine."""
COMPILE_DEADLINE_S, SEND_DEADLINE_S = 120, 60.0
TOPIC, GROUP, MESSAGES = "sweep", "sweep-consumers", 4
SOURCE: Final = Path(__file__).with_name("java") / "admin" / "AdminSweep.java"
WORKED: Final = "worked"

LATE: Final = "Remoting"
"""In the names of exceptions for a missing answer."""

_LOGGED: Final = re.compile(r"^\d\d:\d\d:\d\d\.\d+ .*$", re.MULTILINE)
_COMPLAINTS: Final = (
    re.compile(r"CODE: (-?\d+)"),
    re.compile(r"(Remoting\w+Exception)"),
    re.compile(r"((?:\w+\.)+\w*(?:Exception|Error))\b"),
    re.compile(r"(usage: mqadmin)"),
    re.compile(r"(\w+[^\n]* failed[^\n]*)", re.IGNORECASE),
)


def compare(version: str, ours: bool) -> Results:
    """Return the results of a release's sweep on one side."""
    original = verdicts(version, ours=False)
    if not ours:
        return {name: _on_original(verdict) for name, verdict in original.items()}
    return {
        name: Result(Outcome.PASSED)
        if verdict == original[name]
        else Result(Outcome.FAILED, f"{original[name]} on the real one, {verdict} on ours")
        for name, verdict in verdicts(version, ours=True).items()
    }


def _on_original(verdict: str) -> Result:
    return Result(Outcome.PASSED) if verdict.startswith(WORKED) else Result(Outcome.SKIPPED, verdict)


def verdict_of(state: str, said: str) -> str:
    """Return the outcome of a command from its output."""
    said = _LOGGED.sub("", said)
    for pattern in _COMPLAINTS:
        if found := pattern.search(said):
            return found[1].rpartition(".")[2]
    return WORKED if state == "ended" else f"{WORKED}, went on"


@cache
def verdicts(version: str, ours: bool) -> Mapping[str, str]:
    """Return the verdict of each command of a release's tool on one side; computed once."""
    with TemporaryDirectory(prefix="metaq-admin-") as folder:
        return _sweep(version, ours, Path(folder))


def _sweep(version: str, ours: bool, folder: Path) -> dict[str, str]:
    found = {}
    with _served(version, ours, folder) as (name_server, broker), ExitStack() as clients:
        filled = _filled(name_server, broker, folder, clients)
        tool = clients.enter_context(_Tool(version, folder))
        for line in COMMANDS[version]:
            name, *words = line.split()
            words = [word.format(**filled) for word in words]
            for _ in range(TRIES):
                found[name] = verdict_of(*tool.run([name.partition("#")[0], *words, "-n", name_server]))
                if LATE not in found[name]:
                    break
    return found


@contextmanager
def _served(version: str, ours: bool, folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the addresses of name server and broker, with the topic created."""
    if ours:
        with BundledServer(folder / "broker", {}) as server:
            server.create_topic(TOPIC, 2)
            yield server.address, server.address
        return
    with Cluster(release(version), folder / "cluster") as cluster:
        cluster.start_name_server()
        broker = cluster.start_broker("broker-a", autoCreateTopicEnable="true")
        cluster.create_topic(TOPIC, 2)
        yield cluster.name_servers, broker.address


def _filled(name_server: str, broker: str, folder: Path, clients: ExitStack) -> dict[str, str]:
    """Return the values of the words in braces. A producer and a consumer keep running, and the topic has messages."""
    java = client("java-4.9.7")
    consumer = Conversation(java, name_server, folder, role="push", group=GROUP, topic=TOPIC)
    clients.enter_context(consumer).ready()
    producer = clients.enter_context(
        Conversation(java, name_server, folder, role="producer", group="producers")
    ).ready()
    sent = [_send(producer, number) for number in range(MESSAGES)]
    consumer.wait_for(lambda: len(consumer.bodies()) == MESSAGES, "the messages")
    topics, groups = folder / "topics.json", folder / "groups.json"
    topics.write_text(json.dumps([{"topicName": "made-first", "readQueueNums": 2, "writeQueueNums": 2, "perm": 6}]))
    groups.write_text(json.dumps([{"groupName": "made-first", "consumeEnable": True}]))
    first = sent[1]
    return {
        "name_server": name_server,
        "broker": broker,
        "cluster": "DefaultCluster",
        "topic": TOPIC,
        "group": GROUP,
        "place": first["place"],
        "id": first["id"],
        "queue": first["queue"],
        "offset": first["offset"],
        "folder": str(folder),
        "topics": str(topics),
        "groups": str(groups),
    }


def _send(producer: Conversation, number: int) -> Event:
    """Send a message, with retries: on a busy machine a client gives up its first look-up of a route early."""
    end = time.monotonic() + SEND_DEADLINE_S
    while True:
        try:
            return producer.send(TOPIC, f"body-{number}", key=f"key-{number}", tag="tag")
        except RuntimeError:
            if time.monotonic() > end:
                raise


class _Tool:
    """The tool as a process that runs one command after the other; started again if a command ends the process."""

    def __init__(self, version: str, folder: Path) -> None:
        self._folder = folder / "tool"
        self._folder.mkdir()
        write_logging(self._folder)
        path = f"{release(version).lib}/*"
        command = ["javac", "-nowarn", "-cp", path, "-d", str(self._folder / "classes"), str(SOURCE)]
        subprocess.run(command, check=True, capture_output=True, timeout=COMPILE_DEADLINE_S)
        home = [f"-Drocketmq.home.dir={self._folder}", f"-Duser.home={self._folder}"]
        self._command = [*ends_with_us(), "java", *QUICK, *OPENED, *home, "-Drocketmq.client.logUseSlf4j=true"]
        self._command += ["-cp", f"{self._folder}/classes:{path}", "suites.AdminSweep", str(PATIENCE_MS)]
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> _Tool:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()

    def run(self, words: Sequence[str]) -> tuple[str, str]:
        """Return the state after a command, and its output."""
        if self._process is None:
            with (self._folder / "log").open("a") as log:
                pipe = subprocess.PIPE
                self._process = subprocess.Popen(
                    self._command, cwd=self._folder, stdin=pipe, stdout=pipe, stderr=log, text=True
                )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\t".join(words) + "\n")
        self._process.stdin.flush()
        state, _, said = self._process.stdout.readline().partition("\t")
        if not state:
            self._process.communicate()
            self._process = None
            return "ended", "the process ended"
        return state, base64.b64decode(said).decode(errors="replace")
