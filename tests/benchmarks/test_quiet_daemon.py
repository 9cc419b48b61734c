"""What Spark's daemon prints while benchmarks print tables."""

from __future__ import annotations

import pytest
from quiet_daemon import print_exc


@pytest.mark.parametrize(
    ("error", "last_line"), [(BrokenPipeError("closed"), []), (ValueError("wrong"), ["ValueError: wrong"])]
)
def test_only_an_idle_worker_that_spark_ended_is_left_out(
    error: Exception, last_line: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        raise error
    except Exception:
        print_exc()
    assert capsys.readouterr().err.splitlines()[-1:] == last_line
