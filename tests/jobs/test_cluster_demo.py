"""The cluster demo as ``make cluster-demo`` runs it, with few messages; interrupted; its judge and its processes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from cluster_demo_messages import Verdict, judge, number_of, payload, stamp
from cluster_demo_processes import Processes
from demo_stage import StageFailed
from examples import rarely
from fix_broker import wait_until

from metaq.model import Message

DEMO = Path(__file__).parents[2] / "jobs" / "cluster_demo.py"
MESSAGES = 2000


def whole(test: Callable[..., None]) -> Callable[..., None]:
    """A test that starts all of it."""
    for mark in (pytest.mark.spark, pytest.mark.process, pytest.mark.slow, pytest.mark.long):
        test = mark(test)
    return test


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """One in which temporary folders are made below the test's own."""
    (tmp_path / "temporary").mkdir()
    return {**os.environ, "TMPDIR": str(tmp_path / "temporary")}


def left_behind(environment: dict[str, str]) -> list[str]:
    """Folders of the demo, and processes that it started: those have one of its folders for what is temporary."""
    below = environment["TMPDIR"]
    processes = [
        entry.name
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit() and f"TMPDIR={below}".encode() in environment_of(entry)
    ]
    return [path.name for path in Path(below).glob("metaq-demo-*")] + processes


def environment_of(process: Path) -> bytes:
    try:
        return (process / "environ").read_bytes()
    except OSError:  # it has ended, or is another user's
        return b""


def runs(process: Path) -> bool:
    """Whether the process is there and has not ended: one that began a moment ago may have no environment to read."""
    try:
        state = (process / "stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in ("Z", "X")


@whole
def test_every_message_survives_the_killed_master(environment: dict[str, str]) -> None:
    command = [sys.executable, DEMO, "--messages", str(MESSAGES)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd="/")
    assert done.returncode == 0, done.stdout + done.stderr
    reported = re.findall(r"^ +[\d.]+ s  (.*)", done.stdout, re.MULTILINE)
    scenario = [
        f"{MESSAGES // 2:,} of them by a producer of RocketMQ's",
        "30% of the messages have come through",
        "the master of broker 0 is killed (SIGKILL)",
        "the other member is elected, without help",
        "the pipeline has written everything that was there",
        f"sent {MESSAGES:,}, received {MESSAGES:,}; both members of each pair have the same bytes",
    ]
    assert [line for line in reported if line in scenario] == scenario, done.stdout
    assert done.stdout.endswith("\nEvery message came through exactly once, unchanged.\n")
    assert done.stderr == ""
    assert left_behind(environment) == []


@whole
@pytest.mark.parametrize(
    ("number", "moment"),
    [(signal.SIGTERM, "broker 1b: "), (signal.SIGINT, "spark-submit ")],
    ids=["Spark starts", "the pipeline starts"],
)
def test_interruption_leaves_nothing_behind(environment: dict[str, str], number: signal.Signals, moment: str) -> None:
    command = [sys.executable, DEMO, "--messages", str(MESSAGES)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as demo:
        assert demo.stdout is not None
        assert demo.stderr is not None
        said = ""
        while moment not in said:
            line = demo.stdout.readline()
            assert line, said + demo.stderr.read()
            said += line
        assert left_behind(environment) != []
        demo.send_signal(number)
        _, complaints = demo.communicate(timeout=120)
    assert (demo.returncode, complaints) == (
        128 + number,
        "\nInterrupted. Spark, the brokers and ZooKeeper are stopped.\n",
    )
    wait_until(lambda: left_behind(environment) == [], "nothing is left")


@pytest.mark.process
@pytest.mark.parametrize("given", ["999", *rarely("many", "-5000")])
def test_wrong_number_of_messages_is_reported_at_once(given: str) -> None:
    done = subprocess.run([sys.executable, DEMO, f"--messages={given}"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"{given!r}: expected a number, 1000 or more" in done.stderr


@pytest.mark.process
def test_a_machine_without_java_is_reported_and_nothing_is_left(environment: dict[str, str]) -> None:
    bare = environment | {"PATH": environment["TMPDIR"]}
    done = subprocess.run([sys.executable, DEMO], env=bare, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("cluster_demo: ZooKeeper cannot be started: ")
    assert "java" in done.stderr
    assert left_behind(environment) == []


def as_sent(count: int) -> list[Message]:
    return [Message(payload(number), stamp(payload(number))) for number in range(count)]


CHANGES: list[tuple[str, Callable[[list[Message]], list[Message]], Verdict]] = [
    ("nothing", lambda all_: all_, Verdict(10, 0, 0, 0)),
    ("order", lambda all_: all_[::-1], Verdict(10, 0, 0, 0)),
    ("lost", lambda all_: all_[1:], Verdict(9, 1, 0, 0)),
    ("doubled", lambda all_: [*all_, all_[3], all_[3]], Verdict(12, 0, 2, 0)),
    ("lost and doubled", lambda all_: [*all_[1:], all_[3]], Verdict(10, 1, 1, 0)),
    ("one too many", lambda all_: [*all_, as_sent(11)[10]], Verdict(11, 0, 0, 1)),
    ("payload", lambda all_: [Message(all_[0].payload + b"x", all_[0].attribute), *all_[1:]], Verdict(10, 1, 0, 1)),
    ("no number", lambda all_: [Message(b"", stamp(b"")), *all_[1:]], Verdict(10, 1, 0, 1)),
    ("stamp", lambda all_: [Message(all_[0].payload, all_[1].attribute), *all_[1:]], Verdict(10, 1, 0, 1)),
    ("no stamp", lambda all_: [Message(all_[0].payload), *all_[1:]], Verdict(10, 1, 0, 1)),
    ("all lost", lambda all_: [], Verdict(0, 10, 0, 0)),
]


@pytest.mark.parametrize(("change", "expected"), [row[1:] for row in CHANGES], ids=[row[0] for row in CHANGES])
def test_every_change_is_noticed(change: Callable[[list[Message]], list[Message]], expected: Verdict) -> None:
    verdict = judge(change(as_sent(10)), 10)
    assert verdict == expected
    assert verdict.good == (expected == Verdict(10, 0, 0, 0))


def test_payloads_contain_their_number() -> None:
    assert [number_of(payload(number)) for number in (0, 7, 123_456)] == [0, 7, 123_456]
    assert {len(payload(number)) - len(str(number)) - 1 for number in range(100)} == {32, 64, 96, 128, 160}


def test_what_a_process_started_ends_with_it(tmp_path: Path) -> None:
    with Processes(tmp_path) as processes:
        shell = processes.start("two of them", ["sh", "-c", "sleep 600 & echo started $!; wait"])
        shell.wait_for(lambda: "started" in shell.said(), "it has started another")
        child = Path("/proc") / shell.said().split()[1]
        assert shell.status() is None
        assert runs(child)
    assert shell.status() is not None
    wait_until(lambda: not runs(child), "its child has ended")


def test_a_process_that_ends_too_early_is_reported_with_what_it_said(tmp_path: Path) -> None:
    with Processes(tmp_path) as processes:
        process = processes.start("broker 7", ["sh", "-c", "echo no room; exit 3"])
        with pytest.raises(
            StageFailed, match=r"(?s)^broker 7 has ended with status 3, before it serves;.*\nno room\n$"
        ):
            process.wait_for(lambda: False, "it serves")


def test_a_wait_has_an_end(tmp_path: Path) -> None:
    with Processes(tmp_path) as processes:
        process = processes.start("broker 7", ["sleep", "600"])
        with pytest.raises(StageFailed, match=r"^broker 7: waited 0\.01 s in vain for: it serves;"):
            process.wait_for(lambda: False, "it serves", deadline_s=0.01)
        with pytest.raises(StageFailed, match=r"^broker 7: still running after 0\.01 s;"):
            process.wait(0.01)
