"""Messages of a topic: the newest, a search in steps, one message, and what arrives from now on.

A search runs in steps of at most ``STEP_S`` seconds. Each answer has the rows that were found and the address of the
next step, which the page asks for unless somebody stops it: nothing runs on for a page that is closed, and the server
keeps nothing between two steps.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from starlette.responses import HTMLResponse, Response

from metaq_console.cluster.scans import Scan, ScanRequest
from metaq_console.cluster.values import FoundMessage
from metaq_console.errors import RequestFailed
from metaq_console.pages.decoders import DECODERS, PREVIEW_CHARS, Decoded, decode, preview, row_text
from metaq_console.pages.screens.starts import Start, read_start, read_time
from metaq_console.pages.visit import Problem, Visit

NEWEST: Final = 50
"""Messages that a page shows without a search."""
STEP_S: Final = 1.5
FIRST_STEP_S: Final = 0.5
"""The first step is part of the page, which should not be late for it."""
STEP_READ_MAX: Final = 10_000_000
FOUND_MAX: Final = 100
"""Matches after which a search asks whether it should go on."""
CURSOR_BYTES_MAX: Final = 256 << 10
"""Bytes of an unpacked cursor: positions of thousands of partitions."""

DECODER_NAMES: Final = {
    "auto": "automatic",
    "text": "text",
    "json": "JSON",
    "gb18030": "GB18030, GBK",
    "big5": "Big5",
    "utf-16": "UTF-16",
    "hex": "hexadecimal",
}
"""The text for each of ``DECODERS``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedMessages:
    """What a visitor looks for, as in the address."""

    topic: str
    partition: str | None
    start: str
    until: str | None
    text: str | None
    tag: str | None
    key: str | None
    id: str | None
    decoder: str

    @property
    def searches(self) -> bool:
        """Whether messages are read that are not shown."""
        return any(one is not None for one in (self.text, self.tag, self.key, self.id, self.until))

    def request(self, start: Start, limit: int, seconds: float) -> ScanRequest:
        """Return the scan.

        Raises:
            RequestFailed: A value has none of the forms that are allowed.
        """
        try:
            return ScanRequest(
                topic=self.topic,
                partition=self.partition,
                start=start,
                attribute=self.tag,
                key=self.key,
                message_id=self.id,
                text=self.text,
                until_ms=None if self.until is None else read_time(self.until, "until"),
                limit=limit,
                read_max=STEP_READ_MAX,
                seconds=seconds,
            )
        except ValueError as error:
            raise RequestFailed(400, "invalid_value", str(error)) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """Where a search goes on, and what it did until there. ``whole``: what was to be read at its beginning."""

    positions: Mapping[str, int]
    whole: int
    read: int
    matches: int

    def packed(self) -> str:
        """Return it as a parameter of an address."""
        fields = [self.positions, self.whole, self.read, self.matches]
        return base64.urlsafe_b64encode(zlib.compress(json.dumps(fields).encode())).decode()

    @classmethod
    def unpacked(cls, text: str) -> Cursor:
        """Return the cursor of an address.

        Raises:
            RequestFailed: It is not one.
        """
        try:
            plain = zlib.decompressobj().decompress(base64.urlsafe_b64decode(text.encode()), CURSOR_BYTES_MAX)
            positions, whole, read, matches = json.loads(plain)
            return cls(
                positions={str(where): int(at) for where, at in positions.items()},
                whole=int(whole),
                read=int(read),
                matches=int(matches),
            )
        except (ValueError, TypeError, AttributeError, OverflowError, zlib.error, RecursionError):
            raise RequestFailed(
                400, "invalid_value", "the parameter after is not one of a search's next step"
            ) from None


@dataclass(frozen=True, slots=True)
class MessageRow:
    """A row of a table of messages."""

    message: FoundMessage
    preview: Decoded


def asked_of(visit: Visit) -> WantedMessages:
    """Return what the address asks for."""
    decoder = visit.given("as", "auto")
    return WantedMessages(
        topic=visit.needed("topic"),
        partition=visit.given("partition") or None,
        start=visit.given("start"),
        until=visit.given("until") or None,
        text=visit.given("text") or None,
        tag=visit.given("tag") or None,
        key=visit.given("key") or None,
        id=visit.given("id") or None,
        decoder=decoder if decoder in DECODERS else "auto",
    )


async def messages(visit: Visit) -> Response:
    """Show the newest messages, those from a position on, or the first step of a search."""
    asked = asked_of(visit)
    partitions = await visit.ask(("partitions", asked.topic), visit.console.cluster.partitions(asked.topic), [])
    rows: list[MessageRow] = []
    step = None
    try:
        start = read_start(asked.start or ("earliest" if asked.searches else "latest"), asked.partition)
        scan = await visit.console.cluster.scan(
            asked.request(start, NEWEST, FIRST_STEP_S if asked.searches else STEP_S)
        )
        rows, step = _rows(scan, asked), _step(visit, scan, None)
        if start == "newest":
            rows.reverse()
            if not asked.searches:
                step = None
                _say_what_is_missing(visit, scan)
    except RequestFailed as error:
        visit.fail(error)
    return visit.page(
        "messages.html",
        "topics",
        topic=asked.topic,
        asked=asked,
        partitions=[row.partition for row in partitions],
        decoders=DECODER_NAMES,
        rows=rows,
        scan=step,
        fresh=False,
    )


async def next_step(visit: Visit) -> Response:
    """Return the next step of a search, and the rows that it found."""
    asked = asked_of(visit)
    after = Cursor.unpacked(visit.needed("after"))
    if visit.given("again"):
        after = Cursor(positions=after.positions, whole=after.whole, read=after.read, matches=after.matches)
    rows: list[MessageRow] = []
    try:
        scan = await visit.console.cluster.scan(asked.request(after.positions, NEWEST, STEP_S))
        rows, step = _rows(scan, asked), _step(visit, scan, after)
    except RequestFailed as error:
        step = _failed_step(visit, after, str(error))
    shared = {"asked": asked, "scan": step, "rows": rows, "fresh": True}
    found = visit.part("message_rows.html", **shared)
    html = visit.part("scan_step.html", **shared)
    return HTMLResponse(f'{html}<hx-partial hx-target="#rows" hx-swap="beforeend">{found}</hx-partial>')


def _say_what_is_missing(visit: Visit, scan: Scan) -> None:
    """Say on the page why it does not have the newest messages, or not as many as usual."""
    progress = scan.progress
    if progress.stopped == "bytes":
        sentence = visit.t("Only the newest {count} are shown: they are long.", count=progress.matched)
    elif progress.stopped != "end":
        sentence = visit.t("Not all was read in time: newer messages may be missing. Choose one partition.")
    else:
        return
    visit.problems.append(Problem(visit.t("incomplete"), sentence))


def _rows(scan: Scan, asked: WantedMessages) -> list[MessageRow]:
    return [MessageRow(one, row_preview(one, asked)) for one in scan.messages()]


def row_preview(message: FoundMessage, asked: WantedMessages) -> Decoded:
    """Return one line of a value: its beginning, or what surrounds the text that was looked for."""
    found = preview(message.data, asked.decoder)
    if asked.text is None or asked.text in found.text:
        return found
    whole = " ".join(row_text(message.data, asked.decoder).text.split())
    at = whole.find(asked.text)
    if at < 0:
        return found
    begin = max(0, at - PREVIEW_CHARS // 3)
    line = ("…" if begin else "") + whole[begin : begin + PREVIEW_CHARS]
    return Decoded(line, found.decoder, found.packing, begin + PREVIEW_CHARS < len(whole) or found.is_cut)


def _step(visit: Visit, scan: Scan, before: Cursor | None) -> dict[str, Any]:
    progress = scan.progress
    read, matches = progress.read, progress.matched
    whole = round(progress.left / (1 - progress.fraction)) if progress.fraction < 1 else 0
    if before is not None:
        read, matches, whole = read + before.read, matches + before.matches, before.whole
    more = progress.stopped in ("limit", "read", "seconds", "bytes")
    cursor = Cursor(positions=progress.positions, whole=whole, read=read, matches=matches)
    share = 100 if not more else None if not whole else max(0, min(99, round(100 * (1 - progress.left / whole))))
    return {
        "more": more,
        "enough": matches // FOUND_MAX > (0 if before is None else before.matches // FOUND_MAX),
        "share": share,
        "read": read,
        "matches": matches,
        "next": next_address(visit, cursor),
        "problem": "",
    }


def _failed_step(visit: Visit, before: Cursor, problem: str) -> dict[str, Any]:
    """Return the step that a visitor may repeat."""
    return {
        "more": True,
        "enough": True,
        "share": None,
        "read": before.read,
        "matches": before.matches,
        "next": next_address(visit, before),
        "problem": problem,
    }


def next_address(visit: Visit, cursor: Cursor) -> str:
    """Return the address of the step after a cursor."""
    return visit.link(after=cursor.packed(), again=None).replace("/topic/messages?", "/topic/messages/next?", 1)


async def message(visit: Visit) -> Response:
    """Show one message."""
    topic, partition, offset = visit.needed("topic"), visit.needed("partition"), visit.needed("offset")
    if not (offset.isdecimal() and offset.isascii() and len(offset) <= 19):
        raise RequestFailed(400, "invalid_value", f"offset {offset[:40]}: expected a whole number, 0 or more")
    asked = asked_of(visit)
    request = ScanRequest(topic=topic, partition=partition, start={partition: int(offset)}, limit=1, read_max=1)
    found: FoundMessage | None = None
    try:
        listed = (await visit.console.cluster.scan(request)).messages()
        found = listed[0] if listed and listed[0].offset == int(offset) else None
        if found is None:
            visit.fail(f"no message begins at {topic}/{partition} offset {offset}; it may be removed")
    except RequestFailed as error:
        visit.fail(error)
    return visit.page(
        "message.html",
        "topics",
        200 if found is not None else 404,
        topic=topic,
        partition=partition,
        offset=int(offset),
        message=found,
        shown=None if found is None else decode(found.data, asked.decoder),
        asked=asked.decoder,
        decoders=DECODER_NAMES,
        download="/v1/topics/{}/messages/{}/{}/value".format(
            *(quote(one, safe="") for one in (topic, partition, offset))
        ),
    )
