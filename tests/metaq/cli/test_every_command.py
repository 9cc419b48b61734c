"""Every command of the parser, where things go wrong: servers that hang, are away, hang up or talk nonsense; Ctrl-C;
nobody who reads; broken UTF-8; wrong profiles. And ``--json`` where all is well.

What holds for all: one sentence on the standard error, the exit status of docs/cli.md, in a bounded time.
"""

from __future__ import annotations

import gc
import os
import re
import signal
import socket
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from cli_commands import (
    EXAMPLES,
    LOCAL,
    answer_malformed,
    argument_list,
    close_at_once,
    commands,
    examples,
    hang,
    write_files,
)
from examples import spread
from listeners import Listener

from metaq.cli.main import main
from metaq.testing.ports import free_port

SCHEMES = ["{}", "zk://{}/meta", "rocketmq://{}"]
CLUSTERS = pytest.mark.parametrize("scheme", SCHEMES, ids=["metaq", "zk", "rocketmq"])


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No profile and no state of whoever runs the tests, and no files in their folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("METAQ_CONFIG", str(tmp_path / "config.ini"))
    for name in ("METAQ_CLUSTER", "METAQ_PROFILE"):
        monkeypatch.delenv(name, raising=False)


def test_every_command_has_examples() -> None:
    found = commands()
    assert [name for name in found if not EXAMPLES[name]] == ["dashboard"]  # it serves until it is stopped
    del found["dashboard"]
    for name, choices in found.items():
        words = {word for line in examples(name) for word in line.split()}
        assert {value for values in choices for value in values} <= words, name


# ---- servers that fail

FAILURES = [hang, None, close_at_once, answer_malformed]
SECONDS_MAX = 20.0
"""For a command with a timeout of 0.02 s; without one it waits 30 s."""

INTERRUPTED_S_MAX = 25.0
"""Python notices a signal that comes in the moment before a wait begins when that ends: here after 5 s at most."""


def answered_without_a_server(line: str, scheme: str) -> int | None:
    """The exit status of examples that need no server."""
    name = line.split()[0]
    is_metaq = not scheme.startswith("rocketmq")
    if line in LOCAL or (is_metaq and name == "dlq"):
        return 0
    return 2 if line == "dlq discard g --all" else None


def require_one_sentence(line: str, err: str) -> None:
    """Check what a command that failed has said; how much was done before is a line of its own."""
    said = [text for text in err.splitlines() if not re.match(r"\d+ messages? ", text)]
    assert len(said) == 1, (line, err)
    assert said[0].startswith("metaq: "), (line, err)
    assert "Traceback" not in err, (line, err)
    assert " object at 0x" not in err, (line, err)


@CLUSTERS
@pytest.mark.parametrize("behave", FAILURES, ids=lambda one: getattr(one, "__name__", "nobody"))
def test_servers_that_fail(
    behave: Callable[[socket.socket], None] | None, scheme: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write_files(tmp_path, "broker-a:0" if scheme.startswith("rocketmq") else "0-0")
    with Listener(behave or hang) as server:
        cluster = scheme.format(f"127.0.0.1:{free_port()}" if behave is None else server.address)
        for line in spread(examples()):
            began_s = time.monotonic()
            status = main([*argument_list(line, cluster, tmp_path), "--timeout", "0.02"])
            took_s = time.monotonic() - began_s
            out, err = capfd.readouterr()
            assert took_s < SECONDS_MAX, line
            without = answered_without_a_server(line, scheme)
            assert status == (1 if without is None else without), (line, err)
            if line == "doctor":
                assert ("fail  " in out, err) == (True, "")
            elif line == "completion --topics":
                assert (out, err) == ("", "")  # a shell has no use for an error
            elif status:
                require_one_sentence(line, err)


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@CLUSTERS
def test_ctrl_c_ends_what_waits_for_a_server(scheme: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def interrupt(once: Iterator[int], connection: socket.socket) -> None:
        if (number := next(once, None)) is not None:  # another connection's would come when the command has ended
            os.kill(os.getpid(), number)

    write_files(tmp_path, "broker-a:0" if scheme.startswith("rocketmq") else "0-0")
    for line in examples():
        if answered_without_a_server(line, scheme) is None and line != "completion --topics":
            with Listener(partial(interrupt, iter([signal.SIGINT]))) as server:
                began_s = time.monotonic()
                status = main(argument_list(line, scheme.format(server.address), tmp_path))
                took_s = time.monotonic() - began_s
            _, err = capfd.readouterr()
            assert (status, took_s < INTERRUPTED_S_MAX) == (130, True), (line, took_s, err)
            assert re.fullmatch(r"(\d+ messages? .*\n)*", err), (line, err)
    gc.collect()  # a connection that is interrupted while it is made is nobody's to close


# ---- arguments


def test_wrong_profiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    write_files(tmp_path, "0-0")
    (tmp_path / "config.ini").write_text("[good]\ncluster = 127.0.0.1:1\n[bad]\nclusters = x\n")
    for name, says in (("none", "has no such section; it has good, bad"), ("bad", "unknown key 'clusters'")):
        monkeypatch.setenv("METAQ_PROFILE", name)
        for line in spread(examples()):
            assert main(argument_list(line, "127.0.0.1:1", tmp_path)) == 2, line
            out, err = capfd.readouterr()
            require_one_sentence(line, err)
            assert (out, says in err) == ("", True), (line, err)


def test_wrong_clusters(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write_files(tmp_path, "0-0")
    for cluster in ("nonsense", "127.0.0.1:99999", "zk://", "rocketmq://", "rocketmq://x", "kafka://a:1"):
        for line in spread(examples()):
            status = main([*argument_list(line, cluster, tmp_path), "--timeout", "0.1"])
            _, err = capfd.readouterr()
            if line in LOCAL:
                assert status == 0, line
            elif line != "completion --topics":
                assert status in (1, 2), (cluster, line, err)
                require_one_sentence(f"{cluster} {line}", err)
    assert main(["-c", "\udcff:1", "topics"]) == 1
    require_one_sentence("topics", capfd.readouterr().err)


def test_texts_that_are_not_utf8(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Each word of each example in turn is replaced by a byte that is no character."""
    write_files(tmp_path, "0-0")
    for line in spread(examples()):
        words = argument_list(line, "127.0.0.1:1", tmp_path)
        for at in range(3, len(words)):
            if words[at].startswith("-"):
                continue
            replaced = [*words[:at], "\udcff", *words[at + 1 :]]
            try:
                status: object = main(replaced)
            except SystemExit as ended:  # argparse's: no such choice, no such number
                status = ended.code
            _, err = capfd.readouterr()
            assert status in ((0, 1, 2) if words[2] == "dlq" else (1, 2)), (replaced, err)
            assert "Traceback" not in err, (replaced, err)
