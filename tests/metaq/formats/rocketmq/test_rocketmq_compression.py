"""Compressed bodies: those of Java in all codecs, with the packages, with decompressors of the caller, and without."""

from __future__ import annotations

import sys
import zlib

import pytest
from recordings import lines

from metaq.errors import CodecMissing, CorruptRecord
from metaq.formats.rocketmq.compression import Compression, compress, decompress
from metaq.formats.rocketmq.records import read_record

RECORDS = {
    row["label"].replace(", sysFlag", ""): read_record(bytes.fromhex(row["record_hex"]), check_crc=False)
    for row in lines("records.jsonl")
    if "sysFlag" in row["label"]
}
BODY = b"z" * 5000
PACKAGES = {"LZ4": "lz4", "ZSTD": "zstandard"}


@pytest.mark.parametrize("name", RECORDS)
def test_what_java_compressed(name: str) -> None:
    if package := PACKAGES.get(name.split()[0]):
        pytest.importorskip(package, reason=f"the package {package} is not installed")
    assert RECORDS[name].value() == BODY


@pytest.mark.parametrize("name", RECORDS)
def test_a_limit(name: str) -> None:
    if package := PACKAGES.get(name.split()[0]):
        pytest.importorskip(package, reason=f"the package {package} is not installed")
    assert RECORDS[name].value(bytes_max=5000) == BODY
    with pytest.raises(CorruptRecord, match="decompressed it is longer than 4999 bytes"):
        RECORDS[name].value(bytes_max=4999)


@pytest.mark.parametrize("name", RECORDS)
def test_cut_off_and_damaged(name: str) -> None:
    if package := PACKAGES.get(name.split()[0]):
        pytest.importorskip(package, reason=f"the package {package} is not installed")
    record = RECORDS[name]
    for body in (record.body[:-3], b"x" * 30, b""):
        with pytest.raises(CorruptRecord, match="cannot decompress it"):
            record._replace(body=body).value()


@pytest.mark.parametrize(("codec", "package"), [(Compression.LZ4, "lz4"), (Compression.ZSTD, "zstandard")])
def test_a_missing_package_is_named(codec: Compression, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setitem(sys.modules, "lz4.frame", None)
    with pytest.raises(CodecMissing, match=f"compressed with {codec.name}; install the package '{package}'"):
        decompress(b"x", codec << 8 | 1)


def test_decompressors_of_the_caller() -> None:
    pyarrow = pytest.importorskip("pyarrow")

    def arrow(name: str, body: bytes, bytes_max: int) -> bytes:
        with pyarrow.input_stream(pyarrow.py_buffer(body), compression=name) as stream:
            return bytes(stream.read(bytes_max))

    codecs = {
        Compression.LZ4: lambda body, bytes_max: arrow("lz4", body, bytes_max),
        Compression.ZSTD: lambda body, bytes_max: arrow("zstd", body, bytes_max),
    }
    for record in RECORDS.values():
        assert record.value(codecs) == BODY
        with pytest.raises(CorruptRecord, match="longer than 10 bytes"):
            record.value(codecs, bytes_max=10)


def test_a_plain_body_is_left_alone() -> None:
    assert decompress(b"abc", 0x300) == b"abc"


def test_an_unknown_codec() -> None:
    with pytest.raises(CorruptRecord, match="its codec has the unknown number 5"):
        decompress(b"abc", 0x501)


def test_compressing_as_java_does() -> None:
    body, bits = compress(BODY)
    assert (body[:2].hex(), bits) == ("785e", 0x301)
    assert decompress(body, bits) == BODY
    assert zlib.decompress(body) == BODY
