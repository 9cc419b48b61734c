"""The last line of a terminal, which shows how far long work is, or what the command waits for."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from metaq.cli.arguments import now_ms
from metaq.cli.colours import CLEAR_LINE, is_terminal
from metaq.cli.output import counted, shortened
from metaq.terminals import columns_of

FIRST_S: Final = 1.0
"""Work that takes less shows no progress."""
EACH_S: Final = 0.5


class StatusLine:
    """The last line of the terminal on the standard error; without a terminal, nothing."""

    def __init__(self) -> None:
        self._is_on = is_terminal(sys.stderr)
        self._shown = ""
        self._lock = threading.Lock()

    def show(self, text: str) -> None:
        """Replace the line."""
        if self._is_on:
            with self._lock:
                self._write(shortened(text, columns_of(sys.stderr) - 1))

    def clear(self) -> None:
        """Remove the line. Call it before anything else is written to the terminal."""
        with self._lock:
            self._write("")

    @contextmanager
    def hidden(self) -> Iterator[None]:
        """Remove the line while something else is written to the terminal."""
        with self._lock:
            self._write("")
            yield
            if self._is_on and sys.stdout is not None:
                sys.stdout.flush()

    def _write(self, text: str) -> None:
        if self._is_on and text != self._shown:
            self._shown = text
            with suppress(OSError):
                sys.stderr.write(CLEAR_LINE + text)
                sys.stderr.flush()

    @contextmanager
    def progress(self, count: Callable[[], int], does: str) -> Iterator[None]:
        """Show again and again how many messages were counted, such as ``1,000 messages sent, 500/s``."""
        if not self._is_on:
            yield
            return
        ended, began_ms = threading.Event(), now_ms()

        def run() -> None:
            pause_s = FIRST_S
            while not ended.wait(pause_s):
                number, pause_s = count(), EACH_S
                per_s = number * 1000 // max(1, now_ms() - began_ms)
                self.show(f"{counted(number)} {does}, {per_s:,}/s")

        thread = threading.Thread(target=run, name="metaq-progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
            self.clear()
