"""Headers of pulls that are like one that was read before are read to the same command as any other way."""

from __future__ import annotations

import random

import pytest
from remoting_headers import UNUSUAL_OPAQUES, broken, check_changed_bytes, check_recorded, outcome

from metaq.protocols.remoting import pull_headers
from metaq.protocols.remoting.json_header import read_json
from metaq.protocols.remoting.pull_headers import LikePull, PullHeaders


def header(commit: str = "0", queue: str = "32", opaque: str = "5", code: int = 11) -> str:
    return (
        f'{{"code":{code},"extFields":{{"queueId":"1","maxMsgNums":"32","sysFlag":"2","commitOffset":"{commit}",'
        f'"topic":"CT","queueOffset":"{queue}","expressionType":"TAG","consumerGroup":"G"}},"flag":0,'
        f'"language":"JAVA","opaque":{opaque},"serializeTypeCurrentRPC":"JSON","version":407}}'
    )


def other_order() -> str:
    return (
        header("7", "8")
        .replace("commitOffset", "x")
        .replace("queueOffset", "commitOffset")
        .replace('"x"', '"queueOffset"')
    )


@pytest.fixture
def headers() -> PullHeaders:
    """With one header that was read before."""
    made = PullHeaders()
    made.read(header().encode(), b"")
    assert len(made._kept) == 1
    return made


@pytest.mark.parametrize(
    "text",
    [
        header(),
        header("9" * 18, "123456789012345678", "999999999"),
        header(code=361),
        header(code=10),
        other_order(),
        header("9" * 19),
        header(queue="9" * 19),
        header("-1", "-1"),
        header("007", "00"),
        header("", ""),
        header("٣", "٣"),
        header(queue='1","queueOffset":"2'),
        *(header(opaque=one) for one in UNUSUAL_OPAQUES),
        header().replace('"topic":"CT"', '"topic":"C\\"T"'),
        header().replace('"extFields":{', '"extFields":{"commitOffset":"5","queueOffset":"6",'),
        header().replace(',"flag":0', ',"queueOffset":"5","flag":0'),
        header().replace('"queueOffset":"32",', ""),
        header().replace('"32"', "32"),
        *broken(header()),
    ],
)
def test_it_reads_what_any_header_is_read_to(headers: PullHeaders, text: str) -> None:
    for _ in range(3):  # with and without what was kept of the time before
        assert outcome(headers.read, text) == outcome(read_json, text)


def test_a_header_like_an_earlier_one_names_what_they_share(headers: PullHeaders) -> None:
    first, second = (headers.read(header(*numbers).encode(), b"").ext for numbers in (("1", "2"), ("3", "4")))
    assert isinstance(first, LikePull)
    assert isinstance(second, LikePull)
    assert (first.commit_offset, first.queue_offset) == (1, 2)
    assert (second.commit_offset, second.queue_offset) == (3, 4)
    assert first.shared is second.shared
    headers.read(other_order().encode(), b"")
    swapped = headers.read(other_order().encode(), b"").ext
    assert isinstance(swapped, LikePull)
    assert (swapped.commit_offset, swapped.queue_offset) == (8, 7)


def test_a_changed_byte_changes_nothing_more_than_it_does_else(headers: PullHeaders) -> None:
    def some(dice: random.Random) -> str:
        return header(str(dice.randrange(99)), opaque=str(dice.randrange(1000)))

    check_changed_bytes(headers.read, some, b'",:{}\\0acqO', seed=6)


def test_recorded_requests_are_read_the_same() -> None:
    headers = PullHeaders()
    pulls = check_recorded(headers.read, (11, 361))
    assert pulls > len(headers._kept) > 0, "those of one consumer and queue are kept once"


def test_few_headers_are_kept_and_only_short_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pull_headers, "KEPT_MAX", 3)
    headers = PullHeaders()
    for number in range(10):
        headers.read(header().replace('"topic":"CT"', f'"topic":"T{number}"').encode(), b"")
        assert len(headers._kept) <= 3
    headers._kept.clear()
    headers.read(header().replace("CT", "t" * 3000).encode(), b"")
    assert not headers._kept
