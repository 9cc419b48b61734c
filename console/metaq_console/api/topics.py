"""Operations about topics and partitions."""

from __future__ import annotations

from metaq_console.api.operations import ApiCall, ApiOperation, word
from metaq_console.api.parameters import CONTAINS, COUNT, DESCENDING, START, TOPIC
from metaq_console.cluster.cluster_questions import Page
from metaq_console.cluster.values import PartitionRow, TopicRow
from metaq_console.errors import RequestFailed

_SORTS = ("topic", "partitions", "messages", "bytes", "in_per_s", "out_bytes_per_s")


async def _topics(call: ApiCall) -> Page[TopicRow]:
    return await call.console.cluster.topics(
        text=call["text"], sort=call["sort"], descending=call["descending"], start=call["start"], count=call["count"]
    )


async def _topic(call: ApiCall) -> TopicRow:
    name = call["topic"]
    page = await call.console.cluster.topics_named([name])
    if not page:
        raise RequestFailed(404, "topic_not_found", f"topic {name!r} does not exist")
    return page[0]


async def _partitions(call: ApiCall) -> tuple[PartitionRow, ...]:
    return tuple(await call.console.cluster.partitions(call["topic"]))


OPERATIONS = (
    ApiOperation(
        method="GET", path="/v1/topics", name="list_topics",
        text="The topics of the cluster, a page of them. RocketMQ's are sorted by name only.",
        handle=_topics, answer=Page[TopicRow], of_all=True,
        parameters=(CONTAINS, word("sort", "what to sort by", _SORTS, default="topic"), DESCENDING, START, COUNT),
    ),
    ApiOperation(
        method="GET", path="/v1/topics/{topic}", name="get_topic", text="One topic.",
        handle=_topic, answer=TopicRow, parameters=(TOPIC,), of_all=True,
    ),
    ApiOperation(
        method="GET", path="/v1/topics/{topic}/partitions", name="list_partitions", text="The partitions of a topic.",
        handle=_partitions, answer=tuple[PartitionRow, ...], parameters=(TOPIC,), of_all=True,
    ),
)  # fmt: skip
