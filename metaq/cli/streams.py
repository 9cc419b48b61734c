"""The standard streams in unusual states: closed, full, with another encoding, or without a reader."""

from __future__ import annotations

import contextlib
import io
import os
import select
import sys
from typing import TextIO

from metaq.cli.colours import RED, fresh_line, painted


def prepare_output() -> None:
    """Prepare the standard output.

    If it is closed, it is replaced by one that fails, so that nothing counts as printed. It is buffered even with
    PYTHONUNBUFFERED, which would write each line separately. Characters that its encoding lacks are escaped.
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
    """Redirect the standard output to the null device, so that the interpreter's last flush cannot fail."""
    with contextlib.suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(null, sys.stdout.fileno())
        finally:
            os.close(null)


def give_up_output() -> None:
    """Flush the standard output if possible; otherwise drop its buffer."""
    if output_failure() is not None:
        abandon_output()


def output_failure() -> str | None:
    """Flush the standard output; return the error, or ``None``."""
    try:
        sys.stdout.flush()
    except OSError as error:
        return error.strerror or str(error)
    return None


def require_reader() -> None:
    """Check that the standard output has a reader, which otherwise only the next write would show.

    Raises:
        BrokenPipeError: It is a pipe whose reader has closed it.
    """
    looking = select.poll()
    with contextlib.suppress(OSError, ValueError):  # no descriptor: nothing to check
        looking.register(sys.stdout.fileno(), 0)
    if any(event & select.POLLERR for _, event in looking.poll(0)):
        raise BrokenPipeError


def complain(text: str) -> None:
    """Print an error for the user, if there is somewhere to print it."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError):
            print(f"{fresh_line(sys.stderr)}{painted('metaq:', RED, sys.stderr)} {text}", file=sys.stderr)
