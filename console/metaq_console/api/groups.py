"""Operations about consumer groups: lag, reset, dead letters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final, Literal

from metaq.model import INT64_MAX
from metaq_console.api.messages_json import MessageJson, message_json
from metaq_console.api.operations import ApiCall, ApiOperation
from metaq_console.api.parameters import CONTAINS, COUNT, GROUP, START, TIME_MS_MAX, TOPICS, VALUE_BYTES
from metaq_console.api.schemas import Length, Range
from metaq_console.cluster.cluster_questions import Page
from metaq_console.cluster.history import Points, SeriesKey
from metaq_console.cluster.system import ReadStart
from metaq_console.cluster.values import GroupRow, LagRow, ResendResult, ResetRow

RESEND_MAX: Final = 500
Name = Annotated[str, Length(1, 1000)]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupJson:
    """A group, its members, and its lag in each partition."""

    group: GroupRow
    members: tuple[str, ...]
    lag: tuple[LagRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetBody:
    """Where a group is to begin: ``to``, or ``time_ms``, or ``offset`` with one partition. ``dry_run`` changes nothing.

    Without ``partitions``: in all of the topic.
    """

    topic: Name
    to: Literal["earliest", "latest"] | None = None
    time_ms: Annotated[int, Range(0, TIME_MS_MAX)] | None = None
    offset: Annotated[int, Range(0, INT64_MAX)] | None = None
    partitions: Annotated[tuple[Annotated[str, Length(1, 300)], ...], Length(1, 500)] | None = None
    dry_run: bool = True

    def __post_init__(self) -> None:
        if sum(one is not None for one in (self.to, self.time_ms, self.offset)) != 1:
            raise ValueError("to, time_ms and offset: expected exactly one of them")
        if self.offset is not None and (self.partitions is None or len(self.partitions) != 1):
            raise ValueError("offset: needs partitions with exactly one partition")

    @property
    def start(self) -> ReadStart:
        """The position as a question has it."""
        if self.to is not None:
            return self.to
        if self.time_ms is not None:
            return self.time_ms
        return {one: self.offset for one in self.partitions or () if self.offset is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetAnswer:
    """What was changed, or with ``dry_run`` what would be."""

    dry_run: bool
    changes: tuple[ResetRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterJson:
    """A message that consumers of the group rejected. ``number`` names it in a resend."""

    number: str
    origin: str | None
    """The topic that it was read from."""
    moved_ms: int | None
    reason: str | None
    message: MessageJson


@dataclass(frozen=True, slots=True, kw_only=True)
class ResendBody:
    """Dead letters to send again: to their own topic, or to ``topic``."""

    numbers: Annotated[tuple[Annotated[str, Length(1, 300)], ...], Length(1, RESEND_MAX)]
    topic: Name | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResendAnswer:
    """What became of each letter, in order. ``failed`` of them were not sent."""

    results: tuple[ResendResult, ...]
    failed: int


async def _groups(call: ApiCall) -> Page[GroupRow]:
    return await call.console.cluster.groups(text=call["text"], start=call["start"], count=call["count"])


async def _group(call: ApiCall) -> GroupJson:
    name = call["group"]
    call.console.sampler.watch_group(name)
    lag = await call.console.cluster.lag(name)
    members = await call.console.cluster.members(name)
    row = GroupRow(
        group=name,
        members=len(members),
        topics=tuple(sorted({one.topic for one in lag})),
        partitions=len(lag),
        lag=sum(one.lag for one in lag),
        unit=call.console.cluster.system.unit,
    )
    return GroupJson(group=row, members=tuple(members), lag=tuple(lag))


async def _lag(call: ApiCall) -> tuple[LagRow, ...]:
    call.console.sampler.watch_group(call["group"])
    return tuple(await call.console.cluster.lag(call["group"], call["topic"]))


async def _lag_history(call: ApiCall) -> Points:
    call.console.sampler.watch_group(call["group"])
    return call.console.history.points(SeriesKey("group", call["group"], "lag"))


async def _reset(call: ApiCall) -> ResetAnswer:
    body: ResetBody = call.body
    ask = call.console.cluster.plan_reset if body.dry_run else call.console.cluster.reset
    changes = await ask(call["group"], body.topic, body.start, body.partitions)
    return ResetAnswer(dry_run=body.dry_run, changes=tuple(changes))


async def _dead_letters(call: ApiCall) -> Page[DeadLetterJson]:
    page = await call.console.cluster.dead_letters(call["group"], call["start"], call["count"])
    rows = tuple(
        DeadLetterJson(
            number=one.number,
            origin=one.origin,
            moved_ms=one.moved_ms,
            reason=one.reason,
            message=message_json(one.message, call["value_bytes"]),
        )
        for one in page.rows
    )
    return Page(rows=rows, start=page.start, total=page.total)


async def _resend(call: ApiCall) -> ResendAnswer:
    results = tuple(await call.console.cluster.resend(call["group"], call.body.numbers, call.body.topic))
    return ResendAnswer(results=results, failed=sum(not one.ok for one in results))


OPERATIONS = (
    ApiOperation(
        method="GET", path="/v1/groups", name="list_groups",
        text="The consumer groups, a page of them, each with its lag.",
        handle=_groups, answer=Page[GroupRow], parameters=(CONTAINS, START, COUNT), of_all=True,
    ),
    ApiOperation(
        method="GET", path="/v1/groups/{group}", name="get_group", text="A group, its members and its lag.",
        handle=_group, answer=GroupJson, parameters=(GROUP,), of_all=True,
    ),
    ApiOperation(
        method="GET", path="/v1/groups/{group}/lag", name="get_lag",
        text="The lag of a group in each partition, by default of the topics for which it has offsets.",
        handle=_lag, answer=tuple[LagRow, ...], parameters=(GROUP, TOPICS), of_all=True,
    ),
    ApiOperation(
        method="GET", path="/v1/groups/{group}/lag/history", name="get_lag_history",
        text="The sum of a group's lag over the last two hours, from the first request on.",
        handle=_lag_history, answer=Points, parameters=(GROUP,),
    ),
    ApiOperation(
        method="POST", path="/v1/groups/{group}/reset", name="reset_group",
        text="Sets the offsets of a group that is not running; with `dry_run`, the default, says what would change.",
        handle=_reset, answer=ResetAnswer, parameters=(GROUP,), body=ResetBody, changes=True,
    ),
    ApiOperation(
        method="GET", path="/v1/groups/{group}/dead-letters", name="list_dead_letters",
        text="Messages that consumers of the group rejected. MetaQ: those that were parked on this server's machine.",
        handle=_dead_letters, answer=Page[DeadLetterJson], parameters=(GROUP, START, COUNT, VALUE_BYTES),
        of_all=True,
    ),
    ApiOperation(
        method="POST", path="/v1/groups/{group}/dead-letters/resend", name="resend_dead_letters",
        text="Sends dead letters again; each has a result of its own. The status is 200 also if some of them failed.",
        handle=_resend, answer=ResendAnswer, parameters=(GROUP,), body=ResendBody, changes=True,
    ),
)  # fmt: skip
