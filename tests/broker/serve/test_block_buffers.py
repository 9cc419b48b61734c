"""Memory for blocks: used again, bounded, and never shared by two blocks at a time."""

from __future__ import annotations

import itertools
import threading

import pytest
from fix_broker import RunningBroker
from metaq_broker.serve.block_buffers import BlockBuffers

from metaq.formats.frames import encode_frame, walk
from metaq.protocols.text.commands import Get, Put, PutBatch, Result
from metaq.protocols.text.encode import encode

MIB = 1 << 20


class TestBuffers:
    def test_a_returned_buffer_serves_the_next_block_of_about_its_size(self) -> None:
        buffers = BlockBuffers()
        first = buffers.take(MIB - 5)
        memory = first.obj
        buffers.give_back(first)
        assert buffers.kept_bytes == MIB
        again = buffers.take(MIB - 77)
        assert (again.obj is memory, len(again), buffers.kept_bytes) == (True, MIB - 77, MIB)

    def test_two_blocks_at_a_time_have_two_buffers(self) -> None:
        buffers = BlockBuffers()
        first, second = buffers.take(10), buffers.take(10)
        assert first.obj is not second.obj
        assert not first.readonly

    def test_a_larger_block_gets_a_larger_buffer(self) -> None:
        buffers = BlockBuffers()
        buffers.give_back(buffers.take(MIB))
        assert len(buffers.take(3 * MIB)) == 3 * MIB
        assert buffers.kept_bytes == MIB

    def test_no_more_is_kept_than_allowed(self) -> None:
        buffers = BlockBuffers(kept_bytes_max=2 * MIB)
        for buffer in [buffers.take(MIB) for _ in range(5)]:
            buffers.give_back(buffer)
        assert buffers.kept_bytes == 2 * MIB

    def test_memory_that_is_in_use_again_counts_as_kept(self) -> None:
        buffers = BlockBuffers(kept_bytes_max=2 * MIB)
        for _ in range(5):  # a block comes whole, then the next begins and stops
            buffers.give_back(buffers.take(MIB))
            buffers.take(MIB)
        used_again = len(buffers._kept)
        assert (used_again, buffers.kept_bytes) == (2, 2 * MIB)


def block(writer: int, number: int, count: int) -> bytes:
    return b"".join(encode_frame(0, 0, b"%d %d %d " % (writer, number, each) * 20) for each in range(count))


@pytest.mark.process
def test_blocks_on_several_connections_are_stored_as_sent(dev_broker: RunningBroker) -> None:
    """Rooms go round between connections: what is stored is what each of them sent, in its order."""
    counts = (3, 4000, 1, 2500, 9000, 800, 4000, 2500)

    def write(writer: int) -> None:
        client = dev_broker.client()
        stream = b"".join(
            encode(PutBatch("buffers", writer % 2, block(writer, number, count), count, number))
            for number, count in enumerate(counts)
        )
        sizes = itertools.cycle((1, 20_000, 300_000, 7))
        at = 0
        while at < len(stream):
            size = next(sizes)
            client.send(stream[at : at + size])
            at += size
        replies = client.replies(len(counts))
        assert [reply.opaque for reply in replies if isinstance(reply, Result) and reply.code == 200] == [*range(8)]
        client.close()

    errors: list[BaseException] = []

    def run(writer: int) -> None:
        try:
            write(writer)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(writer,)) for writer in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    for partition in (0, 1):
        expected = {writer: b"".join(block(writer, *each) for each in enumerate(counts)) for writer in (0, 1, 2, 3)}
        stored: dict[int, list[bytes]] = {}
        ids = []
        for frame in walk(everything(dev_broker, partition)):
            stored.setdefault(int(frame.body.split(b" ", 1)[0]), []).append(frame.body)
            ids.append(frame.message_id)
        assert ids == sorted(set(ids))
        assert stored == {
            writer: [frame.body for frame in walk(expected[writer])] for writer in (partition, partition + 2)
        }


def everything(broker: RunningBroker, partition: int) -> bytes:
    client = broker.client()
    run = b""
    while True:
        reply = client.ask(encode(Get("buffers", "g", partition, len(run), MIB, 1)))
        if isinstance(reply, Result):
            client.close()
            return run
        run += reply.data


@pytest.mark.process
def test_blocks_and_puts_of_one_connection_may_follow_each_other(dev_broker: RunningBroker) -> None:
    """How much is received at a time depends on what came last; what is stored does not."""
    frames: list[bytes] = []
    requests: list[bytes] = []
    for number, count in enumerate((2500, 0, 1, 0, 4000, 4000, 0, 9000, 0, 3)):
        if count:
            frames.append(block(0, number, count))
            requests.append(encode(PutBatch("buffers", 0, frames[-1], count, number)))
            continue
        for size in (5, 90_000, 300_000):
            body = b"%d" % number * size
            frames.append(encode_frame(0, 0, body))
            requests.append(encode(Put("buffers", 0, body, 0, number)))
    client = dev_broker.client()
    client.send(b"".join(requests))
    assert {reply.code for reply in client.replies(len(requests)) if isinstance(reply, Result)} == {200}
    client.close()
    stored = [frame.body for frame in walk(everything(dev_broker, 0))]
    assert stored == [frame.body for frame in walk(b"".join(frames))]


@pytest.mark.process
def test_a_block_that_its_client_cuts_off_is_not_stored(dev_broker: RunningBroker) -> None:
    request = encode(PutBatch("buffers", 0, block(0, 0, 4000), 4000, 1))
    for part in (40, 100_000, len(request) - 1):
        client = dev_broker.client()
        client.send(request[:part])
        client.close()
    client = dev_broker.client()
    assert client.result(encode(PutBatch("buffers", 0, block(1, 1, 1), 1, 1)))[1].endswith(" 0 0")
    client.close()


@pytest.mark.process
def test_a_wrong_block_in_a_buffer_is_refused_and_the_next_one_is_not(dev_broker: RunningBroker) -> None:
    client = dev_broker.client()
    good = block(0, 0, 4000)
    wrong = good[:-1] + b"!"
    for _ in range(8):  # enough for the compiled loop to take over at some point
        code, text = client.result(encode(PutBatch("buffers", 0, wrong, 4000, 1)))
        assert (code, "frame 3999 at byte" in text, "fails its checksum" in text) == (500, True, True)
        assert client.result(encode(PutBatch("buffers", 0, good, 4000, 1)))[0] == 200
    client.close()
    assert [frame.body for frame in walk(everything(dev_broker, 0))] == [frame.body for frame in walk(good)] * 8
