"""Figures of the running broker in RocketMQ's form (28): rates, totals, queues, disk.

A message is readable when it is stored, so the dispatch lag is always 0. Rates are of the last ten seconds, minute and
ten minutes, from samples that are taken every few seconds. Totals count from the broker's start, and a day begins at
midnight UTC. Figures with the same meaning have RocketMQ's names.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from metaq_broker.log.files.files import DiskSpace

WINDOWS_S: Final = (10, 60, 600)
_DAY_MS: Final = 86_400_000
_GIB: Final = 1 << 30


class Totals(NamedTuple):
    """Totals of stored and delivered messages since the start."""

    messages_in: int = 0
    bytes_in: int = 0
    messages_out: int = 0
    pulls: int = 0


class Moment(NamedTuple):
    """Other current figures. ``waiting`` are requests in progress."""

    waiting: int = 0
    held_pulls: int = 0
    connections: int = 0
    earliest_ms: int | None = None
    disk: DiskSpace | None = None
    delays: Mapping[int, tuple[int, int]] = {}
    """Delay level -> queue offset up to which it is delivered, and the end of its queue."""


class RunningFigures:
    """The figures. Call ``sample`` every few seconds."""

    def __init__(
        self,
        totals: Callable[[], Totals],
        moment: Callable[[], Moment],
        monotonic: Callable[[], float],
        now_ms: Callable[[], int],
    ) -> None:
        self._totals, self._moment = totals, moment
        self._monotonic, self._now_ms = monotonic, now_ms
        self._started_s, self._started_ms = monotonic(), now_ms()
        self._samples = deque([(self._started_s, totals())])
        self._day = self._started_ms // _DAY_MS
        self._this_morning = self._last_morning = totals()

    def sample(self) -> None:
        """Record the current totals."""
        now, totals = self._monotonic(), self._totals()
        self._samples.append((now, totals))
        while len(self._samples) > 2 and self._samples[1][0] <= now - WINDOWS_S[-1]:
            self._samples.popleft()
        if (day := self._now_ms() // _DAY_MS) != self._day:
            self._day, self._last_morning, self._this_morning = day, self._this_morning, totals

    def table(self) -> Mapping[str, str]:
        """Return the current figures, name -> text."""
        totals, moment = self._totals(), self._moment()
        average = totals.bytes_in / totals.messages_in if totals.messages_in else 0.0
        figures = {
            "brokerVersion": "407",
            "brokerVersionDesc": "V4_9_7",
            "bootTimestamp": str(self._started_ms),
            "runtime": _duration(self._monotonic() - self._started_s),
            "putTps": self._rates(totals, "messages_in"),
            "getTransferedTps": self._rates(totals, "messages_out"),
            "getTotalTps": self._rates(totals, "pulls"),
            "putMessageAverageSize": f"{average:.1f}",
            "putMessageSizeTotal": str(totals.bytes_in),
            "putMessageTimesTotal": str(totals.messages_in),
            "dispatchBehindBytes": "0",
            "pageCacheLockTimeMills": "0",
            "heldPulls": str(moment.held_pulls),
            "connections": str(moment.connections),
        }
        delays = {f"scheduleMessageOffset_{level}": f"{at},{end}" for level, (at, end) in moment.delays.items()}
        return figures | delays | self._days(totals) | _queues(moment) | _disk(moment)

    def _rates(self, totals: Totals, name: str) -> str:
        return " ".join(f"{self._rate(totals, name, window):.2f}" for window in WINDOWS_S)

    def _rate(self, totals: Totals, name: str, window_s: int) -> float:
        now = self._monotonic()
        at, before = self._samples[0]
        for at_, before_ in reversed(self._samples):
            at, before = at_, before_
            if at <= now - window_s:
                break
        return (getattr(totals, name) - getattr(before, name)) / (now - at) if now > at else 0.0

    def _days(self, totals: Totals) -> dict[str, str]:
        mornings = {
            "YesterdayMorning": self._last_morning,
            "TodayMorning": self._this_morning,
            "TodayNow": totals,
        }
        puts = {f"msgPutTotal{name}": str(each.messages_in) for name, each in mornings.items()}
        return puts | {f"msgGetTotal{name}": str(each.messages_out) for name, each in mornings.items()}


def _queues(moment: Moment) -> dict[str, str]:
    """Return sizes of the thread pools' queues. There are none: sends that wait for the disk are reported as the send
    queue.
    """
    return {
        "sendThreadPoolQueueSize": str(max(0, moment.waiting - moment.held_pulls)),
        "sendThreadPoolQueueHeadWaitTimeMills": "0",
        "pullThreadPoolQueueSize": "0",
        "pullThreadPoolQueueHeadWaitTimeMills": "0",
    }


def _disk(moment: Moment) -> dict[str, str]:
    figures = {"earliestMessageTimeStamp": str(-1 if moment.earliest_ms is None else moment.earliest_ms)}
    if moment.disk is not None:
        total, free = moment.disk.total_bytes, moment.disk.free_bytes
        figures["commitLogDiskRatio"] = f"{1 - free / total if total else 0.0:.4f}"
        figures["commitLogDirCapacity"] = f"Total : {total / _GIB:.1f} GiB, Free : {free / _GIB:.1f} GiB."
    return figures


def _duration(seconds: float) -> str:
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    return f"[ {days} days, {hour} hours, {minute} minutes, {second} seconds ]"
