"""Groups at a broker: who owns a partition, until when, and whose offsets are stored."""

from __future__ import annotations

from pathlib import Path

import pytest
from manual_loop import Steps
from metaq_broker.clock import ManualClock
from metaq_broker.log.files.errors import StateFull
from metaq_broker.log.state.state_table import StateTable
from metaq_broker.text.groups.group_state import GroupRefused, IdTaken, KeptGroups, NotMember
from stored import QuickFiles

from metaq.protocols.text.group_bodies import StoredOffset

T0, T1 = ("t", 0), ("t", 1)


class Setting:
    """One broker's groups; ``restart`` is a restart of the broker."""

    def __init__(self, root: Path) -> None:
        self.root, self.clock = root, ManualClock()
        self.open()

    def open(self) -> None:
        self.table = StateTable.open(QuickFiles(), self.root / "groups", Steps())
        self.groups = KeptGroups(self.table, self.clock.monotonic)

    def restart(self) -> None:
        self.table.close()
        self.open()

    def join(self, token: str, consumer: str | None = None) -> None:
        self.groups.join("g", token, consumer or token, 10.0, ("t",))

    def save(self, token: str, offset: str, expected: str | None, *, place: tuple[str, int] = T0) -> object:
        known = {} if expected is None else {place: StoredOffset(expected, None)}
        return self.groups.save("g", token, {place: StoredOffset(offset, None)}, known)


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    return Setting(tmp_path)


def test_a_partition_has_one_owner_until_it_is_released_or_its_session_ends(setting: Setting) -> None:
    groups = setting.groups
    setting.join("a")
    setting.join("b")
    groups.claim("g", "a", [T0, T1])
    groups.claim("g", "b", [T0, T1])
    assert groups.owned("g", "b") == []
    before = groups.generation("g")
    groups.release("g", "a", [T1])
    groups.release("g", "b", [T0])  # not its own
    assert groups.generation("g") != before
    groups.claim("g", "b", [T0, T1])
    assert (groups.owned("g", "a"), groups.owned("g", "b")) == ([T0], [T1])
    setting.clock.advance(9_000)
    setting.join("b")
    setting.clock.advance(2_000)
    assert groups.members("g") == {"b": ("t",)}
    groups.claim("g", "b", [T0, T1])
    assert sorted(groups.owned("g", "b")) == [T0, T1]
    setting.join("a")  # it was frozen
    assert groups.owned("g", "a") == []


def test_a_claim_is_for_exactly_these_partitions(setting: Setting) -> None:
    setting.join("a")
    setting.groups.claim("g", "a", [T0])
    setting.groups.claim("g", "a", [T1])
    assert setting.groups.owned("g", "a") == [T1]


def test_who_is_no_member_claims_nothing(setting: Setting) -> None:
    with pytest.raises(NotMember):
        setting.groups.claim("g", "a", [T0])
    setting.join("a")
    setting.clock.advance(10_000)
    with pytest.raises(NotMember):
        setting.groups.claim("g", "a", [T0])


def test_an_id_belongs_to_one_session(setting: Setting) -> None:
    setting.join("first", "id")
    with pytest.raises(IdTaken):
        setting.join("second", "id")
    setting.clock.advance(10_000)
    setting.join("second", "id")
    with pytest.raises(IdTaken):
        setting.join("first", "id")
    setting.groups.leave("g", "second")
    setting.join("first", "id")


def test_an_owner_before_a_restart_keeps_its_partitions_for_a_session(setting: Setting) -> None:
    setting.join("a")
    setting.groups.claim("g", "a", [T0, T1])
    setting.restart()
    assert setting.groups.members("g") == {}
    with pytest.raises(NotMember):
        setting.groups.claim("g", "a", [T0])
    with pytest.raises(IdTaken):
        setting.join("successor", "a")
    setting.join("b")
    setting.groups.claim("g", "b", [T0, T1])
    assert setting.groups.owned("g", "b") == []
    setting.clock.advance(9_000)
    setting.join("a")
    assert sorted(setting.groups.owned("g", "a")) == [T0, T1]
    setting.join("b")
    setting.restart()
    setting.clock.advance(10_000)
    setting.join("b")
    setting.groups.claim("g", "b", [T0, T1])
    assert sorted(setting.groups.owned("g", "b")) == [T0, T1]
    setting.restart()
    assert setting.groups.owner("g", T0) == "b"


def test_generations_of_two_runs_differ(setting: Setting) -> None:
    setting.join("a")
    before = setting.groups.generation("g")
    setting.restart()
    setting.join("a")
    assert setting.groups.generation("g") != before


def test_only_the_owner_saves_and_only_what_it_knows(setting: Setting) -> None:
    groups = setting.groups
    setting.join("a")
    setting.join("b")
    groups.claim("g", "a", [T0])
    assert setting.save("a", "7-100", None) == {}
    assert setting.save("b", "8-200", "7-100") == {T0: StoredOffset("7-100", None)}
    assert setting.save("a", "8-200", "5-50") == {T0: StoredOffset("7-100", None)}
    assert setting.save("a", "8-200", "7-100") == {}
    groups.release("g", "a", [T0])
    assert setting.save("b", "9-300", "8-200") == {}, "nobody owns it, and nobody has saved since"
    setting.restart()
    assert setting.groups.load("g", [T0, T1]) == {T0: StoredOffset("9-300", None)}


def test_an_incarnation_stays_beside_the_offset(setting: Setting) -> None:
    groups = setting.groups
    groups.save("g", "a", {T0: StoredOffset(None, "abc")}, None)
    assert setting.save("a", "1-10", None) == {}
    groups.save("g", "a", {T0: StoredOffset("1-20", None)}, None)
    assert groups.load("g", [T0]) == {T0: StoredOffset("1-20", "abc")}
    assert groups.names() == ["g"]


def test_a_group_without_members_and_offsets_is_forgotten(setting: Setting) -> None:
    setting.join("a")
    assert setting.groups.names() == ["g"]
    setting.clock.advance(10_000)
    assert setting.groups.names() == []
    assert list(setting.table.items()) == []


def test_a_group_without_members_can_be_forgotten(setting: Setting) -> None:
    setting.join("a")
    setting.groups.claim("g", "a", [T0])
    setting.save("a", "1-10", None)
    with pytest.raises(GroupRefused, match="has members: a"):
        setting.groups.forget("g")
    setting.restart()
    setting.groups.forget("g")
    assert (setting.groups.names(), list(setting.table.items())) == ([], [])


def test_there_is_a_limit_and_ended_sessions_do_not_count(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metaq_broker.text.groups.group_state.SESSIONS_MAX", 2)
    setting.groups.join("one", "a", "a", 10.0, ("t",))
    setting.groups.join("two", "b", "b", 10.0, ("t",))
    with pytest.raises(GroupRefused, match="2 members"):
        setting.join("c")
    setting.clock.advance(10_000)
    setting.join("c")


def test_topics_of_members_are_limited(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metaq_broker.text.groups.group_state.TOPICS_OF_MEMBER_MAX", 2)
    monkeypatch.setattr("metaq_broker.text.groups.group_state.TOPIC_BYTES_MAX", 5)
    groups = setting.groups
    with pytest.raises(GroupRefused, match="3 topics; this broker allows 2"):
        groups.join("g", "a", "a", 10.0, ("t", "u", "v"))
    assert groups.names() == []
    groups.join("g", "a", "a", 10.0, ("tt", "u"))
    groups.join("g", "a", "a", 10.0, ("tt", "u"))
    with pytest.raises(GroupRefused, match="more than 5 bytes"):
        groups.join("h", "b", "b", 10.0, ("ü", "v"))
    groups.join("g", "a", "a", 10.0, ("tt",))
    groups.join("h", "b", "b", 10.0, ("ü", "v"))
    groups.leave("g", "a")
    groups.join("h", "c", "c", 10.0, ("tt",))


def test_without_space_for_all_of_them_nothing_is_claimed_or_saved(setting: Setting) -> None:
    setting.join("a")
    setting.groups.claim("g", "a", [T0])
    size, places = setting.table.size_bytes, [("t", number) for number in range(1, 9)]
    setting.table.bytes_max = (size + 500) * 16 // 15
    with pytest.raises(StateFull):
        setting.groups.claim("g", "a", places)
    assert (setting.groups.owned("g", "a"), setting.table.size_bytes) == ([T0], size)
    with pytest.raises(StateFull):
        setting.groups.save("g", "a", {place: StoredOffset("7", None) for place in places}, None)
    assert (setting.groups.offsets("g"), setting.table.size_bytes) == ({}, size)
    setting.groups.claim("g", "a", [T1])  # instead of the other one
    assert setting.groups.owned("g", "a") == [T1]
