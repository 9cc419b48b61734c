"""What the judge of the rounds for consumers in groups finds."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from faults.groups.broker_rounds import BrokerSeries
from faults.groups.group import SESSION_S
from faults.groups.rounds import TICK_MS, AnySeries, Figures, Series
from faults.groups.verdict import Fault, Handled, complaints, lost, repeated
from metaq.net.clock import wall_clock_ms
from peers.zookeeper import ZooKeeperServer

FAULT = Fault("frozen", 10_000, 14_000, True)


def handled(text: str, *times: int) -> list[Handled]:
    return [Handled(ms, "m0", text) for ms in times]


def test_what_nobody_has_handled_is_lost() -> None:
    assert lost(["a", "b"], handled("a", 1)) == ["b"]
    assert list(complaints(["a", "b"], handled("a", 1), [], 500)) == ["lost: b"]


def test_messages_handled_shortly_before_a_fault_may_come_again() -> None:
    for first in (9_500, 10_500, 14_000):
        seen = handled("a", first, 14_500)
        assert repeated(seen).keys() == {"a"}
        assert list(complaints(["a"], seen, [FAULT], 500)) == []


def test_messages_handled_long_before_a_fault_may_not_come_again() -> None:
    for times in ((9_499, 14_000), (9_600, 9_700), (14_001, 14_200)):
        (complaint,) = complaints(["a"], handled("a", *times), [FAULT], 500)
        assert complaint.startswith(f"repeated without reason: a: m0 at {times[0]}")


def test_messages_may_not_come_again_long_after_a_fault() -> None:
    adjoining = [Fault("frozen", 10_000 + number * 20_000, 30_000 + number * 20_000, True) for number in range(4)]
    for times in ((11_000, 90_000), (11_000, 30_501), (11_000, 12_000, 90_000)):
        (complaint,) = complaints(["a"], handled("a", *times), adjoining, 500)
        assert complaint.startswith("repeated without reason: a: m0 at 11000")
    for times in ((11_000, 30_500), (29_500, 50_500), (11_000, 30_000, 50_000)):
        assert list(complaints(["a"], handled("a", *times), adjoining, 500)) == []


def test_where_nobody_could_know_more_anything_may_come_again() -> None:
    unbounded = FAULT._replace(is_bounded=False)
    assert list(complaints(["a"], handled("a", 1, 12_000), [unbounded], 500)) == []
    assert len(list(complaints(["a"], handled("a", 1, 2), [unbounded], 500))) == 1


def test_what_could_not_be_saved_when_the_next_fault_began_may_come_again() -> None:
    away = Fault("broker stopped", 5_000, 9_600, True, can_save=False)
    seen = handled("a", 4_900, 13_000)
    assert list(complaints(["a"], seen, [away, FAULT], 500)) == []
    for former in (away._replace(can_save=True), away._replace(ended_ms=9_499), away._replace(began_ms=5_401)):
        (complaint,) = complaints(["a"], seen, [former, FAULT], 500)
        assert complaint.startswith("repeated without reason: a: m0 at 4900")


@pytest.mark.parametrize("at_brokers", [False, True])
def test_only_a_fault_that_kills_a_member_lasts_for_a_session(at_brokers: bool, tmp_path: Path) -> None:
    given = (Random(7), Figures())
    zookeeper = ZooKeeperServer(tmp_path / "z", TICK_MS)
    series: AnySeries = (
        BrokerSeries(tmp_path / "s", [], "latest", *given)
        if at_brokers
        else Series(tmp_path / "s", zookeeper, "latest", "s", *given)
    )
    now_ms = wall_clock_ms()
    late = {kind for kind in series.faults if series._ended_ms(kind, now_ms) >= now_ms + SESSION_S * 1000}
    assert late == series.kills
    assert "killed" in late
    assert "frozen" not in late
