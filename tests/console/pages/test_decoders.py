"""What a page shows of the bytes of a message."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import tracemalloc
import zlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from metaq_console.pages.decoders import (
    DECODERS,
    INFLATED_MAX,
    PREVIEW_CHARS,
    SHOWN_CHARS,
    TRIED_BYTES,
    decode,
    preview,
    visible,
)

CHINESE = "订单已付款，请发货。"


@pytest.mark.parametrize(
    ("value", "decoder", "text"),
    [
        (b"one tea", "utf-8", "one tea"),
        (CHINESE.encode(), "utf-8", CHINESE),
        (CHINESE.encode("gbk"), "gb18030", CHINESE),
        (CHINESE.encode("gb18030"), "gb18030", CHINESE),
        (CHINESE.encode("utf-16"), "utf-16", CHINESE),
        (b'{"a":[1,"\xe8\xae\xa2"]}', "json", '{\n  "a": [\n    1,\n    "订"\n  ]\n}'),
        (b"{not json", "utf-8", "{not json"),
        (b"", "utf-8", ""),
        (bytes(range(128, 144)) * 2, "hex", None),
    ],
)
def test_the_kind_of_a_value_is_recognized(value: bytes, decoder: str, text: str | None) -> None:
    found = decode(value)
    assert found.decoder == decoder
    assert text is None or found.text == text
    assert not found.is_cut


@pytest.mark.parametrize("encoding", ["gb18030", "big5", "utf-16"])
def test_an_encoding_can_be_chosen(encoding: str) -> None:
    text = "訂單"
    assert decode(text.encode(encoding), encoding).text == text


def test_what_a_decoder_cannot_read_is_shown_in_hexadecimal() -> None:
    found = decode(b"\xff\xff", "json")
    assert (found.decoder, found.text) == ("hex", f"000000  ff ff{' ' * 45}..")


@pytest.mark.parametrize(
    ("name", "packed"),
    [
        ("gzip", gzip.compress(b'{"tea": 1}', mtime=0)),
        ("zlib", zlib.compress(b'{"tea": 1}')),
        ("bzip2", bz2.compress(b'{"tea": 1}')),
        ("xz", lzma.compress(b'{"tea": 1}')),
    ],
)
def test_what_is_compressed_is_unpacked(name: str, packed: bytes) -> None:
    found = decode(packed)
    assert (found.packing, found.decoder, json.loads(found.text)) == (name, "json", {"tea": 1})


@pytest.mark.parametrize(("name", "module"), [("lz4", "lz4.frame"), ("zstd", "zstandard")])
def test_more_is_unpacked_where_packages_are_installed(name: str, module: str) -> None:
    packed = pytest.importorskip(module).compress(b"one tea")
    assert (decode(packed).packing, decode(packed).text) == (name, "one tea")


@pytest.mark.parametrize("value", [b"x^", b"x^2 + y", b"BZh", b"\x1f\x8b\x08", b"\x28\xb5\x2f\xfd"])
def test_what_only_begins_like_compressed_is_shown_as_it_is(value: bytes) -> None:
    assert decode(value).packing == ""


@pytest.mark.parametrize("pack", [gzip.compress, zlib.compress, bz2.compress, lzma.compress])
def test_a_small_value_that_unpacks_to_much_is_cut(pack: object) -> None:
    found = decode(pack(bytes(8 * INFLATED_MAX)), "text")  # type: ignore[operator]
    assert found.is_cut
    assert len(found.text) == SHOWN_CHARS


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_json_is_indented_only_as_far_as_it_is_shown(pack: Callable[[bytes], bytes]) -> None:
    value = pack(b"[" * 400 + b"0," * 20_000 + b"0" + b"]" * 400)
    tracemalloc.start()
    try:
        found = decode(value)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (found.decoder, found.is_cut, len(found.text)) == ("json", True, SHOWN_CHARS)
    assert found.text.startswith("[\n  [\n    [\n")
    assert peak < 4 << 20, "all of it has 16 MB"


def test_in_a_row_of_a_table_less_is_unpacked_and_parsed() -> None:
    value = gzip.compress(b"[" + b"[], " * TRIED_BYTES + b"[]]")
    assert decode(value).decoder == "json"
    found = preview(value)
    assert (found.decoder, found.packing, found.is_cut, found.text[:8]) == ("utf-8", "gzip", True, "[[], [],")


def test_a_long_value_is_cut() -> None:
    found = decode("订".encode() * (1 << 20))
    assert (found.decoder, found.is_cut, len(found.text)) == ("utf-8", True, SHOWN_CHARS)
    assert decode(b"\xff" * (4 << 20), "hex").is_cut


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("one\ttea\n", "one\ttea\n"),
        ("a\0b", "a[U+0000]b"),
        ("\x1b[31m", "[U+001B][31m"),
        ("a\u202eb", "a[U+202E]b"),
        ("a\u2066b\u200bc", "a[U+2066]b[U+200B]c"),
        ("\x7f", "[U+007F]"),
        (CHINESE, CHINESE),
    ],
)
def test_hidden_characters_are_made_visible(text: str, shown: str) -> None:
    assert visible(text) == shown


def test_a_preview_is_one_short_line() -> None:
    found = preview(b"one\n  tea\n" * 1000)
    assert found.text.startswith("one tea one tea")
    assert len(found.text) == PREVIEW_CHARS
    assert found.is_cut


@given(st.binary(max_size=400), st.sampled_from(sorted(DECODERS)))
def test_any_bytes_can_be_shown(value: bytes, decoder: str) -> None:
    for found in (decode(value, decoder), preview(value, decoder)):
        assert len(found.text) <= SHOWN_CHARS
        assert "\0" not in found.text
        found.text.encode()
