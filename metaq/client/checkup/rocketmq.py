"""Checks a cluster of RocketMQ brokers: name servers, brokers, and whether routes lead to brokers that answer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Final

from metaq.backends.rocketmq.administration import broker_figures
from metaq.backends.rocketmq.errors import AccessDenied, NotNameServer, RequestRefused, RouteUnusable, TopicListMissing
from metaq.backends.rocketmq.pool import Credentials
from metaq.backends.rocketmq.session import Session
from metaq.backends.rocketmq.topic_route import KnownBrokers, TopicRoute, ask_brokers, ask_route, ask_topics
from metaq.client.checkup.findings import Check, Finding, fail, ok, run_checks, warn
from metaq.client.checkup.machines import Asked, rocketmq_findings
from metaq.client.checkup.reach import ConnectSettings, since_text
from metaq.client.rocketmq.statistics import uptime_s
from metaq.model import Address
from metaq.net.clock import SYSTEM_CLOCK, wall_clock_ms

STEPS: Final = 4
"""Limit on sequential waits of one check: its deadline is this number of timeouts."""

TOPICS_MAX: Final = 1000
"""Limit on topics whose routes are checked."""

ROUTES_SHOWN: Final = 10
"""Limit on broken routes that are shown."""


class RocketmqCheckup:
    """Checks a RocketMQ cluster; requests are signed with ``credentials``."""

    def __init__(
        self, name_servers: Sequence[Address], connect_settings: ConnectSettings, credentials: Credentials | None
    ) -> None:
        self._name_servers, self._connect_settings, self._credentials = name_servers, connect_settings, credentials
        self._known: dict[Address, KnownBrokers] = {}
        self._answering: set[Address] = set()

    def findings(self) -> Iterator[Finding]:
        """Yield each finding as soon as it is known."""
        deadline_s = STEPS * self._connect_settings.timeout_s
        servers = [Check(f"name server {at}", partial(self._name_server, at)) for at in self._name_servers]
        yield from run_checks(servers, deadline_s)
        yield from registration_findings(self._known)
        brokers = {
            address: f"broker {name} {address}" if id_ == 0 else f"broker {name} slave {address}"
            for known in self._known.values()
            for name, addresses in known.brokers.items()
            for id_, address in sorted(addresses.items())
        }
        yield from run_checks(
            [Check(what, partial(self._broker, what, at)) for at, what in brokers.items()], deadline_s
        )
        if self._known:
            server = next(iter(self._known))
            yield from run_checks([Check("routes", partial(self._routes, server))], deadline_s)

    def _session(self, address: Address) -> Session:
        connect_settings = self._connect_settings
        return Session.connect(
            address, connect_settings.timeouts, connect_settings.transport(), credentials=self._credentials
        )

    def _name_server(self, address: Address) -> Iterator[Finding]:
        what = f"name server {address}"
        if not (yield from self._connect_settings.reach(what, address)):
            return
        with closing(self._session(address)) as session:
            began_s = SYSTEM_CLOCK.monotonic()
            try:
                known = ask_brokers(session) or KnownBrokers({}, {})
            except NotNameServer as error:
                yield fail(f"{what} answer", str(error))
                return
            took = since_text(began_s)
        self._known[address] = known
        if known.brokers:
            yield ok(f"{what} answer", f"{len(known.brokers)} brokers registered, in {took}")
        else:
            yield warn(f"{what} answer", f"no broker is registered, or it does not report it, in {took}")

    def _broker(self, what: str, address: Address) -> Iterator[Finding]:
        if not (yield from self._connect_settings.reach(what, address)):
            return
        with closing(self._session(address)) as session:
            began_s, before_ms = SYSTEM_CLOCK.monotonic(), wall_clock_ms()
            try:
                figures = broker_figures(session)
            except (RequestRefused, AccessDenied) as error:
                self._answering.add(address)
                if isinstance(error, AccessDenied) and error.keys_refused:
                    yield fail(f"{what} account", str(error))
                else:
                    yield warn(f"{what} answer", f"it does not report its figures: {error}")
                return
            asked, took = Asked(before_ms, wall_clock_ms()), since_text(began_s)
        self._answering.add(address)
        version, up_s = figures.get("brokerVersionDesc", "of an unknown version"), uptime_s(figures)
        uptime = "" if up_s is None else f", up for {up_s} s"
        yield ok(f"{what} answer", f"{version}{uptime}, in {took}")
        yield from rocketmq_findings(what, figures, asked)

    def _routes(self, server: Address) -> Iterator[Finding]:
        with closing(self._session(server)) as session:
            try:
                topics = ask_topics(session)
            except TopicListMissing:
                yield ok("routes", "not known: the name server does not list topics")
                return
            routes: dict[str, TopicRoute | None] = {}
            unusable: dict[str, str] = {}
            for topic in topics[:TOPICS_MAX]:
                try:
                    routes[topic] = ask_route(session, topic)
                except RouteUnusable as error:
                    unusable[topic] = str(error)
        yield from route_findings(routes, unusable, self._answering)
        if len(topics) > TOPICS_MAX:
            yield ok("routes", f"{len(topics) - TOPICS_MAX} more topics were not checked")


def registration_findings(known: Mapping[Address, KnownBrokers]) -> Iterator[Finding]:
    """Yield the brokers that only some of the name servers know."""
    everywhere = {name for one in known.values() for name in one.brokers}
    for server, one in known.items():
        if missing := sorted(everywhere - set(one.brokers)):
            yield warn(
                f"name server {server} registration",
                f"does not have {', '.join(missing)}, which another name server has",
            )


def route_findings(
    routes: Mapping[str, TopicRoute | None], unusable: Mapping[str, str], answering: Iterable[Address]
) -> Iterator[Finding]:
    """Yield the topics with queues at brokers of which no address answers; ``unusable``: topic -> its problem."""
    alive, lost = set(answering), dict(unusable)
    for topic, route in routes.items():
        if route is not None:
            away = sorted(name for name in route.counts if not alive & set(route.brokers.get(name, {}).values()))
            if away:
                lost[topic] = f"has queues at {', '.join(away)}, which does not answer"
    for topic in sorted(lost)[:ROUTES_SHOWN]:
        yield fail(f"route of {topic}", lost[topic])
    if len(lost) > ROUTES_SHOWN:
        yield fail("routes", f"{len(lost) - ROUTES_SHOWN} more topics have routes that lead nowhere")
    if not lost:
        yield ok("routes", f"{len(routes)} topics, and each broker of them answers")
