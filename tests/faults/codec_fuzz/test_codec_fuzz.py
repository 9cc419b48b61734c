"""The fuzz of RocketMQ's readers, a short part of it; and that it finds what it looks for."""

from __future__ import annotations

import pytest

from faults.codec_fuzz import trial
from faults.codec_fuzz.__main__ import main
from faults.codec_fuzz.inputs import BATCH, FRAME, RECORDS, Inputs, recorded
from faults.codec_fuzz.trial import Finding, Trial
from metaq.protocols.remoting.command import RemotingCommand

CORPUS = recorded()


def test_a_short_run_finds_nothing() -> None:
    tally = Trial(Inputs(18, CORPUS, big=400), 18, seconds_max=60, mib_max=4096).run(1500)
    assert tally.inputs == 1500
    assert tally.commands > 250
    assert tally.records > 100
    assert {"ProtocolError", "FieldError", "CorruptRecord"} <= set(tally.refused)


def test_inputs_depend_on_the_seed_alone() -> None:
    one, other, third = Inputs(5, CORPUS), Inputs(5, CORPUS), Inputs(6, CORPUS)
    found = [one.next() for _ in range(200)]
    assert found == [other.next() for _ in range(200)]
    assert found != [third.next() for _ in range(200)]
    assert {FRAME, RECORDS, BATCH} <= {each.kind for each in found}


class TestFindings:
    def run(self, seconds_max: float = 60, mib_max: int = 4096) -> None:
        Trial(Inputs(1, CORPUS), 1, seconds_max, mib_max).run(300)

    def test_an_error_that_is_not_meant_for_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def planted(data: bytes) -> None:
            raise IndexError("planted")

        monkeypatch.setattr(trial, "decode_batch", planted)
        with pytest.raises(Finding, match="IndexError: planted: "):
            self.run()

    def test_a_command_that_changes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        encode = trial.encode

        def planted(command: RemotingCommand) -> bytes:
            return encode(RemotingCommand(command.code, {}, command.body, command.opaque, command.flag))

        monkeypatch.setattr(trial, "encode", planted)
        with pytest.raises(Finding, match="came back as"):
            self.run()

    def test_time_and_memory(self) -> None:
        with pytest.raises(Finding, match="s of CPU for "):
            self.run(seconds_max=0)
        with pytest.raises(Finding, match="MiB of memory after "):
            self.run(mib_max=1)

    def test_the_command(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["--frames", "200", "--seed", "3", "--memory", "8192", "--seconds", "60"]) == 0
        assert "200 inputs" in capsys.readouterr().out
        assert main(["--frames", "200", "--seed", "3", "--memory", "1"]) == 1
        assert "MiB of memory after" in capsys.readouterr().err
