"""The benchmarks beside RocketMQ, with few messages: they measure every figure that they have."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from fix_spark import ROOT

from peers.rocketmq.jars import Release

pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.slow]


def test_all_figures_of_a_small_run(rocketmq_release: Release, tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    sizes = ["--runs", "1", "--scale", "0.004", "--json", str(file)]
    command = [sys.executable, str(ROOT / "benchmarks" / "rocketmq_peer.py"), "--rocketmq", rocketmq_release.version]
    done = subprocess.run([*command, *sizes], capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]
    figures = json.loads(file.read_text())["figures"]
    assert [(figure["peer_name"], figure["aim"]) for figure in figures] == [
        ("Java pull consumer", 1.0),
        ("Java pull consumer", 1.0),
        *(
            2
            * [
                ("Java producer, waiting", 2.0),
                ("Java producer, 4 threads", None),
                ("batches made before, sent without Spark", None),
                ("Java producer, waiting", None),
            ]
        ),
        ("", None),  # what a job takes to write two rows
        ("MetaQ source", 1.2),
    ]
    assert all(figure["ours"] > 0 and (not figure["peer_name"] or figure["peer"] > 0) for figure in figures)


@pytest.mark.rocketmq_only("4.9.7")
def test_all_figures_of_the_broker(rocketmq_release: Release, tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    command = [sys.executable, str(ROOT / "benchmarks" / "rocketmq_broker_peer.py"), "--rocketmq", "4.9.7"]
    done = subprocess.run(
        [*command, "--runs", "1", "--scale", "0.005", "--json", str(file)], capture_output=True, text=True, timeout=580
    )
    assert done.returncode == 0, done.stderr[-3000:]
    figures = json.loads(file.read_text())["figures"]
    assert [figure["aim"] for figure in figures] == [
        *(0.2, 0.2),  # memory
        *(1.0, 1.0, None),  # sends after fsync, and their CPU
        *(1.0, 0.7, 0.7, 1.5, None),  # batches, pulls, push, latency
        *(0.5, 0.5, None),  # sends before fsync
        *(None, None),  # sends and pulls beside a bare server
        0.8,  # through Spark
    ]
    assert all(figure["ours"] > 0 and figure["peer"] > 0 for figure in figures)
