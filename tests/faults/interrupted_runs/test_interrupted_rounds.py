"""A short version of ``python -m faults.interrupted_runs``, and what its checker finds."""

from __future__ import annotations

import pytest

from faults.interrupted_runs.__main__ import main
from faults.interrupted_runs.checker import Broken, Sequence


@pytest.mark.process
@pytest.mark.slow
def test_ten_interruptions_of_each_client_skip_nothing(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "unused")
    assert main(["--rounds", "10", "--seed", "20"]) == 0
    assert capfd.readouterr().out.count("10 rounds, 160 messages, 0 skipped") == 4


def test_the_next_message_and_the_last_one_again_are_right() -> None:
    sequence = Sequence()
    for partition, number in (("a", 0), ("b", 0), ("a", 1), ("a", 1), ("a", 2)):
        sequence.note(partition, number)
    assert (sequence.handled, sequence.repeated) == (4, 1)


@pytest.mark.parametrize("number", [0, 3])
def test_a_message_that_was_skipped_and_an_older_one_are_found(number: int) -> None:
    sequence = Sequence()
    sequence.note("a", 0)
    sequence.note("a", 1)
    with pytest.raises(Broken, match=f"message {number}, expected 2, or 1 again"):
        sequence.note("a", number)
