"""What the rounds with Java's clients make of the lines of their programs. The rounds: ``tests/java``,
``tests/rocketmq_broker``.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from faults.broker_process import BrokerTrouble
from faults.failover.members import Member, Pair
from faults.java_failover.__main__ import main
from faults.java_failover.clients import Clients, Program
from faults.java_failover.rounds import FAULTS, Rounds

LINES = ["ready", "sent\tt\t0\t1000", "failed\tt\t1\t1500\tno route", "got\tt\t0", "sent\tt\t2\t4000", "got\tt\t0"]
SAYS = f"print({chr(10).join(LINES)!r}, flush=True); import sys; sys.stdin.readline(); print('stopped', flush=True)"
WAITS = "; sys.stdin.read()"


def program(folder: Path, source: str) -> Program:
    return Program("fake", [sys.executable, "-c", source], [Clients("t", "a client")], folder)


@pytest.mark.process
def test_what_a_program_says_is_noted(tmp_path: Path) -> None:
    running = program(tmp_path, SAYS + WAITS)
    running.wait_ready()
    running.stop_sending()
    running.kill()
    [clients] = running.clients
    assert clients.acknowledged == {0: 1.0, 2: 4.0}
    assert clients.consumed == {0: 2}
    assert clients.missing == [2]
    assert (clients.errors, clients.error_count) == (["1: no route"], 1)


@pytest.mark.process
def test_a_program_that_ends_is_told_with_its_log(tmp_path: Path) -> None:
    running = program(tmp_path, "import sys; sys.exit('no such class')")
    with pytest.raises(BrokerTrouble, match="fake did not say ready: no such class"):
        running.wait_ready()
    running.kill()


def test_a_pause_begins_with_the_last_message_before_it() -> None:
    clients = Clients("t", "a client")
    clients.acknowledged = {0: 9.0, 1: 10.0, 2: 10.1, 3: 14.0, 4: 20.0}
    assert clients.pause_s(10.05, 13.0) == pytest.approx(3.9)
    assert clients.pause_s(10.05, 14.5) == pytest.approx(6.0)
    assert clients.has_acknowledged_after(19.0)
    assert not clients.has_acknowledged_after(20.0)
    assert not Clients("t", "silent").has_acknowledged_after(0.0)


def test_the_table_of_java_clients(tmp_path: Path) -> None:
    pair = Pair(Member("a", tmp_path, "127.0.0.1"), Member("b", tmp_path, "127.0.0.1"))
    rounds = Rounds(tmp_path, pair, [])
    rounds.clients = [Clients("t", "MetaQ")]
    rounds.counts["switch"] = 3
    rounds.times_s["switch", "MetaQ"] = [0.5, 0.1, 0.2]
    assert rounds.table() == ["| client | switch (3) |", "|---|---|", "| MetaQ | 0.20 / 0.50 |"]


def test_faults_have_names_of_their_own() -> None:
    names = [fault.name for fault in FAULTS]
    assert len(set(names)) == len(names)


def test_unknown_clients_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--clients", "metaq,4.0.0"])
    assert ended.value.code == 2
    assert "--clients: 4.0.0: expected metaq, 4.9.7, 5.5.0" in capsys.readouterr().err
