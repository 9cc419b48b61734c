"""Checks a cluster of MetaQ brokers: ZooKeeper, each broker, and whether they agree."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Final

from metaq import ports
from metaq.backends.metaq.session import Session
from metaq.client.checkup.findings import Check, Finding, fail, ok, run_checks, warn
from metaq.client.checkup.machines import Asked, machine_findings, own_disk_finding
from metaq.client.checkup.pairs import PairReports
from metaq.client.checkup.reach import ConnectSettings, since_text
from metaq.client.checkup.registration import BrokerReport, Registered, registration_findings
from metaq.discovery.stats import (
    data_folder,
    lines_of,
    parse_broker,
    parse_figures,
    parse_offered,
    parse_offsets,
    parse_settings,
    parse_topics,
)
from metaq.discovery.unlisted import unlisted_text
from metaq.discovery.zk_layout import ZooKeeperAddress
from metaq.model import Address
from metaq.net.clock import SYSTEM_CLOCK, wall_clock_ms
from metaq.net.transport import is_own

STEPS: Final = 6
"""Limit on sequential waits of one check: its deadline is this number of timeouts."""

FAILURES_SHOWN: Final = 5
"""Limit on failures that are shown for a broker."""


class MetaqCheckup:
    """Checks the brokers at ``brokers`` and all that are registered at ``zookeeper``."""

    def __init__(
        self, brokers: Sequence[Address], zookeeper: ZooKeeperAddress | None, connect_settings: ConnectSettings
    ) -> None:
        self._brokers, self._zookeeper, self._connect_settings = brokers, zookeeper, connect_settings
        self._registered: Registered | None = None
        self._said: dict[Address, BrokerReport] = {}
        self._pairs = PairReports()
        self._members: set[Address] = set()

    def findings(self) -> Iterator[Finding]:
        """Yield each finding as soon as it is known."""
        deadline_s = STEPS * self._connect_settings.timeout_s
        expected: dict[Address, int | None] = dict.fromkeys(self._brokers)
        if self._zookeeper is not None:
            yield from run_checks(self._zookeeper_checks(self._zookeeper), deadline_s)
            expected |= {} if self._registered is None else self._registered.addresses()
        checks = [Check(f"broker {at}", partial(self._broker, at, id_)) for at, id_ in expected.items()]
        yield from run_checks(checks, deadline_s)
        if self._registered is not None:
            said = {one.broker_id: one for one in self._said.values() if not one.slave}
            yield from registration_findings(self._registered, said)
        else:
            yield from self._same_ids()
        yield from self._pairs.findings()

    def _zookeeper_checks(self, zookeeper: ZooKeeperAddress) -> list[Check]:
        hosts = [_with_port(host) for host in zookeeper.hosts.split(",")]
        reached = [
            Check(f"ZooKeeper {at}", partial(_server, f"ZooKeeper {at}", at, self._connect_settings)) for at in hosts
        ]
        return [*reached, Check(f"ZooKeeper {zookeeper}", partial(self._tree, zookeeper))]

    def _tree(self, zookeeper: ZooKeeperAddress) -> Iterator[Finding]:
        began_s = SYSTEM_CLOCK.monotonic()
        registered = Registered.read(zookeeper, self._connect_settings.timeout_s)
        took = since_text(began_s)
        self._registered = registered
        count = len(registered.brokers)
        level = ok if count else fail
        yield level(f"ZooKeeper {zookeeper} answer", f"{count} brokers registered, in {took}")

    def _broker(self, address: Address, registered_id: int | None) -> Iterator[Finding]:
        what = f"broker {address}"
        if not (yield from self._connect_settings.reach(what, address)):
            return
        with closing(
            Session.connect(address, self._connect_settings.timeouts, self._connect_settings.transport())
        ) as session:
            began_s = SYSTEM_CLOCK.monotonic()
            version = session.version
            yield ok(f"{what} answer", f"{version.partition(';')[0]}, in {since_text(began_s)}")
            texts = session.stats(["", "topics"] + (["replication"] if session.extensions else []))
            if self._pairs.add(address, texts[""], texts.get("replication", "")):
                self._members.add(address)
            info, figures = parse_broker(texts[""]), parse_figures(texts[""])
            self._said[address] = BrokerReport(info.broker_id, info.slave, parse_offered(texts["topics"]))
            yield _id_finding(what, self._said[address], registered_id, figures)
            yield from _bundled(what, session) if session.extensions else _java(what, session, address)

    def _same_ids(self) -> Iterator[Finding]:
        """Yield the ids that several brokers of the list share."""
        by_id: dict[int, list[str]] = {}
        for address, said in self._said.items():
            if address in self._members:
                continue  # both members of a pair have its id
            by_id.setdefault(said.broker_id, []).append(str(address))
        for broker_id, addresses in by_id.items():
            if len(addresses) > 1:
                detail = f"is used by {' and '.join(sorted(addresses))}; name only one of them here"
                yield fail(f"broker id {broker_id}", detail)


def _server(what: str, address: Address, connect_settings: ConnectSettings) -> Iterator[Finding]:
    yield from ConnectSettings(None, connect_settings.timeout_s).reach(what, address)  # ZooKeeper is asked without TLS


def _id_finding(what: str, said: BrokerReport, registered_id: int | None, figures: Mapping[str, str]) -> Finding:
    role, uptime = "slave" if said.slave else "master", figures.get("uptime", "?")
    detail = f"broker {said.broker_id}, {role}, {len(said.topics)} topics, up for {uptime} s"
    if registered_id is not None and registered_id != said.broker_id:
        return fail(f"{what} id", f"{detail}; but it is registered as broker {registered_id}")
    return ok(f"{what} id", detail)


def _bundled(what: str, session: Session) -> Iterator[Finding]:
    """Yield what only the bundled broker reports: its clock, its disks, its failures."""
    before_ms = wall_clock_ms()
    text = session.stats(["machine"])["machine"]
    found = list(machine_findings(what, list(lines_of(text)), Asked(before_ms, wall_clock_ms())))
    yield from found or [_clock_unknown(what)]
    failures = list(lines_of(session.stats(["failures"])["failures"]))
    for line in failures[:FAILURES_SHOWN]:
        yield warn(f"{what} failures", line)
    if len(failures) > FAILURES_SHOWN:
        yield warn(f"{what} failures", f"and {len(failures) - FAILURES_SHOWN} more; stats failures lists them")


def _java(what: str, session: Session, address: Address) -> Iterator[Finding]:
    yield _clock_unknown(what)
    texts = session.stats(["", "topics", "offsets", "config"])
    if names := _unlisted(texts):
        yield warn(f"{what} partitions", unlisted_text(names))
    folder = data_folder(texts["config"])
    if folder is None or not is_own(address) or not Path(folder).is_dir():
        yield ok(f"{what} disk", "not known: a Java broker does not report it, and its data is not on this machine")
    else:
        yield own_disk_finding(what, Path(folder))


def _unlisted(texts: Mapping[str, str]) -> list[str]:
    """Return the partitions of topics with messages that a master offers but does not list."""
    info, settings, listed = parse_broker(texts[""]), parse_settings(texts["config"]), parse_offsets(texts["offsets"])
    topics = sorted({topic for topic, _ in listed} | set(parse_topics(texts["topics"])))
    offered = [(topic, index) for topic in topics for index in range(settings.partition_count(topic))]
    missing = [] if info.slave else [one for one in offered if one not in listed]
    return [f"{topic}/{info.broker_id}-{index}" for topic, index in missing]


def _clock_unknown(what: str) -> Finding:
    return ok(f"{what} clock", "not known: this broker does not report its time")


def _with_port(host: str) -> Address:
    try:
        return Address.parse(host)
    except ValueError:
        return Address.parse(f"{host}:{ports.ZOOKEEPER}")
