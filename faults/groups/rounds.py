"""Rounds of faults on a group of three members, while messages are sent; see ``FAULTS``.

A series has its own group, which begins at one of ``STARTS``, and some rounds. In each round, all messages that were
sent so far must be handled. At the end of a series, ``verdict`` checks everything.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final

from faults.broker_process import BrokerProcess, ServerSettings
from faults.console import PromiseBroken
from faults.groups.group import PARTITIONS, SAVE_S, SESSION_S, TOPIC, ZOOKEEPER_PARTITIONS, Group, Sender
from faults.groups.verdict import Fault, complaints, repeated
from metaq import MetaQ
from metaq.discovery.zk_client import connected
from metaq.discovery.zk_layout import ZooKeeperLayout
from metaq.errors import MetaqError
from metaq.model import Partition
from metaq.net.clock import wall_clock_ms
from peers.zookeeper import ZooKeeperServer

TICK_MS: Final = 200
MEMBERS: Final = 3
OLD: Final = 60
"""Messages that are stored before the group begins."""
STARTS: Final = ("earliest", "latest", "time")
PATIENCE_S: Final = 120.0
ALLOWED_S: Final = SAVE_S + 2.0
"""A save period, plus the duration of a save on a busy machine."""


@dataclass
class Figures:
    rounds: Counter[str] = field(default_factory=Counter)
    sent: int = 0
    repeats: int = 0

    def lines(self) -> list[str]:
        kinds = ", ".join(f"{count} {name}" for name, count in sorted(self.rounds.items()))
        return [
            f"{sum(self.rounds.values())} rounds: {kinds}",
            f"{self.sent} messages, {self.repeats} repeated, 0 lost",
        ]


class AnySeries(ABC):
    """One group. ``report`` gets a line for each round."""

    unbounded: frozenset[str] = frozenset()
    """Faults after which messages from before the last save period may be repeated."""
    kills: frozenset[str] = frozenset({"killed"})
    """Faults that kill a member: another one reads its partitions only when its session has ended."""
    unsaved: frozenset[str] = frozenset()
    """Faults during which members cannot save positions."""
    partitions: Sequence[Partition] = ZOOKEEPER_PARTITIONS

    def __init__(self, folder: Path, cluster: str, start: str, name: str, random: Random, figures: Figures) -> None:
        folder.mkdir(parents=True)
        self._folder, self._start, self._name = folder, start, name
        self._random, self._figures = random, figures
        self._faults: list[Fault] = []
        self.group = Group(cluster, "g", "", folder)

    @property
    @abstractmethod
    def faults(self) -> Mapping[str, Callable[[Any], None]]:
        """Name -> what happens."""

    @abstractmethod
    def _has_begun(self) -> bool:
        """Whether the group has an offset in each partition."""

    def run(self, mq: MetaQ, kinds: Sequence[str], report: Callable[[str], None]) -> None:
        """Run a round of each of ``kinds``.

        Raises:
            PromiseBroken: A message was lost, or repeated without a reason.
        """
        old = Sender(mq, f"{self._name}-old", self.partitions)
        old.start()
        self._wait(lambda: len(old.sent) >= OLD, "the first messages are sent")
        old.stop()
        sender = Sender(mq, self._name, self.partitions)
        self.group.start = str(wall_clock_ms()) if self._start == "time" else self._start
        try:
            for _ in range(MEMBERS):
                self.group.join()
            self._wait(self._has_begun, "the group has begun in all partitions")
            sender.start()
            for kind in kinds:
                self._round(kind, sender, report)
            sender.stop()
            sent = [*(old.sent if self._start == "earliest" else ()), *sender.sent]
            self._wait(lambda: self._is_handled(sent), "all is handled")
            for member in self.group.alive:
                member.leave()
        finally:
            sender.stop()
            self.group.end()
        self._judge(sent)

    def _round(self, kind: str, sender: Sender, report: Callable[[str], None]) -> None:
        began_s, began_ms = time.monotonic(), wall_clock_ms()
        self.faults[kind](self)
        done_ms, sent = wall_clock_ms(), list(sender.sent)
        self._wait(lambda: self._is_handled(sent), f"{kind}: all that was sent is handled")
        ended_ms = self._ended_ms(kind, done_ms)
        self._faults.append(Fault(kind, began_ms, ended_ms, kind not in self.unbounded, kind not in self.unsaved))
        self._figures.rounds[kind] += 1
        report(f"{self._name}, {self._start}: {kind}, all is handled ({time.monotonic() - began_s:.1f} s)")

    def _ended_ms(self, kind: str, done_ms: int) -> int:
        """Return the end of a fault that was caused until ``done_ms``; all messages that were sent by then are handled.
        """
        now_ms = wall_clock_ms()
        return max(now_ms, done_ms + round(SESSION_S * 1000)) if kind in self.kills else now_ms

    def _judge(self, sent: Sequence[str]) -> None:
        handled = self.group.handled()
        found = list(complaints(sent, handled, self._faults, round(ALLOWED_S * 1000)))
        if found:
            raise PromiseBroken(self._folder, found)
        self._figures.sent += len(sent)
        self._figures.repeats += len(repeated(handled))

    def _is_handled(self, sent: Sequence[str]) -> bool:
        return {one.text for one in self.group.handled()} >= set(sent)

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        end_s = time.monotonic() + PATIENCE_S
        while not condition():
            if time.monotonic() > end_s:
                raise PromiseBroken(self._folder, [f"waited {PATIENCE_S:g} s in vain: {what}"])
            time.sleep(0.1)

    # faults of members

    def frozen(self) -> None:
        """Suspend a member for longer than its session."""
        member = self._random.choice(self.group.alive)
        member.freeze()
        time.sleep(SESSION_S + self._random.uniform(0.5, 2.0))
        member.thaw()

    def killed(self) -> None:
        """Kill a member; another one joins."""
        self._random.choice(self.group.alive).kill()
        self.group.join()


class Series(AnySeries):
    """A group in ZooKeeper."""

    unbounded = frozenset({"emptied and killed"})
    kills = frozenset({"killed", "emptied and killed"})
    unsaved = frozenset({"stopped", "emptied", "emptied and frozen", "emptied and killed"})

    def __init__(
        self, folder: Path, zookeeper: ZooKeeperServer, start: str, name: str, random: Random, figures: Figures
    ) -> None:
        super().__init__(folder, f"zk://{zookeeper.address}/{name}", start, name, random, figures)
        self._zookeeper = zookeeper

    @property
    def faults(self) -> Mapping[str, Callable[[Any], None]]:
        return FAULTS

    def _has_begun(self) -> bool:
        layout = ZooKeeperLayout(f"/{self._name}")
        try:
            with connected(self._zookeeper.address, SESSION_S) as client:
                (offsets,) = client.children([f"{layout.offsets('g')}/{TOPIC}"])
        except MetaqError:
            return False
        return len(offsets or ()) == PARTITIONS

    # the faults

    def session_ended(self) -> None:
        """Expire a member's session; the member notices at once."""
        self._random.choice(self.group.alive).expire()

    def stopped(self) -> None:
        """Stop ZooKeeper for longer than all sessions; it keeps its data."""
        self._zookeeper.kill()
        time.sleep(SESSION_S + self._random.uniform(0.0, 1.0))
        self._zookeeper.start()

    def emptied(self) -> None:
        """Restart ZooKeeper without its data."""
        self._zookeeper.kill()
        self._zookeeper.empty()
        time.sleep(self._random.uniform(0.0, SESSION_S))
        self._zookeeper.start()

    def emptied_and_frozen(self) -> None:
        """Restart ZooKeeper without its data while a member is suspended."""
        member = self._random.choice(self.group.alive)
        member.freeze()
        self.emptied()
        member.thaw()

    def emptied_and_killed(self) -> None:
        """Restart ZooKeeper without its data and kill a member, whose last offsets are lost; another one joins."""
        self._zookeeper.kill()
        self._random.choice(self.group.alive).kill()
        self._zookeeper.empty()
        self._zookeeper.start()
        self.group.join()


FAULTS: Final[dict[str, Callable[[Series], None]]] = {
    "session ended": Series.session_ended,
    "frozen": Series.frozen,
    "killed": Series.killed,
    "stopped": Series.stopped,
    "emptied": Series.emptied,
    "emptied and frozen": Series.emptied_and_frozen,
    "emptied and killed": Series.emptied_and_killed,
}


def run(base: Path, rounds: int, seed: int, report: Callable[[str], None]) -> Figures:
    """Run ``rounds`` rounds, with each start and each fault in turn.

    Raises:
        PromiseBroken: A message was lost, or repeated without a reason.
    """
    random, figures = Random(seed), Figures()
    with ExitStack() as stack:
        zookeeper = ZooKeeperServer(base / "zookeeper", TICK_MS)
        stack.callback(zookeeper.kill)
        zookeeper.start()
        for start, share in shared_out(list(FAULTS), rounds, random):
            _series(base / start, zookeeper, start, share, random, figures, report)
    return figures


def shared_out(faults: Sequence[str], rounds: int, random: Random) -> list[tuple[str, list[str]]]:
    """Return the faults of ``rounds`` rounds for each start that has any: all faults in turn, each time in another
    order.
    """
    kinds = [name for _ in range(rounds // len(faults) + 1) for name in random.sample(faults, len(faults))]
    shares = [kinds[index : rounds : len(STARTS)] for index in range(len(STARTS))]
    return [(start, share) for start, share in zip(STARTS, shares, strict=True) if share]


def _series(
    folder: Path,
    zookeeper: ZooKeeperServer,
    start: str,
    kinds: Sequence[str],
    random: Random,
    figures: Figures,
    report: Callable[[str], None],
) -> None:
    series = Series(folder / "group", zookeeper, start, start, random, figures)
    extra: dict[str, object] = {"unflushThreshold": 1000}
    settings = ServerSettings({TOPIC: PARTITIONS}, 1 << 20, extra=extra, zookeeper=zookeeper.address, root=f"/{start}")
    broker = BrokerProcess(folder / "broker", settings)
    broker.start()
    try:
        with MetaQ(series.group.cluster) as mq:
            series.run(mq, kinds, report)
    finally:
        broker.kill()
