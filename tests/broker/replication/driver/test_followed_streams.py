"""What a member that follows does on its disk, in which order."""

from __future__ import annotations

from pathlib import Path

from metaq_broker.log.streams.stream import StreamBytes
from metaq_broker.replication.driver.followed import FollowedStreams
from metaq_broker.replication.pair.actions import AdoptStreams, WriteRun
from metaq_broker.replication.pair.events import DiskDone, PairEvent
from metaq_broker.replication.pair.messages import StreamStart
from pair_disks import PairDisk, until_true
from waiting import in_loop


@in_loop
async def test_a_run_that_waits_is_stored_as_it_arrived(tmp_path: Path) -> None:
    leader, follower, ended = PairDisk(tmp_path / "a"), PairDisk(tmp_path / "b"), list[PairEvent]()
    await leader.lead(1)
    await leader.put([b"one", b"two"])
    followed, stream = FollowedStreams(follower.streams, ended.append), leader.stream("t-0")
    assert stream.origin is not None
    run = stream.read(0, stream.end, 1000)
    memory = bytearray(run.data)
    followed.adopt(AdoptStreams(1, {"t-0": StreamStart(stream.origin, leader.streams.epochs("t-0"), None)}))
    followed.write(WriteRun(2, "t-0", 0, run.end, StreamBytes(0, 0, memoryview(memory))))
    memory[:] = bytes(len(memory))  # the connection receives later messages there
    await until_true(lambda: len(ended) == 2)
    assert ended == [DiskDone(1), DiskDone(2)]
    assert follower.bodies() == [b"one", b"two"]
    await followed.stop()
    await leader.close()
    await follower.close()
