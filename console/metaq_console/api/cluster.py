"""Operations about the cluster as a whole: brokers, checks, replication, history."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import metaq
from metaq_console.api.operations import ApiCall, ApiOperation, text, word
from metaq_console.cluster.history import Points, SeriesKey
from metaq_console.cluster.values import BrokerRow


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerJson:
    """This server: its cluster, its version, and whether it may change something."""

    system: Literal["metaq", "rocketmq"]
    cluster: str
    version: str
    write: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingJson:
    """The result of a check of a server: ``fail``: something does not work; ``warn``: it may fail soon."""

    level: Literal["ok", "warn", "fail"]
    what: str
    detail: str


async def _server(call: ApiCall) -> ServerJson:
    system = call.console.cluster.system
    return ServerJson(
        system=system.name, cluster=system.cluster, version=metaq.__version__, write=call.console.settings.write
    )


async def _brokers(call: ApiCall) -> tuple[BrokerRow, ...]:
    return tuple(await call.console.cluster.brokers())


async def _health(call: ApiCall) -> tuple[FindingJson, ...]:
    found = await call.console.cluster.findings()
    return tuple(FindingJson(level=one.level, what=one.what, detail=one.detail) for one in found)


async def _replication(call: ApiCall) -> tuple[Mapping[str, str], ...]:
    return tuple(await call.console.cluster.replication())


async def _history(call: ApiCall) -> Points:
    return call.console.history.points(SeriesKey(call["kind"], call["name"], call["figure"]))


OPERATIONS = (
    ApiOperation(
        method="GET", path="/v1/server", name="get_server", text="This server and what it is for.",
        handle=_server, answer=ServerJson,
    ),
    ApiOperation(
        method="GET", path="/v1/stats", name="get_stats", text="What the brokers say of themselves.",
        handle=_brokers, answer=tuple[BrokerRow, ...], of_all=True,
    ),
    ApiOperation(
        method="GET", path="/v1/health", name="get_health",
        text="Checks of every server, as `metaq doctor` makes them. A server that does not answer is a finding.",
        handle=_health, answer=tuple[FindingJson, ...],
    ),
    ApiOperation(
        method="GET", path="/v1/replication", name="get_replication",
        text="What each broker says of its role, its faults, and how far it is behind its master.",
        handle=_replication, answer=tuple[Mapping[str, str], ...], of_all=True,
    ),
    ApiOperation(
        method="GET", path="/v1/history", name="get_history",
        text="A series of the last two hours: of the cluster (`in_per_s`, `out_bytes_per_s`), a topic (`messages`, "
             "`bytes`) or a group (`lag`).",
        handle=_history, answer=Points,
        parameters=(
            word("kind", "what it is about", ("cluster", "topic", "group", "query"), default="cluster"),
            text("name", "name of the topic or group", default=""),
            text("figure", "the figure", most=100, default="in_per_s"),
        ),
    ),
)  # fmt: skip
