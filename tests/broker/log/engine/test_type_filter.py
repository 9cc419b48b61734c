"""fget at the engine and over a real broker: refusals, damage, lengths, and what one request looks at."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest
from fix_broker import RunningBroker, WireClient
from metaq_broker.clock import Clock
from metaq_broker.log.engine.type_filter import SCAN_BYTES_MAX, BetweenBoundaries, LargeFrame, scan
from metaq_broker.log.files.files import Files
from metaq_broker.log.partitions.partition_log import LogSettings, PartitionLog
from metaq_broker.log.partitions.reads import ReadAtEnd, ReadMoved

from metaq.errors import CorruptFrame
from metaq.formats.frames import encode_body, encode_frame
from metaq.formats.message_types import Selection, decode_filtered
from metaq.model import Message
from metaq.protocols.text.commands import Result, Value


def frame(attribute: str | None, payload: bytes = b"x") -> bytes:
    return encode_frame(7, *encode_body(Message(payload, attribute)))


A, B, NONE = frame("a"), frame("b", b"yy"), frame(None)


def log_with(folder: Path, frames: Sequence[bytes], segment_bytes_max: int = 1 << 30) -> PartitionLog:
    """A log that holds the frames, all of them durable."""
    log = PartitionLog.open(Files(), Clock(), folder / "t-0", LogSettings(segment_bytes_max=segment_bytes_max))
    for each in frames:
        log.append([each])
    job = log.pending_sync()
    assert job is not None
    job.run()
    log.complete_sync(job, None)
    return log


def damage(log: PartitionLog, offset: int) -> None:
    """Flip a bit of the first segment behind the log's back."""
    (segment,) = [path for path in log.directory.iterdir() if path.suffix == ".meta"]
    content = bytearray(segment.read_bytes())
    content[offset] ^= 1
    segment.write_bytes(content)


class TestScan:
    def test_only_whole_frames_of_the_types_are_kept(self, tmp_path: Path) -> None:
        log = log_with(tmp_path, [A, NONE, B, A])
        end = len(A + NONE + B + A)
        assert scan(log, 0, 1 << 20, {b"a"}) == Selection(end, [(0, A), (len(A + NONE + B), A)])
        assert scan(log, len(A), 1 << 20, {b"b"}) == Selection(end, [(len(A + NONE), B)])
        assert scan(log, 0, 1 << 20, {b"c"}) == Selection(end, [])
        assert scan(log, end, 1 << 20, {b"a"}) == ReadAtEnd(end, end)
        assert scan(log, -1, 1 << 20, {b"a"}) == ReadMoved(0)

    @pytest.mark.parametrize("bytes_max", [1, 19, 20, len(A), len(A) + 1])
    def test_at_least_one_frame_is_looked_at(self, bytes_max: int, tmp_path: Path) -> None:
        log = log_with(tmp_path, [B, A])
        assert scan(log, 0, bytes_max, {b"a"}) == Selection(len(B), [])
        assert scan(log, len(B), bytes_max, {b"b"}) == Selection(len(B + A), [])

    def test_a_scan_ends_with_its_segment(self, tmp_path: Path) -> None:
        log = log_with(tmp_path, [A] * 10, segment_bytes_max=3 * len(A))
        found = scan(log, 0, 1 << 20, {b"a"})
        assert isinstance(found, Selection)
        assert found.next_offset == 3 * len(A)

    def test_every_offset_inside_of_a_message_is_refused_and_names_its_start(self, tmp_path: Path) -> None:
        log = log_with(tmp_path, [A, B])
        for offset in {*range(len(A + B))} - {0, len(A)}:
            with pytest.raises(BetweenBoundaries) as refusal:
                scan(log, offset, 1 << 20, {b"a"})
            assert refusal.value.boundary == (0 if offset < len(A) else len(A))

    @pytest.mark.parametrize("body_bytes", [SCAN_BYTES_MAX - 100, SCAN_BYTES_MAX + 1, 3 * SCAN_BYTES_MAX])
    def test_a_long_message_is_kept_or_passed_as_a_whole(self, body_bytes: int, tmp_path: Path) -> None:
        large = frame("a", bytes(body_bytes))
        log = log_with(tmp_path, [large, A])
        for bytes_max in (1, 1 << 30):
            passed = scan(log, 0, bytes_max, {b"b"})
            assert isinstance(passed, Selection)
            assert passed.next_offset in (len(large), len(large + A))
            assert not passed.kept
        kept = scan(log, 0, 1, {b"a"})
        assert isinstance(kept, LargeFrame)
        assert (kept.next_offset, kept.frame_bytes) == (len(large), len(large))
        assert kept.frame.read() == large

    def test_damage_that_nobody_knows_is_never_passed_in_silence(self, tmp_path: Path) -> None:
        log = log_with(tmp_path, [A, B, A])
        damage(log, len(A + B) - 1)
        assert scan(log, 0, 1 << 20, {b"a"}) == Selection(len(A), [(0, A)])
        with pytest.raises(CorruptFrame, match=f"offset {len(A)}"):
            scan(log, len(A), 1 << 20, {b"a"})

    def test_damage_in_a_long_message(self, tmp_path: Path) -> None:
        log = log_with(tmp_path, [frame("a", bytes(2 * SCAN_BYTES_MAX)), A])
        damage(log, 2 * SCAN_BYTES_MAX)
        for wanted in (b"a", b"b"):
            with pytest.raises(CorruptFrame, match="checksum"):
                scan(log, 0, 1 << 20, {wanted})

    def test_a_file_that_is_shorter_than_it_should_be(self, tmp_path: Path) -> None:
        large = frame("a", bytes(2 * SCAN_BYTES_MAX))
        log = log_with(tmp_path, [large])
        (segment,) = [path for path in log.directory.iterdir() if path.suffix == ".meta"]
        with segment.open("r+b") as file:
            file.truncate(SCAN_BYTES_MAX + 100)
        with pytest.raises(CorruptFrame, match="the file ends"):
            scan(log, 0, 1 << 20, {b"a"})


@pytest.mark.process
class TestOverTheWire:
    def put_all(self, client: WireClient, topic: str, *frames: bytes) -> None:
        block = b"".join(frames)
        code, text = client.result(b"mput %b 0 %d %d 1\r\n" % (topic.encode(), len(block), len(frames)) + block)
        assert code == 200, text

    def test_the_extension_is_announced(self, client: WireClient) -> None:
        assert client.result(b"version 1\r\n")[1].partition(";ext=")[2].split(",").count("fget") == 1

    def test_refusals(self, client: WireClient, topic: str) -> None:
        name = topic.encode()
        missing = client.result(b"fget %b g 0 0 100 a 1\r\n" % name)
        assert missing == client.result(b"get %b g 0 0 100 1\r\n" % name)
        assert missing[0] == 404
        self.put_all(client, topic, A, B)
        for line, expected in (
            (b"fget %b g 0 0 0 a 1\r\n", (400, "Bad request,invalid max size:0")),
            (b"fget %b g 0 5 100 a 1\r\n", (400, "offset 5 is inside the message that begins at 0")),
            (b"fget %b g 0 -1 100 a 1\r\n", (301, "0")),
            (b"fget %b g 0 9223372036854775807 100 a 1\r\n", (301, str(len(A + B)))),
            (b"fget %b g 0 53 100 a 1\r\n", (404, "Could not find message at position 53")),
            (
                b"fget %b g 0 0 100 a,b-c 1\r\n",
                (400, "message type 'b-c': expected 1..200 letters, digits and underscores"),
            ),
            (b"fget %b g 0 0 100 , 1\r\n", (400, "message type '': expected 1..200 letters, digits and underscores")),
        ):
            assert client.result(line % name) == expected, line

    def test_pipelined_with_puts_it_sees_what_they_stored(self, client: WireClient, topic: str) -> None:
        name, block = topic.encode(), A + B
        request = b"mput %b 0 %d 2 1\r\n" % (name, len(block)) + block + b"fget %b g 0 0 1000 b 2\r\n" % name
        client.send(request * 3)
        replies = client.replies(6)
        assert [reply.opaque for reply in replies] == [1, 2] * 3
        for value in replies[1::2]:
            assert isinstance(value, Value)
            next_offset, frames = decode_filtered(value.data)
            assert next_offset in (len(block), 2 * len(block), 3 * len(block))
            assert {each.message for each in frames} == {Message(b"yy", "b")}

    def test_a_long_message_comes_whole(self, shared_broker: RunningBroker, topic: str) -> None:
        payload = bytes(range(256)) * 8192
        with closing(shared_broker.client()) as client:
            self.put_all(client, topic, frame("large", payload), A)
            body = client.value(b"fget %b g 0 0 100 large 1\r\n" % topic.encode())
            next_offset, (only,) = decode_filtered(body)
            assert only.message == Message(payload, "large")
            assert next_offset == only.end
            assert len(body) == 16 + only.end

    def test_a_line_with_a_token_too_few_closes_the_connection(self, client: WireClient, topic: str) -> None:
        client.send(b"version 1\r\nfget %b g 0 0 100 1\r\nversion 2\r\n" % topic.encode())
        reply = client.reply()
        assert isinstance(reply, Result)
        assert client.rest() == b""
