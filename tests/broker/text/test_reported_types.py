"""Message types as MetaQ's guide has them, ``messageType`` and ``fetch``: bytes on the wire, and what is remembered."""

from __future__ import annotations

import pytest
from fix_broker import RunningBroker, WireClient
from fix_client import Restarts
from metaq_broker.text.reported_types import REFUSED_MAX, TYPES_MAX, Report, ReportedTypes, checked_types
from text_protocol import put

from metaq.formats.frames import encode_body, walk
from metaq.model import Message
from metaq.protocols.text.commands import Result, Value
from metaq.statuses import MOVED, OK

UNKNOWN = (301, "messageType not found.")
UNKNOWN_AGAIN = (100, "messageType not found.")


def send(client: WireClient, topic: str, *types: str | None, body: bytes = b"x") -> list[int]:
    """Put one message of each type to partition 0; return where each begins, and the end."""
    offsets, end = [], 0
    for type_ in types:
        flag, content = encode_body(Message(body, type_))
        line = b"put %b 0 %d %d 1\r\n" % (topic.encode(), len(content), flag)
        code, text = client.result(line + content)
        assert code == 200, text
        offsets.append(int(text.split()[2]))
        end = offsets[-1] + 20 + len(content)
    return [*offsets, end]


def report(topic: str, *types: str, start_time: int = 1000, group: str = "g") -> bytes:
    body = "\x04".join(types).encode()
    return b"messageType 2.1 %b %b 5 %d %d\r\n%b" % (group.encode(), topic.encode(), start_time, len(body), body)


def fetch(topic: str, offset: int, start_time: int = 1000, size: int = 1 << 20, group: str = "g") -> bytes:
    return b"fetch 2.1 %b %b 0 %d %d 6 %d\r\n" % (topic.encode(), group.encode(), offset, size, start_time)


def consume(client: WireClient, topic: str, start_time: int = 1000, size: int = 1 << 20) -> list[str | None]:
    """Read a partition from its start as MetaQ's consumer does, until there is nothing new; return the types."""
    found: list[str | None] = []
    offset = 0
    while True:
        reply = client.ask(fetch(topic, offset, start_time, size))
        if isinstance(reply, Value):
            frames = list(walk(bytes(reply.data), offset))
            found += [frame.message.attribute for frame in frames]
            assert frames[-1].end == offset + len(reply.data), "whole messages only"
            offset = frames[-1].end
            continue
        assert isinstance(reply, Result)
        if reply.code == 404:
            return found
        assert reply.code == MOVED
        assert int(reply.text) > offset
        offset = int(reply.text)


@pytest.mark.process
class TestOnTheWire:
    def test_a_group_reports_its_types_and_gets_only_these(self, client: WireClient, topic: str) -> None:
        types = ["a", "a", "b", None, "a", "c", "c", "b", "a"]
        offsets = send(client, topic, *types)
        assert client.result(fetch(topic, 0)) == UNKNOWN
        assert client.result(report(topic, "c", "a")) == (OK, "[a, c]")
        assert consume(client, topic) == ["a", "a", "a", "c", "c", "a"]
        assert client.result(fetch(topic, offsets[2])) == (MOVED, str(offsets[4]))
        assert client.result(fetch(topic, offsets[-1]))[0] == 404

    def test_no_matching_message_moves_the_consumer_on(self, client: WireClient, topic: str) -> None:
        offsets = send(client, topic, "b", "b", None)
        client.result(report(topic, "a"))
        assert client.result(fetch(topic, 0)) == (MOVED, str(offsets[-1]))
        assert consume(client, topic, size=1) == []

    @pytest.mark.parametrize("types", [[], ["*"], ["a", "*"], [" "]])
    def test_all_types(self, types: list[str], client: WireClient, topic: str) -> None:
        send(client, topic, "b", None, "a")
        assert client.result(report(topic, *types)) == (OK, "[*]")
        plain = client.value(b"get %b g 0 3 40 6\r\n" % topic.encode())
        assert client.value(fetch(topic, 3, size=40)) == plain, "a fetch of all is a get"
        assert consume(client, topic) == ["b", None, "a"]

    def test_the_newest_start_time_wins_and_replaces_the_others(self, shared_broker: RunningBroker, topic: str) -> None:
        old, new = shared_broker.client(), shared_broker.client()
        send(old, topic, "a", "b")
        assert old.result(report(topic, "a", start_time=1000)) == (OK, "[a]")
        assert consume(old, topic) == ["a"]
        assert new.result(fetch(topic, 0, start_time=2000)) == UNKNOWN
        assert new.result(report(topic, "b", start_time=2000)) == (OK, "[b]")
        assert consume(old, topic) == consume(new, topic, start_time=2000) == ["b"]
        assert old.result(report(topic, "a", start_time=1000)) == (OK, "[b]")
        assert old.result(report(topic, "a", start_time=2000)) == (OK, "[b]")
        assert consume(old, topic) == ["b"]
        assert old.result(fetch(topic, 0, group="other")) == UNKNOWN

    def test_a_client_that_does_not_report_after_301_is_asked_with_100(
        self, shared_broker: RunningBroker, topic: str
    ) -> None:
        """MetaQ 2.1's published consumer takes the text of a 301 for an offset, fails, and fetches again."""
        first, second = shared_broker.client(), shared_broker.client()
        send(first, topic, "a", "b")
        assert first.result(fetch(topic, 0)) == UNKNOWN
        assert first.result(fetch(topic, 0, start_time=2000)) == UNKNOWN, "another client"
        assert first.result(fetch(topic, 0, group="other")) == UNKNOWN, "another group"
        assert first.result(fetch(topic, 0).replace(b" g 0 0 ", b" g 1 0 ")) == UNKNOWN, "another partition"
        assert second.result(fetch(topic, 0)) == UNKNOWN_AGAIN, "by any connection"
        assert first.result(fetch(topic, 0)) == UNKNOWN, "in turn"
        assert first.result(report(topic, "b")) == (OK, "[b]")
        assert consume(first, topic) == ["b"]

    def test_types_with_blanks_and_of_any_script(self, client: WireClient, topic: str) -> None:
        send(client, topic, "type1 a", "打折", "b")
        assert client.result(report(topic, "type1 a", "打折")) == (OK, "[type1 a, 打折]")
        assert consume(client, topic) == ["type1 a", "打折"]

    def test_a_message_longer_than_the_request_comes_whole(self, client: WireClient, topic: str) -> None:
        send(client, topic, "a", body=bytes(3 << 20))
        client.result(report(topic, "a"))
        assert consume(client, topic, size=100) == ["a"]
        client.result(report(topic, "b", start_time=1001))
        assert consume(client, topic) == []

    def test_pipelined_with_puts_and_a_report(self, client: WireClient, topic: str) -> None:
        client.send(fetch(topic, 0) + put(topic, b"plain", 1) + report(topic, "*") + fetch(topic, 0))
        first, _, applies, value = client.replies(4)
        assert (first, applies) == (Result(*UNKNOWN, 6), Result(OK, "[*]", 5))
        assert isinstance(value, Value)

    def test_what_is_wrong_is_one_sentence_and_the_connection_stays(self, client: WireClient, topic: str) -> None:
        many = [f"t{number}" for number in range(TYPES_MAX + 1)]
        for line, expected in (
            (report(topic, *many), (400, "1001 message types: expected at most 1000")),
            (report(topic, "a" * 201), (400, "a message type of 201 bytes: expected at most 200")),
            (
                b"messageType 2.1 g %b 5 1 2\r\n\xff\xfe" % topic.encode(),
                (400, r"message type b'\xff\xfe': expected UTF-8"),
            ),
            (fetch(topic, 0), UNKNOWN),
            (report(topic, "a"), (OK, "[a]")),
            (fetch(topic, 0), (404, f"The topic `{topic}` in partition `0` is not exists")),
        ):
            assert client.result(line) == expected
        send(client, topic, "a")
        for line, expected in (
            (fetch(topic, 5), (400, "offset 5 is inside the message that begins at 0")),
            (fetch(topic, 0, size=0), (400, "Bad request,invalid max size:0")),
            (fetch(topic, -1), (MOVED, "0")),
        ):
            assert client.result(line) == expected

    def test_a_report_above_the_limit_of_a_body_is_refused(self, client: WireClient, topic: str) -> None:
        size = (8 << 20) + 1
        client.send(b"messageType 2.1 g %b 5 1 %d\r\n" % (topic.encode(), size) + bytes(size))
        expected = f"messageType of {size} bytes is longer than {8 << 20} bytes (maxBatchSize)"
        assert client.reply() == Result(500, expected, 5)
        assert client.result(report(topic, "a")) == (OK, "[a]")

    def test_byte_by_byte(self, client: WireClient, topic: str) -> None:
        for byte in report(topic, "a", "b") + fetch(topic, 0):
            client.send(bytes([byte]))
        applies, missing = client.replies(2)
        assert applies == Result(OK, "[a, b]", 5)
        assert isinstance(missing, Result)
        assert missing.code == 404

    def test_a_restarted_broker_wants_the_types_again(self, restarts: Restarts) -> None:
        before = restarts.running.client()
        send(before, "t", "a", "b")
        before.result(report("t", "b"))
        assert consume(before, "t") == ["b"]
        restarts.kill_and_start()
        after = restarts.running.client()
        assert after.result(fetch("t", 0)) == UNKNOWN
        assert after.result(report("t", "b")) == (OK, "[b]")
        assert consume(after, "t") == ["b"]


def test_a_client_that_has_reported_is_asked_with_301_when_it_is_forgotten() -> None:
    reports = ReportedTypes(memory_bytes_max=1)
    assert not reports.is_refused_again("g", "t", 0, 1)
    reports.add("g", "t", Report(1, None))
    reports.add("other", "t", Report(1, None))
    assert reports.find("g", "t", 1) is None
    assert not reports.is_refused_again("g", "t", 0, 1)
    assert reports.is_refused_again("g", "t", 0, 1)


def test_what_is_remembered_of_refused_fetches_is_limited() -> None:
    reports = ReportedTypes()
    for number in range(REFUSED_MAX + 1):
        assert not reports.is_refused_again(f"g{number}", "t", 0, 1)
    assert not reports.is_refused_again("g0", "t", 0, 1)


def test_the_groups_that_were_not_used_for_longest_are_forgotten() -> None:
    reports = ReportedTypes(memory_bytes_max=4000)
    for number in range(6):
        reports.add(f"g{number}", "t", Report(1, frozenset([b"a"])))
    assert all(reports.find(f"g{number}", "t", 1) for number in range(6))
    reports.find("g0", "t", 1)
    reports.add("g6", "t", Report(1, frozenset([b"a"])))
    assert reports.find("g0", "t", 1)
    assert [number for number in range(7) if reports.find(f"g{number}", "t", 1) is None] == [1]


def test_replaced_reports_take_no_memory() -> None:
    reports = ReportedTypes(memory_bytes_max=2000)
    reports.add("other", "t", Report(1, None))
    for start_time in range(100):
        reports.add("g", "t", Report(start_time, frozenset([b"a"])))
    assert reports.find("other", "t", 1)


def test_a_report_that_alone_is_too_large_stays_the_only_one() -> None:
    reports = ReportedTypes(memory_bytes_max=1000)
    reports.add("g", "t", Report(1, None))
    types = checked_types(f"type{number}" for number in range(50))
    assert reports.add("h", "t", Report(1, types)).types == types
    assert reports.find("h", "t", 1)
    assert reports.find("g", "t", 1) is None
