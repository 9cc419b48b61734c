"""The commands of docs/rocketmq-broker.md, in turn, against a broker with the section that the page shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from doc_blocks import blocks

from peers.rocketmq.bundled import BundledServer

pytestmark = [pytest.mark.process]

PAGE = "docs/rocketmq-broker.md"


def test_the_commands_print_what_the_page_says(tmp_path: Path) -> None:
    (section,) = (block.text for block in blocks("ini", page=PAGE))
    keys = dict(line.split("=") for line in section.splitlines() if "=" in line)
    assert keys.pop("port") == "10911"
    command = tmp_path / "bin" / "metaq"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m metaq.cli.main "$@"\n')
    command.chmod(0o755)
    environment = {**os.environ, "PATH": f"{command.parent}:{os.environ['PATH']}"}
    texts = [block.text for block in blocks("console", page=PAGE)]
    steps = [step.partition("\n") for text in texts for step in re.split(r"^\$ ", text, flags=re.MULTILINE) if step]
    assert len(steps) == 4
    with BundledServer(tmp_path, keys, {"numPartitions": 1}, topics=["orders"]) as broker:
        for line, _, says in steps:
            shell = line.replace("127.0.0.1:10911", broker.address).replace("127.0.0.1:8123", broker.metaq_address)
            ran = subprocess.run(["sh", "-c", shell], env=environment, capture_output=True, text=True, timeout=60)
            assert (ran.returncode, ran.stdout + ran.stderr) == (0, says), shell
