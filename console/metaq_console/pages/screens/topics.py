"""Topics: all of them, page by page, and one with its partitions and its readers."""

from __future__ import annotations

import asyncio
from typing import Any, Final, cast, get_args

from starlette.responses import Response

from metaq_console.cluster.cluster_questions import TopicSort
from metaq_console.cluster.history import SeriesKey
from metaq_console.cluster.values import LagRow, PartitionRow, by_topic
from metaq_console.errors import RequestFailed
from metaq_console.pages.screens.paging import ROWS, Order, Paging, order, page_number
from metaq_console.pages.screens.plots import plot
from metaq_console.pages.visit import Visit

COLUMNS: Final[tuple[TopicSort, ...]] = get_args(TopicSort)
READERS_MAX: Final = 50
"""Groups that are looked at for the readers of a topic."""


async def topics(visit: Visit) -> Response:
    """Show a page of the topics."""
    text, number = visit.given("q"), page_number(visit)
    chosen = order(visit, COLUMNS, "topic")
    cluster = visit.console.cluster
    if chosen.key != "topic" and cluster.system.name == "rocketmq":
        chosen = Order("topic", False)  # RocketMQ has no question about all topics
    question = cluster.topics(
        text=text,
        sort=cast("TopicSort", chosen.key),
        descending=chosen.falls,
        start=(number - 1) * ROWS,
        count=ROWS,
    )
    found = await visit.ask(("topics", text, chosen, number), question, None)
    return visit.page(
        "topics.html",
        "topics",
        is_live=True,
        query=text,
        order=chosen,
        rows=[] if found is None else found.rows,
        paging=Paging(number, 0 if found is None else found.total),
        can_sort=cluster.system.name == "metaq",
        lags=visit.console.sampler.largest_lags,
    )


async def topic(visit: Visit) -> Response:
    """Show one topic."""
    name = visit.needed("topic")
    found = await visit.ask(("partitions", name), visit.console.cluster.partitions(name), None)
    history = visit.console.history
    return visit.page(
        "topic.html",
        "topics",
        200 if found is not None else 404 if "topic_not_found" in visit.codes else 502,
        is_live=True,
        topic=name,
        partitions=found,
        total=None if found is None else _total(found, visit.console.cluster.system.unit),
        traffic=plot(history, (visit.t("Messages in"), SeriesKey("topic", name, "in_per_s"))),
        readers=[] if found is None else await readers(visit, name),
    )


def _total(rows: list[PartitionRow], unit: str) -> dict[str, Any]:
    counts = [row.messages for row in rows]
    return {
        "bytes": sum(row.end - row.start for row in rows) if unit == "bytes" else None,
        "messages": None if None in counts else sum(count or 0 for count in counts),
        "last_ms": max((row.last_ms for row in rows if row.last_ms is not None), default=None),
    }


async def readers(visit: Visit, topic: str) -> list[LagRow]:
    """Return the groups that have offsets in a topic, with the sum of their lag in it, the largest first."""
    cluster = visit.console.cluster
    found: list[LagRow] = []
    try:
        names = (await cluster.group_names())[:READERS_MAX]
    except RequestFailed:
        return found  # not every cluster keeps groups
    for lags in await asyncio.gather(*map(cluster.lag, names), return_exceptions=True):
        if isinstance(lags, RequestFailed):
            continue
        if isinstance(lags, BaseException):
            raise lags
        found += [row for row in by_topic(lags) if row.topic == topic]
    return sorted(found, key=lambda row: (-row.lag, row.group))
