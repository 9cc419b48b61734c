"""Short runs of the simulator: no history breaks an invariant, and the same seed is the same history."""

from __future__ import annotations

import pytest
from examples import rarely

from faults.simulation.__main__ import main
from faults.simulation.history import Outcome, run_history
from faults.simulation.kept import failed_seeds


@pytest.mark.parametrize("first", [0, 50, *rarely(100, 150)])
def test_no_history_breaks_an_invariant(first: int) -> None:
    failed = [outcome for seed in range(first, first + 50) if (outcome := run_history(seed)).violation is not None]
    assert failed == []


def test_seeds_that_failed_once() -> None:
    failed = [outcome for seed in failed_seeds() if (outcome := run_history(seed)).violation is not None]
    assert failed == []


def test_a_seed_is_a_history() -> None:
    one, other = run_history(7, has_trace=True), run_history(7, has_trace=True)
    assert one == other
    assert one.puts > 0
    assert one.lines != run_history(8, has_trace=True).lines


def test_the_command_prints_what_it_ran(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "3"]) == 0
    assert capsys.readouterr().out.startswith("3 histories, 0 with a violation")
    assert main(["--trace", "3"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "seed 3: every invariant holds"


def test_ctrl_c_prints_what_was_tried(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def until_three(seed: int) -> Outcome:
        if seed == 3:
            raise KeyboardInterrupt
        return run_history(seed)

    monkeypatch.setattr("faults.simulation.__main__.run_history", until_three)
    assert main(["--seeds", "1000"]) == 130
    assert capsys.readouterr().out.startswith("3 histories, 0 with a violation")
