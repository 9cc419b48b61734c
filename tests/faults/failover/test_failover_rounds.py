"""The rounds of failover as ``python -m faults.failover`` runs them, the shortest of them; and their table."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from faults.failover.__main__ import main
from faults.failover.load import MetaqFamily
from faults.failover.members import Member, Pair
from faults.failover.network import Network, available
from faults.failover.rounds import FAULTS, Rounds


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.long
def test_a_master_is_killed_and_nothing_is_lost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--rounds", "2", "--no-network", "--folder", str(tmp_path), "--seed", "1"]) == 0
    said = capsys.readouterr().out
    for family in ("brokers", "zookeeper", "transactions", "rocketmq"):
        assert re.search(rf"^{family}: [1-9]\d* acknowledged, 0 lost, ", said, re.MULTILINE), said
    assert "both copies are the same bytes" in said
    assert "| kill -9 of the master | 1 |" in said


def test_the_table(tmp_path: Path) -> None:
    pair = Pair(Member("a", tmp_path, "127.0.0.1"), Member("b", tmp_path, "127.0.0.1"))
    families = [MetaqFamily("brokers", "127.0.0.1:1"), MetaqFamily("zookeeper", "127.0.0.1:1")]
    rounds = Rounds(tmp_path, pair, families, None, "127.0.0.1", 1)
    rounds.counts["kill"] = 3
    rounds.times_s["kill", "brokers"] = [0.5, 0.1, 0.2]
    rounds.times_s["kill", "zookeeper"] = [1.0]
    assert rounds.table() == [
        "| fault | rounds | brokers | zookeeper |",
        "|---|---|---|---|",
        "| kill | 3 | 0.20 / 0.50 | 1.00 / 1.00 |",
    ]


def test_every_fault_has_a_name_of_its_own() -> None:
    names = [fault.name for fault in FAULTS]
    assert len(set(names)) == len(names)


@pytest.mark.process
@pytest.mark.skipif(not available(), reason="network namespaces need root")
def test_a_way_is_cut_in_one_direction_and_healed() -> None:
    with Network(("a", "b")) as network:
        a, b = network.hosts["a"], network.hosts["b"]

        def reaches() -> bool:
            """Whether a packet of ``a`` arrives at ``b``, seen by ``b`` itself."""
            listen = "import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(1); "
            listen += f"s.bind(('{b.address}', 7007)); print('bound', flush=True); s.recv(9); print('heard')"
            listener = subprocess.Popen(
                [*b.command, "python3", "-c", listen], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
            assert listener.stdout is not None
            assert listener.stdout.readline() == "bound\n"
            send = f"import socket; socket.socket(2, 2).sendto(b'x', ('{b.address}', 7007))"
            subprocess.run([*a.command, "python3", "-c", send], check=True)
            heard = listener.communicate(timeout=30)[0]
            return "heard" in heard

        assert reaches()
        network.cut(a, b.address)
        assert not reaches()
        network.heal()
        assert reaches()
