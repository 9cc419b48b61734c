"""Every command of the parser at a bundled broker, for both protocols: ``--json`` is JSON, and what the standard output
may do: be closed, be full, have nobody who reads it, or another encoding."""

from __future__ import annotations

import io
import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_commands import argument_list, commands, examples, write_files
from local_servers import broker_thread

from metaq import MetaQ, RocketMQ
from metaq.cli.completion import words_of
from metaq.cli.main import main, whole_parser
from metaq.client.rocketmq.records import RocketMessage
from metaq.model import Message
from metaq.testing.ports import free_port

BOTH = pytest.mark.parametrize("protocol", ["metaq", "rocketmq"])
NO_OUTPUT = ("produce t -m x", "produce t {folder}/lines --json", "dlq resend g --all", "dlq discard g --all")
"""Examples that print nothing on the standard output."""
_numbers = itertools.count()


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    port = free_port()
    more = f"[topic=t]\nstat=true\n[topic=*]\n[rocketmq]\nenabled=true\nport={port}\n"
    with broker_thread(tmp_path_factory.mktemp("works"), more, numPartitions=2) as address:
        yield {"metaq": str(address), "rocketmq": f"rocketmq://127.0.0.1:{port}"}


@pytest.fixture(autouse=True)
def filled(clusters: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages in the topics of the examples, and neither profiles nor state of whoever runs the tests."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("METAQ_CONFIG", str(tmp_path / "config.ini"))
    for name in ("METAQ_CLUSTER", "METAQ_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    with RocketMQ(clusters["rocketmq"].removeprefix("rocketmq://")) as rocketmq, MetaQ(clusters["metaq"]) as metaq:
        producer = rocketmq.producer()
        for topic in ("t", "copy-t", "%DLQ%g"):
            producer.send_many(topic, [RocketMessage(data="é", tag="k", keys=["k"], properties={"RETRY_TOPIC": "t"})])
        metaq.producer().send_many("t", [Message(b"\xff", "k"), Message(b"")])


def supported(line: str, protocol: str) -> bool:
    """Whether the server can do it: no groups without ZooKeeper."""
    name = line.split()[0]
    if protocol == "metaq":
        return (name not in ("groups", "lag", "reset") or "--checkpoint" in line) and line != "delete t"
    return line not in ("dlq discard g --all", "find t --id 1", "delete t")


def with_json() -> set[str]:
    return {one.path[0] for one in words_of(whole_parser()) if any("--json" in option.names for option in one.options)}


def example_lines(protocol: str) -> list[str]:
    """The examples that the server can do; those that would find nothing look for something else."""
    lines = [line.replace("--id 1", "--at @0") if protocol == "metaq" else line for line in examples()]
    lines = [line.replace("new", f"new{next(_numbers)}") for line in dict.fromkeys(lines)]
    return [line for line in lines if supported(line, protocol)]


def test_all_commands_that_read_have_json() -> None:
    assert set(commands()) - with_json() == {"completion", "dashboard"}


@BOTH
def test_json_is_json(
    protocol: str, clusters: dict[str, str], tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    write_files(tmp_path, "0-0" if protocol == "metaq" else "metaq:0")
    for line in example_lines(protocol):
        if line.split()[0] not in with_json():
            continue
        arguments = argument_list(line, clusters[protocol], tmp_path)
        verbose = ["-v"] if arguments[2] == "produce" else []
        if line == "produce t -m x":
            arguments[-1] = '{"value": "x"}'
        status = main([*arguments, "--json", *verbose])
        out, err = capfdbinary.readouterr()
        assert status == 0, (line, err)
        rows = [json.loads(row) for row in out.decode().splitlines()]
        assert all(isinstance(row, dict) for row in rows), line
        assert rows or line.startswith("dlq"), line
        if line.startswith(("consume", "find")):
            assert all({"topic", "partition", "offset"} <= row.keys() for row in rows)


@BOTH
def test_nobody_reads(protocol: str, clusters: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_files(tmp_path, "0-0" if protocol == "metaq" else "metaq:0")
    for line in [*example_lines(protocol), "--help", "produce --help", "--version"]:
        reader, writer = os.pipe()
        os.close(reader)
        with open(writer, "w") as output:
            monkeypatch.setattr(sys, "stdout", output)
            arguments = line.split() if line.startswith("-") or "--help" in line else None
            status = main(arguments or argument_list(line, clusters[protocol], tmp_path))
            assert status == (0 if line in NO_OUTPUT else 141), line


@BOTH
@pytest.mark.parametrize("line", ["consume t -f --from latest", "consume t -f --from latest --group quiet"])
def test_who_follows_does_not_wait_for_a_message_to_see_that_nobody_reads(
    protocol: str, line: str, clusters: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as output:
        monkeypatch.setattr(sys, "stdout", output)
        assert main(argument_list(line, clusters[protocol], tmp_path)) == 141


@BOTH
def test_what_nobody_read_does_not_count_as_read(
    protocol: str,
    clusters: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    arguments = [*argument_list("consume t --group unread", clusters[protocol], tmp_path), "--format", r"%p %o %i\n"]
    reader, writer = os.pipe()
    os.close(reader)
    with monkeypatch.context() as patched, open(writer, "w") as output:
        patched.setattr(sys, "stdout", output)
        assert main(arguments) == 141
    assert main(["-c", clusters[protocol], "consume", "t", *arguments[-2:]]) == 0
    there = sorted(capfdbinary.readouterr().out.splitlines())
    assert main(arguments) == 0
    assert sorted(capfdbinary.readouterr().out.splitlines()) == there
    assert there


def test_a_group_that_cannot_be_joined_says_why(
    clusters: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("metaq.cli.consume._GROUP_WAIT_S", 0.05)
    arguments = argument_list("consume t --group joined", clusters["metaq"], tmp_path)
    with MetaQ(clusters["metaq"]) as mq, mq.consumer("joined", ["t"]) as other:
        other.fetch(timeout=10)
        assert main(arguments) == 1
        out, err = capfd.readouterr()
        assert out == ""
        assert err == "metaq: group 'joined': no partition is free, other consumers have all of them\n"


class Interrupting(io.StringIO):
    """A standard output that somebody presses Ctrl-C at as soon as something is printed."""

    def __init__(self, output: io.BufferedWriter | None = None) -> None:
        super().__init__()
        self.buffer = self  # type: ignore[assignment]

    def write(self, text: str | bytes) -> int:
        signal.raise_signal(signal.SIGINT)
        return len(text)


@BOTH
@pytest.mark.parametrize(
    "line", ["consume t -f", "consume t -f --group h", "lag --checkpoint {folder}/query --watch 0.1"]
)
def test_ctrl_c_ends_what_goes_on(
    protocol: str, line: str, clusters: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_files(tmp_path, "0-0" if protocol == "metaq" else "metaq:0")
    monkeypatch.setattr(sys, "stdout", Interrupting())
    assert main(argument_list(line, clusters[protocol], tmp_path)) == 130


@pytest.mark.process
@pytest.mark.slow
class TestProcesses:
    """What only a process of its own shows: its end, when the interpreter flushes what is left."""

    def run(self, shell: str, clusters: dict[str, str], **environment: str) -> tuple[int, bytes, bytes]:
        metaq = f"{sys.executable} -m metaq.cli.main -c {clusters['metaq']}"
        ran = subprocess.run(
            ["bash", "-c", shell.replace("METAQ", metaq)], env={**os.environ, **environment}, capture_output=True
        )
        return ran.returncode, ran.stdout, ran.stderr

    @pytest.mark.long
    def test_standard_streams_that_are_closed_or_full(self, clusters: dict[str, str]) -> None:
        closed = b"metaq: the standard output cannot be written: Bad file descriptor\n"
        assert self.run("METAQ topics >&-", clusters) == (1, b"", closed)
        assert self.run("METAQ produce t -m x >&-", clusters)[::2] == (0, b"1 message sent to t\n")
        full = b"metaq: the standard output cannot be written: No space left on device\n"
        for command in ("consume t", "--help", "consume --help"):
            assert self.run(f"METAQ {command} >/dev/full", clusters) == (1, b"", full), command
        status, _, err = self.run("METAQ produce t <&-", clusters)
        assert (status, err.splitlines()[-1]) == (
            2, b"metaq: the standard input is closed; name files, or -m TEXT",
        )  # fmt: skip
        assert self.run("METAQ produce t -m x 2>&-", clusters) == (0, b"", b"")
        assert self.run("METAQ --help | head -0; echo ${PIPESTATUS[0]}", clusters) == (0, b"141\n", b"")

    def test_an_encoding_that_lacks_letters(self, clusters: dict[str, str]) -> None:
        with MetaQ(clusters["metaq"]) as mq:
            mq.producer().send("日本", "x")
        status, out, err = self.run("METAQ topics", clusters, PYTHONIOENCODING="ascii")
        assert (status, rb"\u65e5\u672c" in out, err) == (0, True, b"")
