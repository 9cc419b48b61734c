"""Connections between members. What is sent on one arrives in order; what one direction of the network loses, ends it.

A message may arrive long after its sender has given the connection up: the other end may have not noticed yet.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from metaq_broker.replication.pair.messages import PairMessage

from faults.simulation.events import Schedule, between

SILENCE_US = 500_000
"""After how long an end gives up a connection on which nothing arrives."""


class Connection:
    """``ends``: the member that opened it, and the other one."""

    def __init__(self, number: int, ends: tuple[int, int]) -> None:
        self.number, self.ends = number, ends
        self.closed: set[int] = set()
        self.is_lost: set[int] = set()
        self.dropped: set[int] = set()
        self.last_arrival = dict.fromkeys(ends, 0)

    def other(self, end: int) -> int:
        return self.ends[1] if end == self.ends[0] else self.ends[0]


class Network:
    """``receive(member, link, message)`` and ``lost(member, link, reason)`` are called where they happen."""

    def __init__(self, schedule: Schedule, random: Random) -> None:
        self._schedule, self._random = schedule, random
        self.cuts: set[tuple[int, int]] = set()
        self._connections: dict[int, Connection] = {}
        self._last = 0
        self.receive: Callable[[int, int, PairMessage], None]
        self.lost: Callable[[int, int, str], None]
        self.slowness = 1

    def is_cut(self, one: int, other: int) -> bool:
        return (one, other) in self.cuts or (other, one) in self.cuts

    def connect(self, opener: int, other: int) -> int:
        """Return the number of a new connection."""
        self._last += 1
        self._connections[self._last] = Connection(self._last, (opener, other))
        return self._last

    def is_heard(self, member: int) -> bool:
        """Whether what a member has sent may still arrive somewhere."""
        connections = [each for each in self._connections.values() if member in each.ends]
        return any(each.other(member) not in each.closed for each in connections)

    def send(self, member: int, link: int, message: PairMessage) -> None:
        connection = self._connections.get(link)
        if connection is None or member in connection.closed or connection.other(member) in connection.dropped:
            return
        to = connection.other(member)
        delay = between(self._random, 50, 2_000) * self.slowness
        if (member, to) in self.cuts or to in connection.is_lost:
            self._lose(connection, to)
            delay += self._random.randint(100_000, 1_200_000)  # sent again and again, until it comes through
        arrival = max(self._schedule.now + delay, connection.last_arrival[to] + 1)
        connection.last_arrival[to] = arrival
        self._schedule.after(arrival - self._schedule.now, self._arrive, connection, to, message)

    def _arrive(self, connection: Connection, to: int, message: PairMessage) -> None:
        if (connection.other(to), to) in self.cuts:
            connection.dropped.add(to)
        if to not in connection.closed and to not in connection.dropped:
            self.receive(to, connection.number, message)

    def _lose(self, connection: Connection, end: int) -> None:
        """``end`` gets nothing any more; both ends notice in the end."""
        if end not in connection.is_lost:
            connection.is_lost.add(end)
            if self._random.random() < 0.5:
                connection.dropped.add(end)
            for each in connection.ends:
                delay = self._random.randint(SILENCE_US // 2, SILENCE_US)
                self._schedule.after(delay, self._notice, connection, each, "silence")

    def _notice(self, connection: Connection, end: int, reason: str) -> None:
        if end not in connection.closed:
            connection.closed.add(end)
            self.lost(end, connection.number, reason)

    def close(self, member: int, link: int) -> None:
        """A member closes its end; the other one notices at once, or after a silence if the network is cut."""
        connection = self._connections.get(link)
        if connection is None or member in connection.closed:
            return
        connection.closed.add(member)
        other = connection.other(member)
        if (member, other) in self.cuts:
            self._schedule.after(SILENCE_US, self._notice, connection, other, "silence")
        else:
            arrival = max(self._schedule.now + 500, connection.last_arrival[other] + 1)
            self._schedule.after(arrival - self._schedule.now, self._notice, connection, other, "reset")

    def break_all(self, member: int, *, silent: bool) -> None:
        """A process has ended: its connections are reset, or nothing is heard of them any more."""
        for connection in self._connections.values():
            if member in connection.ends and member not in connection.closed:
                connection.closed.add(member)
                other = connection.other(member)
                is_silent = silent or (member, other) in self.cuts
                delay, reason = (SILENCE_US, "silence") if is_silent else (500, "reset")
                self._schedule.after(delay, self._notice, connection, other, reason)

    def cut(self, one: int, other: int, *, for_good: bool = False) -> None:
        """Lose what ``one`` sends to ``other``, from now on; ``for_good``: nothing of it comes later."""
        self.cuts.add((one, other))
        for connection in self._connections.values():
            if {one, other} == set(connection.ends) and not connection.closed >= set(connection.ends):
                self._lose(connection, other)
                if for_good:
                    connection.dropped.add(other)
