"""Payloads and images: what was sent is recognised, and any change to it is."""

from __future__ import annotations

import pytest
from examples import in_one_test
from hypothesis import given
from hypothesis import strategies as st

from faults.payload import PAYLOAD_BYTES_MIN, MessageKey, PayloadFault, make_payload, read_payload
from faults.stored import PartitionKey, image_of
from metaq.formats.frames import encode_body, encode_frame
from metaq.model import Message

PLACE = PartitionKey("orders", 0)
KEYS = [MessageKey("producer-1", sequence) for sequence in range(12)]
LENGTHS = (PAYLOAD_BYTES_MIN, 100, 1000, 70_000)
MESSAGES = [Message(make_payload(KEYS[n], 64 + n), "word" if n % 2 else None) for n in range(4)]
FRAMES = [encode_frame(number, *encode_body(message)) for number, message in enumerate(MESSAGES)]


@in_one_test("length", LENGTHS)
@in_one_test("key", KEYS)
def test_a_payload_contains_its_key(key: MessageKey, length: int) -> None:
    payload = make_payload(key, length)
    assert len(payload) == length
    assert read_payload(payload) == key


@given(position=st.integers(0, 199), change=st.integers(1, 255), key=st.sampled_from(KEYS))
def test_any_changed_byte_is_noticed(position: int, change: int, key: MessageKey) -> None:
    payload = bytearray(make_payload(key, 200))
    payload[position] ^= change
    with pytest.raises(PayloadFault):
        read_payload(bytes(payload))


def test_any_cut_is_noticed() -> None:
    for length in range(100):
        with pytest.raises(PayloadFault):
            read_payload(make_payload(KEYS[0], 100)[:length])


@pytest.mark.parametrize("piece", [1, 7, 50, 1000])
def test_an_image_is_the_same_however_the_bytes_come(piece: int) -> None:
    run = b"".join(FRAMES)
    image = image_of(PLACE, 0, len(run), [run[i : i + piece] for i in range(0, len(run), piece)])
    assert [frame.key for frame in image.frames] == KEYS[:4]
    assert [frame.offset for frame in image.frames] == [0, *(frame.end for frame in image.frames)][:4]
    assert image.fault == ""


def test_an_image_says_what_stopped_it() -> None:
    run = b"".join(FRAMES)
    assert "no whole frame" in image_of(PLACE, 0, len(run) - 3, [run[:-3]]).fault
    assert "not at" in image_of(PLACE, 0, len(run) + 20, [run]).fault
    damaged = bytearray(run)
    damaged[len(FRAMES[0]) + 30] ^= 1
    image = image_of(PLACE, 0, len(run), [bytes(damaged)])
    assert image.fault.startswith("corrupt frame in orders-0 at offset ")
    assert [frame.key for frame in image.frames] == KEYS[:1]
