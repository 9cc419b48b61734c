"""Small files that are replaced as a whole: a reader finds what was written before, or all that was written now."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def replace_file(path: Path, text: str) -> None:
    """Make ``text`` the content of a file. A failure leaves what was there; one writer at a time.

    Raises:
        OSError: It cannot be written.
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
