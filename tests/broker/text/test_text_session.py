"""The text protocol against a real broker: what is accepted, what closes the connection, what pipelining keeps."""

from __future__ import annotations

import socket
import threading

import pytest
from fix_broker import RunningBroker, WireClient, wait_until
from text_protocol import block_of, bodies, get, placed, put, read_all

from metaq.formats.frames import walk
from metaq.formats.message_id import IdRange
from metaq.protocols.text.commands import GetOffset, Put, PutBatch, Result, Value
from metaq.protocols.text.encode import encode

pytestmark = pytest.mark.process


@pytest.mark.parametrize(
    "line",
    [
        "", " ", " version 1", "PUT t 0 1 0 1", "foo 1", "data 0 1", "value 0 1", "result 200 0 1",
        "get \x80 g 0 0 9 1",
        "get t g 0 0 1024", "get t g 0 0 x 1", "get t g 0 9223372036854775808 1024 1", "get  t g 0 0 1024 1",
        "get t g 0 0 1024 4294967296", "get t\tg 0 0 1024 1", "put t 0 -1 0 1", "put t 0 1 0", "put t 0 x 0 1",
        "put t 0 1 0 0 1 2 3 4", "offset t g 0 0", "offset t g 0 0 1x", "version x", "version 1\nversion 2",
        "stats a b", "transaction TX:1 s BEGIN 1", "transaction TX:a:1 s begin 1", "mput t 0 20 0 1", "decide q x 0 1",
        "sync t 0 1 0 1", "put t 0 1_0 0 1",
    ],
)  # fmt: skip
def test_a_line_that_is_no_command_closes_this_connection_only(line: str, shared_broker: RunningBroker) -> None:
    healthy, hostile = shared_broker.client(), shared_broker.client()
    hostile.send(b"version 7\r\n" + line.encode("latin-1") + b"\r\nversion 8\r\n")
    assert isinstance(first := hostile.reply(), Result)
    assert first.opaque == 7
    assert hostile.rest() == b""
    assert healthy.ask(b"version 9\r\n").opaque == 9
    healthy.close()
    hostile.close()


@pytest.mark.parametrize(
    ("line", "opaque"),
    [
        ("version 5", 5), ("version 5 ", 5), ("version +5", 5), ("v 5", 5), ("vfoo 6", 6), ("version\t1", 2147483647),
        ("version -2147483648", -2147483648), ("version 1 2 3", 1), ("stats  7", 7), ("stats 1", 2147483647),
        ("get t g 0 0 1024 9 and more", 9), ("offset t g 0 0 8 strange", 8),
    ],
)  # fmt: skip
def test_odd_lines_that_java_takes(line: str, opaque: int, client: WireClient) -> None:
    assert client.ask(line.encode() + b"\r\n").opaque == opaque


@pytest.mark.parametrize("line", ["quit", "q", "queue 1"])
def test_quit_answers_what_came_before_and_closes(line: str, client: WireClient, topic: str) -> None:
    client.send(put(topic, b"last", 1) + line.encode() + b"\r\nversion 2\r\n")
    assert placed(client.reply())[2] == 0
    assert client.rest() == b""


def test_a_client_that_stops_sending_still_gets_its_answers(client: WireClient, topic: str) -> None:
    client.send(put(topic, b"x", 1) + b"version 2\r\n")
    client.socket.shutdown(socket.SHUT_WR)
    assert [reply.opaque for reply in client.replies(2)] == [1, 2]
    assert client.rest() == b""


def test_byte_by_byte(client: WireClient, topic: str) -> None:
    for position, byte in enumerate(put(topic, b"slow", 3) + get(topic, 0, 4)):
        client.send(bytes([byte]))
        if position % 20 == 0:
            assert not client.decoder.pending_bytes
    assert placed(client.reply())[2] == 0
    value = client.reply()
    assert isinstance(value, Value)
    assert bodies(value.data) == [b"slow"]


def test_pipelined_puts_are_stored_and_answered_in_their_order(client: WireClient, topic: str) -> None:
    messages = [b"%d" % number * (number % 30) for number in range(5000)]
    client.send(b"".join(put(topic, body, number) for number, body in enumerate(messages)))
    replies = client.replies(len(messages))
    assert [reply.opaque for reply in replies] == list(range(len(messages)))
    ids, _, offsets = zip(*map(placed, replies), strict=True)
    assert list(ids) == sorted(set(ids))
    run = read_all(client, topic, offsets[-1] + 20 + len(messages[-1]))
    frames = list(walk(run))
    assert [frame.body for frame in frames] == messages
    assert [frame.offset for frame in frames] == list(offsets)
    assert [frame.message_id for frame in frames] == list(ids)


def test_puts_to_several_partitions_in_one_go(client: WireClient, topic: str) -> None:
    sent = [(number % 2, b"%d" % number) for number in range(100)]
    client.send(b"".join(put(topic, body, number, partition) for number, (partition, body) in enumerate(sent)))
    replies = client.replies(len(sent))
    assert [reply.opaque for reply in replies] == list(range(len(sent)))
    assert [placed(reply)[1] for reply in replies] == [partition for partition, _ in sent]
    for partition in (0, 1):
        expected = [body for index, body in sent if index == partition]
        assert bodies(client.value(get(topic, 0, partition=partition))) == expected


def test_partition_minus_one_spreads_over_all(client: WireClient, topic: str) -> None:
    client.send(b"".join(put(topic, b"%d" % number, number, -1) for number in range(100)))
    where = [placed(reply)[1] for reply in client.replies(100)]
    assert set(where) == {0, 1}
    for partition in (0, 1):
        expected = [b"%d" % number for number, index in enumerate(where) if index == partition]
        assert bodies(client.value(get(topic, 0, partition=partition))) == expected


def test_reads_behind_a_put_see_what_it_stored(client: WireClient, topic: str) -> None:
    client.send(put(topic, b"seen", 1) + get(topic, 0, 2) + encode(GetOffset(topic, "g", 0, 1 << 40, 3)))
    _, value, offset = client.replies(3)
    assert isinstance(value, Value)
    assert bodies(value.data) == [b"seen"]
    assert offset == Result(200, "24", 3)


def test_wrong_and_right_puts_in_one_go(client: WireClient, topic: str) -> None:
    right, wrong = put(topic, b"right", 1), encode(Put(topic, 0, b"wrong", 0, 2, 5))
    elsewhere = encode(Put(topic, 2, b"x", 0, 3, -1))
    client.send(right + wrong + elsewhere + right)
    first, second, third, fourth = client.replies(4)
    assert (placed(first)[2], placed(fourth)[2]) == (0, 25)
    assert isinstance(second, Result)
    assert second.text.endswith("Detail:Checksum failure,message may be corrupted when transfering on networking.")
    assert isinstance(third, Result)
    assert third.text.endswith("Detail:wrong partition 2")
    assert bodies(client.value(get(topic, 0))) == [b"right", b"right"]


@pytest.mark.parametrize("body_bytes", [0, 1, 65536, 600_000, 4 << 20])
def test_a_message_of_any_allowed_size_is_readable_once_acknowledged(
    body_bytes: int, client: WireClient, topic: str
) -> None:
    body = bytes(range(256)) * (body_bytes // 256) + b"x" * (body_bytes % 256)
    assert placed(client.ask(put(topic, body, 1)))[2] == 0
    assert bodies(read_all(client, topic, 20 + body_bytes)) == [body]


def test_a_too_large_message_is_refused_and_the_connection_usable(client: WireClient, topic: str) -> None:
    limit = 4 << 20
    for length in (limit + 1, (8 << 20) + 1):
        code, text = client.result(put(topic, bytes(length), 1))
        assert code == 500
        assert text.endswith(f"Detail:message of {length} bytes is longer than {limit} bytes (maxMessageSize)")
    client.send(put(topic, b"a", 1) + put(topic, bytes(limit + 1), 2) + put(topic, b"b", 3))
    codes = [reply.code for reply in client.replies(3) if isinstance(reply, Result)]
    assert codes == [200, 500, 200]
    assert bodies(client.value(get(topic, 0))) == [b"a", b"b"]


@pytest.mark.parametrize("name", ["a/b", "..", ".", "../x", "x" * 254, "/"])
def test_a_topic_that_cannot_be_a_folder_is_refused(name: str, client: WireClient) -> None:
    code, text = client.result(put(name, b"x", 1))
    assert code == 500
    assert "cannot be stored" in text


def test_topics_are_any_other_utf8(client: WireClient) -> None:
    for name in ("订单", "a-b-1", "-", "a,b@c", "*"):
        assert placed(client.ask(put(name, b"x", 1)))[2] == 0
        assert bodies(client.value(get(name, 0))) == [b"x"]


# ---- batched put


def test_a_batched_put_is_stored_whole_with_ids_that_follow_from_the_first(client: WireClient, topic: str) -> None:
    messages = [b"%d" % number for number in range(5000)]
    request = encode(PutBatch(topic, 1, block_of(*messages), len(messages), 9))
    client.send(put(topic, b"before", 1, 1) + request)
    before, reply = client.replies(2)
    first_id, partition, offset = placed(reply)
    assert (partition, offset, reply.opaque) == (1, placed(before)[2] + 26, 9)
    end = offset + len(block_of(*messages))
    frames = list(walk(read_all(client, topic, end, 1)))[1:]
    assert [frame.body for frame in frames] == messages
    assert [frame.message_id for frame in frames] == list(IdRange.starting_at(first_id, len(messages)))


def test_a_batched_put_with_one_wrong_frame_stores_nothing(client: WireClient, topic: str) -> None:
    block = bytearray(block_of(b"one", b"two", b"three"))
    block[-1] ^= 1
    code, text = client.result(encode(PutBatch(topic, 0, bytes(block), 3, 1)))
    assert code == 500
    assert text.endswith("Detail:frame 2 at byte 46 fails its checksum")
    assert client.result(get(topic, 0))[0] == 404
    assert placed(client.ask(encode(PutBatch(topic, 0, block_of(b"ok"), 1, 1))))[2] == 0


def test_a_batched_put_to_any_partition_goes_to_one(client: WireClient, topic: str) -> None:
    _, partition, offset = placed(client.ask(encode(PutBatch(topic, -1, block_of(b"a", b"b"), 2, 1))))
    assert bodies(client.value(get(topic, offset, partition=partition))) == [b"a", b"b"]


def test_a_block_above_the_limit_is_refused(client: WireClient, topic: str) -> None:
    client.send(b"mput %b 0 %d 1 5\r\n" % (topic.encode(), (8 << 20) + 1) + bytes((8 << 20) + 1) + b"version 6\r\n")
    refused, version = client.replies(2)
    assert refused == Result(500, f"mput of {(8 << 20) + 1} bytes is longer than {8 << 20} bytes (maxBatchSize)", 5)
    assert version.opaque == 6


# ---- extensions of offset


def test_boundary_and_timestamp(client: WireClient, topic: str) -> None:
    offsets = [placed(client.ask(put(topic, b"x" * 10, 1)))[2] for _ in range(5)]
    ask = {mode: lambda at, mode=mode: client.result(encode(GetOffset(topic, "g", 0, at, 1, mode)))
           for mode in ("segment", "boundary", "timestamp")}  # fmt: skip
    assert ask["segment"](100) == (200, "0")
    assert [ask["boundary"](at)[1] for at in (-5, 0, 29, 30, 31, 149, 150, 1 << 40)] == [
        "0", "0", "0", "30", "30", "120", "150", "150",
    ]  # fmt: skip
    assert ask["timestamp"](0) == (200, str(offsets[0]))
    assert ask["timestamp"](1 << 50) == (200, "150")
    assert ask["boundary"](0)[0] == 200


# ---- greedy and slow clients


def test_a_client_that_does_not_read_slows_only_itself_and_loses_nothing(
    shared_broker: RunningBroker, client: WireClient, topic: str
) -> None:
    body = bytes(1 << 20)
    for _ in range(4):
        client.ask(put(topic, body, 1))
    greedy, gets = shared_broker.client(), 300
    greedy.send(b"".join(get(topic, 1000, number) for number in range(gets)))
    for number in range(20):
        assert client.ask(put(topic, b"others go on", number)).opaque == number
    for number in range(gets):
        value = greedy.reply()
        assert isinstance(value, Value)
        assert (value.opaque, len(value.data)) == (number, 1 << 20)
    greedy.close()


def test_more_requests_than_are_carried_out_at_once_are_all_answered(
    shared_broker: RunningBroker, client: WireClient
) -> None:
    count = 60_000
    request = b"".join(b"version %d\r\n" % number for number in range(count))
    client.socket.setblocking(False)
    received = []
    while len(received) < count:
        if request:
            try:
                request = request[client.socket.send(request[: 1 << 16]) :]
                continue
            except BlockingIOError:
                pass  # the broker has stopped reading: only now take replies
        client.socket.setblocking(True)
        received += [client.reply().opaque for _ in range(min(1000, count - len(received)))]
        client.socket.setblocking(False)
    assert received == list(range(count))


def test_lost_connections_are_noticed(shared_broker: RunningBroker, client: WireClient, topic: str) -> None:
    def is_alone() -> bool:
        return "curr_connections 1\r" in client.result(b"stats  1\r\n")[1]

    wait_until(is_alone, "the broker forgets the connections of tests before this one")
    others = [shared_broker.client() for _ in range(5)]
    for other in others:
        other.send(put(topic, b"x" * 100_000, 1)[:-1])
        wait_until(lambda: not is_alone(), "the broker counts the connections")
        other.close()
    wait_until(is_alone, "the broker forgets closed connections")


def test_more_requests_than_are_carried_out_at_once_and_then_the_end(client: WireClient, topic: str) -> None:
    count = 30_000
    sender = threading.Thread(
        target=lambda: [
            client.send(b"".join(put(topic, b"x", number) for number in range(count))),
            client.socket.shutdown(socket.SHUT_WR),
        ]
    )
    sender.start()
    assert [reply.opaque for reply in client.replies(count)] == list(range(count))
    assert client.rest() == b""
    sender.join()
