"""Operations about messages: read, searched, put."""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

from starlette.requests import Request
from starlette.responses import Response

from metaq.model import INT64_MAX
from metaq_console.api.messages_json import MessageJson, message_json
from metaq_console.api.operations import ApiCall, ApiOperation, text, whole
from metaq_console.api.parameters import SCAN, TOPIC
from metaq_console.api.schemas import Form, Length, wrong
from metaq_console.cluster.scans import Scan, ScanProgress, ScanRequest
from metaq_console.cluster.values import NewMessage, SendResult
from metaq_console.errors import RequestFailed, disconnected

PUT_MAX: Final = 100
"""Limit on messages of one put."""
PUT_BYTES_MAX: Final = 8 << 20
"""Longest body of a put; a value of 4 MiB fits in as Base64."""
WITHIN_S: Final = whole("within_s", "most seconds that the request may take", 1, 60, default=10)
_WAIT_S = whole("wait_s", "seconds to wait for a message where there is none", 0, 30, default=0)
_ONE = (
    text("partition", "the partition", least=1, most=300, where="path", required=True),
    whole("offset", "where the message begins", 0, INT64_MAX, where="path", required=True),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagesJson:
    """Messages that were found, and how far the search got. ``scan.positions`` is where to go on."""

    messages: tuple[MessageJson, ...]
    scan: ScanProgress


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageBody:
    """A message to put: ``value`` or ``value_base64``. Without ``partition``, messages with the same key go to the same
    partition, those without one in turn. MetaQ stores no keys and properties.
    """

    value: Annotated[str, Length(0, 4 << 20)] | None = None
    value_base64: Annotated[str, Length(0, 6 << 20), Form("byte")] | None = None
    attribute: Annotated[str, Length(0, 1000)] | None = None
    key: Annotated[str, Length(1, 1000)] | None = None
    partition: Annotated[str, Length(1, 300)] | None = None
    properties: Mapping[str, str] = field(default_factory=dict)

    def message(self, where: str) -> NewMessage:
        """Return the message.

        Raises:
            RequestFailed: The body has two values, or invalid Base64.
        """
        return NewMessage(
            data=self._data(where),
            attribute=self.attribute,
            key=self.key,
            partition=self.partition,
            properties=self.properties,
        )

    def _data(self, where: str) -> bytes:
        if self.value is not None and self.value_base64 is not None:
            raise RequestFailed(409, "contradiction", f"{where}: value and value_base64 are both there; expected one")
        if self.value_base64 is None:
            return (self.value or "").encode()
        try:
            return base64.b64decode(self.value_base64, validate=True)
        except (binascii.Error, ValueError):
            raise wrong(f"{where}.value_base64", self.value_base64[:40], "Base64") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class PutBody:
    """Messages to put to one topic."""

    messages: Annotated[tuple[MessageBody, ...], Length(1, PUT_MAX)]


@dataclass(frozen=True, slots=True, kw_only=True)
class PutAnswer:
    """What became of each message, in order. ``failed`` of them were not acknowledged."""

    results: tuple[SendResult, ...]
    failed: int


def scan_request(values: Mapping[str, Any], topic: str, seconds: float) -> ScanRequest:
    """Return the scan that parameters ask for.

    Raises:
        RequestFailed: Values contradict each other.
    """
    at = dict(values.get("position") or ())
    if values["offset"] is not None:
        if values["partition"] is None:
            raise RequestFailed(409, "contradiction", "parameter offset: needs partition")
        at = {values["partition"]: values["offset"]}
    try:
        return ScanRequest(
            topic=topic,
            partition=values["partition"],
            start=values["from"],
            at=at,
            attribute=values["attribute"],
            key=values["key"],
            message_id=values["id"],
            text=values["contains"],
            since_ms=values["since_ms"],
            until_ms=values["until_ms"],
            limit=values["limit"],
            read_max=values["read_max"],
            seconds=seconds,
        )
    except ValueError as error:
        raise RequestFailed(409, "contradiction", str(error)) from None


async def _messages(call: ApiCall) -> MessagesJson:
    request = scan_request(call.values, call["topic"], call["within_s"])
    scan = await while_connected(call.request, call.console.cluster.follow(request, call["wait_s"]))
    if request.partition is None:
        call.console.cluster.require_all()
    return messages_json(scan, call["value_bytes"])


def messages_json(scan: Scan, value_bytes: int, start: int = 0) -> MessagesJson:
    """Return the matches of a scan from index ``start`` on, and how far it is."""
    found = tuple(message_json(one, value_bytes) for one in scan.messages(start))
    return MessagesJson(messages=found, scan=scan.progress)


async def while_connected(request: Request, work: Any) -> Any:
    """Await ``work``, and cancel it when the client goes away: nobody would read the answer."""
    task = asyncio.ensure_future(work)
    try:
        while not task.done():
            await asyncio.wait({task}, timeout=0.2)
            if not task.done() and await request.is_disconnected():
                raise disconnected()
        return task.result()
    finally:
        task.cancel()


async def _value(call: ApiCall) -> Response:
    partition, offset = call["partition"], call["offset"]
    request = ScanRequest(topic=call["topic"], partition=partition, at={partition: offset}, limit=1, read_max=1)
    found = (await call.console.cluster.scan(request)).messages()
    if not found or found[0].offset != offset:
        raise RequestFailed(
            404, "message_not_found", f"no message begins at {call['topic']}/{partition} offset {offset}"
        )
    # As a download: a browser must never show a payload as a page of this server.
    headers = {"Content-Disposition": "attachment; filename=message.bin"}
    return Response(found[0].data, media_type="application/octet-stream", headers=headers)


async def _put(call: ApiCall) -> PutAnswer:
    body: PutBody = call.body
    messages = [one.message(f"body.messages[{number}]") for number, one in enumerate(body.messages)]
    results = tuple(await call.console.cluster.send(call["topic"], messages))
    return PutAnswer(results=results, failed=sum(not one.ok for one in results))


OPERATIONS = (
    ApiOperation(
        method="GET", path="/v1/topics/{topic}/messages", name="read_messages",
        text="Messages of a topic, read from a position or searched. A search is bounded by `limit`, `read_max` and "
             "`within_s`, ends when the client closes the connection, and says how far it got; longer ones: /v1/scans.",
        handle=_messages, answer=MessagesJson, parameters=(TOPIC, *SCAN, WITHIN_S, _WAIT_S),
    ),
    ApiOperation(
        method="POST", path="/v1/topics/{topic}/messages", name="put_messages",
        text="Puts messages; each has a result of its own. The status is 200 also if some of them failed.",
        handle=_put, answer=PutAnswer, parameters=(TOPIC,), body=PutBody, body_bytes_max=PUT_BYTES_MAX, changes=True,
    ),
    ApiOperation(
        method="GET", path="/v1/topics/{topic}/messages/{partition}/{offset}/value", name="get_value",
        text="The whole value of one message.",
        handle=_value, media="application/octet-stream", parameters=(TOPIC, *_ONE),
    ),
)  # fmt: skip
