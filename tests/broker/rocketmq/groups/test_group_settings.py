"""Settings of groups: made when first seen, changed, durable, limited."""

from __future__ import annotations

from pathlib import Path

import pytest
from manual_loop import Steps
from metaq_broker.log.state.state_table import StateTable
from metaq_broker.operate.config.rocketmq import RocketmqConfig
from metaq_broker.rocketmq.groups.group_settings import Groups, GroupSettings
from metaq_broker.rocketmq.groups.limits import GroupLimitReached, NameRefused
from stored import QuickFiles


def opened(root: Path) -> StateTable:
    return StateTable.open(QuickFiles(), root / "state", Steps())


def test_settings_survive_a_restart(tmp_path: Path) -> None:
    table = opened(tmp_path)
    groups = Groups(table)
    assert groups.get("g") is None
    assert groups.find("g") == GroupSettings()
    groups.put("h", GroupSettings(consume_enable=False, retry_max=3))
    groups.find("i")
    groups.delete("i")
    groups.delete("never")
    table.close()
    again = Groups(opened(tmp_path))
    assert again.all() == {"g": GroupSettings(), "h": GroupSettings(consume_enable=False, retry_max=3)}


def test_where_groups_must_be_made_before(tmp_path: Path) -> None:
    groups = Groups(opened(tmp_path), create_unknown=False)
    assert groups.find("g") is None
    groups.put("g", GroupSettings())
    assert groups.find("g") == GroupSettings()


def test_limits(tmp_path: Path) -> None:
    groups = Groups(opened(tmp_path), RocketmqConfig(groups_max=1))
    groups.find("g")
    with pytest.raises(GroupLimitReached, match="too many groups: the broker allows 1"):
        groups.find("h")
    groups.put("g", GroupSettings(retry_max=2))
    with pytest.raises(NameRefused):
        groups.find("g" * 256)
    with pytest.raises(NameRefused):
        groups.find("\ud800")
    assert list(groups.all()) == ["g"]


def test_settings_of_a_later_version_are_read_as_far_as_they_are_known(tmp_path: Path) -> None:
    table = opened(tmp_path)
    table.put("group/g", b'{"retry_max":2,"something_new":1}')
    assert Groups(table).get("g") == GroupSettings(retry_max=2)
