"""Sends of one turn of the loop are one block for each queue, and each is answered by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from metaq_broker.log.engine.outcomes import PartitionClosed, Refusal, StorageFailed
from metaq_broker.rocketmq.messages.message_store import StoredBatch, WaitingFrames
from metaq_broker.rocketmq.sends.send_groups import GROUP_BYTES_MAX, SendGroups
from waiting import in_loop

from metaq.formats.frame_block import FrameBlock

HOST = bytes(8).hex()


class FakeStore:
    """Keeps blocks, and tells where they are at once."""

    def __init__(self, refusal: Refusal | None = None) -> None:
        self.blocks: list[tuple[str, int, list[bytes]]] = []
        self.refusal = refusal

    def append_frames(self, topic: str, queue: int, sends: Sequence[WaitingFrames]) -> None:
        frames = [frame for block, _ in sends for frame in block.split()]
        if b"raise" in frames:
            raise OSError("broken")
        if self.refusal is not None:
            for _, done in sends:
                done(self.refusal)
            return
        first = sum(len(stored) for where, number, stored in self.blocks if (where, number) == (topic, queue))
        self.blocks.append((topic, queue, frames))
        for block, done in sends:
            done(StoredBatch(queue, first, [100 * (first + each) for each in range(block.count)], 7, HOST))
            first += block.count


def in_one_turn(store: FakeStore, *sends: tuple[str, int, list[bytes]]) -> list[StoredBatch | Refusal]:
    """Have sends arrive in one turn; return their answers in the order of the sends."""

    async def run() -> list[StoredBatch | Refusal]:
        groups = SendGroups(store)  # type: ignore[arg-type]
        futures = []
        for topic, queue, frames in sends:
            future: asyncio.Future[StoredBatch | Refusal] = asyncio.get_running_loop().create_future()
            groups.add(topic, queue, FrameBlock.of(frames), future.set_result)
            futures.append(future)
        return await asyncio.wait_for(asyncio.gather(*futures), 5)

    return asyncio.run(run())


def test_one_block_for_each_queue_in_the_order_of_the_sends() -> None:
    store = FakeStore()
    answers = in_one_turn(
        store,
        ("t", 0, [b"a"]),
        ("t", 1, [b"b"]),
        ("t", 0, [b"c", b"d"]),
        ("u", 0, [b"e"]),
        ("t", 0, [b"f"]),
    )
    assert store.blocks == [("t", 0, [b"a", b"c", b"d", b"f"]), ("t", 1, [b"b"]), ("u", 0, [b"e"])]
    assert answers == [
        StoredBatch(0, 0, [0], 7, HOST),
        StoredBatch(1, 0, [0], 7, HOST),
        StoredBatch(0, 1, [100, 200], 7, HOST),
        StoredBatch(0, 0, [0], 7, HOST),
        StoredBatch(0, 3, [300], 7, HOST),
    ]


def test_what_refuses_the_queue_refuses_each_send() -> None:
    store = FakeStore(PartitionClosed(0))
    assert in_one_turn(store, ("t", 0, [b"a"]), ("t", 0, [b"b"])) == [PartitionClosed(0)] * 2


def test_large_sends_do_not_make_one_block() -> None:
    store = FakeStore()
    large = bytes(GROUP_BYTES_MAX // 2)
    answers = in_one_turn(store, *[("t", 0, [large])] * 5)
    assert [len(frames) for _, _, frames in store.blocks] == [2, 2, 1]
    assert [each.queue_offset for each in answers if isinstance(each, StoredBatch)] == [0, 1, 2, 3, 4]


@in_loop
async def test_a_defect_leaves_no_send_without_an_answer() -> None:
    loop, reported = asyncio.get_running_loop(), list[str]()
    loop.set_exception_handler(lambda _loop, context: reported.append(context["message"]))
    groups = SendGroups(FakeStore())  # type: ignore[arg-type]
    broken: asyncio.Future[StoredBatch | Refusal] = loop.create_future()
    groups.add("t", 0, FrameBlock.of([b"raise"]), broken.set_result)
    assert await broken == StorageFailed("OSError: broken")
    assert reported == ["a send failed"]
