"""A cache folder for compiled code if neither its own folder nor the user's home is writable, as in many containers."""

from __future__ import annotations

import os
import tempfile


def private_folder() -> str:
    """Return a folder that only this user may write, because its files are run as code. Empty if there is none."""
    folder = os.path.join(tempfile.gettempdir(), f"metaq-spark-kernels-{os.getuid()}")
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        status = os.stat(folder, follow_symlinks=False)
    except OSError:
        return ""
    return folder if status.st_uid == os.getuid() and not status.st_mode & 0o022 else ""
