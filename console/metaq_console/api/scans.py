"""Operations about scans in the background: started, looked at, stopped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from metaq.model import INT64_MAX
from metaq_console.api.messages import messages_json, scan_request
from metaq_console.api.messages_json import MessageJson
from metaq_console.api.operations import ApiCall, ApiOperation, text, whole
from metaq_console.api.parameters import TIME_MS_MAX, VALUE_BYTES
from metaq_console.api.schemas import Length, Range
from metaq_console.cluster.scan_jobs import ScanJob
from metaq_console.cluster.scans import LIMIT_MAX, READ_DEFAULT, READ_MAX, SECONDS_MAX, ScanProgress

_SCAN: Final = text("scan", "name of the scan", least=1, most=64, where="path", required=True)
_FROM: Final = whole("start", "index of the first match", 0, LIMIT_MAX, default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanBody:
    """What to look for, and how far: as the parameters of reading messages."""

    topic: Annotated[str, Length(1, 1000)]
    partition: Annotated[str, Length(1, 300)] | None = None
    start: Literal["earliest", "latest", "newest"] = "earliest"
    offset: Annotated[int, Range(0, INT64_MAX)] | None = None
    since_ms: Annotated[int, Range(0, TIME_MS_MAX)] | None = None
    until_ms: Annotated[int, Range(0, TIME_MS_MAX)] | None = None
    id: Annotated[str, Length(1, 100)] | None = None
    key: Annotated[str, Length(1, 1000)] | None = None
    attribute: Annotated[str, Length(0, 1000)] | None = None
    contains: Annotated[str, Length(1, 10_000)] | None = None
    limit: Annotated[int, Range(1, LIMIT_MAX)] = 100
    read_max: Annotated[int, Range(1, READ_MAX)] = READ_DEFAULT
    seconds: Annotated[int, Range(1, SECONDS_MAX)] = 60

    @property
    def values(self) -> dict[str, Any]:
        """The same as parameters."""
        names = (
            "partition",
            "offset",
            "since_ms",
            "until_ms",
            "id",
            "key",
            "attribute",
            "contains",
            "limit",
            "read_max",
        )
        return {"from": self.start} | {name: getattr(self, name) for name in names}


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanJson:
    """A scan, how far it is, and what it found so far."""

    scan: str
    """Its name."""
    topic: str
    progress: ScanProgress
    messages: tuple[MessageJson, ...]


async def _start(call: ApiCall) -> ScanJson:
    body: ScanBody = call.body
    await call.console.cluster.partitions(body.topic)  # an unknown topic is an error of this request
    request = scan_request(body.values, body.topic, body.seconds)
    if request.partition is None:
        call.console.cluster.require_all()
    job = call.console.scans.start(request)
    return _json(job, 0, 0)


async def _scans(call: ApiCall) -> tuple[ScanJson, ...]:
    return tuple(_json(job, LIMIT_MAX, 0) for job in call.console.scans.each())


async def _scan(call: ApiCall) -> ScanJson:
    return _json(call.console.scans.get(call["scan"]), call["start"], call["value_bytes"])


async def _stop(call: ApiCall) -> ScanJson:
    return _json(call.console.scans.stop(call["scan"]), LIMIT_MAX, 0)


def _json(job: ScanJob, start: int, value_bytes: int) -> ScanJson:
    found = messages_json(job.scan, value_bytes, start)
    return ScanJson(scan=job.scan_id, topic=job.scan.request.topic, progress=found.scan, messages=found.messages)


OPERATIONS = (
    ApiOperation(
        method="POST", path="/v1/scans", name="start_scan",
        text="Starts a search that runs at this server until it is done, its limits are reached, or it is stopped. "
             "Four run at a time; what they found is kept for ten minutes.",
        handle=_start, answer=ScanJson, body=ScanBody, status=201,
    ),
    ApiOperation(
        method="GET", path="/v1/scans", name="list_scans", text="The scans, without what they found.",
        handle=_scans, answer=tuple[ScanJson, ...],
    ),
    ApiOperation(
        method="GET", path="/v1/scans/{scan}", name="get_scan",
        text="How far a scan is, and what it found from the match with index `start` on.",
        handle=_scan, answer=ScanJson, parameters=(_SCAN, _FROM, VALUE_BYTES),
    ),
    ApiOperation(
        method="DELETE", path="/v1/scans/{scan}", name="stop_scan",
        text="Stops a scan and forgets it; the answer says how far it got.",
        handle=_stop, answer=ScanJson, parameters=(_SCAN,),
    ),
)  # fmt: skip
