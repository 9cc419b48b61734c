"""A short version of ``python -m faults.remoting_fuzz``."""

from __future__ import annotations

from pathlib import Path

import pytest

from faults.remoting_fuzz.__main__ import run
from faults.remoting_fuzz.codec import fuzz_codec

pytestmark = [pytest.mark.process, pytest.mark.slow]

SEED = 20


def test_codec_client_and_name_server_withstand_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(SEED, 8000, 4, tmp_path)
    reported = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in reported] == ["codec", "client", "name server"]
    assert list(tmp_path.iterdir()) == []


def test_the_fuzz_of_the_codec_sends_good_and_bad_frames() -> None:
    commands, errors = fuzz_codec("x", 4000)
    assert commands > 1000
    assert errors > 50
