"""Atomic replacement of small files: a reader sees the old content or the new one, never a mixture."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def replace_file(path: Path, text: str) -> None:
    """Replace the content of a file by ``text``. A failure leaves the old content; one writer at a time.

    Raises:
        OSError: The file cannot be written.
    """
    new = path.with_name(path.name + ".new")
    try:
        with open(new, "w", encoding="utf-8") as opened:
            opened.write(text)
            opened.flush()
            os.fsync(opened.fileno())
        os.replace(new, path)
    except OSError:
        with suppress(OSError):
            new.unlink()
        raise
