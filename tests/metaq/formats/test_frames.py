"""Frames: the layout byte for byte, runs with cut tails, and headers and attributes that cannot be."""

from __future__ import annotations

import struct

import pytest
from examples import in_one_test
from hypothesis import given
from hypothesis import strategies as st

from metaq.errors import CorruptFrame
from metaq.formats.checksum import checksum
from metaq.formats.frames import (
    FLAG_ATTRIBUTE,
    HEADER_BYTES,
    PASSED_MAX,
    Frame,
    PassedFrames,
    attribute_span,
    encode_body,
    encode_frame,
    encode_message,
    encode_stored,
    frame_bytes,
    header_at,
    intact,
    message_id_at,
    pack_header,
    pass_whole,
    require_length,
    search,
    walk,
    whole_bytes,
    whole_tail,
)
from metaq.model import Message

# Two frames that MetaQ's own protocol page prints (the second with the F that the page lost).
PLAIN = bytes.fromhex("00000004 52b025a9 b41ada94d0000000 00000000") + b"FFFF"
WITH_ATTRIBUTE = bytes.fromhex("0000000b 55179a47 b41adc9886c00000 00000001 00000003") + b"AAAFFFF"


class TestTheTwoFramesOfTheProtocolPage:
    def test_read(self) -> None:
        plain, attribute = walk(PLAIN + WITH_ATTRIBUTE)
        assert plain == Frame(0, -0x4BE5256B30000000, 0, 0x52B025A9, b"FFFF")
        assert plain.message == Message(b"FFFF")
        assert attribute == Frame(24, -0x4BE5236779400000, 1, 0x55179A47, b"\0\0\0\3AAAFFFF")
        assert attribute.message == Message(b"FFFF", "AAA")
        assert (plain.end, attribute.end) == (24, 55)

    def test_write(self) -> None:
        for message, bytes_, message_id in (
            (Message(b"FFFF"), PLAIN, -0x4BE5256B30000000),
            (Message(b"FFFF", "AAA"), WITH_ATTRIBUTE, -0x4BE5236779400000),
        ):
            assert encode_frame(message_id, *encode_body(message)) == bytes_


@pytest.mark.parametrize(
    ("message", "flag", "body"),
    [
        (Message(b""), 0, b""),
        (Message(b"x"), 0, b"x"),
        (Message(b"x", ""), 1, b"\0\0\0\0x"),
        (Message(b"", ""), 1, b"\0\0\0\0"),
        (Message(b"", "ab"), 1, b"\0\0\0\2ab"),
        (Message("消息".encode(), "属性"), 1, b"\0\0\0\6" + "属性消息".encode()),
    ],
)
def test_a_message_is_its_body_and_back(message: Message, flag: int, body: bytes) -> None:
    assert encode_body(message) == (flag, body)
    (frame,) = walk(encode_frame(5, flag, body))
    assert frame.message == message


def test_other_flag_bits_are_kept_and_mean_nothing() -> None:
    for flag in (2, -2, 6, 2**31 - 2, -(2**31)):
        (frame,) = walk(encode_frame(5, flag, b"\0\0\0\1ax"))
        assert frame.flag == flag
        assert frame.message == Message(b"\0\0\0\1ax")
    (frame,) = walk(encode_frame(5, 7, b"\0\0\0\1ax"))
    assert (frame.flag, frame.message) == (7, Message(b"x", "a"))


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "only 0 bytes"),
        (b"\0\0\0", "only 3 bytes"),
        (b"\0\0\0\1", "attribute length 1 in a body of 4"),
        (b"\0\0\0\5abcd", "attribute length 5 in a body of 8"),
        (b"\xff\xff\xff\xffabcd", "attribute length -1"),
        (b"\x80\0\0\0abcd", "attribute length -2147483648"),
        (b"\x7f\xff\xff\xffabcd", "attribute length 2147483647"),
        (b"\0\0\0\2\xc3\x28x", "UTF-8"),
    ],
)
def test_an_impossible_attribute_is_reported_when_the_message_is_asked_for(body: bytes, reason: str) -> None:
    (frame,) = walk(encode_frame(5, FLAG_ATTRIBUTE, body), 1000)
    assert frame.intact
    with pytest.raises(CorruptFrame, match=reason) as error:
        _ = frame.message
    assert error.value.offset == 1000


RUN = b"".join(encode_frame(n, 0, b"x" * n) for n in (3, 0, 40, 7))
STARTS = [0, 23, 43, 103, 130]


def test_a_run_cut_anywhere_gives_its_whole_frames() -> None:
    for cut in range(len(RUN) + 1):
        whole = max(start for start in STARTS if start <= cut)
        assert whole_bytes(RUN[:cut]) == whole
        assert [frame.end for frame in walk(RUN[:cut])] == [start for start in STARTS[1:] if start <= whole]


def test_offsets_count_from_the_base() -> None:
    frames = list(walk(RUN, 10**15))
    assert [frame.offset - 10**15 for frame in frames] == STARTS[:-1]
    assert [frame.end - 10**15 for frame in frames] == STARTS[1:]
    assert [frame.message_id for frame in frames] == [3, 0, 40, 7]


def test_any_buffer_is_a_run_and_bodies_are_bytes() -> None:
    for kind in (bytes, bytearray, memoryview):
        assert whole_bytes(kind(RUN)) == len(RUN)
        assert [type(frame.body) for frame in walk(kind(RUN))] == [bytes] * 4
        assert encode_frame(3, 0, kind(b"xxx")) == RUN[:23]


def test_zeros_are_empty_frames() -> None:
    """So a reader of files must know where the written part ends: the walk cannot tell."""
    assert [frame.end for frame in walk(bytes(50))] == [20, 40]
    assert whole_bytes(bytes(50)) == 40


def test_one_flipped_bit_in_a_body_or_its_checksum_is_found() -> None:
    run = b"".join(encode_frame(n, 0, b"payload %d" % n) for n in range(3))
    length = len(run) // 3
    for at in [*range(length + 4, length + 8), *range(length + HEADER_BYTES, 2 * length)]:
        damaged = bytearray(run)
        damaged[at] ^= 0x10
        frames = walk(damaged, 500, where="orders/0-1")
        assert next(frames).offset == 500
        with pytest.raises(CorruptFrame, match="checksum") as error:
            next(frames)
        assert (error.value.where, error.value.offset) == ("orders/0-1", 500 + length)


def test_checksums_can_be_left_to_the_caller() -> None:
    damaged = bytearray(RUN)
    damaged[HEADER_BYTES] ^= 1
    assert [frame.intact for frame in walk(damaged, verify=False)] == [False, True, True, True]


def test_a_negative_length_stops_everything() -> None:
    for length in (-1, -20, -(2**31)):
        run = RUN[:23] + struct.pack(">iiqi", length, 0, 1, 0) + b"abc"
        frames = walk(run, 100)
        assert next(frames).offset == 100
        with pytest.raises(CorruptFrame, match=f"body length {length}") as error:
            next(frames)
        assert error.value.offset == 123
        with pytest.raises(CorruptFrame, match=f"body length {length}"):
            whole_bytes(run)


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(RUN[:-1], id="cut in its body"),
        pytest.param(RUN[:110], id="cut in its header"),
        pytest.param(RUN[:103] + b"\xff" + RUN[104:], id="negative length"),
        pytest.param(RUN[:-1] + b"y", id="wrong checksum"),
    ],
)
def test_intact_frames_end_before_one_that_is_not(wrong: bytes) -> None:
    expected = [(frame.end, frame.message_id, frame.flag, frame.checksum, frame.body) for frame in walk(RUN)]
    assert list(intact(wrong)) == expected[:3]
    assert list(intact(wrong, 43)) == expected[2:3]
    assert list(intact(RUN)) == expected


@pytest.mark.parametrize(
    ("start", "end", "frames_max", "expected"),
    [
        (0, None, 9, (130, 4)),
        (23, None, 9, (130, 3)),
        (0, None, 2, (43, 2)),
        (0, None, 0, (0, 0)),
        (0, 103, 9, (103, 3)),
        (0, 102, 9, (43, 2)),
        (0, 1000, 9, (130, 4)),
    ],
)
def test_frames_are_passed_by_their_lengths(
    start: int, end: int | None, frames_max: int, expected: tuple[int, int]
) -> None:
    for kind in (bytes, bytearray, memoryview):
        assert pass_whole(kind(RUN), start, end, frames_max) == expected


def test_a_frame_with_only_a_header_is_passed_before_a_known_end() -> None:
    assert pass_whole(RUN[:63], 0, 103) == (103, 3)
    assert pass_whole(RUN[:62], 0, 103) == (43, 2)


def test_a_negative_length_is_reported_where_the_run_begins() -> None:
    run = RUN[:43] + pack_header(-3, 0, 1, 0)
    assert pass_whole(run) == (43, 2)
    require_length(run, 23)
    require_length(run[:-1], 43)
    with pytest.raises(CorruptFrame, match="body length -3") as error:
        require_length(run, 43, 500, "orders/0-1")
    assert (error.value.where, error.value.offset) == ("orders/0-1", 543)


def test_a_header_is_read_as_it_is() -> None:
    fields = (-5, -1, -(2**63), 2**31 - 1)
    data = b"ab" + pack_header(*fields)
    assert header_at(data, 2) == fields
    assert header_at(data, 2).frame_bytes == frame_bytes(data, 2) == HEADER_BYTES - 5
    assert message_id_at(data, 2) == -(2**63)


def test_the_span_of_an_attribute_is_that_of_its_bytes() -> None:
    frame = b"ab" + encode_message(b"payload", "type")
    assert frame[slice(*attribute_span(frame, 2))] == b"type"


def test_a_known_checksum_is_written_as_it_is() -> None:
    assert encode_frame(1, 0, b"abc", checksum(b"abc")) == encode_frame(1, 0, b"abc")
    (frame,) = walk(encode_frame(1, 0, b"abc", 5), verify=False)
    assert (frame.checksum, frame.intact) == (5, False)


@pytest.mark.parametrize("numbers", [(2**63, 0, 5), (-(2**63) - 1, 0, 5), (1, 2**31, 5), (1, 0, 2**31)])
def test_numbers_that_do_not_fit_are_refused(numbers: tuple[int, int, int]) -> None:
    message_id, flag, crc = numbers
    with pytest.raises(ValueError, match="does not fit its header"):
        encode_frame(message_id, flag, b"", crc)


def test_an_attribute_that_is_no_text_is_refused() -> None:
    with pytest.raises(ValueError, match="surrogates"):
        encode_body(Message(b"", "\ud800"))


class TestTheTailOfARun:
    """Frames are found from their end, in a run that begins anywhere."""

    ONE, TWO = (encode_frame(number, 0, b"order %d" % number) for number in (1, 2))

    @in_one_test("cut", range(len(ONE)))
    def test_it_is_found_behind_a_cut_frame(self, cut: int) -> None:
        run = self.ONE[cut:] + self.TWO
        assert whole_tail(run) == ([0] if cut == 0 else []) + [len(self.ONE) - cut]

    def test_a_frame_inside_a_payload_is_none_of_the_run(self) -> None:
        outer = encode_frame(3, 0, b"x" + self.ONE + b"y")
        assert whole_tail(outer[4:] + self.TWO) == [len(outer) - 4]

    def test_zeros_are_no_frames(self) -> None:
        zeroed = encode_frame(4, 0, bytes(200))
        assert whole_tail(zeroed[1:]) == []
        assert whole_tail(self.ONE + zeroed) == [0, len(self.ONE)]

    def test_a_run_without_an_end_has_none(self) -> None:
        assert whole_tail(self.ONE + self.TWO[:-1]) == []
        assert whole_tail(b"") == []


BODIES = st.lists(st.binary(max_size=12) | st.sampled_from([b"tea", b"a cup of tea", b"te", b"a"]), max_size=40)


@given(BODIES, st.lists(st.sampled_from([b"tea", b"a", b"\0\0", b"none"]), min_size=1, max_size=3), st.integers(0, 30))
def test_a_search_yields_what_may_match_and_passes_the_rest(
    bodies: list[bytes], needles: list[bytes], cut: int
) -> None:
    run = b"".join(encode_frame(number, 0, body) for number, body in enumerate(bodies))
    run = run[: max(0, len(run) - cut)]
    there = list(walk(run, 1000))
    found = list(search(run, needles, 1000))
    frames = [one for one in found if isinstance(one, Frame)]
    assert [one for one in there if any(needle in one.body for needle in needles) and one not in frames] == []
    assert [one for one in frames if one not in there] == []
    position = read = size = 0
    for one in found:
        position = one.end
        read += one.frames if isinstance(one, PassedFrames) else 1
        size += one.body_bytes if isinstance(one, PassedFrames) else len(one.body)
    assert (read, size) == (len(there), sum(len(one.body) for one in there))
    assert position == (there[-1].end if there else 0)


def test_a_search_says_now_and_then_how_far_it_is() -> None:
    run = encode_message(b"x") * (2 * PASSED_MAX + 1)
    assert [one.frames for one in search(run, [b"y"]) if isinstance(one, PassedFrames)] == [PASSED_MAX, PASSED_MAX, 1]
    [few] = search(run, [b"y"], frames_max=3)
    assert isinstance(few, PassedFrames)
    assert (few.frames, few.end, few.body_bytes) == (3, 63, 3)
    assert len(list(search(run, [b"x"], frames_max=3))) == 3


def test_a_search_finds_damage_in_what_it_passes() -> None:
    run = bytearray(encode_message(b"one") + encode_message(b"two"))
    run[-1] ^= 1
    with pytest.raises(CorruptFrame, match="checksum"):
        list(search(bytes(run), [b"none"]))


def test_a_search_does_not_look_into_messages_that_may_be_compressed() -> None:
    packed = encode_stored(b"", b"head", b"", b"packed")
    assert [type(one) for one in search(packed, [b"none"])] == [Frame]
