"""Committed offsets: what is stored, what survives, and what is refused."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from manual_loop import Steps
from metaq_broker.log.files.errors import StateFull
from metaq_broker.log.files.files import Files
from metaq_broker.log.state.state_table import StateTable
from metaq_broker.operate.config.rocketmq import RocketmqConfig
from metaq_broker.rocketmq.groups.group_offsets import GroupOffsets
from metaq_broker.rocketmq.groups.limits import GroupLimitReached, NameRefused
from metaq_broker.testing import FaultyFiles
from stored import QuickFiles


def opened(root: Path, files: Files | None = None, steps: Steps | None = None, bytes_max: int = 1 << 20) -> StateTable:
    return StateTable.open(files or QuickFiles(), root / "state", steps or Steps(), bytes_max=bytes_max)


def test_offsets_survive_a_restart(tmp_path: Path) -> None:
    table = opened(tmp_path)
    offsets = GroupOffsets(table)
    offsets.commit("T", "g", 0, 5)
    offsets.commit("T", "g", 1, -1)
    offsets.commit("T", "odd/name @ group", 0, (1 << 63) - 1)
    offsets.commit("%RETRY%g", "g", 0, 2)
    offsets.commit("T", "g", 0, 3)  # backwards: a reset
    table.close()
    again = GroupOffsets(opened(tmp_path))
    assert again.all() == {
        ("T", "g"): {0: 3, 1: -1},
        ("T", "odd/name @ group"): {0: (1 << 63) - 1},
        ("%RETRY%g", "g"): {0: 2},
    }
    assert again.get("T", "g", 0) == 3
    assert again.get("T", "g", 2) is None
    assert again.get("U", "g", 0) is None
    assert again.of_group("T", "g") == {0: 3, 1: -1}
    assert again.topics_of("g") == ["%RETRY%g", "T"]
    assert again.groups_of("T") == ["g", "odd/name @ group"]


def test_acknowledged_offsets_survive_a_power_cut_and_others_a_second(tmp_path: Path) -> None:
    for seed in range(20):
        root = tmp_path / str(seed)
        root.mkdir()
        files, steps, reported = FaultyFiles(root), Steps(), []
        offsets = GroupOffsets(opened(root, files, steps))
        offsets.commit("T", "g", 0, 1, reported.append)
        steps.run_all()
        offsets.commit("T", "g", 1, 1)
        steps.run_all(1.0)
        offsets.commit("T", "g", 0, 2, reported.append)
        assert reported == [None]
        found = GroupOffsets(opened(root, files.crash(Random(seed)))).of_group("T", "g")
        assert found in ({0: 1, 1: 1}, {0: 2, 1: 1})


def test_forgetting(tmp_path: Path) -> None:
    table = opened(tmp_path)
    offsets = GroupOffsets(table)
    for topic in ("T", "U"):
        for group in ("g", "h"):
            offsets.commit(topic, group, 0, 1)
    offsets.forget_topic("T")
    offsets.forget_group("h")
    offsets.forget_topic("never")
    table.close()
    assert GroupOffsets(opened(tmp_path)).all() == {("U", "g"): {0: 1}}


def test_limits(tmp_path: Path) -> None:
    table = opened(tmp_path, bytes_max=1000)
    offsets = GroupOffsets(table, RocketmqConfig(queues_of_group_max=3))
    for queue in range(3):
        offsets.commit("T", "g", queue, 1)
    with pytest.raises(GroupLimitReached, match="queues for which a group has offsets: the broker allows 3"):
        offsets.commit("T", "g", 3, 1)
    offsets.commit("T", "g", 2, 2)
    with pytest.raises(NameRefused, match="takes 256 bytes in UTF-8, 255 are allowed"):
        offsets.commit("T", "g" * 256, 0, 1)
    with pytest.raises(NameRefused, match="no slash"):
        offsets.commit("T/U", "g", 0, 1)
    with pytest.raises(NameRefused, match="not valid Unicode"):
        offsets.commit("T", "\udc80", 0, 1)
    while table.size_bytes < 850:
        offsets.commit("T", f"g{table.size_bytes}", 0, 1)
    with pytest.raises(StateFull):
        offsets.commit("T", "too many", 0, 1)
    assert offsets.get("T", "too many", 0) is None
    full = GroupOffsets(table)
    assert full.all() == offsets.all()  # a refused one is nowhere


def test_offsets_of_another_log_are_corrected(tmp_path: Path) -> None:
    steps = Steps()
    offsets = GroupOffsets(opened(tmp_path, steps=steps))
    for topic, queue, offset in (("T", 0, 9), ("T", 1, 3), ("U", 0, 5)):
        offsets.commit(topic, "g", queue, offset)
    ends = {("T", 0): 4, ("T", 1): 3}
    assert offsets.correct(lambda topic, queue, at: min(at, ends.get((topic, queue), at))) == [("T", "g", 0)]
    steps.run_all(1.0)
    assert GroupOffsets(opened(tmp_path)).all() == {("T", "g"): {0: 4, 1: 3}, ("U", "g"): {0: 5}}
