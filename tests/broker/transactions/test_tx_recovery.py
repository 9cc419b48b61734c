"""What a restart finds in the partitions, case by case; test_manager_crash.py tries them all without naming them."""

from __future__ import annotations

import asyncio
import os
from functools import partial
from pathlib import Path
from random import Random

import pytest
from metaq_broker.log.files.errors import StoreLocked
from metaq_broker.log.files.files import Files
from metaq_broker.testing import Fault, FaultyFiles
from metaq_broker.transactions.checkpoint import CheckpointSettings
from metaq_broker.transactions.folder import claim_folder
from metaq_broker.transactions.interfaces import TransactionLimits, run_in_loop_worker
from metaq_broker.transactions.journal import JournalDamaged
from metaq_broker.transactions.journal_bytes import file_name
from metaq_broker.transactions.recovery import JournalIncomplete
from stored import ends_before_the_cut
from tx_harness import Harness, local, xid

from metaq.formats.frames import encode_frame

X1 = xid("b1")
ORDERS = ("orders", 0)


def killed_in_commit(files: FaultyFiles, bodies: list[bytes]) -> tuple[Harness, bytes]:
    """Return a broker whose commit is durable and whose partition is untouched, and the unit that it would write."""
    harness = Harness(files.root, files)
    harness.store.put(ORDERS, encode_frame(7, 0, b"before"))
    harness.prepare_with(X1, *bodies)
    harness.store.hold = True
    harness.tx.commit(X1, False, None, lambda refusal: None)
    harness.settle()
    (group,) = harness.tx._writer.units(harness.tx._open.find(X1, None))
    return harness, b"".join(unit.frames.data for unit in group)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.34, 0.5, 0.7, 0.99, 1.0])
def test_a_unit_of_which_only_the_front_was_written_is_completed_in_place(tmp_path: Path, share: float) -> None:
    files = FaultyFiles(tmp_path)
    bodies = [b"message %d" % number for number in range(10)]
    harness, block = killed_in_commit(files, bodies)
    harness.store.put(ORDERS, block[: int(len(block) * share)])
    harness.revive(files.restart())
    assert harness.bodies() == [b"before", *bodies]
    assert harness.commit(X1, False).startswith("500 ")  # it is over


def test_a_unit_with_the_middle_torn_out_is_there_once(tmp_path: Path) -> None:
    """What a log does that sets damaged bytes aside instead of cutting there."""
    files = FaultyFiles(tmp_path)
    bodies = [b"message %d" % number for number in range(10)]
    harness, block = killed_in_commit(files, bodies)
    frame_bytes = len(block) // 10
    harness.store.put(ORDERS, block[: 3 * frame_bytes] + block[6 * frame_bytes :])
    harness.revive(files.restart())
    assert sorted(harness.bodies()) == sorted([b"before", *bodies])


def test_equal_messages_of_others_are_not_taken_for_the_units(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path)
    harness, _ = killed_in_commit(files, [b"same"])
    harness.store.put(ORDERS, encode_frame(8, 0, b"same"))
    harness.revive(files.restart())
    assert harness.bodies() == [b"before", b"same", b"same"]


def test_commits_are_finished_in_their_order(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path)
    harness = Harness(tmp_path, files)
    harness.store.hold = True
    for number in range(5):
        harness.begin(local(number))
        harness.put(local(number), b"m%d" % number)
        harness.tx.commit(local(number), True, "A", lambda refusal: None)
        harness.settle()
    harness.revive(files.restart())
    assert harness.report.completed == 5
    assert harness.bodies() == [b"m%d" % number for number in range(5)]


def test_a_client_that_asks_again_after_the_crash_waits_for_the_same_end(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path)
    harness, _ = killed_in_commit(files, [b"m"])
    harness.revive(files.restart(), hold=True)
    assert harness.recover() == []
    answers: list[object] = []
    harness.tx.commit(X1, False, "new connection", answers.append)
    harness.settle()
    assert answers == []
    harness.store.release_held()
    assert answers == [None]
    assert harness.bodies() == [b"before", b"m"]


def test_a_removed_partition_gets_the_unit_once_through_two_crashes(tmp_path: Path) -> None:
    """The journal says where to look, and the log is shorter now: the new place must be noted before the append."""
    for at in range(1, 60):
        root = tmp_path / f"at{at}"
        root.mkdir()
        files = FaultyFiles(root)
        killed_in_commit(files, [b"a", b"b"])
        files = files.restart()
        files.unlink(root / "data" / "orders-0.log")
        files.fsync_dir(root / "data")
        files.fault = Fault(at, None, 0.5)
        finished = ends_before_the_cut(partial(Harness, root, files))
        harness = Harness(root, files.crash(Random(at)))
        assert harness.bodies() == [b"a", b"b"]
        if finished:
            return
    pytest.fail("the recovery never came to its end")


def test_a_missing_oldest_file_stops_the_start(tmp_path: Path) -> None:
    """Nothing behind it is damaged, but the prepare says how many chunks there were."""
    each_its_file = CheckpointSettings(checkpoints_max=1000, file_bytes=1)
    harness = Harness(tmp_path, checkpoint=each_its_file, limits=TransactionLimits(spill_bytes=10))
    harness.prepare_with(X1, b"first chunk", b"second chunk")
    harness.tx.close()
    (tmp_path / "transactions" / file_name(0)).unlink()
    with pytest.raises(JournalDamaged, match="damaged at offset 0: the file is missing"):
        Harness(tmp_path)
    (tmp_path / "transactions" / "extent").unlink()  # as an older version has left the folder
    with pytest.raises(JournalIncomplete, match="chunk 0 of 2 is not there"):
        Harness(tmp_path)


def test_two_brokers_cannot_share_the_folder(harness: Harness) -> None:
    with pytest.raises(StoreLocked):
        Harness(harness.root)
    harness.restart()


def test_the_folder_is_made_with_its_parents(tmp_path: Path) -> None:
    directory = tmp_path / "a" / "b" / "transactions"
    os.close(claim_folder(Files(), directory))
    assert directory.is_dir()


def test_the_default_worker_is_the_loops_own() -> None:
    async def scenario() -> list[BaseException | None]:
        answers: asyncio.Queue[BaseException | None] = asyncio.Queue()

        def broken() -> None:
            raise OSError(5, "Input/output error")

        run_in_loop_worker(lambda: None, answers.put_nowait)
        first = await answers.get()
        run_in_loop_worker(broken, answers.put_nowait)
        return [first, await answers.get()]

    first, second = asyncio.run(scenario())
    assert first is None
    assert isinstance(second, OSError)
