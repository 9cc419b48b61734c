"""Power cuts at every call of a data folder's life: made, filled, closed cleanly, trusted, filled again.

The danger is a clean-shutdown mark that outlives the state it vouches for, or is there before it.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from metaq_broker.clock import ManualClock
from metaq_broker.log.partitions.log_store import LogStore
from metaq_broker.log.partitions.partition_log import LogSettings
from metaq_broker.testing import FaultyFiles
from stored import START_MS, contents, cut_at_every_call, frames

SETTINGS = LogSettings(segment_bytes_max=400, index_interval_bytes=100)


class Life:
    """Opens and closes a store again and again, and remembers what it was promised."""

    def __init__(self, root: Path) -> None:
        self.data_path = root / "data"
        self.promised: dict[int, dict[int, bytes]] = {0: {}, 1: {}}
        self.appended: dict[int, dict[int, bytes]] = {0: {}, 1: {}}

    def open(self, files: FaultyFiles) -> LogStore:
        return LogStore.open(files, ManualClock(START_MS), self.data_path, lambda topic: SETTINGS)

    def run(self, files: FaultyFiles) -> None:
        for _ in range(3):
            store = self.open(files)
            for index in (0, 1):
                self.fill(store, index)
            self.fill(store, 1, sync=False)
            store.close()
            self.promised = {index: dict(appended) for index, appended in self.appended.items()}

    def fill(self, store: LogStore, index: int, *, sync: bool = True) -> None:
        log = store.get_or_create("orders", index)
        at = log.end_offset
        kept = {offset: item for offset, item in self.appended[index].items() if offset < at}
        for item in frames(9, len(kept)):
            kept[at] = item
            at += len(item)
        self.appended[index] = kept
        log.append(frames(9, log.message_count))
        if sync:
            log.sync()
            self.promised[index] = dict(kept)
            store.note_ends(store.ends())

    def check(self, files: FaultyFiles) -> None:
        store = self.open(files)
        assert not store.refused
        assert store.losses == ()  # a power cut takes nothing that was durable
        for index in (0, 1):
            log = store.get("orders", index)
            found = {} if log is None else contents(log)
            assert self.promised[index].items() <= found.items()
            assert found.items() <= self.appended[index].items()
        store.close()


@pytest.mark.slow
@pytest.mark.parametrize("kept", [0.0, 1.0])
def test_power_cut_at_every_call(kept: float, tmp_path: Path) -> None:
    assert cut_at_every_call(tmp_path, Life, kept) > 80
