"""Puts that wait for the disk: what a session keeps of them until they are durable."""

from __future__ import annotations

import mmap
import tracemalloc
import weakref
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from metaq_broker.replication.driver.links import IncomingLink
from metaq_broker.serve.accounts.account_list import AccountList
from metaq_broker.serve.block_buffers import BlockBuffers
from metaq_broker.text.access import Access
from metaq_broker.text.session import PUTS_MAX, TextSession
from test_text_puts import Harness, put
from waiting import in_loop

from metaq.formats.frames import encode_frame
from metaq.model import Buffer
from metaq.protocols.text.commands import MemberMessage, PutBatch
from metaq.protocols.text.encode import encode

OURS = [tracemalloc.Filter(True, f"*/{name}/*") for name in ("metaq", "metaq_broker")]
PUTS = 600
BODY_BYTES = 1000


class WatchedBuffers(BlockBuffers):
    """Keeps no memory for later blocks, and knows what it gave out."""

    def __init__(self) -> None:
        super().__init__(kept_bytes_max=0)
        self.given: list[weakref.ref[mmap.mmap]] = []

    def take(self, length: int) -> memoryview:
        block = super().take(length)
        assert isinstance(block.obj, mmap.mmap)
        self.given.append(weakref.ref(block.obj))
        return block


@in_loop
async def test_the_bodies_of_puts_are_given_up_once_they_are_written(tmp_path: Path) -> None:
    harness = Harness(tmp_path, segment_bytes=1 << 20)
    streams = [b"".join(encode(put(n, bytes(BODY_BYTES))) for n in range(PUTS)) for _ in range(2)]
    await harness.send(streams.pop(), 1 << 20)
    tracemalloc.start()
    try:
        harness.session.decoder.receive_data(streams.pop())
        while harness.session.handle(4096):
            pass
        assert harness.queue.unanswered == PUTS
        kept = tracemalloc.take_snapshot().filter_traces(OURS)  # a compiler may run in another thread
    finally:
        tracemalloc.stop()
    await harness.commit.drain()
    harness.close()
    # On a slow machine, the puts are more units, each with small objects of its own.
    assert sum(each.size for each in kept.traces if each.size >= BODY_BYTES) < PUTS * BODY_BYTES // 4


@in_loop
async def test_the_memory_of_a_batch_is_given_up_once_it_is_written(tmp_path: Path) -> None:
    harness = Harness(tmp_path, segment_bytes=1 << 20)
    buffers = WatchedBuffers()
    session = TextSession(replace(harness.services, buffers=buffers), harness.queue, "peer")
    block = b"".join(encode_frame(0, 0, bytes(BODY_BYTES)) for _ in range(PUTS))
    stream = encode(PutBatch("t", 0, block, PUTS, 1))
    for piece in (stream[:-100], stream[-100:]):  # only a block that comes in pieces has memory of its own
        session.decoder.receive_data(piece)
        session.handle(1)
    assert harness.queue.unanswered == 1
    assert [given() for given in buffers.given] == [None]
    await harness.commit.drain()
    harness.close()


@dataclass
class Member:
    """A member of a pair that notes what it receives."""

    refusal: str | None = None
    contents: list[bytes] = field(default_factory=list)

    def opened(self, link: IncomingLink) -> Member:
        return self

    def received(self, content: Buffer) -> None:
        self.contents.append(bytes(content))

    def lost(self) -> None: ...


@in_loop
async def test_a_message_of_a_member_is_received_into_memory_that_is_used_again(tmp_path: Path) -> None:
    harness, buffers, member = Harness(tmp_path, 1 << 20), BlockBuffers(), Member()
    session = TextSession(replace(harness.services, buffers=buffers, member=member), harness.queue, "peer")
    sent = [bytes([number]) * 500_000 for number in range(3)]
    for content in sent:
        stream = encode(MemberMessage(content, 1))
        for piece in (stream[:100_000], stream[100_000:]):
            session.decoder.receive_data(piece)
            session.handle(1)
    assert member.contents == sent
    assert buffers.kept_bytes == 1 << 19
    harness.close()


@pytest.mark.parametrize("reason", ["no_member", "no_master", "not_allowed"])
@in_loop
async def test_the_memory_of_what_is_refused_is_used_again(tmp_path: Path, reason: str) -> None:
    harness, buffers = Harness(tmp_path, 1 << 20), BlockBuffers()
    services = replace(harness.services, buffers=buffers, member=Member("not here") if reason == "no_master" else None)
    refusing = Access(frozenset(), lambda: harness.engine.config, "peer", AccountList)
    session = TextSession(services, harness.queue, "peer", refusing if reason == "not_allowed" else None)
    block, count = encode_frame(0, 0, bytes(BODY_BYTES)) * PUTS, PUTS
    command = MemberMessage(block, 1) if reason == "no_member" else PutBatch("t", 0, block, count, 1)
    for _ in range(3):
        stream = encode(command)
        for piece in (stream[:100_000], stream[100_000:]):
            session.decoder.receive_data(piece)
            session.handle(1)
    assert harness.queue.take(1 << 20)[0].count(b"result ") == 3
    assert buffers.kept_bytes == 786_432
    harness.close()


@in_loop
async def test_a_turn_ends_with_its_time_not_with_what_was_received(tmp_path: Path) -> None:
    """The clock is looked at behind some puts: all that were received together would delay other connections."""
    harness = Harness(tmp_path, segment_bytes=1 << 20)
    harness.session.decoder.receive_data(b"".join(encode(put(n, b"x" * 100)) for n in range(5000)))
    assert harness.session.handle(4096, lambda: True)
    assert 0 < harness.queue.unanswered <= PUTS_MAX
    while harness.session.handle(4096, lambda: True):
        pass
    assert harness.queue.unanswered == 5000
    await harness.commit.drain()
    harness.close()
