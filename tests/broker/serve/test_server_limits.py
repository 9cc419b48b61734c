"""Every limit of docs/operations.md against a real broker, and clients that try to stop others or to fill the memory.

Each story has a rude part and then ``others_go_on``: an honest client puts, reads and looks things up meanwhile. Memory
is the resident memory of the process, measured before and while the rude clients hold what they hold.
"""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest
from fix_broker import RunningBroker, WireClient, wait_until
from fix_tls import launch_with
from text_protocol import put

from metaq.formats.frames import encode_frame
from metaq.formats.message_id import timestamp_ms
from metaq.protocols.text.commands import Get, PutBatch, Result, Value
from metaq.protocols.text.encode import encode

pytestmark = pytest.mark.process

KIB, MIB = 1 << 10, 1 << 20
LIMITS = (
    f"maxLineLength=1000\nmaxMessageSize={MIB}\nmaxBatchSize={2 * MIB}\nmaxConnections=300\nmaxPipelinedRequests=100\n"
    f"maxOutputBuffer={64 * KIB}\nmaxBufferedBytes={8 * MIB}\nmaxPartitions=40\nidleTimeout=1000*600\n"
)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    broker = launch_with(tmp_path_factory.mktemp("limits"), LIMITS)
    yield broker
    complaints = [line for line in broker.log_text().splitlines() if " ERROR " in line or "Traceback" in line]
    broker.end()
    assert complaints == [], "whatever clients do is no fault of the broker"


@pytest.fixture
def rude(broker: RunningBroker) -> Iterator[ExitStack]:
    """Holds the rude clients of a test; when they are gone, so is what the broker held for them."""
    with ExitStack() as clients:
        yield clients
    wait_until(lambda: alone(broker), "they are forgotten")


def alone(broker: RunningBroker) -> bool:
    """Whether a new connection is taken, and is the only one: the broker may not know yet that others have ended."""
    with closing(broker.client()) as client:
        try:
            return connections(client) == 1
        except (AssertionError, ConnectionError):
            return False


def connections(client: WireClient) -> int:
    _, text = client.result(b"stats\r\n")
    (line,) = re.findall(r"curr_connections (\d+)", text)
    return int(line)


def memory_bytes(broker: RunningBroker, kind: str = "VmRSS") -> int:
    """Resident memory of the broker's process; ``RssShmem`` is that of blocks."""
    status = Path(f"/proc/{broker.process.pid}/status").read_text()
    (kib,) = re.findall(rf"{kind}:\s+(\d+) kB", status)
    return int(kib) * KIB


def others_go_on(broker: RunningBroker) -> None:
    """An honest client gets its work done; every wait in it has a deadline."""
    with closing(broker.client()) as client:
        client.socket.settimeout(60)
        for number in range(20):
            code, text = client.result(put("honest", b"honest %d" % number, number))
            assert code == 200
            offset = int(text.split()[2])
            assert client.value(encode(Get("honest", "g", 0, offset, 1000, 1))).endswith(b"honest %d" % number)
        assert client.result(b"version 5\r\n")[0] == 200


def send_until_blocked(client: WireClient, data: bytes, bytes_max: int) -> int:
    """Send ``data`` again and again, without reading, until the broker takes no more; return the bytes sent."""
    client.socket.settimeout(0.5)
    sent = 0
    try:
        while sent < bytes_max:
            sent += client.socket.send(data[sent % len(data) :])
    except TimeoutError:
        pass
    client.socket.settimeout(60)
    return sent


def half_a_block(block_bytes: int) -> bytes:
    """A batched put of which the second half does not come."""
    return b"mput t 0 %d 1000 1\r\n" % block_bytes + bytes(block_bytes // 2)


def all_at_once(clients: Sequence[WireClient], data: bytes) -> None:
    """Have all send ``data`` in turn, a part at a time, until it is sent or they are cut."""
    left = {client.socket: memoryview(data) for client in clients}
    for client in clients:
        client.socket.setblocking(False)

    def is_sent() -> bool:
        for connection, rest in list(left.items()):
            try:
                left[connection] = rest[connection.send(rest[:MIB]) :]
            except BlockingIOError:
                continue
            except ConnectionError:
                left[connection] = memoryview(b"")
            if not left[connection]:
                del left[connection]
        return not left

    wait_until(is_sent, "everything is sent or cut")


class TestLines:
    def test_the_longest_line_and_one_byte_more(self, broker: RunningBroker) -> None:
        with closing(broker.client()) as client:
            assert client.result(b"stats ".ljust(1000, b"x") + b"\r\n")[0] == 200
            client.send(b"version 1\r\n" + b"stats ".ljust(1001, b"x") + b"\r\nversion 2\r\n")
            assert client.reply().opaque == 1
            assert client.rest() == b""

    def test_a_line_without_end_is_not_collected(self, broker: RunningBroker) -> None:
        with closing(broker.client()) as client:
            try:
                client.send(b"x" * MIB)
            except (BrokenPipeError, ConnectionResetError):
                return
            assert client.rest() == b""


class TestBodies:
    def test_announcing_much_costs_nothing(self, broker: RunningBroker, rude: ExitStack) -> None:
        before = memory_bytes(broker)
        for _ in range(200):
            rude.enter_context(closing(broker.client())).send(b"put t 0 %d 0 -1 1\r\n" % MIB)
        others_go_on(broker)
        assert memory_bytes(broker) - before < 8 * MIB

    def test_a_body_above_the_limit_is_dropped_as_it_comes(self, broker: RunningBroker) -> None:
        before = memory_bytes(broker)
        for line in (b"put t 0 %d 0 -1 1\r\n", b"mput t 0 %d 1 1\r\n"):
            with closing(broker.client()) as client:
                client.send(line % (64 * MIB))
                reply = client.reply()
                assert isinstance(reply, Result)
                assert reply.code == 500
                for _ in range(64):
                    client.send(bytes(MIB))
                assert client.result(b"version 2\r\n")[0] == 200
        assert memory_bytes(broker) - before < 8 * MIB

    def test_unfinished_bodies_of_many_are_bounded_together(self, broker: RunningBroker, rude: ExitStack) -> None:
        before = memory_bytes(broker)
        clients = [rude.enter_context(closing(broker.client())) for _ in range(150)]
        for client in clients:
            try:
                client.send(b"put t 0 %d 0 -1 1\r\n" % MIB + bytes(MIB - 1))
            except (BrokenPipeError, ConnectionResetError):
                continue  # cut already
        others_go_on(broker)
        assert memory_bytes(broker) - before < 48 * MIB, "not 150 MiB"
        with closing(broker.client()) as honest:
            wait_until(lambda: connections(honest) <= 9, "those that hold most are cut")
        assert "all connections buffer too many bytes" in broker.log_text()


class TestBlocks:
    """Memory for a block is taken as it arrives, so the limit holds for any number of connections."""

    SYSTEM = f"maxBufferedBytes={32 * MIB}\nmaxConnections=1100\n"

    @pytest.mark.parametrize("count", [10, 100, 1000])
    def test_blocks_that_begin_and_stop(self, tmp_path: Path, count: int) -> None:
        broker = launch_with(tmp_path, self.SYSTEM)
        others_go_on(broker)
        before = memory_bytes(broker)
        announced = b"mput t 0 %d 1000 1\r\n" % (8 * MIB) + bytes(280 * KIB)
        with ExitStack() as clients:
            for _ in range(count):
                with suppress(ConnectionError):  # those that hold most are cut
                    clients.enter_context(closing(broker.client())).send(announced)
            others_go_on(broker)
            assert memory_bytes(broker, "RssShmem") <= 32 * MIB
            assert memory_bytes(broker) - before < 1.5 * 32 * MIB + count * 24 * KIB, "beside it, the connections"
        broker.end()

    def test_blocks_that_come_together_are_cut_before_they_take_more(self, tmp_path: Path) -> None:
        """What is received in one step of the loop may be much; whoever is cut for it gives its memory up at once."""
        broker = launch_with(tmp_path, f"maxBufferedBytes={128 * MIB}\n")
        others_go_on(broker)
        before = memory_bytes(broker)
        with ExitStack() as clients:
            all_at_once([clients.enter_context(closing(broker.client())) for _ in range(100)], half_a_block(8 * MIB))
            others_go_on(broker)
            taken_bytes = memory_bytes(broker, "VmHWM") - before
            assert taken_bytes < 1.5 * 128 * MIB + 100 * 24 * KIB, "they sent 400 MiB; 24 KiB are for each connection"
        broker.end()

    def test_blocks_that_begin_and_stop_where_others_were_whole(self, tmp_path: Path) -> None:
        broker = launch_with(tmp_path, self.SYSTEM)
        body = encode_frame(0, 0, bytes(MIB - 20))
        whole = encode(PutBatch("t", 0, body, 1, 1))
        begun = whole[: 100 * KIB]
        with ExitStack() as clients:
            for _ in range(100):
                client = clients.enter_context(closing(broker.client()))
                assert client.result(whole)[0] == 200
                client.send(begun)
            others_go_on(broker)
            assert memory_bytes(broker, "RssShmem") <= (10 + 16) * MIB, "not 100 MiB: what has come, and what is kept"
        broker.end()


class TestRequests:
    def test_an_absurd_count_takes_no_ids(self, broker: RunningBroker) -> None:
        block = encode_frame(0, 0, b"x")
        with closing(broker.client()) as client:
            code, text = client.result(encode(PutBatch("ids", 0, block, 2**31 - 1, 1)))
            assert code == 500
            assert "2147483647 frames take 42949672940 bytes at least, the block has 21" in text
            code, text = client.result(put("ids", b"x", 2))
            first = timestamp_ms(int(text.split()[0]))
            code, text = client.result(b"transaction TX:s:1 s BEGIN 3\r\n")
            refused, text = client.result(b"mput ids 0 21 2147483647 TX:s:1 4\r\n" + block)
            assert (code, refused) == (200, 500)
            code, text = client.result(put("ids", b"x", 5))
            second = timestamp_ms(int(text.split()[0]))
        assert first is not None
        assert second is not None
        assert second - first < 10_000, "two billion ids would be six days"

    def test_pipelined_reads_that_nobody_takes(self, broker: RunningBroker, rude: ExitStack) -> None:
        with closing(broker.client()) as client:
            assert client.result(put("big", bytes(MIB - 100), 1))[0] == 200
        before = memory_bytes(broker)
        client = rude.enter_context(closing(broker.client()))
        get = encode(Get("big", "g", 0, 0, MIB, 7))
        sent = send_until_blocked(client, get, 64 * MIB)
        assert sent < 64 * MIB, "the broker goes on reading"
        others_go_on(broker)
        assert memory_bytes(broker) - before < 8 * MIB
        client.socket.settimeout(60)
        values = client.replies(50)
        assert all(isinstance(value, Value) and len(value.data) == MIB - 80 for value in values), "nothing is dropped"

    def test_replies_that_nobody_takes(self, broker: RunningBroker, rude: ExitStack) -> None:
        before = memory_bytes(broker)
        clients = [rude.enter_context(closing(broker.client())) for _ in range(10)]
        for client in clients:
            assert send_until_blocked(client, b"version 7\r\n" * 10_000, 16 * MIB) < 16 * MIB
        others_go_on(broker)
        assert memory_bytes(broker) - before < 16 * MIB
        assert [reply.opaque for reply in clients[0].replies(10_000)] == [7] * 10_000

    def test_filtered_reads_that_nobody_takes(self, broker: RunningBroker, rude: ExitStack) -> None:
        frame = encode_frame(0, 1, b"\0\0\0\x04kind" + bytes(100))
        block = frame * 7000
        with closing(broker.client()) as client:
            assert client.result(encode(PutBatch("typed", 0, block, 7000, 1)))[0] == 200
        before = memory_bytes(broker)
        for _ in range(10):
            client = rude.enter_context(closing(broker.client()))
            with suppress(ConnectionError):  # all together reach maxBufferedBytes: then one of them is cut
                send_until_blocked(client, b"fget typed g 0 0 1048576 kind 7\r\n" * 1000, MIB)
        others_go_on(broker)
        assert memory_bytes(broker) - before < 32 * MIB

    @pytest.mark.parametrize("command", ["get", "fget"])
    def test_consumers_that_never_read_take_half_as_much_again_at_most(self, command: str, tmp_path: Path) -> None:
        broker = launch_with(tmp_path, f"maxBufferedBytes={32 * MIB}\n")
        frame = encode_frame(0, 1, b"\0\0\0\x04kind" + bytes(10_000))
        with closing(broker.client()) as client:
            assert client.result(encode(PutBatch("typed", 0, frame * 100, 100, 1)))[0] == 200
        before = memory_bytes(broker)
        request = b"%b typed g 0 0 1048576 %b7\r\n" % (command.encode(), b"kind " if command == "fget" else b"")
        with ExitStack() as clients:
            clients.callback(broker.end)
            for _ in range(100):
                client = clients.enter_context(closing(broker.client()))
                with suppress(ConnectionError):  # those that hold most are cut
                    client.send(request * 100)
            for _ in range(10):
                others_go_on(broker)
                assert memory_bytes(broker) - before < 1.5 * 32 * MIB, "they ask for 10 GiB"

    def test_expensive_questions_take_turns_with_others(self, broker: RunningBroker, rude: ExitStack) -> None:
        block = encode_frame(0, 0, bytes(80)) * 10_000
        with closing(broker.client()) as client:
            assert client.result(encode(PutBatch("plain", 0, block, 10_000, 1)))[0] == 200
        scanner = rude.enter_context(closing(broker.client()))
        scanner.send(b"fget plain g 0 0 1048576 kind 7\r\n" * 100)
        others_go_on(broker)
        assert [len(value.data) for value in scanner.replies(100) if isinstance(value, Value)] == [8] * 100


class TestTransactions:
    """What a client begins and leaves behind does not stop the others for ever."""

    @pytest.mark.parametrize("key", ["TX:s:%d", "XID:1:%08x:62:q"], ids=["local", "xa"])
    def test_many_begun_without_a_timeout_by_a_client_that_goes_away(self, tmp_path: Path, key: str) -> None:
        broker = launch_with(tmp_path, "maxTxTimeoutTimerCapacity=100\nmaxTxTimeoutInSeconds=2\n")
        with closing(broker.client()) as client, closing(broker.client()) as other:
            keys = [key % number for number in range(100)]
            client.send(b"".join(b"transaction %b s BEGIN 0 null 1\r\n" % each.encode() for each in keys))
            assert {reply.code for reply in client.replies(100) if isinstance(reply, Result)} == {200}
            begin = b"transaction TX:other:1 s BEGIN 0 null 1\r\n"
            code, text = other.result(begin)
            assert (code, "100 transactions are open" in text) == (500, True)
            client.close()
            wait_until(lambda: other.result(begin)[0] == 200, "what was left behind is rolled back")
        broker.end()


class TestConnections:
    def test_above_the_limit(self, broker: RunningBroker, rude: ExitStack) -> None:
        with closing(broker.client()) as alone:
            wait_until(lambda: "curr_connections 1\r" in alone.result(b"stats\r\n")[1], "earlier clients are gone")
        for _ in range(299):
            rude.enter_context(closing(broker.client())).send(b"version 1\r\n")
        with closing(broker.client()) as last, closing(broker.client()) as surplus:
            assert surplus.rest() == b""
            assert last.result(b"version 1\r\n")[0] == 200
            assert "connection refused, there are too many" in broker.log_text()

    def test_byte_by_byte_and_half_open_clients_stop_nobody(self, broker: RunningBroker, rude: ExitStack) -> None:
        before = memory_bytes(broker)
        slow = [rude.enter_context(closing(broker.client())) for _ in range(50)]
        half = [rude.enter_context(closing(broker.client())) for _ in range(50)]
        for client in half:
            client.send(b"put t 0 100 0 -1 1\r\nonly a part")
        for byte in put("bytes", b"slow", 9):
            for client in slow:
                client.send(bytes([byte]))
        others_go_on(broker)
        assert memory_bytes(broker) - before < 8 * MIB
        assert all(isinstance(reply := client.reply(), Result) and reply.code == 200 for client in slow)
        for client in half:
            client.socket.shutdown(socket.SHUT_WR)
            assert client.rest() == b"", "half a command is nothing to answer"

    def test_partitions(self, tmp_path: Path) -> None:
        broker = launch_with(tmp_path, "maxPartitions=3\n")
        with closing(broker.client()) as client:
            codes = [client.result(put(f"topic-{number}", b"x", 1))[0] for number in range(5)]
            assert codes == [200, 200, 200, 500, 500]
            assert "maxPartitions allows no more" in client.result(put("another", b"x", 1))[1]
            assert client.result(put("topic-0", b"x", 1))[0] == 200
        broker.end()

    def test_silence(self, tmp_path: Path) -> None:
        broker = launch_with(tmp_path, "idleTimeout=3000\n")
        with ExitStack() as clients:
            silent, half, slow = (clients.enter_context(closing(broker.client())) for _ in range(3))
            half.send(b"put t 0 100 0 -1 1\r\nonly a part")
            slow.result(put("big", bytes(4 * MIB - 100), 1))
            slow.send(encode(Get("big", "g", 0, 0, 4 * MIB, 1)) * 100)
            busy = clients.enter_context(closing(broker.client()))
            wait_until(lambda: connections(busy) == 1, "the three that do nothing are closed")
            assert silent.rest() == b""
            assert half.rest() == b""
        broker.end()


def test_many_idle_connections_and_partitions_take_little_memory() -> None:
    program = Path(__file__).parents[3] / "benchmarks" / "connections.py"
    sizes = ["--partitions", "100", "--connections", "1000", "--mib-max", "64"]
    few = [sys.executable, str(program), "idle-memory", *sizes]
    done = subprocess.run(few, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1000 idle connections" in done.stdout
