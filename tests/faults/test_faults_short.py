"""Short versions of what ``make faults`` runs for longer: kills, scenarios, fuzz."""

from __future__ import annotations

from pathlib import Path

import pytest

from faults.fuzz.fuzz_run import FuzzOptions, FuzzRun
from faults.kill_loop import KillLoop, KillOptions
from faults.scenarios import SCENARIOS, Skipped, Stage

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.long]

ROUNDS = 10
COMMANDS = 20_000
SEED = 20


def test_ten_kills_under_load_lose_nothing(tmp_path: Path) -> None:
    described: list[str] = []
    loop = KillLoop(KillOptions(SEED, ROUNDS, rounds_per_series=5, haste=True), tmp_path, described.append)
    loop.run()
    assert sum("all is there" in line for line in described) == loop.figures.rounds == ROUNDS
    assert loop.figures.kills + loop.figures.stops >= ROUNDS
    assert min(loop.figures.messages, loop.figures.committed, loop.figures.prepared, loop.figures.messages_read) > 0
    assert list(tmp_path.iterdir()) == []


def test_kills_lose_nothing_of_clients_of_both_systems(tmp_path: Path) -> None:
    options = KillOptions(SEED, 4, rounds_per_series=4, haste=True, rocketmq=True)
    loop = KillLoop(options, tmp_path, lambda line: None)
    loop.run()
    assert loop.figures.rounds == 4
    assert min(loop.figures.sent_by_rocketmq, loop.figures.pulled) > 0
    assert loop.figures.messages > loop.figures.sent_by_rocketmq
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["suspend", "stop", "disk-full", "few-files"])
def test_scenario(name: str, tmp_path: Path) -> None:
    try:
        SCENARIOS[name](Stage(tmp_path, str(SEED), haste=True))
    except Skipped as reason:
        pytest.skip(str(reason))
    assert list(tmp_path.iterdir()) == []


def test_a_fuzzed_broker_serves_its_honest_client(tmp_path: Path) -> None:
    fuzz_run = FuzzRun(FuzzOptions(SEED, COMMANDS), tmp_path, lambda line: None)
    fuzz_run.run()
    assert sum(each.sent_phrases for each in fuzz_run.attackers) >= COMMANDS
    assert sum(each.answers for each in fuzz_run.attackers) > COMMANDS // 2
    assert list(tmp_path.iterdir()) == []
