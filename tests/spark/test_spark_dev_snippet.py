"""What a development broker prints to be pasted into pyspark, pasted."""

from __future__ import annotations

import code
import contextlib
import io

import pytest
from fix_broker import RunningBroker
from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.process]


def lines_to_paste(broker: RunningBroker) -> list[str]:
    """What it has printed behind the invitation."""
    assert broker.process.stdout is not None
    assert broker.rocketmq_address.port
    assert broker.process.stdout.readline() == "Paste into pyspark:\n"
    assert broker.process.stdout.readline() == "\n"
    return [line.rstrip("\n") for line in iter(broker.process.stdout.readline, "\n")]


def test_the_pasted_lines_show_rows(spark: SparkSession, dev_broker: RunningBroker) -> None:
    console = code.InteractiveConsole({"spark": spark})
    out, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        for line in lines_to_paste(dev_broker):
            assert not console.push(line), "each line is whole"
    assert errors.getvalue() == ""
    assert "|   one tea|" in out.getvalue()
    assert "|two scones|" in out.getvalue()
