"""A server that comes back exactly when somebody waits for it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def when_waited_for(come_back: Callable[[], object]) -> Iterator[list[str]]:
    """Call ``come_back`` at the first wait for a server that is away; yields what the log says of waits."""
    said: list[str] = []

    class Waits(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())
            if len(said) == 1:
                come_back()

    handler, logger = Waits(), logging.getLogger("metaq.net.retry")
    logger.addHandler(handler)
    try:
        yield said
    finally:
        logger.removeHandler(handler)
