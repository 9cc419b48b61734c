"""The examples of docs/protocol.md are what the codec writes and reads, and the page names everything it should."""

from __future__ import annotations

import re
from pathlib import Path

from examples import in_one_test
from text_protocol import byte_by_byte, feed

from metaq.formats.frames import walk, whole_bytes
from metaq.formats.message_types import decode_filtered
from metaq.protocols.text.commands import (
    Decide,
    Fetch,
    Get,
    GetFiltered,
    GetOffset,
    GroupRequest,
    Put,
    PutBatch,
    ReportTypes,
    Result,
    Stats,
    TransactionCommand,
    Value,
    Version,
)
from metaq.protocols.text.decode import CommandDecoder, ReplyDecoder
from metaq.protocols.text.encode import encode
from metaq.protocols.text.extensions import (
    EXT_BOUNDARY,
    EXT_CONTENTS,
    EXT_COPY,
    EXT_DECIDE,
    EXT_DECIDED_CONTENTS,
    EXT_DECISIONS,
    EXT_FILTER,
    EXT_GROUP,
    EXT_INCARNATION,
    EXT_ORDINAL,
    EXT_PUT_BATCH,
    EXT_SEGMENTS,
    EXT_STATE,
    EXT_TIMESTAMP,
    extensions_of,
)

PAGE = (Path(__file__).resolve().parents[4] / "docs" / "protocol.md").read_text(encoding="utf-8")
EXAMPLES = [line for block in re.findall(r"```wire\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]


FILTERED_OPAQUES = {21, 22}
"""Of the requests whose values are filtered ones."""


def example_bytes(line: str) -> bytes:
    return line[2:].encode("ascii").decode("unicode_escape").encode("latin-1")


@in_one_test("line", EXAMPLES)
def test_an_example_is_one_whole_command_or_reply(line: str) -> None:
    stream = example_bytes(line)
    decoder = {">": CommandDecoder, "<": ReplyDecoder}[line[0]]()
    (item,) = feed(decoder, byte_by_byte(stream))
    assert decoder.pending_bytes == 0
    assert encode(item) == stream  # type: ignore[arg-type]
    if isinstance(item, Value) and item.opaque in FILTERED_OPAQUES:
        next_offset, frames = decode_filtered(item.data)
        assert all(frame.offset < next_offset for frame in frames)
    elif isinstance(item, Value | PutBatch):
        frames = item.data if isinstance(item, Value) else item.block
        assert whole_bytes(frames) == len(frames)
        assert all(frame.intact for frame in walk(frames))
    if isinstance(item, PutBatch):
        assert sum(1 for _ in walk(item.block)) == item.count


def test_every_reply_follows_its_request() -> None:
    opaques: set[int] = set()
    for line in EXAMPLES:
        decoder = CommandDecoder() if line[0] == ">" else ReplyDecoder()
        (item,) = feed(decoder, [example_bytes(line)])
        if line[0] == ">":
            opaques.add(item.opaque)  # type: ignore[attr-defined]
        else:
            assert item.opaque in opaques  # type: ignore[attr-defined]


def test_every_command_that_clients_send_has_an_example() -> None:
    kinds = {type(feed(CommandDecoder(), [example_bytes(line)])[0]) for line in EXAMPLES if line[0] == ">"}
    reads = {Get, GetFiltered, Fetch, ReportTypes, GetOffset}
    assert kinds == {Put, PutBatch, *reads, Stats, Version, TransactionCommand, Decide, GroupRequest}


def test_the_announced_extensions_are_all_there_are() -> None:
    (line,) = [line for line in EXAMPLES if ";ext=" in line]
    (reply,) = feed(ReplyDecoder(), [example_bytes(line)])
    assert isinstance(reply, Result)
    assert extensions_of(reply.text) == {
        EXT_BOUNDARY,
        EXT_TIMESTAMP,
        EXT_PUT_BATCH,
        EXT_DECIDE,
        EXT_DECISIONS,
        EXT_DECIDED_CONTENTS,
        EXT_CONTENTS,
        EXT_FILTER,
        EXT_ORDINAL,
        EXT_INCARNATION,
        EXT_SEGMENTS,
        EXT_COPY,
        EXT_STATE,
        EXT_GROUP,
    }


def test_the_frames_of_the_page_are_frames() -> None:
    rows = [re.sub(r"[^0-9a-f]", "", row[:75]) for row in PAGE.splitlines() if re.match(r"0000000[4b] ", row)]
    assert [frame.message.payload for row in rows for frame in walk(bytes.fromhex(row))] == [b"FFFF", b"FFFF"]


def test_links_inside_the_page_lead_somewhere() -> None:
    headings = {
        re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-")
        for heading in re.findall(r"^#+ (.*)$", PAGE, re.MULTILINE)
    }
    assert set(re.findall(r"\]\(#([^)]*)\)", PAGE)) <= headings
