"""The questions of the API and the pages to one cluster: awaited, with deadlines; what many ask is asked once."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Collection, Hashable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, Literal, TypeVar

from metaq.client.checkup.findings import Finding
from metaq.errors import MetaqError, TopicNotFound
from metaq.net.clock import SYSTEM_CLOCK
from metaq_console.cluster.questions import Questions
from metaq_console.cluster.scans import Scan, ScanRequest
from metaq_console.cluster.system import QueueSystem, ReadStart
from metaq_console.cluster.values import (
    BrokerRow,
    ClientRow,
    DeadLetter,
    GroupRow,
    LagRow,
    NewMessage,
    PartitionRow,
    ResendResult,
    ResetRow,
    SendResult,
    TopicRow,
    TransactionRows,
)
from metaq_console.cluster.watch import begin
from metaq_console.errors import RequestFailed, failure_of

FRESH_S: Final = 3.0
"""How long an answer serves all clients: a little less than a page waits before it asks again."""
GROUPS_FRESH_S: Final = 5.0
CHECKS_FRESH_S: Final = 10.0
CHECK_S: Final = 1.5
"""How long a check waits for a server: a page waits for the checks."""
POLL_S: Final = 0.5
"""How often a client that waits for messages looks for some."""
COUNT_MAX: Final = 500
"""Limit on rows of a page."""

T = TypeVar("T")
R = TypeVar("R")
TopicSort = Literal["topic", "partitions", "messages", "bytes", "in_per_s", "out_bytes_per_s"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Page(Generic[T]):
    """Rows from index ``start`` on, of ``total``."""

    rows: tuple[T, ...]
    start: int
    total: int


class ClusterQuestions:
    """Asks one cluster.

    Methods raise ``RequestFailed``: no answer in time, a server that is away, a value that the cluster does not have.
    """

    def __init__(self, system: QueueSystem, questions: Questions, within_s: float) -> None:
        self.system: Final = system
        self.watch: Final = questions.watch
        self._questions, self._within_s = questions, within_s
        self.watch.on_change(lambda: system.forget())

    async def warm(self, within_s: float) -> None:
        """Find out which servers are silent; ask what a first page asks, so that it finds connections and answers, and
        wait ``within_s`` at most for that.

        Errors are ignored: the page asks again, and shows them.
        """
        checks = begin(self.findings())
        await self.watch.look()
        of_topics = self.ask(self.system.warm, "where topics are")
        asked = [begin(question) for question in (self.all_topics(), self.brokers(), of_topics)]
        await asyncio.wait([checks, *asked], timeout=within_s)
        await self.watch.look()  # at brokers that name servers have named meanwhile

    def require_all(self) -> None:
        """Check that answers are of all brokers.

        Raises:
            RequestFailed: A broker is left out, because it does not answer.
        """
        try:
            self.system.require_all()
        except MetaqError as error:
            raise failure_of(error) from None

    async def topics(
        self, *, text: str = "", sort: TopicSort = "topic", descending: bool = False, start: int = 0, count: int = 50
    ) -> Page[TopicRow]:
        """Return a page of the topics whose name contains ``text``.

        RocketMQ has no question about all topics: only names are sorted, and only the page's topics are asked for.
        """
        _check_page(start, count)
        rows = await self.all_topics()
        if rows is not None:
            chosen = [row for row in rows if text in row.topic]
            chosen.sort(key=lambda row: _sort_key(getattr(row, sort)), reverse=descending)
            return Page(rows=tuple(chosen[start : start + count]), start=start, total=len(chosen))
        if sort != "topic":
            raise RequestFailed(
                409,
                "not_supported_by_cluster",
                f"sort={sort}: RocketMQ has no question about all topics; expected sort=topic",
            )
        names = [name for name in await self.topic_names() if text in name]
        if descending:
            names.reverse()
        found = await self.topics_named(names[start : start + count])
        return Page(rows=tuple(found), start=start, total=len(names))

    async def topics_named(self, names: Sequence[str]) -> list[TopicRow]:
        """Return rows for the named topics that exist."""
        rows = await self.all_topics()
        if rows is not None:
            wanted = set(names)
            return [row for row in rows if row.topic in wanted]
        key = ("topics_of", *names)
        return await self._shared(key, lambda: self.system.topics_of(names), "topics", FRESH_S)

    async def all_topics(self) -> list[TopicRow] | None:
        """Return all topics with one question; ``None`` if the system has none for that."""
        return await self._shared("all_topics", self.system.all_topics, "topics", FRESH_S)

    async def topic_names(self) -> list[str]:
        rows = await self.all_topics()
        if rows is not None:
            return [row.topic for row in rows]
        return await self._shared("topic_names", self.system.topic_names, "names of topics", FRESH_S)

    async def partitions(self, topic: str) -> list[PartitionRow]:
        return await self._shared(
            ("partitions", topic), lambda: self.system.partitions(topic), f"partitions of topic {topic!r}", FRESH_S
        )

    async def brokers(self) -> list[BrokerRow]:
        return await self._shared("brokers", self.system.brokers, "brokers", FRESH_S)

    async def findings(self) -> list[Finding]:
        """Check every server; one that does not answer is a finding."""
        within_s = min(CHECK_S, self._within_s / 2)
        question = self._questions.shared(
            "findings",
            lambda: self.system.findings(within_s),
            what="checks of servers",
            fresh_s=CHECKS_FRESH_S,
            again=False,  # silent servers are checked, too
        )
        return await self._answer(question)

    async def replication(self) -> list[dict[str, str]]:
        return await self._shared(
            "replication", lambda: [dict(one) for one in self.system.replication()], "replication", FRESH_S
        )

    async def group_names(self) -> list[str]:
        return await self._shared("groups", self.system.groups, "groups", GROUPS_FRESH_S)

    async def groups(self, *, text: str = "", start: int = 0, count: int = 50) -> Page[GroupRow]:
        """Return a page of groups, each with its lag; a group whose lag cannot be had says why."""
        _check_page(start, count)
        names = [name for name in await self.group_names() if text in name]
        rows = await asyncio.gather(*(self.group(name) for name in names[start : start + count]))
        return Page(rows=tuple(rows), start=start, total=len(names))

    async def group(self, group: str) -> GroupRow:
        """Return a group; one whose lag cannot be had has an ``error`` instead."""
        try:
            return await self._shared(
                ("group", group), lambda: self.system.group_row(group), f"group {group!r}", GROUPS_FRESH_S
            )
        except RequestFailed as error:
            return GroupRow(
                group=group, members=None, topics=(), partitions=0, lag=None, unit=self.system.unit, error=str(error)
            )

    async def clients(self, group: str) -> list[ClientRow]:
        return await self._shared(
            ("clients", group), lambda: self.system.clients(group), f"consumers of group {group!r}", GROUPS_FRESH_S
        )

    async def transactions(self, query_ids: Collection[str] = ()) -> TransactionRows:
        """Return prepared branches, and the last decisions; also for ``query_ids``, of which no branch is prepared."""
        wanted = sorted(query_ids)
        return await self._shared(
            ("transactions", *wanted), lambda: self.system.transactions(wanted), "transactions", FRESH_S
        )

    async def members(self, group: str) -> list[str]:
        return await self._shared(
            ("members", group), lambda: self.system.members(group), f"members of group {group!r}", GROUPS_FRESH_S
        )

    async def lag(self, group: str, topics: Sequence[str] | None = None) -> list[LagRow]:
        key = ("lag", group, *(topics or ()))
        return await self._shared(key, lambda: self.system.lag(group, topics), f"lag of group {group!r}", FRESH_S)

    async def plan_reset(
        self, group: str, topic: str, start: ReadStart, partitions: Collection[str] | None = None
    ) -> list[ResetRow]:
        """Return what a reset would change. Raises ``RequestFailed`` if a broker is left out."""
        self.require_all()
        rows = await self.ask(
            lambda: self.system.plan_reset(group, topic, start, partitions), f"reset of group {group!r}"
        )
        self.require_all()
        return rows

    async def reset(
        self, group: str, topic: str, start: ReadStart, partitions: Collection[str] | None = None
    ) -> list[ResetRow]:
        """Set the offsets of a group that is not running, and return what was changed. Raises as ``plan_reset``."""
        self.require_all()

        def change() -> list[ResetRow]:
            rows = self.system.plan_reset(group, topic, start, partitions)
            self.system.require_all()
            self.system.reset(group, rows)
            return rows

        return await self._change(change, f"reset of group {group!r}")

    async def send(self, topic: str, messages: Sequence[NewMessage]) -> list[SendResult]:
        """Put messages; each has a result."""
        within_s = self._within_s * 0.9  # so that the results are there before the question's deadline
        return await self._change(lambda: self.system.send(topic, messages, within_s), f"put to topic {topic!r}")

    async def dead_letters(self, group: str, start: int = 0, count: int = 50) -> Page[DeadLetter]:
        _check_page(start, count)
        rows, total = await self.ask(
            lambda: self.system.dead_letters(group, start, count), f"dead letters of group {group!r}"
        )
        return Page(rows=tuple(rows), start=start, total=total)

    async def resend(self, group: str, numbers: Sequence[str], topic: str | None) -> list[ResendResult]:
        """Send dead letters again; each has a result. One that is named twice is sent once."""
        within_s, once = self._within_s * 0.9, list(dict.fromkeys(numbers))
        found = await self._change(
            lambda: self.system.resend(group, once, topic, within_s), f"resend of dead letters of group {group!r}"
        )
        results = dict(zip(once, found, strict=True))
        return [results[number] for number in numbers]

    async def scan(self, request: ScanRequest) -> Scan:
        """Run a scan to its end, and return it. It is stopped if the caller is cancelled.

        The newest messages of a topic are read once for all that ask within ``FRESH_S``.
        """
        scans: list[Scan] = []

        def read() -> Scan:
            _cancel(scans)  # one that a silent server holds up
            scans.append(scan := Scan(self.system, request))
            scan.run()
            return scan

        if request.shows_newest:
            key = ("newest", request.topic, request.partition, request.limit, request.read_max, request.seconds)
            what = f"newest messages of {request.topic!r}"
            return await self._shared(key, read, what, FRESH_S, is_live=True)
        try:
            return await self.ask(read, f"scan of topic {request.topic!r}", request.seconds + self._within_s)
        finally:
            _cancel(scans)

    async def follow(self, request: ScanRequest, wait_s: float) -> Scan:
        """Run a scan; if it reads everything and finds nothing, wait for messages, ``wait_s`` at most, and go on."""
        until_s = SYSTEM_CLOCK.monotonic() + wait_s
        scan = await self.scan(request)
        while scan.progress.stopped == "end" and not scan.messages() and SYSTEM_CLOCK.monotonic() < until_s:
            await asyncio.sleep(min(POLL_S, wait_s))
            ends, positions = await self.ends(request.topic), scan.progress.positions
            if any(end > positions.get(where, 0) for where, end in ends.items()):
                at = {**request.at, **positions}
                scan = await self.scan(dataclasses.replace(request, at=at, start="earliest", since_ms=None))
        return scan

    async def ends(self, topic: str) -> dict[str, int]:
        """Return the end of each partition."""
        key = ("ends", topic)
        return await self._shared(key, lambda: self.system.positions(topic, "latest"), f"ends of {topic!r}", POLL_S)

    async def ask(self, call: Callable[[], R], what: str, within_s: float | None = None) -> R:
        """Return the result of a blocking call to the cluster; ``what`` names it in errors."""
        return await self._answer(self._questions.ask(call, what=what, within_s=within_s))

    async def _change(self, call: Callable[[], R], what: str) -> R:
        try:
            return await self._answer(self._questions.ask_once(call, what=what))
        finally:
            self._questions.forget()
            self.system.forget()

    async def _shared(
        self, key: Hashable, call: Callable[[], R], what: str, fresh_s: float, *, is_live: bool = False
    ) -> R:
        return await self._answer(self._questions.shared(key, call, what=what, fresh_s=fresh_s, is_live=is_live))

    async def _answer(self, question: Awaitable[R]) -> R:
        """Return the answer to a question; raise its error as a ``RequestFailed``."""
        try:
            return await question
        except (MetaqError, ValueError, TypeError) as error:
            if isinstance(error, TopicNotFound):
                self.require_all()  # a broker that is left out may have it
            raise failure_of(error) from error


def _cancel(scans: Collection[Scan]) -> None:
    for scan in scans:
        scan.cancel()


def _check_page(start: int, count: int) -> None:
    if start < 0:
        raise RequestFailed(400, "invalid_value", f"start={start}: expected 0 or more")
    if not 1 <= count <= COUNT_MAX:
        raise RequestFailed(400, "invalid_value", f"count={count}: expected 1..{COUNT_MAX}")


def _sort_key(value: str | float | None) -> tuple[bool, str | float]:
    return (value is not None, "" if value is None else value)
