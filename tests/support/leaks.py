"""What a test leaves behind: threads that began in it, files that it has open.

Threads of other tests may end meanwhile, and sockets that others forgot may be closed: neither counts here.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

LEFT_S: Final = 60.0
_POLL_S: Final = 0.005
PASSED_OVER: Final = ("socket:", "anon_inode:", f"{tempfile.gettempdir()}/metaq-test-ports-")


@contextmanager
def threads_end() -> Iterator[None]:
    """Check that the threads that begin in the block have ended with it, or end soon after it."""
    before = set(threading.enumerate())
    yield
    end_s = time.monotonic() + LEFT_S
    while left := set(threading.enumerate()) - before:
        assert time.monotonic() < end_s, left
        time.sleep(_POLL_S)


def open_files() -> Counter[str]:
    """The files and pipes that this process has open, by name; without the lock of its ports."""
    names: Counter[str] = Counter()
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # it was that of the list
            names[os.readlink(f"/proc/self/fd/{number}")] += 1
    return Counter({name: count for name, count in names.items() if not name.startswith(PASSED_OVER)})
