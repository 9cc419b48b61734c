"""Figures of the running broker: rates over windows, totals by day."""

from __future__ import annotations

import shutil
from math import inf
from pathlib import Path

import pytest
from metaq_broker.log.files.files import DiskSpace, Files
from metaq_broker.rocketmq.administration.running_figures import CurrentFigures, RunningFigures, Totals


class Broker:
    """A broker whose clocks and counters the test sets."""

    def __init__(self) -> None:
        self.now = 50.0
        self.totals = Totals(100, 1000, 50, 5)
        self.moment = CurrentFigures()
        self.midnight_ms = 20_000 * 86_400_000
        self.figures = RunningFigures(
            lambda: self.totals, lambda: self.moment, lambda: self.now, lambda: self.midnight_ms + int(self.now * 1000)
        )

    def later(self, seconds: float, messages: int) -> None:
        self.now += seconds
        before = self.totals
        self.totals = Totals(
            before.messages_in + messages, before.bytes_in + 100 * messages, before.messages_out + messages // 2
        )
        self.figures.sample()


def test_rates_are_those_of_their_windows() -> None:
    broker = Broker()
    assert broker.figures.table()["putTps"] == "0.00 0.00 0.00"
    for _ in range(200):
        broker.later(5, 100)
    assert broker.figures.table()["putTps"] == "20.00 20.00 20.00"
    assert broker.figures.table()["getTransferedTps"] == "10.00 10.00 10.00"
    for _ in range(12):
        broker.later(5, 0)
    assert broker.figures.table()["putTps"] == "0.00 0.00 18.00"
    broker.now += 10_000
    broker.figures.sample()
    broker.figures.sample()
    assert broker.figures.table()["putTps"].startswith("0.00 0.00 ")


def test_totals_of_days() -> None:
    broker = Broker()
    broker.later(5, 10)
    names = [f"msgPutTotal{name}" for name in ("YesterdayMorning", "TodayMorning", "TodayNow")]

    def totals() -> list[str]:
        table = broker.figures.table()
        return [table[name] for name in names]

    assert totals() == ["100", "100", "110"]
    broker.later(86_400, 20)
    broker.later(5, 5)
    assert totals() == ["100", "130", "135"]
    broker.later(86_400, 0)
    assert totals() == ["130", "135", "135"]


def test_other_figures() -> None:
    broker = Broker()
    broker.moment = CurrentFigures(7, 4, 3, 1234, DiskSpace(1 << 30, 4 << 30), {2: (5, 9)})
    broker.now += 90_061
    table = broker.figures.table()
    assert table["runtime"] == "[ 1 days, 1 hours, 1 minutes, 1 seconds ]"
    assert table["commitLogDiskRatio"] == "0.7500"
    assert table["commitLogDirCapacity"] == "Total : 4.0 GiB, Free : 1.0 GiB."
    assert (table["sendThreadPoolQueueSize"], table["heldPulls"], table["connections"]) == ("3", "4", "3")
    assert table["earliestMessageTimeStamp"] == "1234"
    assert table["putMessageAverageSize"] == "10.0"
    assert all(isinstance(value, str) for value in table.values())


def test_the_used_part_of_a_disk_leaves_out_what_only_root_may_use() -> None:
    broker = Broker()
    broker.moment = CurrentFigures(disk=DiskSpace(1 << 30, 4 << 30, 2 << 30))
    assert broker.figures.table()["commitLogDiskRatio"] == "0.5000"
    broker.moment = CurrentFigures(disk=DiskSpace(0, 2, 2))
    assert broker.figures.table()["commitLogDiskRatio"] == "0.0000"


def test_the_used_part_of_a_disk_is_that_of_df(tmp_path: Path) -> None:
    seen = shutil.disk_usage(tmp_path)
    assert Files().disk_space(tmp_path).used_part == pytest.approx(seen.used / (seen.used + seen.free), abs=0.02)


def test_times_of_puts_are_counted_in_ranges_and_not_less_than_they_were() -> None:
    broker = Broker()
    empty = broker.figures.table()
    assert (empty["putLatency99"], empty["putMessageEntireTimeMax"]) == ("0.00", "0")
    put_seconds = (0.001, 50), (0.005, 98), (0.25, 99), (5.0, 100), (inf, 100)
    broker.moment = CurrentFigures(put_seconds=put_seconds, puts_failed=3, unsynced_bytes=1536, longest_pull_s=0.0125)
    table = broker.figures.table()
    assert (table["putLatency99"], table["putLatency999"], table["putMessageEntireTimeMax"]) == (
        *("250.00", "5000.00", "5000"),
    )
    counts = dict(each.split(":") for each in table["putMessageDistributeTime"].split())
    assert {name: int(count) for name, count in counts.items() if count != "0"} == {
        "[<=0ms]": 50,
        "[0~10ms]": 48,
        "[200~500ms]": 1,
        "[4~5s]": 1,
    }
    assert (table["putMessageFailedTimes"], table["remainHowManyDataToFlush"]) == ("3", "1.5 KiB")
    assert table["getMessageEntireTimeMax"] == "12"
