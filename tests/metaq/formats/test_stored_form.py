"""The stored form: what goes in comes out, and whatever is not built like it is a plain MetaQ message."""

from __future__ import annotations

import pytest
from examples import in_one_test

from metaq.errors import FieldError
from metaq.formats.frames import FLAG_ATTRIBUTE, Frame, encode_stored, walk
from metaq.formats.rocketmq.hosts import host_bytes
from metaq.formats.stored_form import STORED_FORM, StoredFields, encode_head, shown_attribute, split_attribute, tag_of

HOST_4 = host_bytes("10.1.2.3", 54321)
HOST_6 = host_bytes("2001:db8::1", 54321)


def only(frame: bytes) -> Frame:
    """The one frame."""
    (found,) = walk(frame)
    return found


def attribute_of(frame: Frame) -> bytes:
    """The raw attribute of a frame that has one."""
    return frame.body[4 : 4 + int.from_bytes(frame.body[:4])]


@in_one_test("host", [HOST_4, HOST_6])
@in_one_test("tag", ["", "tea", "标签", "a\x01b"])
@in_one_test("numbers", [(0, 0, 0, 0, 0), (-1, 0x301, 2**62, 16, -(2**63)), (2**31 - 1, 8, -5, -1, 9)])
def test_everything_comes_back_exactly(host: bytes, tag: str, numbers: tuple[int, int, int, int, int]) -> None:
    flag, sys_flag, born, times, prepared = numbers
    properties = f"KEYS\x01k1 k2\x02TAGS\x01{tag}\x02".encode()
    head = encode_head(flag, sys_flag, born, host, times, prepared)
    frame = only(encode_stored(tag_of(properties), head, properties, b"\x00body", 77))
    sys_flag |= 0x10 * (host == HOST_6)
    expected = StoredFields(tag.encode(), properties, flag, sys_flag, born, host, times, prepared)
    assert frame.intact
    assert frame.message_id == 77
    assert frame.flag == STORED_FORM
    assert split_attribute(frame.flag, attribute_of(frame)) == expected
    assert frame.body.endswith(b"\x00body")
    assert attribute_of(frame).decode().startswith(tag + "\x02"), "text, for MetaQ's clients"
    assert shown_attribute(frame.flag, attribute_of(frame)) == (tag.encode() or None)


@pytest.mark.parametrize(
    ("properties", "tag"),
    [
        (b"", b""),
        (b"TAGS\x01a", b"a"),
        (b"TAGS\x01a\x02TAGS\x01b\x02", b"b"),
        (b"TAGS\x01a\x02MYTAGS\x01b", b"a"),
        (b"MYTAGS\x01b", b""),
        (b"K\x01TAGS\x01b", b""),
        (b"TAGS\x01a\x02TAGS\x01\x02", b"a"),
        (b"TAGS\x01a\x01b\x02K\x01v", b"a\x01b"),
        (b"TAGS\x01", b""),
    ],
)
def test_the_tag_is_the_last_value_of_tags(properties: bytes, tag: bytes) -> None:
    assert tag_of(properties) == tag


def test_what_is_not_built_like_it_is_a_plain_attribute() -> None:
    head = encode_head(1, 2, 3, HOST_4)
    whole = b"tag" + head + b"K\x01v"
    assert split_attribute(STORED_FORM | 4, whole) is not None, "other bits have no meaning"
    wrong = [b"", b"tag", b"tag\x02", b"tag\x024", whole[:40], whole.replace(b"\x024", b"\x025"), b"\x02" + whole]
    wrong += [whole.replace(b"A", b"\xff", 1), b"tag\x026" + head[2:] + b"=" * 99, b"tag\x026" + b"A" * 64]
    for attribute in wrong:
        assert split_attribute(STORED_FORM, attribute) is None
        assert shown_attribute(STORED_FORM, attribute) == attribute
    assert split_attribute(FLAG_ATTRIBUTE, whole) is None
    assert shown_attribute(FLAG_ATTRIBUTE, whole) == whole


def test_bits_for_addresses_are_those_of_the_address() -> None:
    for host, bits in ((HOST_4, 0), (HOST_6, 0x10)):
        fields = split_attribute(STORED_FORM, encode_head(0, 0x31, 0, host))
        assert fields is not None
        assert fields.sys_flag == 0x01 | bits


@pytest.mark.parametrize("numbers", [(2**31, 0, 0), (0, -(2**31) - 1, 0), (0, 0, 2**63)])
def test_numbers_that_do_not_fit_are_refused(numbers: tuple[int, int, int]) -> None:
    with pytest.raises(FieldError, match="of the size of its field"):
        encode_head(*numbers, HOST_4)
    with pytest.raises(FieldError, match="born host"):
        encode_head(0, 0, 0, b"123")
