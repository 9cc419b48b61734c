"""Ports of test servers: no two of a process, or of two processes, are the same, though none of them is bound."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from metaq.testing.ports import BLOCK, free_port

COUNT = 30
TAKE = f"""
import os
from metaq.testing.ports import free_port
print(*(free_port() for _ in range({COUNT})), flush=True)
if os.fork():
    os.wait()
else:
    print(*(free_port() for _ in range({COUNT})), flush=True)
    input()
    os._exit(0)
"""


def test_ports_of_a_process_differ_with_those_beside_them() -> None:
    taken: list[int] = []
    for offsets in [(-2, 0, 1), (0,), (0, 1)] * 10:
        port = free_port(offsets)
        taken += [port + offset for offset in range(min(offsets), max(offsets) + 1)]
    assert len(set(taken)) == len(taken) < BLOCK


def test_two_ports_are_not_two_apart() -> None:
    """A broker listens two below its port for RocketMQ's clients, too."""
    ports = [free_port() for _ in range(COUNT)]
    assert not {port - 2 for port in ports} & set(ports)


def test_without_a_folder_for_locks_there_are_ports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    monkeypatch.setattr("metaq.testing.ports._own", None)
    assert len({free_port() for _ in range(COUNT)}) == COUNT


@pytest.mark.process
def test_ports_of_processes_differ() -> None:
    """Each begins while the others are there; a child that was forked takes ports of its own."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen([sys.executable, "-c", TAKE], **pipes) for _ in range(3)]
    try:
        lines = [process.stdout.readline() for process in processes for _ in range(2) if process.stdout is not None]
        taken = [int(port) for line in lines for port in line.split()] + [free_port() for _ in range(COUNT)]
        assert len(set(taken)) == len(taken) == 7 * COUNT
    finally:
        for process in processes:
            process.communicate("\n")
