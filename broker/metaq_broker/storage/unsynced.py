"""What of one partition is not durable yet: segments written since, new names, its incarnation; the sync under way.

One sync at a time: ``capture`` makes the job, ``settle`` or ``fail`` takes it back. A job that ``disown`` was called
for, or that belongs to files since recovered anew, is nobody's and changes nothing. After a failed one nothing is
captured any more: a later fsync would succeed without the bytes that the failed one lost.
"""

from __future__ import annotations

from pathlib import Path

from metaq_broker.storage.files import Files
from metaq_broker.storage.incarnation import Incarnation
from metaq_broker.storage.segment import Segment
from metaq_broker.storage.sync import SegmentTarget, SyncJob


class Unsynced:
    """See the module. ``fresh``: the partition's folder was just made, so that its name is not durable."""

    def __init__(
        self,
        files: Files,
        directory: Path,
        index_interval_bytes: int,
        active: Segment,
        incarnation: Incarnation,
        *,
        fresh: bool,
    ) -> None:
        self.failed = False
        self._incarnation = incarnation
        self._files = files
        self._directory = directory
        self._index_interval_bytes = index_interval_bytes
        self._segments = [active]
        self._folders = [directory.parent, directory] if fresh else []
        self._under_way: SyncJob | None = None

    @property
    def names(self) -> bool:
        """Whether there are new names, so that a sync is due even if no byte was written."""
        return bool(self._folders)

    def add(self, segment: Segment) -> None:
        """Take note of a segment that was begun; it is the active one from now on."""
        self._segments.append(segment)
        if self._directory not in self._folders:
            self._folders.append(self._directory)

    def capture(self, durable_end: int, end: int, ordinal: int) -> SyncJob | None:
        """Return what makes offsets ``durable_end`` to ``end`` durable; ``None`` if a job is out or one has failed."""
        if self._under_way is not None or self.failed:
            return None
        self._under_way = SyncJob(
            self._files,
            self._directory,
            [SegmentTarget.of(segment) for segment in self._segments],
            tuple(self._folders),
            durable_end,
            end,
            ordinal,
            self._index_interval_bytes,
            None if self._incarnation.durable else self._incarnation.uuid,
        )
        return self._under_way

    def owns(self, job: SyncJob) -> bool:
        """Return whether this is the job under way."""
        return job is self._under_way

    def settle(self, job: SyncJob) -> None:
        """Take note that the job under way is done; files of finished segments are closed."""
        self._under_way = None
        self._incarnation.durable |= job.incarnation_written
        for target in job.targets:
            target.settle(job.indexes_written)
        *older, active = self._segments
        for segment in older:
            if segment.settled:
                segment.handle = None
        self._segments = [segment for segment in older if segment.handle is not None] + [active]
        if active.named:
            self._folders = []

    def fail(self) -> None:
        """Take note that the job under way failed."""
        self._under_way = None
        self.failed = True

    def disown(self) -> None:
        """Forget the job under way, if there is one: what it syncs will be captured again."""
        self._under_way = None
