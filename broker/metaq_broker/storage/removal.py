"""Taking the files of segments away that are out of service already: deleted, or renamed to ``START.meta.arc``.

Oldest first, one durable step after the other, so that a crash never leaves a hole: what a restart finds is a whole
partition that begins at one of the segments.

Source: docs/log-format.md.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from metaq_broker.retention.policy import Removal
from metaq_broker.storage.files import Files
from metaq_broker.storage.segment import SegmentInfo

ARCHIVE_SUFFIX: Final = ".arc"


def archive_path(segment: Path) -> Path:
    """Return the name that an archived segment gets."""
    return segment.with_name(segment.name + ARCHIVE_SUFFIX)


@dataclass(slots=True)
class RemovalJob:
    """``segments`` leave the disk by ``removal``; ``gone`` counts those that have left.

    ``ARCHIVE_PACKED`` segments are packed before they are taken out of service (``packing``), and only deleted here.
    """

    files: Files
    removal: Removal
    segments: Sequence[SegmentInfo]
    gone: int = 0

    def run(self) -> None:
        """Take them away, durably (blocking; any thread). After an error it may be run again and goes on.

        Raises:
            FileExistsError: The name of an archive is taken.
            OSError: A file cannot be removed; it and the newer ones are still there.
        """
        while self.gone < len(self.segments):
            self._remove(self.segments[self.gone])
            self.gone += 1

    def _remove(self, segment: SegmentInfo) -> None:
        # What is not there any more was removed by an earlier run, or by somebody in need of space.
        if self.files.exists(segment.path):
            if self.removal is Removal.ARCHIVE:
                self._archive(segment.path)
            else:
                self.files.unlink(segment.path)
        if self.files.exists(segment.index_path):
            self.files.unlink(segment.index_path)
        self.files.fsync_dir(segment.path.parent)

    def _archive(self, path: Path) -> None:
        target = archive_path(path)
        if self.files.exists(target):
            raise FileExistsError(errno.EEXIST, "another file has the archive's name; move it away", str(target))
        self.files.rename(path, target)


def remove_segment_files(files: Files, segments: Sequence[SegmentInfo]) -> None:
    """Delete the files of forgotten segments (blocking; any thread). Raises as ``RemovalJob.run``."""
    RemovalJob(files, Removal.DELETE, segments).run()
