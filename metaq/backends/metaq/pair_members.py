"""Which brokers are members of a pair that elects its master, and which member is the master at the moment.

An address of a member stands for its pair: sessions are opened with the master, whichever of the two it is. Members are
known from their own words, in ``stats`` and ``version``, and from the pair's record in ZooKeeper. When one cannot be
used, the other one is asked; if the pair is not known, all addresses that the client was given.

Members may have several names: two addresses are the same server if their hosts have the same IP address. Connections
use the name that the client was given.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from metaq.errors import MetaqError
from metaq.model import Address
from metaq.net.transport import resolve
from metaq.protocols.text.pair import EPOCH, PAIR, SLAVE

ASK_S: Final = 1.0
"""Longest wait for a connection to a member that is asked who is the master, and for its answer."""


@dataclass(frozen=True, slots=True)
class PairFacts:
    """What a member says. ``other``: the address of the other one. ``epoch``: the highest that this member knows."""

    other: Address
    is_master: bool
    epoch: int


def parse_pair(text: str) -> PairFacts | None:
    """Return what an answer to ``stats`` says about a pair; ``None`` if the broker is not a member of one."""
    fields = dict(line.partition(" ")[::2] for line in text.split("\r\n"))
    try:
        return PairFacts(Address.parse(fields[PAIR]), fields.get(SLAVE) == "false", int(fields[EPOCH]))
    except (KeyError, ValueError):
        return None


Ask = Callable[[Address], PairFacts | None]
"""Asks the broker at an address about its pair; ``None`` if it has none, or does not answer."""


class _Master(NamedTuple):
    server: Address
    epoch: int


def server_at(address: Address) -> Address:
    """Return ``address`` with the host's IP address, if its name can be looked up."""
    try:
        found = resolve(address)
    except MetaqError:
        return address
    return Address(next((host for host in found if ":" not in host), found[0]), address.port)


class PairMembers:
    """Shared by all sessions of a pool. Thread-safe: every change is one assignment."""

    def __init__(self, ask: Ask, server_of: Callable[[Address], Address] = server_at) -> None:
        self._ask, self._server_of = ask, server_of
        self._given: dict[Address, None] = {}
        self._registries: dict[Hashable, Callable[[], None]] = {}
        self._servers: dict[Address, Address] = {}
        self._names: dict[Address, Address] = {}
        self._others: dict[Address, Address] = {}
        self._masters: dict[Address, _Master] = {}
        self._refusing: frozenset[Address] = frozenset()
        self._alone: frozenset[Address] = frozenset()

    def name(self, addresses: Iterable[Address]) -> None:
        """Add addresses that a client was given: they are asked when the pair of a failed broker is not known."""
        self._given |= dict.fromkeys(addresses)

    def register(self, name: Hashable, note_pairs: Callable[[], None]) -> None:
        """Add a registry: ``note_pairs`` is called when a broker fails or is silent whose pair is not known, and notes
        the pairs that the registry knows. It raises nothing.
        """
        self._registries[name] = note_pairs

    def is_member(self, address: Address) -> bool:
        """Whether the broker at ``address`` is known to be a member of a pair."""
        return self._servers.get(address) in self._others

    def may_have_moved(self, address: Address) -> bool:
        """Whether the broker at ``address`` is a member of a pair, or may be one for all that is known: it has not said
        yet whether it is, and the client was given other addresses, too, or a registry.
        """
        server = self._servers.get(address)
        if server in self._others:
            return True
        is_one_of_several = len(self._given) > 1 and address in self._given
        return server not in self._alone and (is_one_of_several or bool(self._registries))

    def current(self, address: Address) -> Address:
        """Return the last known master of the pair of ``address``; ``address`` if none is known. Asks no server."""
        server = self._servers.get(address)
        master = None if server is None else self._masters.get(server)
        return address if master is None or master.server == server else self._names[master.server]

    def serving(self, address: Address) -> Address:
        """Return the master of the pair of ``address``, which is looked for if none is known; else ``address``."""
        server = self._servers.get(address)
        if server is None or server not in self._others:
            return address
        if server in self._masters:
            return self.current(address)
        found = self.look(address)
        if found == address and (facts := self._ask(address)) is not None:
            self.note_facts(address, facts)
        return found

    def note(self, address: Address, other: Address) -> None:
        """Record that ``address`` and ``other`` are the members of a pair."""
        one, two = self._server(address), self._server(other)
        self._others = self._others | {one: two, two: one}

    def note_alone(self, address: Address) -> None:
        """Record that the broker at ``address`` says nothing of a pair."""
        if (server := self._server(address)) not in self._alone:
            self._alone |= {server}

    def note_facts(self, address: Address, facts: PairFacts) -> None:
        """Record what the member at ``address`` says. A master of an older epoch than a known one does not count."""
        self.note(address, facts.other)
        server = self._server(address)
        known = self._masters.get(server)
        if facts.is_master and (known is None or facts.epoch >= known.epoch):
            master = _Master(server, facts.epoch)
            self._masters = self._masters | {server: master, self._others[server]: master}
        elif not facts.is_master and known is not None and known.server == server:
            self.forget(address)

    def forget(self, address: Address) -> None:
        """Record that the member at ``address`` is not the master, as far as is known."""
        server = self._server(address)
        gone = {server, self._others.get(server, server)}
        if (known := self._masters.get(server)) is not None and known.server == server:
            self._masters = {each: master for each, master in self._masters.items() if each not in gone}

    def refused(self, address: Address) -> None:
        """Record that the broker at ``address`` refused a request because it is not the master of its pair."""
        self._refusing |= {self._server(address)}
        self.forget(address)

    def look(self, address: Address) -> Address:
        """Ask others who is the master of the pair of ``address``; return ``address`` if none of them is."""
        server = self._server(address)
        if server not in self._others and server not in self._alone:
            for note_pairs in list(self._registries.values()):
                note_pairs()
        for candidate in self._candidates(address, server):
            facts = self._ask(candidate)
            if facts is not None:
                self.note_facts(candidate, facts)
        return self.current(address)

    def _candidates(self, address: Address, server: Address) -> Iterator[Address]:
        """Yield the other member; if it is not known, the addresses that the client was given, or else a member that
        refused a request, which names the other one.
        """
        is_known = server in self._others or server in self._alone
        given = [] if is_known else [each for each in self._given if each != address]
        yield from given
        if server not in self._others and server in self._refusing:
            yield address
        other = self._others.get(server)
        if other is not None and self._names[other] not in given:
            yield self._names[other]

    def _server(self, address: Address) -> Address:
        server = self._servers.get(address)
        if server is None:
            server = self._servers.setdefault(address, self._server_of(address))
        if address in self._given or server not in self._names:
            self._names[server] = address
        return server
