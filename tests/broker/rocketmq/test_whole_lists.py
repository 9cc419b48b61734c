"""Lists of topics and of groups: all of a list is made, or none of it, also where only some of it has space."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from metaq_broker.log.engine import topics
from test_hostile_requests import FrontEnd

from metaq.protocols.remoting.bodies.administration import SubscriptionGroupList, TopicConfigList
from metaq.protocols.remoting.bodies.groups import SubscriptionGroupConfig
from metaq.protocols.remoting.bodies.registration import TopicConfigBody
from metaq.protocols.remoting.codes import ResponseCode
from metaq.protocols.remoting.headers.administration import (
    UpdateAndCreateSubscriptionGroupList,
    UpdateAndCreateTopicList,
)

NAMES = [f"n{number}" for number in range(8)]


def topic_list() -> tuple[int, bytes]:
    """Return a request to make some topics."""
    made = tuple(TopicConfigBody(topic_name=name, read_queue_nums=1, write_queue_nums=1) for name in NAMES)
    return UpdateAndCreateTopicList.CODE, TopicConfigList(topic_config_list=made).to_json()


def group_list() -> tuple[int, bytes]:
    """Return a request to make some groups."""
    made = tuple(SubscriptionGroupConfig(group_name=name) for name in NAMES)
    return UpdateAndCreateSubscriptionGroupList.CODE, SubscriptionGroupList(group_config_list=made).to_json()


def made(front_end: FrontEnd) -> set[str]:
    """Return the topics and groups of the lists that there are."""
    server = front_end.server
    return set(NAMES) & {*server.topics.all(), *server.groups.settings.all()}


@pytest.mark.parametrize("requested", [topic_list(), group_list()], ids=["topics", "groups"])
@pytest.mark.parametrize("full", ["state", "count"])
def test_a_list_without_space_for_all_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, requested: tuple[int, bytes], full: str
) -> None:
    code, body = requested

    async def run() -> None:
        front_end = FrontEnd(tmp_path)
        try:
            table = front_end.server.groups.settings._table
            if full == "state":
                limit, table.bytes_max = table.bytes_max, (table.size_bytes + 1200) * 16 // 15
            else:
                monkeypatch.setattr(topics, "TOPICS_MAX", 4)
                monkeypatch.setattr(front_end.server.groups.settings, "_limits", type("Limits", (), {"groups_max": 4}))
            refused = await front_end.answer(code, {}, body)
            assert refused.code == ResponseCode.SYSTEM_ERROR, refused
            assert made(front_end) == set(), refused.remark
            if full == "state":
                table.bytes_max = limit
                assert (await front_end.answer(code, {}, body)).code == 0
                assert made(front_end) == set(NAMES)
        finally:
            await front_end.close()

    asyncio.run(run())
