"""The state of one partition: bytes in any pieces, positions, retries, rollbacks, jumps and damage. Pure."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq.backends.metaq.fetch import AtEnd, Moved, Run
from metaq.backends.metaq.filtered import Filtered
from metaq.client.groups.deliveries import Delivery, HandedOut
from metaq.client.groups.partition import OwnedPartition, ReadSettings
from metaq.discovery.zk_layout import GroupOffset
from metaq.errors import BrokerError, CodecMissing, CorruptFrame
from metaq.formats.frames import HEADER_BYTES, encode_body, encode_frame, encode_stored, walk
from metaq.formats.rocketmq.compression import compress
from metaq.formats.rocketmq.sys_flags import COMPRESSED
from metaq.formats.stored_form import encode_head
from metaq.model import Message, Partition, TopicPartition

WHERE = TopicPartition("t", Partition(0, 0))
MESSAGES = [Message(b"one"), Message(b"", "kind"), Message(b"three", "other"), Message(b"4" * 100)]


class Nobody:
    def acknowledge(self, delivery: HandedOut) -> None:
        raise AssertionError


def log_of(messages: list[Message]) -> bytes:
    return b"".join(encode_frame(number + 10, *encode_body(one)) for number, one in enumerate(messages))


def owned(start: int = 0, **settings: object) -> OwnedPartition:
    return OwnedPartition(WHERE, GroupOffset(start), 1, ReadSettings("g", **settings), Nobody())  # type: ignore[arg-type]


def take(partition: OwnedPartition, now_s: float = 0.0) -> Delivery | None:
    return partition.take(now_s)


def feed(partition: OwnedPartition, log: bytes, pieces: int = 1 << 20, now_s: float = 0.0) -> list[Delivery]:
    """Serve a partition from ``log`` until it has all of it; what it hands out."""
    found: list[Delivery] = []
    while True:
        if (request := partition.request(now_s)) is not None:
            data = log[request.offset : request.offset + pieces]
            outcome = Run(request.offset, data) if data else AtEnd(request.offset, "end")
            assert partition.fetched(request, outcome, now_s) is None
            if not data:
                return found
        while (delivery := take(partition, now_s)) is not None:
            found.append(delivery)


@given(st.lists(st.sampled_from(MESSAGES), max_size=30), st.integers(1, 300))
def test_frames_come_whole_from_any_chunks(messages: list[Message], pieces: int) -> None:
    partition = owned(fetch_bytes=pieces)
    found = feed(partition, log_of(messages), pieces)
    assert [Message(one.data, one.attribute) for one in found] == messages
    assert [one.end for one in found[:-1]] == [one.offset for one in found[1:]]
    assert [one.message_id for one in found] == list(range(10, 10 + len(messages)))
    for one in found:
        assert partition.settle(one)
    assert partition.position == GroupOffset(len(log_of(messages)), found[-1].message_id if found else -1)


def test_the_position_is_that_of_the_first_message_that_is_not_settled() -> None:
    partition = owned()
    first, second, third, _ = feed(partition, log_of(MESSAGES))
    assert partition.position == GroupOffset(0)
    partition.settle(second)
    assert (partition.position, partition.in_hand) == (GroupOffset(0), 3)
    partition.settle(first)
    assert partition.position == GroupOffset(third.offset, second.message_id)


def test_a_rollback_hands_out_again_and_counts_the_first_message_only() -> None:
    partition, log = owned(), log_of(MESSAGES)
    deliveries = feed(partition, log)
    partition.settle(deliveries[0])
    assert partition.roll_back(5.0, lambda failures: failures * 1.0) == 3
    assert not partition.settle(deliveries[1]), "too late"
    assert partition.request(5.5) is None, "it waits before the next attempt"
    again = feed(partition, log, now_s=6.0)
    assert [(one.offset, one.attempt) for one in again] == [
        (deliveries[1].offset, 2),
        (deliveries[2].offset, 1),
        (deliveries[3].offset, 1),
    ]
    assert partition.position == GroupOffset(deliveries[1].offset, deliveries[0].message_id)


def test_a_retry_comes_before_anything_else_and_not_before_its_time() -> None:
    partition = owned()
    partition.fetched(partition.request(0.0), Run(0, log_of(MESSAGES)), 0.0)  # type: ignore[arg-type]
    first = take(partition)
    assert first is not None
    assert partition.retry(first, first, 3.0)
    assert take(partition, 2.9) is None
    assert partition.retry_s == 3.0
    assert take(partition, 3.0) is first
    assert take(partition, 3.0) is not None


def test_a_reply_to_a_request_from_before_a_rollback_is_dropped() -> None:
    partition = owned()
    partition.fetched(partition.request(0.0), Run(0, log_of(MESSAGES)), 0.0)  # type: ignore[arg-type]
    while take(partition) is not None:
        pass
    stale = partition.request(0.0)
    assert stale is not None
    partition.roll_back(0.0, lambda failures: 0.0)
    assert partition.fetched(stale, Run(stale.offset, b"not these"), 0.0) is None
    assert [one.data for one in feed(partition, log_of(MESSAGES))] == [one.payload for one in MESSAGES]


def test_a_jump_comes_behind_what_was_fetched_before() -> None:
    partition, log = owned(), log_of(MESSAGES)
    partition.fetched(partition.request(0.0), Run(0, log), 0.0)  # type: ignore[arg-type]
    assert take(partition) is not None
    request = partition.request(0.0)
    assert request is not None
    jump = partition.fetched(request, Moved(5000), 0.0)
    assert jump is not None
    assert (jump.asked, jump.to) == (len(log), 5000)
    assert len(list(iter(lambda: take(partition), None))) == 3
    assert take(partition) is None
    request = partition.request(0.0)
    assert request is not None
    assert request.offset == 5000


def test_an_idle_partition_is_asked_less_and_less_often() -> None:
    partition, now_s, pauses = owned(poll_max_s=1.0), 0.0, []
    for _ in range(14):
        request = partition.request(now_s)
        assert request is not None
        assert partition.request(now_s) is None
        partition.fetched(request, AtEnd(0, ""), now_s)
        due_s = partition.next_request_s()
        assert due_s is not None
        pauses.append(round(due_s - now_s, 3))
        now_s = due_s
    assert pauses == [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.0, 1.0, 1.0, 1.0]


def test_a_refusal_and_a_broker_that_is_away_cost_a_pause() -> None:
    partition = owned()
    for outcome in (BrokerError("a", "get", 403, "closed"), None):
        request = partition.request(10.0)
        assert request is not None
        partition.fetched(request, outcome, 0.0)
        assert partition.next_request_s() != 0.0


def test_nothing_is_handed_out_of_a_partition_that_is_to_be_released() -> None:
    partition = owned()
    partition.fetched(partition.request(0.0), Run(0, log_of(MESSAGES)), 0.0)  # type: ignore[arg-type]
    first = take(partition)
    assert first is not None
    partition.revoking = True
    assert (take(partition), partition.request(0.0)) == (None, None)
    assert partition.settle(first)
    partition.lost = True
    assert not partition.settle(first)


def test_types_are_kept_whether_the_broker_selects_or_not() -> None:
    log = log_of(MESSAGES)
    partition = owned(types=("kind",))
    assert [one.attribute for one in feed(partition, log)] == ["kind"]
    selected = owned(types=("kind",))
    request = selected.request(0.0)
    assert request is not None
    kept = [frame for frame in walk(log) if frame.message.attribute == "kind"]
    selected.fetched(request, Filtered(kept, len(log)), 0.0)
    delivery = take(selected)
    assert delivery is not None
    assert delivery.offset == kept[0].offset
    selected.settle(delivery)
    assert take(selected) is None
    assert selected.position.offset == len(log), "past the messages that were left out"


def damaged(at: int) -> bytes:
    log = bytearray(log_of(MESSAGES))
    offsets = [frame.offset for frame in walk(bytes(log))]
    log[offsets[at] + HEADER_BYTES] ^= 1
    return bytes(log)


def test_a_damaged_message_is_an_error_each_time_it_is_met() -> None:
    partition = owned()
    partition.fetched(partition.request(0.0), Run(0, damaged(2)), 0.0)  # type: ignore[arg-type]
    assert [take(partition), take(partition)] != [None, None]
    for _ in range(3):
        with pytest.raises(CorruptFrame, match="t/0-0"):
            take(partition)


def test_a_damaged_message_can_be_left_out() -> None:
    found = feed(owned(skip_corrupt=True), damaged(2))
    assert [one.data for one in found] == [MESSAGES[0].payload, MESSAGES[1].payload, MESSAGES[3].payload]


@pytest.mark.parametrize("number", range(len(MESSAGES)))
def test_damage_in_a_frame_that_runs_cut_anywhere(number: int) -> None:
    log = damaged(number)
    ends = [frame.end for frame in walk(log, verify=False)]
    for pieces in range(1, len(log)):
        found = feed(owned(skip_corrupt=True, fetch_bytes=pieces), log, pieces)
        assert [one.end for one in found] == ends[:number] + ends[number + 1 :], pieces
        partition = owned(fetch_bytes=pieces)
        with pytest.raises(CorruptFrame) as failed:
            feed(partition, log, pieces)
        assert failed.value.offset == [0, *ends][number], pieces
        with pytest.raises(CorruptFrame):
            take(partition)


def test_an_attribute_that_its_body_cannot_have_is_damage_too() -> None:
    log = encode_frame(1, 1, b"\x00\x00\x00\x63x") + log_of(MESSAGES)
    partition = owned()
    partition.fetched(partition.request(0.0), Run(0, log), 0.0)  # type: ignore[arg-type]
    for _ in range(2):
        with pytest.raises(CorruptFrame, match="attribute length 99"):
            take(partition)
    assert len(feed(owned(skip_corrupt=True), log)) == len(MESSAGES)


def test_a_length_that_no_frame_has_is_an_error_even_if_damage_is_left_out() -> None:
    for length in (b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff"):
        partition = owned(skip_corrupt=True)
        partition.fetched(partition.request(0.0), Run(0, length + bytes(30)), 0.0)  # type: ignore[arg-type]
        with pytest.raises(CorruptFrame, match="body length"):
            take(partition)


def of_rocketmq(body: bytes, sys_flag: int) -> bytes:
    """Return the frame of a message that a RocketMQ client sent."""
    return encode_stored(b"tag", encode_head(0, sys_flag, 1, bytes(8)), b"TAGS\x01tag\x02KEYS\x01k\x02", body, 9)


@pytest.mark.parametrize("types", [None, frozenset({"tag"})])
def test_a_message_of_rocketmq_has_its_tag_its_properties_and_its_own_data(types: frozenset[str] | None) -> None:
    log = of_rocketmq(*compress(b"one" * 50)) + of_rocketmq(b"two", 0) + log_of([Message(b"3", "tag")])
    found = feed(owned() if types is None else owned(types=types), log, 50)
    assert [(one.data, one.attribute) for one in found] == [(b"one" * 50, "tag"), (b"two", "tag"), (b"3", "tag")]
    own = {"TAGS": "tag", "KEYS": "k"}
    assert [one.properties for one in found] == [own, own, None]
    assert found[0].again().properties == own


def test_a_body_that_cannot_be_decompressed_is_damage_too() -> None:
    log = log_of(MESSAGES[:1]) + of_rocketmq(b"no zlib", compress(b"")[1]) + log_of(MESSAGES)
    partition = owned()
    partition.fetched(partition.request(0.0), Run(0, log), 0.0)  # type: ignore[arg-type]
    assert take(partition) is not None
    for _ in range(2):
        with pytest.raises(CorruptFrame, match="t/0-0 at offset 23: body: ZLIB cannot decompress it"):
            take(partition)
    assert len(feed(owned(skip_corrupt=True), log)) == 1 + len(MESSAGES)


def test_a_missing_codec_is_no_damage_that_may_be_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    frames = log_of(MESSAGES[:1]) + of_rocketmq(b"body", COMPRESSED | 2 << 8)
    for fetched in (Run(0, frames + log_of(MESSAGES)), Filtered(list(walk(frames)), len(frames))):
        partition = owned(skip_corrupt=True)
        partition.fetched(partition.request(0.0), fetched, 0.0)  # type: ignore[arg-type]
        assert take(partition) is not None
        for _ in range(2):
            with pytest.raises(CodecMissing, match="install the package"):
                take(partition)


def test_seeking_forgets_what_is_in_hand() -> None:
    partition, log = owned(), log_of(MESSAGES)
    deliveries = feed(partition, log)
    partition.seek(deliveries[3].offset)
    assert [one.offset for one in feed(partition, log, now_s=9.0)] == [deliveries[3].offset]
    assert not partition.settle(deliveries[0])
