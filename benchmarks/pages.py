"""Has the system forget pages of files that are on the disk already, while writes are measured.

On a virtual machine that gives free memory back to its host, the first use of a page can cost more than all that is
measured, and a page cache that only grows does nothing else. One that gives up old pages as it takes new ones is what a
machine has whose memory is full, as that of a broker is after its first hours.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

EVERY_S: Final = 0.05
BYTES_MIN: Final = 1 << 22
"""Files larger than this have their pages given back."""


@contextmanager
def pages_given_back(folder: Path, files: str = "**/*") -> Iterator[None]:
    """Meanwhile, have the system forget the pages of what is on the disk already, in all large files of ``folder``.

    ``files``: in those only that fit this pattern.
    """
    stop = threading.Event()

    def give_back() -> None:
        while not stop.wait(EVERY_S):
            for file in folder.glob(files):
                _forget(file)

    thread = threading.Thread(target=give_back)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _forget(file: Path) -> None:
    try:
        if not file.is_file() or file.stat().st_size <= BYTES_MIN:
            return
        fd = os.open(file, os.O_RDONLY)
    except FileNotFoundError:  # renamed or removed meanwhile
        return
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)
