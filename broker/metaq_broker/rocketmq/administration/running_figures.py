"""Figures of the running broker in RocketMQ's form (28): rates, totals, queues, disk.

A message is readable when it is stored, so the dispatch lag is always 0. Rates are of the last ten seconds, minute and
ten minutes, from samples that are taken every few seconds. Totals count from the broker's start, and a day begins at
midnight UTC. Figures with the same meaning have RocketMQ's names.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from math import inf
from typing import Final, NamedTuple

from metaq.model import INT32_MAX
from metaq_broker.log.files.files import DiskSpace

WINDOWS_S: Final = (10, 60, 600)
_DAY_MS: Final = 86_400_000
_GIB: Final = 1 << 30
_PUT_RANGES: Final = {
    "[<=0ms]": 0.001,
    "[0~10ms]": 0.01,
    "[10~50ms]": 0.05,
    "[50~100ms]": 0.1,
    "[100~200ms]": 0.2,
    "[200~500ms]": 0.5,
    "[500ms~1s]": 1.0,
    "[1~2s]": 2.0,
    "[2~3s]": 3.0,
    "[3~4s]": 4.0,
    "[4~5s]": 5.0,
    "[5~10s]": 10.0,
    "[10s~]": inf,
}
"""The ranges of ``putMessageDistributeTime``, and the longest time in seconds of each."""


class Totals(NamedTuple):
    """Totals of stored and delivered messages since the start. ``found`` and ``missed``: pulls with messages, and
    without.
    """

    messages_in: int = 0
    bytes_in: int = 0
    messages_out: int = 0
    pulls: int = 0
    found: int = 0
    missed: int = 0


class Limits(NamedTuple):
    """How many requests may be in progress, and how many pulls may wait."""

    requests: int = 0
    held_pulls: int = 0


NO_LIMITS: Final = Limits()


class CurrentFigures(NamedTuple):
    """Other current figures. ``waiting`` are requests in progress.

    ``log_start`` and ``log_end`` are the sums over all partitions of the first and the next byte offset,
    ``unsynced_bytes`` the bytes that are not on the disk yet. ``put_seconds``: for each bound, how many puts waited at
    most that long for their acknowledgement; the last bound is infinite.
    """

    waiting: int = 0
    held_pulls: int = 0
    connections: int = 0
    earliest_ms: int | None = None
    disk: DiskSpace | None = None
    delays: Mapping[int, tuple[int, int]] = {}
    """Delay level -> queue offset up to which it is delivered, and the end of its queue."""
    log_start: int = 0
    log_end: int = 0
    unsynced_bytes: int = 0
    puts_failed: int = 0
    put_seconds: tuple[tuple[float, int], ...] = ()
    longest_pull_s: float = 0.0


class RunningFigures:
    """The figures. Call ``sample`` every few seconds."""

    def __init__(
        self,
        totals: Callable[[], Totals],
        moment: Callable[[], CurrentFigures],
        monotonic: Callable[[], float],
        now_ms: Callable[[], int],
        limits: Limits = NO_LIMITS,
    ) -> None:
        self._totals, self._moment, self._limits = totals, moment, limits
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
            "getTransferredTps": self._rates(totals, "messages_out"),  # as 5.x spells it
            "getTotalTps": self._rates(totals, "pulls"),
            "getFoundTps": self._rates(totals, "found"),
            "getMissTps": self._rates(totals, "missed"),
            "putMessageAverageSize": f"{average:.1f}",
            "putMessageSizeTotal": str(totals.bytes_in),
            "putMessageTimesTotal": str(totals.messages_in),
            "dispatchBehindBytes": "0",
            "pageCacheLockTimeMills": "0",
            "heldPulls": str(moment.held_pulls),
            "connections": str(moment.connections),
        }
        delays = {f"scheduleMessageOffset_{level}": f"{at},{end}" for level, (at, end) in moment.delays.items()}
        queues, disk = _queues(moment, self._limits), _disk(moment)
        return figures | delays | self._days(totals) | queues | disk | _log(moment) | _put_times(moment)

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


def _queues(moment: CurrentFigures, limits: Limits) -> dict[str, str]:
    """Return sizes of the thread pools' queues. There are none: sends that wait for the disk are reported as the send
    queue, and its capacity is the limit of requests; pulls, queries and ends of transactions are carried out at once.
    """
    requests = str(limits.requests)
    return {
        "sendThreadPoolQueueSize": str(max(0, moment.waiting - moment.held_pulls)),
        "sendThreadPoolQueueCapacity": requests,
        "sendThreadPoolQueueHeadWaitTimeMills": "0",
        "pullThreadPoolQueueSize": "0",
        "pullThreadPoolQueueCapacity": str(limits.held_pulls),
        "pullThreadPoolQueueHeadWaitTimeMills": "0",
        "queryThreadPoolQueueSize": "0",
        "queryThreadPoolQueueCapacity": requests,
        "queryThreadPoolQueueHeadWaitTimeMills": "0",
        "EndTransactionQueueSize": "0",
        "EndTransactionThreadPoolQueueCapacity": requests,
    }


def _log(moment: CurrentFigures) -> dict[str, str]:
    """Return RocketMQ's figures of the commit log: here, the sums over all partitions."""
    return {
        "commitLogMinOffset": str(moment.log_start),
        "commitLogMaxOffset": str(moment.log_end),
        "remainHowManyDataToFlush": _readable(moment.unsynced_bytes),
        "remainTransientStoreBufferNumbs": str(INT32_MAX),  # what RocketMQ reports without such a pool
        "dispatchMaxBuffer": "0",
        "startAcceptSendRequestTimeStamp": "0",
        "getMessageEntireTimeMax": str(round(moment.longest_pull_s * 1000)),
    }


def _put_times(moment: CurrentFigures) -> dict[str, str]:
    """Return how long puts waited for their acknowledgement.

    Puts are counted in ranges of time, and each put counts as the upper bound of its range: so the longest time and the
    percentiles are not less than the true ones.
    """
    buckets, before = dict.fromkeys(_PUT_RANGES, 0), 0
    for bound, so_far in moment.put_seconds:
        name = next(name for name, most_s in _PUT_RANGES.items() if bound <= most_s)
        buckets[name] += so_far - before
        before = so_far
    return {
        "putMessageFailedTimes": str(moment.puts_failed),
        "putMessageEntireTimeMax": str(round(_percentile_ms(moment, 1.0))),
        "putLatency99": f"{_percentile_ms(moment, 0.99):.2f}",
        "putLatency999": f"{_percentile_ms(moment, 0.999):.2f}",
        "putMessageDistributeTime": " ".join(f"{name}:{count}" for name, count in buckets.items()),
    }


def _percentile_ms(moment: CurrentFigures, part: float) -> float:
    total = moment.put_seconds[-1][1] if moment.put_seconds else 0
    finite = [bound for bound, _ in moment.put_seconds if bound < inf]
    bound = next((bound for bound, so_far in moment.put_seconds if so_far and so_far >= part * total), 0.0)
    return 1000 * min(bound, max(finite, default=0.0))


def _readable(size: int) -> str:
    """Return a number of bytes as Java's tools parse it."""
    unit, value = 0, float(size)
    while value >= 1024:
        unit, value = unit + 1, value / 1024
    return f"{size} B" if not unit else f"{value:.1f} {'KMGTPE'[unit - 1]}iB"


def _disk(moment: CurrentFigures) -> dict[str, str]:
    figures = {"earliestMessageTimeStamp": str(-1 if moment.earliest_ms is None else moment.earliest_ms)}
    if moment.disk is not None:
        total, free = moment.disk.total_bytes, moment.disk.free_bytes
        ratio = f"{moment.disk.used_part:.4f}"
        figures |= {"commitLogDiskRatio": ratio, "consumeQueueDiskRatio": ratio}
        figures["commitLogDirCapacity"] = f"Total : {total / _GIB:.1f} GiB, Free : {free / _GIB:.1f} GiB."
    return figures


def _duration(seconds: float) -> str:
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    return f"[ {days} days, {hour} hours, {minute} minutes, {second} seconds ]"
