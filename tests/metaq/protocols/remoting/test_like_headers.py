"""Headers of sends and pulls that are like one that was read before are read to the same command as any other way."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType

import pytest
from metaq.protocols.remoting.pull_headers import LikePull, PullHeaders
from metaq.protocols.remoting.send_headers import LikeFields, SendHeaders
from remoting_headers import UNUSUAL_OPAQUES, broken, check_changed_bytes, check_recorded, outcome

from metaq.protocols.remoting import pull_headers, send_headers
from metaq.protocols.remoting.json_header import read_json


def send(born: str = "1795425834392", properties: str = "KEYS\\u0001k\\u0002TAGS\\u0001t", opaque: str = "5") -> str:
    return (
        f'{{"code":310,"extFields":{{"a":"P","b":"CT","e":"1","f":"0","g":"{born}","h":"0","i":"{properties}","j":"0"}},'
        f'"flag":0,"language":"JAVA","opaque":{opaque},"serializeTypeCurrentRPC":"JSON","version":407}}'
    )


def pull(commit: str = "0", queue: str = "32", opaque: str = "5", code: int = 11) -> str:
    return (
        f'{{"code":{code},"extFields":{{"queueId":"1","maxMsgNums":"32","sysFlag":"2","commitOffset":"{commit}",'
        f'"topic":"CT","queueOffset":"{queue}","expressionType":"TAG","consumerGroup":"G"}},"flag":0,'
        f'"language":"JAVA","opaque":{opaque},"serializeTypeCurrentRPC":"JSON","version":407}}'
    )


def other_order() -> str:
    text = pull("7", "8").replace("commitOffset", "x").replace("queueOffset", "commitOffset")
    return text.replace('"x"', '"queueOffset"')


@dataclass(frozen=True)
class Kind:
    """A kind of headers and what reads it."""

    module: ModuleType
    make: Callable[[], SendHeaders | PullHeaders]
    like: type[LikeFields | LikePull]
    header: Callable[..., str]
    codes: tuple[int, ...]
    changes: bytes
    """Bytes that a header of this kind consists of."""

    def is_cached(self, headers: SendHeaders | PullHeaders, text: str) -> bool:
        """Whether a header like ``text`` was read before; the next one is, if it can be cached at all."""
        return isinstance(headers.read(text.encode(), b"").ext, self.like)


KINDS = {
    "send": Kind(send_headers, SendHeaders, LikeFields, send, (310,), b'",:{}\\0aig'),
    "pull": Kind(pull_headers, PullHeaders, LikePull, pull, (11, 361), b'",:{}\\0acqO'),
}
SENDS = [
    send("1", "", "0"),
    send("9" * 18, "标签\\u0001ü\\u0002 x", "999999999"),
    send("9" * 19),
    send("-1"),
    send("1.5"),
    send(""),
    send(properties='a\\"b'),
    send(properties='a\\",\\"j\\":\\"0'),
    send(properties="a\\\\u0001"),
    send(properties="a\\u00012\\u0003\\n\\\\"),
    send(properties="a\\"),
    send(properties="a\tb"),
    send(properties="a\x7f\u2028\xa0"),
    send(properties='b","i":"c'),
    send().replace('"a":"P"', '"a":"Q"'),
    send().replace('"extFields":{', '"extFields":{"g":"5","i":"6",'),
    send().replace(',"flag":0', ',"g":"5","i":"6","flag":0'),
    send().replace('"h":"0",', ""),
]
PULLS = [
    pull("9" * 18, "123456789012345678", "999999999"),
    pull(code=361),
    pull(code=10),
    other_order(),
    pull("9" * 19),
    pull(queue="9" * 19),
    pull("-1", "-1"),
    pull("007", "00"),
    pull("", ""),
    pull("٣", "٣"),
    pull(queue='1","queueOffset":"2'),
    pull().replace('"topic":"CT"', '"topic":"C\\"T"'),
    pull().replace('"extFields":{', '"extFields":{"commitOffset":"5","queueOffset":"6",'),
    pull().replace(',"flag":0', ',"queueOffset":"5","flag":0'),
    pull().replace('"queueOffset":"32",', ""),
    pull().replace('"32"', "32"),
]


def of_every_kind() -> list[tuple[str, str]]:
    own = {"send": SENDS, "pull": PULLS}
    return [
        (name, text)
        for name, kind in KINDS.items()
        for text in [*own[name], kind.header(), *map_opaques(kind), *broken(kind.header())]
    ]


def map_opaques(kind: Kind) -> list[str]:
    return [kind.header(opaque=one) for one in UNUSUAL_OPAQUES]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param]


@pytest.mark.parametrize(("name", "text"), of_every_kind())
def test_it_reads_what_any_header_is_read_to(name: str, text: str) -> None:
    headers = KINDS[name].make()
    headers.read(KINDS[name].header().encode(), b"")
    for _ in range(3):  # with and without what was kept of the time before
        assert outcome(headers.read, text) == outcome(read_json, text)


def test_bytes_that_are_no_text_are_read_the_same() -> None:
    headers = SendHeaders()
    headers.read(send().encode(), b"")
    data = send().encode().replace(b"KEYS", b"\xff\xe6")
    assert outcome(headers.read, data) == outcome(read_json, data)


def test_a_pull_like_an_earlier_one_names_what_they_share() -> None:
    headers = PullHeaders()
    _, first, second = (
        headers.read(pull(*numbers).encode(), b"").ext for numbers in (("5", "6"), ("1", "2"), ("3", "4"))
    )
    assert isinstance(first, LikePull)
    assert isinstance(second, LikePull)
    assert (first.commit_offset, first.queue_offset) == (1, 2)
    assert (second.commit_offset, second.queue_offset) == (3, 4)
    assert first.shared is second.shared
    headers.read(other_order().encode(), b"")
    swapped = headers.read(other_order().encode(), b"").ext
    assert isinstance(swapped, LikePull)
    assert (swapped.commit_offset, swapped.queue_offset) == (8, 7)


def test_a_changed_byte_changes_nothing_more_than_it_does_else(kind: Kind) -> None:
    def some(dice: random.Random) -> str:
        return kind.header(str(dice.randrange(99)), opaque=str(dice.randrange(1000)))

    headers = kind.make()
    headers.read(kind.header().encode(), b"")
    check_changed_bytes(headers.read, some, kind.changes, seed=6)


def test_recorded_requests_are_read_the_same_and_some_from_the_cache(kind: Kind) -> None:
    headers, cached = kind.make(), []

    def read(header: bytes, body: bytes) -> object:
        command = headers.read(header, body)
        cached.append(isinstance(command.ext, kind.like))
        return command

    count = check_recorded(read, kind.codes)
    assert count > sum(cached) > 0


def test_few_headers_are_cached_and_only_short_ones(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kind.module, "KEPT_MAX", 3)
    headers, texts = kind.make(), [kind.header().replace('"CT"', f'"T{number}"') for number in range(4)]
    assert [kind.is_cached(headers, text) for text in texts] == [False] * 4
    assert [kind.is_cached(headers, text) for text in reversed(texts)] == [True, False, False, False]
    long = kind.header().replace('"CT"', f'"{"t" * 3000}"')
    assert [kind.is_cached(headers, long) for _ in range(2)] == [False, False]
