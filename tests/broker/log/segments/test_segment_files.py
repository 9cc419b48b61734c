"""A partition that begins in the middle is made whole, or, if the power goes, holds nothing that is in the way."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from random import Random

import pytest
from metaq_broker.clock import Clock
from metaq_broker.log.files.files import Files
from metaq_broker.log.partitions.loading import LogSettings
from metaq_broker.log.partitions.log_store import LogStore
from metaq_broker.log.segments.segment_files import seed_partition
from metaq_broker.testing import Fault, FaultyFiles
from stored import ends_before_the_cut

LIFE = "ab" * 16
CALLS = 12


def opened(files: Files, folder: Path) -> LogStore:
    """Open what is in a data folder."""
    return LogStore.open(files, Clock(), folder, lambda topic: LogSettings())


def test_it_begins_where_it_should_in_the_incarnation_that_it_should(tmp_path: Path) -> None:
    seed_partition(Files(), tmp_path / "t-0", 5000, 77, LIFE, 4096)
    store = opened(Files(), tmp_path)
    log = store.get("t", 0)
    assert log is not None
    assert (log.start_offset, log.readable_end, log.incarnation) == (5000, 5000, LIFE)
    log.append([bytes(3) + b"\1" + bytes(16) + b"x"])
    log.sync()
    assert (log.ordinal(5000), log.ordinal(5021), log.message_count) == (77, 78, 1)
    store.close()


def test_without_an_incarnation_it_gets_its_own(tmp_path: Path) -> None:
    seed_partition(Files(), tmp_path / "t-0", 0, 0, None, 4096)
    store = opened(Files(), tmp_path)
    log = store.get("t", 0)
    assert log is not None
    assert log.incarnation not in (None, LIFE)
    store.close()


@pytest.mark.parametrize("seed", range(4))
def test_a_power_cut_leaves_it_whole_or_empty(tmp_path: Path, seed: int) -> None:
    for at in range(1, CALLS):
        folder = tmp_path / str(at)
        folder.mkdir()
        files = FaultyFiles(folder, Fault(at=at, error=None))
        finished = ends_before_the_cut(partial(seed_partition, files, folder / "t-0", 5000, 77, LIFE, 4096))
        after = files.crash(Random(seed))
        store = opened(after, folder)
        log = store.get("t", 0)
        if finished:
            assert log is not None
            assert (log.start_offset, log.incarnation) == (5000, LIFE)
        if log is not None:
            assert log.end_offset == log.start_offset  # nothing in it: it may be replaced
        else:
            assert not store.refused
        store.close()
