"""A scan for a message: fair between partitions, within its limit, over what cannot be read as text."""

from __future__ import annotations

import zlib

import pytest
from fix_client import MemoryCluster

from metaq.client.browser import Browser
from metaq.client.search import ROUND_MESSAGES, Search, by_id, by_key
from metaq.discovery.fixed import FixedDirectory
from metaq.errors import CorruptFrame, MessageNotFound, TopicNotFound
from metaq.formats.frames import FLAG_ATTRIBUTE, encode_body, encode_frame, encode_stored
from metaq.formats.rocketmq.sys_flags import COMPRESSED
from metaq.formats.stored_form import encode_head
from metaq.model import Message, Partition
from metaq.testing.memory import MemoryBroker


class Bench:
    """A broker with three partitions of "t"."""

    def __init__(self) -> None:
        self.broker = MemoryBroker({"t": 3})
        self.cluster = MemoryCluster(self.broker)
        self.directory = FixedDirectory(self.cluster.addresses, self.cluster.pool)

    def store(self, index: int, *messages: Message) -> None:
        frames = b"".join(encode_frame(7, *encode_body(message)) for message in messages)
        self.broker.partition("t", index).append(frames)

    def by_key(self, key: str, topic: str = "t", **options: int) -> Search:
        return by_key(self.directory, self.cluster.pool, topic, key, **options)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_long_partition_does_not_use_up_the_limit(bench: Bench) -> None:
    bench.store(0, *[Message(b"")] * 3 * ROUND_MESSAGES)
    bench.store(1, *[Message(b"")] * 10, Message(b"here", "k"))
    search = bench.by_key("k", limit=2 * ROUND_MESSAGES)
    assert [message.data for message in search] == [b"here"]
    assert (search.scanned, search.is_complete) == (2 * ROUND_MESSAGES, False)
    search = bench.by_key("k")
    assert (len(list(search)), search.scanned, search.is_complete) == (1, 3 * ROUND_MESSAGES + 11, True)


def test_connections_are_given_back_also_when_the_search_is_left(bench: Bench) -> None:
    for index in range(3):
        bench.store(index, *[Message(b"x", "k")] * 5)
    for _ in range(3):
        messages = iter(bench.by_key("k"))
        assert next(messages).partition == Partition(0, 0)
        messages.close()  # type: ignore[attr-defined]
    assert bench.cluster.transport.connections == 1


def test_attributes_that_are_no_text_are_passed_over(bench: Bench) -> None:
    bench.broker.partition("t", 0).append(encode_frame(1, FLAG_ATTRIBUTE, b"\0\0\0\1\xffbody"))
    bench.store(0, Message(b"x", "k"))
    assert [message.data for message in bench.by_key("k")] == [b"x"]


def test_rocketmqs_messages_are_found_by_key_and_decompressed(bench: Bench) -> None:
    head = encode_head(0, COMPRESSED, 1, bytes(8))
    frame = encode_stored(b"k", head, b"KEYS\x01one two\x02", zlib.compress(b"scones"), 9)
    bench.broker.partition("t", 0).append(frame)
    assert list(bench.by_key("k")) == [], "the tag is no key"
    (found,) = bench.by_key("two")
    assert (found.data, found.attribute, found.properties) == (b"scones", "k", {"KEYS": "one two"})
    assert list(Browser(bench.directory, bench.cluster.pool, "t")) == [found]


def test_damaged_bytes_end_the_search(bench: Bench) -> None:
    frame = bytearray(encode_frame(1, 0, b"body"))
    frame[-1] ^= 1
    bench.broker.partition("t", 0).append(bytes(frame))
    with pytest.raises(CorruptFrame, match="t/0-0 at offset 0"):
        list(bench.by_key("k"))


def test_topics_and_partitions_that_are_not_there(bench: Bench) -> None:
    with pytest.raises(TopicNotFound):
        list(bench.by_key("k", topic="none"))
    search = bench.by_key("k")
    assert (list(search), search.is_complete) == ([], True), "a topic without messages"
    bench.store(0, Message(b"x"))
    search = by_id(bench.directory, bench.cluster.pool, "t", 5 << 12)
    assert (list(search), search.scanned) == ([], 0), "no partition of broker 5"


def test_the_error_says_how_much_was_read() -> None:
    assert str(MessageNotFound("t", "with key 'k'")) == "topic 't': no message with key 'k'"
    assert str(MessageNotFound("t", "with key 'k'", 1200)).endswith("with key 'k', of 1,200 that were read")
