"""Small file systems, one for each member, that can be filled up: images of ext4 on this machine's disk. Needs root."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

DISK_BYTES: Final = 1 << 30
"""Size of a file system. The image is sparse: it takes what is written."""

BALLAST: Final = "ballast"


class Disk:
    """A file system of its own at ``folder``; a context manager that mounts it.

    Raises:
        OSError, subprocess.CalledProcessError: It cannot be made or mounted.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._image = folder.with_name(f"{folder.name}.img")

    def __enter__(self) -> Disk:
        self.folder.mkdir(parents=True, exist_ok=True)
        with open(self._image, "wb") as image:
            image.truncate(DISK_BYTES)
        subprocess.run(["mkfs.ext4", "-q", "-m", "0", str(self._image)], check=True, capture_output=True)
        subprocess.run(["mount", "-o", "loop", str(self._image), str(self.folder)], check=True, capture_output=True)
        return self

    def __exit__(self, *error: object) -> None:
        subprocess.run(["umount", "--lazy", str(self.folder)], check=False, capture_output=True)

    def fill(self) -> None:
        """Take all free space; what is being written meanwhile may still get some of it."""
        with open(self.folder / BALLAST, "ab") as ballast:
            at, step = ballast.tell(), 16 << 20
            while step >= 4096:
                try:
                    os.posix_fallocate(ballast.fileno(), at, step)
                except OSError:
                    step //= 2
                else:
                    at += step

    def empty(self) -> None:
        """Give the space back that ``fill`` has taken."""
        (self.folder / BALLAST).unlink(missing_ok=True)


def can_mount() -> bool:
    """Return whether disks can be made here: by root, with the programs for it."""
    return os.geteuid() == 0 and os.path.exists("/dev/loop-control") and shutil.which("mkfs.ext4") is not None
