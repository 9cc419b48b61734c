"""Ports of test servers: no two of a process, or of two processes, are the same, though none of them is bound."""

from __future__ import annotations

import subprocess
import sys

import pytest

from metaq.testing.ports import BLOCK, free_port

COUNT = 60
TAKE = f"from metaq.testing.ports import free_port; print(*(free_port() for _ in range({COUNT}))); input()"


def test_ports_of_a_process_differ_with_those_beside_them() -> None:
    taken: list[int] = []
    for offsets in [(-2, 0, 1), (0,), (0, 1)] * 10:
        port = free_port(offsets)
        taken += [port + offset for offset in range(min(offsets), max(offsets) + 1)]
    assert len(set(taken)) == len(taken) < BLOCK


@pytest.mark.process
def test_ports_of_processes_differ() -> None:
    """Each begins while the others are there; a child that was forked takes ports of its own, too."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen([sys.executable, "-c", TAKE], **pipes) for _ in range(3)]
    try:
        lines = [process.stdout.readline() for process in processes if process.stdout is not None]
        taken = [int(port) for line in lines for port in line.split()] + [free_port() for _ in range(COUNT)]
        assert len(set(taken)) == len(taken) == 4 * COUNT
    finally:
        for process in processes:
            process.communicate("\n")
