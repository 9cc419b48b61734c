"""The standard streams when they are not as usual: closed, full, in another encoding, or with nobody who reads."""

from __future__ import annotations

import contextlib
import io
import os
import select
import sys
from typing import TextIO


def prepare_output() -> None:
    """Make the standard output one that can be used.

    If there is none, it is one that fails, so that nothing counts as printed. It has a buffer, also with
    PYTHONUNBUFFERED, where each line would be a write. What its encoding lacks is escaped.
    """
    if sys.stdout is None:
        sys.stdout = _failing()
    elif isinstance(getattr(sys.stdout, "buffer", None), io.RawIOBase):
        sys.stdout = os.fdopen(sys.stdout.fileno(), "w", encoding=sys.stdout.encoding, closefd=False)
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.encoding.lower() != "utf-8":
        sys.stdout.reconfigure(errors="backslashreplace")


def _failing() -> TextIO:
    """Return a stream of which each flush is an ``OSError``."""
    return os.fdopen(os.open(os.devnull, os.O_RDONLY), "w")


def abandon_output() -> None:
    """Make the interpreter's last flush of the standard output harmless: what is buffered goes nowhere."""
    with contextlib.suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(null, sys.stdout.fileno())
        finally:
            os.close(null)


def give_up_output() -> None:
    """Write what is buffered for the standard output, if that is possible; if not, it goes nowhere."""
    if output_failure() is not None:
        abandon_output()


def output_failure() -> str | None:
    """Return why the standard output does not take what is buffered for it; ``None`` if it does."""
    try:
        sys.stdout.flush()
    except OSError as error:
        return error.strerror or str(error)
    return None


def require_reader() -> None:
    """Look whether somebody reads the standard output; otherwise only the next line would show it.

    Raises:
        BrokenPipeError: It is a pipe that nobody reads any more.
    """
    looking = select.poll()
    with contextlib.suppress(OSError, ValueError):  # no descriptor: nothing to look at
        looking.register(sys.stdout.fileno(), 0)
    if any(event & select.POLLERR for _, event in looking.poll(0)):
        raise BrokenPipeError


def complain(text: str) -> None:
    """Print an error for the user, if there is somewhere to print it."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError):
            print(f"metaq: {text}", file=sys.stderr)
