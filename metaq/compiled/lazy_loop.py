"""A compiled loop that is loaded in the background, once enough bytes went through plain Python to make it worth it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final, Generic, TypeVar

PLAIN_BYTES_MAX: Final = 4 << 20
"""Bytes that a process handles in plain Python before it loads a compiled loop: that costs it half a second."""

_LOG: Final = logging.getLogger(__name__)
_Loop = TypeVar("_Loop")


class LazyLoop(Generic[_Loop]):
    """``loop`` is ``None`` until it is there, and for good where numba or isal is missing.

    ``make`` loads it, or raises why it cannot; ``agrees`` says whether it does what the plain code does. ``what`` says
    in the log what goes without it.
    """

    def __init__(
        self, what: str, make: Callable[[], _Loop], agrees: Callable[[_Loop], bool], plain_bytes_max: int
    ) -> None:
        self.loop: _Loop | None = None
        self._what, self._make, self._agrees = what, make, agrees
        self._plain_bytes_left = plain_bytes_max
        self._loading: threading.Thread | None = None

    @property
    def loading(self) -> bool:
        """Whether the loop has been asked for."""
        return self._loading is not None

    @property
    def compiled(self) -> bool:
        """Whether it is in use."""
        return self.loop is not None

    def went_without(self, byte_count: int) -> None:
        """So many bytes were handled by plain code; in the end, a thread starts to load the loop."""
        if self._loading is None:
            self._plain_bytes_left -= byte_count
            if self._plain_bytes_left < 0:
                self._loading = threading.Thread(target=self.load, name="metaq-compiled-loop", daemon=True)
                self._loading.start()

    def join(self) -> None:
        """Wait until it is there, if it was asked for."""
        if self._loading is not None:
            self._loading.join()

    def load(self) -> None:
        """Load it now: half a second, one or two more if it was never compiled on this machine."""
        try:
            loop = self._make()
        except Exception as reason:  # not installed, no files left to open, ...: the plain code needs none of it
            _LOG.info(f"{self._what} without compiled code", extra={"fields": {"reason": reason}})
            return
        if self._agrees(loop):
            self.loop = loop
        else:
            _LOG.error(f"{self._what} without compiled code, it gives wrong results")
