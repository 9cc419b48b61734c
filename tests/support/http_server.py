"""The console as a process of its own, on a free port."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

READY = re.compile(r"metaq console ready on (https?://[\d.:]+)/\n")


@contextmanager
def serving(*arguments: str) -> Iterator[str]:
    """Run ``python -m metaq_console`` with such arguments; yield its address, without a slash behind it."""
    command = [sys.executable, "-m", "metaq_console", *arguments, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            ready = READY.fullmatch(process.stdout.readline())
            assert ready is not None
            yield ready[1]
        finally:
            process.terminate()
            assert process.wait(60) == 0
