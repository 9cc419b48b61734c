"""``share`` and ``sput``: the broker takes blocks out of memory of a client on its machine, and of no other file."""

from __future__ import annotations

import fcntl
import os
import re
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from fix_broker import RunningBroker, StartBroker, WireClient, wait_until
from metaq_broker.frontend.shared_memory import MEMORIES_MAX

from metaq.client.producer import encode_block
from metaq.client.shared_memory import SharedMemory
from metaq.machine import boot_id
from metaq.model import Message, parse_transaction_id
from metaq.wire.text.commands import Get, PutShared, Share
from metaq.wire.text.encode import encode
from metaq.wire.text.frames import walk

pytestmark = pytest.mark.process

KIB = 1 << 10
SIZE = 64 * KIB
BOOT = boot_id() or ""
PAYLOADS = [b"one", b"two" * 100, b""]
BLOCK, COUNT = encode_block(map(Message, PAYLOADS))


@pytest.fixture
def client(dev_broker: RunningBroker) -> Iterator[WireClient]:
    with closing(dev_broker.client()) as client:
        yield client


@pytest.fixture
def memory() -> Iterator[SharedMemory]:
    memory = SharedMemory(SIZE, 1)
    yield memory
    memory.close_file()


def offer(client: WireClient, share: Share) -> tuple[int, str]:
    return client.result(encode(share))


def view(memory: SharedMemory) -> memoryview:
    """All of a memory that is one slot."""
    slot = memory.take()
    assert slot is not None
    slot.free()
    return slot.view


def fill(memory: SharedMemory, position: int, block: bytes = BLOCK) -> None:
    view(memory)[position : position + len(block)] = block


def put(position: int, length: int = len(BLOCK), count: int = COUNT, partition: int = 0) -> bytes:
    return encode(PutShared("t", partition, length, count, position, 7))


def stored(client: WireClient, partition: int = 0) -> list[bytes]:
    content = client.value(encode(Get("t", "g", partition, 0, SIZE, 1)))
    frames = list(walk(content))
    assert all(frame.intact for frame in frames)
    ids = [frame.message_id for frame in frames]
    assert ids == sorted(set(ids))
    assert 0 not in ids
    return [frame.message.payload for frame in frames]


def test_blocks_are_stored_from_where_they_lie(client: WireClient, memory: SharedMemory) -> None:
    assert offer(client, memory.offer(BOOT)) == (200, "")
    for position in (0, 5000, SIZE - len(BLOCK)):
        fill(memory, position)
        code, text = client.result(put(position))
        assert (code, text.split()[1]) == (200, "0")
    assert stored(client) == PAYLOADS * 3


def test_it_outlives_the_descriptor(client: WireClient) -> None:
    memory = SharedMemory(SIZE, 1)
    assert offer(client, memory.offer(BOOT)) == (200, "")
    memory.close_file()
    fill(memory, 100)
    assert client.result(put(100))[0] == 200
    assert stored(client) == PAYLOADS


def test_many_at_once_are_answered_in_order(client: WireClient, memory: SharedMemory) -> None:
    assert offer(client, memory.offer(BOOT)) == (200, "")
    blocks = [encode_block([Message(b"%d" % number)])[0] for number in range(100)]
    for number, block in enumerate(blocks):
        fill(memory, number * 100, block)
    client.send(b"".join(put(number * 100, len(block), 1) for number, block in enumerate(blocks)))
    replies = client.replies(100)
    offsets = [int(reply.text.split()[2]) for reply in replies]  # type: ignore[union-attr]
    assert offsets == sorted(offsets)
    assert stored(client) == [b"%d" % number for number in range(100)]


def test_in_a_transaction(client: WireClient, memory: SharedMemory) -> None:
    key = "TX:s:1"
    assert offer(client, memory.offer(BOOT)) == (200, "")
    assert client.result(b"transaction %b s BEGIN 1\r\n" % key.encode())[0] == 200
    fill(memory, 0)
    assert client.result(encode(PutShared("t", 0, len(BLOCK), COUNT, 0, 7, parse_transaction_id(key))))[0] == 200
    view(memory)[:] = bytes(SIZE)  # it was answered, so it is the client's again
    assert client.result(b"transaction %b s COMMIT_ONE_PHASE 2\r\n" % key.encode())[0] == 200
    assert stored(client) == PAYLOADS


def test_a_second_offer_takes_the_place_of_the_first(client: WireClient, memory: SharedMemory) -> None:
    assert offer(client, memory.offer(BOOT)) == (200, "")
    fill(memory, 0)
    other = SharedMemory(SIZE // 2, 1)
    assert offer(client, other.offer(BOOT)) == (200, "")
    assert client.result(put(0))[0] == 500, "the second one has no block there"
    fill(other, 0)
    assert client.result(put(0))[0] == 200
    assert client.result(put(SIZE // 2))[0] == 500
    other.close_file()


def test_a_refused_offer_leaves_what_was_shared(client: WireClient, memory: SharedMemory) -> None:
    assert offer(client, memory.offer(BOOT)) == (200, "")
    fill(memory, 0)
    assert offer(client, memory.offer("elsewhere"))[0] == 503
    assert client.result(put(0))[0] == 200


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (put(0, SIZE + 1), "65537 bytes at 0 are not within the 65536 bytes that are shared"),
        (put(1, SIZE), "65536 bytes at 1 are not within"),
        (put(2**63 - 1, 1), "1 bytes at 9223372036854775807 are not within"),
        (put(0, 2**31 - 1), "sput of 2147483647 bytes is longer than .* bytes \\(maxBatchSize\\)"),
        (put(0, count=COUNT + 1), "frame 3 of 4 begins at byte"),
        (put(0, count=2**31 - 1), "frames take 42949672940 bytes at least"),
        (put(0, length=len(BLOCK) - 1), "the block of .* bytes does not hold|begins at byte"),
        (put(3), "frame 0 at byte 0"),
        (put(0, length=0, count=1), "1 frames take 20 bytes at least, the block has 0"),
        (put(0, partition=99), "wrong partition 99"),
    ],
)
def test_what_is_wrong_is_refused_and_stores_nothing(
    client: WireClient, memory: SharedMemory, line: bytes, text: str
) -> None:
    assert offer(client, memory.offer(BOOT)) == (200, "")
    fill(memory, 0)
    code, told = client.result(line)
    assert code == 500
    assert re.search(text, told), told
    fill(memory, 0)
    assert client.result(put(0))[0] == 200
    assert stored(client) == PAYLOADS


def test_nothing_is_shared_before_an_offer(client: WireClient) -> None:
    assert client.result(put(0)) == (500, "sput: this connection shares no memory")


def test_memory_belongs_to_one_connection(dev_broker: RunningBroker, client: WireClient, memory: SharedMemory) -> None:
    assert offer(client, memory.offer(BOOT)) == (200, "")
    with closing(dev_broker.client()) as other:
        assert other.result(put(0)) == (500, "sput: this connection shares no memory")


def test_so_many_connections_share_memory_and_no_more(
    dev_broker: RunningBroker, client: WireClient, memory: SharedMemory
) -> None:
    others = [dev_broker.client() for _ in range(MEMORIES_MAX)]
    share = memory.offer(BOOT)
    assert {offer(other, share) for other in others} == {(200, "")}
    code, text = offer(client, share)
    assert (code, "32 connections share memory already" in text) == (503, True)
    assert offer(others[0], share) == (200, ""), "in place of what it shared before"
    others.pop().socket.close()
    wait_until(lambda: offer(client, share)[0] == 200, "a place is free again")
    for other in others:
        other.socket.close()


class TestRefusedOffers:
    """Whatever is refused, the connection goes on and blocks can be sent."""

    def refused(self, client: WireClient, share: Share) -> str:
        code, text = offer(client, share)
        assert code == 503
        assert client.result(put(0)) == (500, "sput: this connection shares no memory")
        return text

    @pytest.mark.parametrize(
        ("change", "text"),
        [
            ({"inode": 1}, "is another file here"),
            ({"device": 0}, "is another file here"),
            ({"boot": "elsewhere"}, "for clients on the broker's machine"),
            ({"size": SIZE - 1}, "no file of 65535 bytes"),
            ({"size": 0}, "0 bytes: 1 to 67108864 are allowed"),
            ({"size": 2**40}, "1099511627776 bytes: 1 to 67108864 are allowed"),
            ({"process": 2**31 - 1}, "process 2147483647: No such file or directory"),
            ({"descriptor": 2**31 - 1}, "descriptor 2147483647 of process .*: No such file or directory"),
        ],
    )
    def test_what_does_not_fit(
        self, client: WireClient, memory: SharedMemory, change: dict[str, int | str], text: str
    ) -> None:
        told = self.refused(client, memory.offer(BOOT)._replace(**change))  # type: ignore[arg-type]
        assert re.search(text, told), told

    def share_of(self, fd: int) -> Share:
        status = os.fstat(fd)
        return Share(os.getpid(), fd, status.st_size, status.st_dev, status.st_ino, BOOT, 3)

    def test_memory_whose_size_is_not_sealed(self, client: WireClient) -> None:
        fd = os.memfd_create("unsealed", os.MFD_ALLOW_SEALING)
        os.truncate(fd, SIZE)
        assert "its size is not sealed" in self.refused(client, self.share_of(fd))
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW)
        assert "its size is not sealed" in self.refused(client, self.share_of(fd))
        os.close(fd)

    def test_memory_that_cannot_be_written(self, client: WireClient) -> None:
        fd = os.memfd_create("sealed", os.MFD_ALLOW_SEALING)
        os.truncate(fd, SIZE)
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
        assert "Operation not permitted" in self.refused(client, self.share_of(fd))
        os.close(fd)

    def test_a_file_on_a_disk(self, client: WireClient, tmp_path: Path) -> None:
        (tmp_path / "file").write_bytes(bytes(SIZE))
        with open(tmp_path / "file", "r+b") as file:
            told = self.refused(client, self.share_of(file.fileno()))
        assert "it is no memfd" in told or "its size is not sealed" in told
        assert (tmp_path / "file").read_bytes() == bytes(SIZE)

    def test_what_is_no_file_is_not_even_opened(self, client: WireClient) -> None:
        reading, writing = os.pipe()
        told = self.refused(client, self.share_of(reading)._replace(size=SIZE))
        assert "no file of 65536 bytes" in told
        os.close(writing)
        assert os.read(reading, 1) == b"", "nobody has the other end open"
        os.close(reading)

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
    def test_memory_of_another_user(self, client: WireClient) -> None:
        """A broker that runs as root could open it all the same."""
        memory = SharedMemory(SIZE, 1)
        os.fchown(memory.fd, 12345, -1)
        assert "it belongs to another user" in self.refused(client, memory.offer(BOOT))
        memory.close_file()

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
    def test_a_process_of_another_user(self, client: WireClient, memory: SharedMemory) -> None:
        with subprocess.Popen(["sleep", "60"], user=12345) as process:
            share = memory.offer(BOOT)._replace(process=process.pid)
            assert f"process {process.pid} belongs to another user" in self.refused(client, share)
            process.kill()

    def test_a_client_with_another_address(self, dev_broker: RunningBroker, memory: SharedMemory) -> None:
        with closing(dev_broker.client()) as client:
            client.socket.close()
            address = dev_broker.address
            client.socket = socket.create_connection((address.host, address.port), 20, source_address=("127.0.0.2", 0))
            assert "localWrites" in self.refused(client, memory.offer(BOOT))

    def test_it_can_be_switched_off(self, start_broker: StartBroker, tmp_path: Path, memory: SharedMemory) -> None:
        ini = tmp_path / "server.ini"
        lines = ("brokerId=0", "numPartitions=1", "serverPort=0", "unflushThreshold=0", "unflushInterval=10000")
        sizes = ("maxSegmentSize=1048576", "maxTransferSize=1048576", f"dataPath={tmp_path / 'data'}")
        ini.write_text("\n".join(["[system]", *lines, *sizes, "localWrites=false", "[topic=t]", ""]))
        with closing(start_broker("start", "-f", ini).client()) as client:
            assert "localWrites" in self.refused(client, memory.offer(BOOT))
            announced = client.result(b"version 9\r\n")[1].partition(";ext=")[2].split(",")
            assert "share" not in announced
            assert "file" in announced


def test_a_client_that_dies_leaves_a_broker_that_goes_on(dev_broker: RunningBroker) -> None:
    """Its memory stays as long as the broker has it mapped; whole blocks are stored, or nothing of them."""
    script = f"""
        import os, socket
        from metaq.client.producer import encode_block
        from metaq.client.shared_memory import SharedMemory
        from metaq.machine import boot_id
        from metaq.model import Message
        from metaq.wire.text.commands import PutShared
        from metaq.wire.text.encode import encode
        memory = SharedMemory(1 << 20, 1)
        block, count = encode_block(Message(b"%d" % number * 50) for number in range(2000))
        memory.take().view[: len(block)] = block
        connection = socket.create_connection(("127.0.0.1", {dev_broker.address.port}))
        connection.sendall(encode(memory.offer(boot_id())))
        connection.recv(100)
        connection.sendall(encode(PutShared("t", 0, len(block), count, 0, 1)) * 50)
        os.kill(os.getpid(), 9)
    """
    for _ in range(3):
        subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=False)
    with closing(dev_broker.client()) as client:
        end = int(client.result(b"offset t g 0 9223372036854775807 1\r\n")[1])
        block_bytes = sum(len(b"%d" % number) * 50 + 20 for number in range(2000))
        assert end % block_bytes == 0
        assert client.result(b"version 1\r\n")[0] == 200
