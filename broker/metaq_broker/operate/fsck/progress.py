"""A progress bar on one line of a terminal: ``checking [######      ]  51%  5.1 of 10.0 GiB  orders-3``."""

from __future__ import annotations

from typing import Final, TextIO

from metaq.terminals import columns_of
from metaq_broker.clock import Clock

_BAR_CHARACTERS: Final = 24
_INTERVAL_S: Final = 0.1
_UNITS: Final = ("bytes", "KiB", "MiB", "GiB", "TiB")


class ProgressBar:
    """Counts bytes towards ``bytes_total`` and shows them on ``terminal``, at most ten times a second; ``None``:
    nowhere.

    A part (a partition) begins with its share of the total; bytes that are read twice do not count beyond that share.
    """

    def __init__(self, bytes_total: int, terminal: TextIO | None, clock: Clock) -> None:
        self._bytes_total = max(1, bytes_total)
        self._terminal, self._clock = terminal, clock
        self._done, self._part_done, self._part_bytes, self._name = 0, 0, 0, ""
        self._drawn_at = float("-inf")

    def begin(self, name: str, part_bytes: int) -> None:
        """Count the previous part as done, however much of it was read, and begin the part ``name``."""
        self._done += self._part_bytes
        self._name, self._part_bytes, self._part_done = name, part_bytes, 0
        self._draw()

    def advance(self, byte_count: int) -> None:
        """Count bytes that were read."""
        self._part_done = min(self._part_bytes, self._part_done + byte_count)
        self._draw()

    def end(self) -> None:
        """Remove the bar."""
        if self._terminal is not None:
            self._write("")

    def _draw(self) -> None:
        now = self._clock.monotonic()
        if self._terminal is None or now - self._drawn_at < _INTERVAL_S:
            return
        self._drawn_at = now
        done = min(self._done + self._part_done, self._bytes_total)
        share = done / self._bytes_total
        bar = "#" * int(share * _BAR_CHARACTERS)
        amounts = f"{size_text(done)} of {size_text(self._bytes_total)}"
        self._write(f"checking [{bar:<{_BAR_CHARACTERS}}] {share:4.0%}  {amounts}  {self._name}")

    def _write(self, text: str) -> None:
        assert self._terminal is not None
        width = columns_of(self._terminal) - 1
        self._terminal.write(f"\r{text[:width]:<{width}}" if text else f"\r{'':<{width}}\r")
        self._terminal.flush()


def size_text(byte_count: int) -> str:
    """Format a number of bytes: ``17 bytes``, ``1.5 KiB``."""
    size, unit = float(byte_count), 0
    while size >= 1024 and unit < len(_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{size:.1f} {_UNITS[unit]}" if unit else f"{byte_count} bytes"
