"""The benchmark beside RocketMQ, with few messages: it measures every figure that it has."""

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
                ("batches made before, sent without Spark", None),
                ("Java producer, waiting", None),
            ]
        ),
        ("MetaQ source", 1.2),
    ]
    assert all(figure["ours"] > 0 and figure["peer"] > 0 for figure in figures)
