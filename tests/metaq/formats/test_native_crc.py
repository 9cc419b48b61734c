"""The C function at the address gives zlib's CRC-32; whatever else is there is refused."""

from __future__ import annotations

import ctypes
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from random import Random
from types import SimpleNamespace

import pytest

from metaq.formats import native_crc


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Look the function up anew, and again after the test."""
    for cached in (native_crc.crc32_address, native_crc.crc32_function):
        cached.cache_clear()
    yield
    for cached in (native_crc.crc32_address, native_crc.crc32_function):
        cached.cache_clear()


def test_it_is_zlibs() -> None:
    address = native_crc.crc32_address()
    assert address, "the test environment has isal"
    function = ctypes.CFUNCTYPE(ctypes.c_uint32, ctypes.c_uint32, ctypes.c_char_p, ctypes.c_uint64)(address)
    random = Random(7)
    for length in (0, 1, 3, 20, 99, 511, 4096, 70_001):
        data = random.randbytes(length)
        assert function(0, data, length) == zlib.crc32(data)


@pytest.mark.parametrize("isal", ["with isal", "without"])
def test_blocks_of_any_length_in_any_memory(isal: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if isal == "without":
        monkeypatch.setitem(sys.modules, "isal", None)
    random, least = Random(8), native_crc.BLOCK_BYTES_MIN
    for length in (0, 1, least - 1, least, least + 1, 3 * least + 5):
        data = random.randbytes(length)
        known, continued = zlib.crc32(data), zlib.crc32(data, 12345)
        buffers = (data, bytearray(data), memoryview(data), memoryview(bytearray(b"x" + data))[1:])
        assert [native_crc.crc32_of_block(each) for each in buffers] == [known] * len(buffers)
        assert [native_crc.crc32_of_block(each, 12345) for each in buffers] == [continued] * len(buffers)


def test_without_isal_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "isal", None)
    assert native_crc.crc32_address() == 0
    with pytest.raises(ImportError, match="isal is not installed, or exports no CRC-32"):
        native_crc.required_crc32()


@pytest.mark.parametrize("symbol", ["nothing_of_this_name", "crc32_ieee"])
def test_a_missing_or_another_function_is_refused(symbol: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """``crc32_ieee`` is isal's as well, with the bits in another order."""
    monkeypatch.setattr(native_crc, "_SSE", symbol)
    assert _fresh_address() == _symbol("crc32_gzip_refl")
    monkeypatch.setattr(native_crc, "_ANY_PROCESSOR", symbol)
    assert _fresh_address() == 0


def test_the_sse_function_is_taken_where_the_processor_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It leaves the vector registers as they were. The other one finds out by itself what the processor has."""
    processor, features_here = tmp_path / "cpuinfo", native_crc._processor_features()
    monkeypatch.setattr(native_crc, "_PROCESSOR", processor)
    without_file = _fresh_address()
    processor.write_text("processor : 0\nflags\t\t: fpu sse4_1\n")
    assert _fresh_address() == without_file == _symbol("crc32_gzip_refl")
    if features_here >= native_crc._SSE_FEATURES:  # else trying it would end the process
        processor.write_text("processor : 0\nflags\t\t: fpu sse4_1 pclmulqdq\n")
        assert _fresh_address() == _symbol("crc32_gzip_refl_by8")


def _fresh_address() -> int:
    native_crc.crc32_address.cache_clear()
    return native_crc.crc32_address()


def _symbol(name: str) -> int | None:
    isal_zlib = pytest.importorskip("isal.isal_zlib")
    return ctypes.cast(ctypes.CDLL(isal_zlib.__file__)[name], ctypes.c_void_p).value


def test_a_library_that_cannot_be_loaded_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "isal", SimpleNamespace(isal_zlib=SimpleNamespace(__file__="/nowhere.so")))
    assert native_crc.crc32_address() == 0
