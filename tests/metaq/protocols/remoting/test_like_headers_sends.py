"""Headers that are like one that was read before are read to the same command as any other way."""

from __future__ import annotations

import random

import pytest
from remoting_headers import UNUSUAL_OPAQUES, broken, check_changed_bytes, check_recorded, outcome

from metaq.protocols.remoting import send_headers
from metaq.protocols.remoting.json_header import read_json
from metaq.protocols.remoting.send_headers import SendHeaders


def header(born: str = "1795425834392", properties: str = "KEYS\\u0001k\\u0002TAGS\\u0001t", opaque: str = "5") -> str:
    return (
        f'{{"code":310,"extFields":{{"a":"P","b":"CT","e":"1","f":"0","g":"{born}","h":"0","i":"{properties}","j":"0"}},'
        f'"flag":0,"language":"JAVA","opaque":{opaque},"serializeTypeCurrentRPC":"JSON","version":407}}'
    )


@pytest.fixture
def headers() -> SendHeaders:
    """With one header that was read before."""
    made = SendHeaders()
    made.read(header().encode(), b"")
    assert len(made._kept) == 1
    return made


@pytest.mark.parametrize(
    "text",
    [
        header(),
        header("1", "", "0"),
        header("9" * 18, "标签\\u0001ü\\u0002 x", "999999999"),
        header("9" * 19),
        header("-1"),
        header("1.5"),
        header(""),
        header(properties='a\\"b'),
        header(properties='a\\",\\"j\\":\\"0'),
        header(properties="a\\\\u0001"),
        header(properties="a\\u00012\\u0003\\n\\\\"),
        header(properties="a\\"),
        header(properties="a\tb"),
        header(properties="a\x7f\u2028\xa0"),
        *(header(opaque=one) for one in UNUSUAL_OPAQUES),
        header(properties='b","i":"c'),
        header().replace('"a":"P"', '"a":"Q"'),
        header().replace('"extFields":{', '"extFields":{"g":"5","i":"6",'),
        header().replace(',"flag":0', ',"g":"5","i":"6","flag":0'),
        *broken(header()),
        header().replace('"h":"0",', ""),
    ],
)
def test_it_reads_what_any_header_is_read_to(headers: SendHeaders, text: str) -> None:
    for _ in range(3):  # with and without what was kept of the time before
        assert outcome(headers.read, text) == outcome(read_json, text)


def test_bytes_that_are_no_text_are_read_the_same(headers: SendHeaders) -> None:
    data = header().encode().replace(b"KEYS", b"\xff\xe6")
    assert outcome(headers.read, data) == outcome(read_json, data)


def test_a_changed_byte_changes_nothing_more_than_it_does_else(headers: SendHeaders) -> None:
    def some(dice: random.Random) -> str:
        return header(opaque=str(dice.randrange(1000)))

    check_changed_bytes(headers.read, some, b'",:{}\\0aig', seed=5)


def test_recorded_requests_are_read_the_same() -> None:
    headers = SendHeaders()
    sends = check_recorded(headers.read, (310,))
    assert sends > len(headers._kept) > 0, "those of one producer, topic and queue are kept once"


def test_few_headers_are_kept_and_only_short_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(send_headers, "KEPT_MAX", 3)
    headers = SendHeaders()
    for number in range(10):
        headers.read(header().replace('"b":"CT"', f'"b":"T{number}"').encode(), b"")
        assert len(headers._kept) <= 3
    headers._kept.clear()
    headers.read(header(properties="p" * 3000).encode(), b"")
    assert not headers._kept
