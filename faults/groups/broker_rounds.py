"""Rounds of faults on a group of three members that two brokers keep, while messages are sent; see ``FAULTS``."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any, Final

from faults.broker_process import BrokerProcess, ServerSettings
from faults.groups.group import PARTITIONS, SESSION_S, TOPIC
from faults.groups.rounds import AnySeries, Figures, shared_out
from metaq import MetaQ
from metaq.errors import MetaqError
from metaq.model import Partition

BROKERS: Final = 2


class BrokerSeries(AnySeries):
    """A group at brokers."""

    kills = frozenset({"killed", "returned", "broker killed and killed"})
    unsaved = frozenset(
        {"broker killed", "broker stopped", "broker frozen", "broker killed and frozen", "broker killed and killed"}
    )
    partitions = [Partition(broker, index) for broker in range(BROKERS) for index in range(PARTITIONS // BROKERS)]

    def __init__(
        self, folder: Path, brokers: Sequence[BrokerProcess], start: str, random: Random, figures: Figures
    ) -> None:
        cluster = ",".join(str(broker.address) for broker in brokers)
        super().__init__(folder, cluster, start, start, random, figures)
        self._brokers = brokers

    @property
    def faults(self) -> Mapping[str, Callable[[Any], None]]:
        return FAULTS

    def _has_begun(self) -> bool:
        try:
            with MetaQ(self.group.cluster) as mq:
                positions = [one.position for one in mq.cluster.lag("g", [TOPIC])]
        except MetaqError:
            return False
        return len(positions) == PARTITIONS and None not in positions

    def returned(self) -> None:
        """Kill a member; a member with the same id starts at once."""
        member = self._random.choice(self.group.alive)
        member.kill()
        self.group.join(member.id)

    def broker_killed(self) -> None:
        """Kill a broker and start it again at once: the owners before that keep their partitions."""
        broker = self._random.choice(self._brokers)
        broker.kill()
        broker.start()

    def broker_stopped(self) -> None:
        """Kill a broker for longer than all sessions."""
        broker = self._random.choice(self._brokers)
        broker.kill()
        time.sleep(SESSION_S + self._random.uniform(0.0, 1.0))
        broker.start()

    def broker_frozen(self) -> None:
        """Suspend a broker for longer than all sessions."""
        broker = self._random.choice(self._brokers)
        broker.suspend()
        time.sleep(SESSION_S + self._random.uniform(0.0, 1.0))
        broker.resume()

    def broker_killed_and_frozen(self) -> None:
        """Kill a broker and start it again while a member is suspended for longer than its session."""
        member = self._random.choice(self.group.alive)
        member.freeze()
        self.broker_killed()
        time.sleep(SESSION_S + self._random.uniform(0.5, 2.0))
        member.thaw()

    def broker_killed_and_killed(self) -> None:
        """Kill a broker and a member; the broker starts again, and another member joins."""
        broker = self._random.choice(self._brokers)
        broker.kill()
        self.killed()
        broker.start()


FAULTS: Final[dict[str, Callable[[BrokerSeries], None]]] = {
    "frozen": BrokerSeries.frozen,
    "killed": BrokerSeries.killed,
    "returned": BrokerSeries.returned,
    "broker killed": BrokerSeries.broker_killed,
    "broker stopped": BrokerSeries.broker_stopped,
    "broker frozen": BrokerSeries.broker_frozen,
    "broker killed and frozen": BrokerSeries.broker_killed_and_frozen,
    "broker killed and killed": BrokerSeries.broker_killed_and_killed,
}


def run(base: Path, rounds: int, seed: int, report: Callable[[str], None]) -> Figures:
    """Run ``rounds`` rounds, with each start and each fault in turn.

    Raises:
        PromiseBroken: A message was lost, or repeated without a reason.
    """
    random, figures = Random(seed), Figures()
    for start, share in shared_out(list(FAULTS), rounds, random):
        with ExitStack() as stack:
            brokers = []
            for number in range(BROKERS):
                extra: dict[str, object] = {"unflushThreshold": 1000, "brokerId": number}
                settings = ServerSettings({TOPIC: PARTITIONS // BROKERS}, 1 << 20, extra=extra)
                broker = BrokerProcess(base / start / f"broker-{number}", settings)
                stack.callback(broker.kill)
                broker.start()
                brokers.append(broker)
            series = BrokerSeries(base / start / "group", brokers, start, random, figures)
            with MetaQ(series.group.cluster) as mq:
                series.run(mq, share, report)
    return figures
