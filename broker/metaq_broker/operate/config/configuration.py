"""The broker's configuration: server.ini, read and checked completely before anything is opened.

A ``BrokerConfig`` is immutable. ``load`` reads a file, ``parse`` its bytes, ``development`` needs no file.
"""

from __future__ import annotations

import dataclasses
import re
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from metaq.formats.topic_names import storage_fault
from metaq.model import Address
from metaq_broker.operate.config.access import check_allow_lists, check_topic_allow_lists, is_loopback, settle_tls
from metaq_broker.operate.config.http import SECTION as HTTP
from metaq_broker.operate.config.http import HttpConfig, read_http
from metaq_broker.operate.config.ini import ConfigError, Section, parse_ini
from metaq_broker.operate.config.keys import check_keys, ignored_keys, read_section
from metaq_broker.operate.config.own_address import first_address
from metaq_broker.operate.config.properties import read_properties
from metaq_broker.operate.config.replication import (
    PLUGINS,
    READERS,
    ROLE_KEYS,
    SECTIONS,
    Role,
    check_master,
    check_pair,
    read_role,
    role_warnings,
)
from metaq_broker.operate.config.rocketmq import SECTION as ROCKETMQ
from metaq_broker.operate.config.rocketmq import RocketmqConfig, read_rocketmq
from metaq_broker.operate.config.sections import (
    SYSTEM_KEYS,
    TOPIC_KEYS,
    TOPIC_PREFIX,
    ZOOKEEPER_KEYS,
    SystemConfig,
    TopicConfig,
    ZooKeeperConfig,
)
from metaq_broker.operate.config.shared import shared_text

_KEYS: Final = {"system": SYSTEM_KEYS, **ROLE_KEYS}
"""Sections whose required keys are checked -> their keys."""

_WILDCARD = "*"
SPECIAL: Final = "$^+?()[{|\\"
"""MetaQ uses a topic's name as a regular expression; a name with one of these characters does not match itself."""

UNMATCHED: Final = (
    "puts are refused, as in MetaQ, where such a name does not match itself, unless messages of the topic are stored "
    "already; use a name without $ ^ + ? ( ) [ { | \\"
)


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """The contents of server.ini. ``topics`` are names as written, with wildcards; ``text`` is the raw file."""

    system: SystemConfig
    zookeeper: ZooKeeperConfig
    topics: Mapping[str, TopicConfig]
    text: bytes
    warnings: tuple[str, ...] = ()
    role: Role | None = None
    """The broker's role in replication, see ``replication``; ``None``: it has none."""
    rocketmq: RocketmqConfig | None = None
    """The front end for RocketMQ's clients; ``None``: there is none."""
    http: HttpConfig | None = None
    """HTTP access; ``None``: there is none."""

    hidden_topics: frozenset[str] = frozenset()
    hidden_prefixes: tuple[str, ...] = ()
    """Topics for the broker's internal use: see ``hides``."""
    reserved_topics: frozenset[str] = frozenset()
    """Topics to which only this broker puts."""
    made_topics: Mapping[str, int] = field(default_factory=dict)
    """Topics that RocketMQ's clients created and the file does not name, with their numbers of partitions. ``stats
    config`` shows them to MetaQ's clients, which find topics there.
    """
    unmatched: frozenset[str] = frozenset()
    """Topics of the file that MetaQ refuses: the name, used as a regular expression, does not match itself."""
    patterns: tuple[str, ...] = field(init=False, repr=False, compare=False)
    """The names in ``topics`` that have wildcards."""
    has_allow_lists: bool = field(init=False, repr=False, compare=False)
    """Whether names in certificates decide who may use a topic."""

    def __post_init__(self) -> None:
        """Determine once what every request needs: there may be thousands of topics."""
        object.__setattr__(self, "patterns", tuple(name for name in self.topics if _WILDCARD in name))
        each: tuple[TopicConfig, ...] = (self.system, *self.topics.values())
        has_lists = any(one.allow_publish or one.allow_subscribe for one in each)
        object.__setattr__(self, "has_allow_lists", has_lists)

    @property
    def checksum(self) -> int:
        """CRC-32 of ``shared_text``, unmasked, as ``stats`` and ZooKeeper show it.

        Not of the file's own bytes: a Java slave compares it with the checksum of the answer to ``stats config``.
        """
        return zlib.crc32(self.shared_text)

    @property
    def shared_text(self) -> bytes:
        """What others see: the file without keys that MetaQ does not know, and a section for each created topic."""
        made = "".join(
            f"\n[topic={topic}]\nnumPartitions={count}\n" for topic, count in sorted(self.made_topics.items())
        )
        return shared_text(self.text) + made.encode()

    def hides(self, topic: str) -> bool:
        """Return whether ``topic`` is internal, and left out of lists of topics."""
        return topic in self.hidden_topics or topic.startswith(self.hidden_prefixes)

    def accepts(self, topic: str) -> bool:
        """Return whether messages may be put to ``topic``: it has a section, or a wildcard covers it."""
        return self.accepted_settings(topic) is not None

    def accepted_settings(self, topic: str) -> TopicConfig | None:
        """Return the settings of ``topic``; ``None`` if it is not accepted."""
        settings = self.topics.get(topic)
        if settings is None and any(covers(pattern, topic) for pattern in self.patterns):
            return self.system
        return settings

    def topic_settings(self, topic: str) -> TopicConfig:
        """Return the settings of ``topic``. A topic without a section has the ones of ``[system]``, as in MetaQ."""
        return self.topics.get(topic) or self.system

    def reader_lists(self, topic: str) -> list[tuple[str, ...]]:
        """Return the allow lists for readers of ``topic``: its own, and all lists for topics with messages of all
        topics.
        """
        own = self.topic_settings(topic).allow_subscribe
        if topic not in self.reserved_topics:
            return [own]
        return [own, self.system.allow_subscribe, *(each.allow_subscribe for each in self.topics.values())]

    def data_paths(self) -> list[str]:
        """Return the distinct folders of partitions, the system's first."""
        paths = [self.system.data_path, *(topic.data_path for topic in self.topics.values())]
        return list(dict.fromkeys(paths))


@lru_cache(maxsize=16384)
def covers(pattern: str, topic: str) -> bool:
    """Return whether a topic name with ``*`` (any number of any characters) matches the whole of ``topic``."""
    return re.fullmatch(".*".join(map(re.escape, pattern.split(_WILDCARD))), topic) is not None


def load(path: Path | str) -> BrokerConfig:
    """Read and check the file at ``path``.

    Raises:
        ConfigError: The file cannot be read, or something in it is wrong.
    """
    return parse(read_file(path), str(path))


def read_file(path: Path | str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(str(path), f"cannot be read: {error.strerror}") from None


def data_path_in(path: Path | str) -> Path:
    """Return the data folder that a configuration file names, even if other keys of the file are wrong.

    Raises:
        ConfigError: The file cannot be read, or is not a configuration file.
    """
    return data_path_of(read_file(path), str(path))


def data_path_of(raw: bytes, source: str) -> Path:
    """Return the data folder in the bytes of a configuration; ``source`` names it in errors. Raises as
    ``data_path_in``.
    """
    sections = {section.name: section for section in parse_ini(raw, source)}
    if "system" not in sections:
        raise ConfigError(source, "section [system] is missing")
    default = next(str(key.default) for key in SYSTEM_KEYS if key.attribute == "data_path")
    return Path(sections["system"].values.get("dataPath") or default).expanduser().absolute()


def parse(raw: bytes, source: str = "server.ini", inherited: SystemConfig | None = None) -> BrokerConfig:
    """Parse and check the bytes of a server.ini; ``source`` names it in errors.

    Topics inherit from ``inherited``, if given, instead of the file's own ``[system]``.

    Raises:
        ConfigError: Names file, section, key and value, and what is allowed.
    """
    sections = {section.name: section for section in parse_ini(raw, source)}
    if "system" not in sections:
        raise ConfigError(source, "section [system] is missing")
    check_keys([(sections[name], keys) for name, keys in _KEYS.items() if name in sections], source)
    system = _system(sections["system"], source)
    zookeeper_section = sections.get("zookeeper", Section("zookeeper", 0))
    zookeeper = ZooKeeperConfig(**read_section(zookeeper_section, ZOOKEEPER_KEYS, source))
    base = inherited or system
    topics = dict(_topic(section, source, base) for section in sections.values() if section.name.startswith("topic"))
    rocketmq = read_rocketmq(sections, source)
    if not topics and rocketmq is None:  # RocketMQ's clients create topics themselves
        raise ConfigError(source, "no topic is configured; add at least one section such as [topic=test]")
    role = read_role(sections, source)
    check_master(role, zookeeper.has_address, f"{source} [slave] master")
    check_pair(role, Address(system.host_name, system.server_port), zookeeper.has_address, source)
    unmatched = frozenset(name for name in topics if is_unmatched(name, topics))
    warnings = (
        *_warnings(sections, source),
        *role_warnings(role, system.tls_cert_file, source),
        *_host_warnings(sections["system"], system, source),
        *(f"{source} [topic={name}]: {UNMATCHED}" for name in sorted(unmatched)),
    )
    http = read_http(sections, system, source)
    return BrokerConfig(system, zookeeper, topics, raw, warnings, role, rocketmq, http, unmatched=unmatched)


def development(
    data_path: Path | str,
    port: int,
    partitions: int,
    rocketmq_port: int | None = None,
    dashboard: tuple[int, bool] | None = None,
) -> BrokerConfig:
    """Return a configuration for development: only this machine, every topic accepted, with ``partitions`` partitions.

    With ``rocketmq_port``, RocketMQ's clients are served on that port. ``dashboard`` is the port for HTTP, and whether
    it may change something.
    """
    http = "" if dashboard is None else f"[{HTTP}]\nport={dashboard[0]}\nwrite={str(dashboard[1]).lower()}\n"
    rocketmq = "" if rocketmq_port is None else f"[{ROCKETMQ}]\nenabled=true\nport={rocketmq_port}\n"
    text = (
        "[system]\n"
        "brokerId=0\n"
        f"numPartitions={partitions}\n"
        f"serverPort={port}\n"
        f"dataPath={data_path}\n"
        "unflushThreshold=0\n"
        "unflushInterval=10000\n"
        "maxSegmentSize=1024*1024*1024\n"
        "maxTransferSize=1024*1024\n"
        "stat=true\n"
        "loadMessageStoresInParallel=true\n"
        "[zookeeper]\n"
        "zk.zkEnable=false\n"
        "[topic=*]\n"
        f"{rocketmq}{http}"
    )
    return parse(text.encode(), "development settings")


def _system(section: Section, source: str) -> SystemConfig:
    values = read_section(section, SYSTEM_KEYS, source)
    if _has_blank_host(section) and (found := first_address()) is not None:
        values["host_name"] = found
    values["data_path"] = str(Path(values["data_path"]).expanduser().absolute())
    values["data_log_path"] = str(Path(values["data_log_path"] or values["data_path"]).expanduser().absolute())
    if values["batch_bytes_max"] < values["message_bytes_max"]:
        raise ConfigError(
            f"{source} [system] maxBatchSize",
            f"value {values['batch_bytes_max']}; expected at least maxMessageSize ({values['message_bytes_max']})",
        )
    minimum, resume = values["disk_free_bytes_min"], values["disk_free_bytes_resume"]
    if resume is not None and (minimum is None or resume < minimum):
        allowed = "only together with diskFreeMinBytes" if minimum is None else f"at least diskFreeMinBytes ({minimum})"
        raise ConfigError(f"{source} [system] diskFreeResumeBytes", f"value {resume}; expected {allowed}")
    if values["buffered_bytes_max"] < values["batch_bytes_max"]:
        raise ConfigError(
            f"{source} [system] maxBufferedBytes",
            f"value {values['buffered_bytes_max']}; expected at least maxBatchSize ({values['batch_bytes_max']})",
        )
    settle_tls(values, source)
    system = SystemConfig(**values)
    check_allow_lists("system", system.allow_publish, system.allow_subscribe, system.tls_client_auth, source)
    return system


def _topic(section: Section, source: str, system: SystemConfig) -> tuple[str, TopicConfig]:
    name = section.name.removeprefix(TOPIC_PREFIX).strip()
    if not section.name.startswith(TOPIC_PREFIX) or not name:
        raise ConfigError(f"{source} [{section.name}]", "a topic's section is written [topic=NAME]")
    fault = "it contains a blank" if " " in name else storage_fault(name)
    if fault is not None:
        raise ConfigError(f"{source} [{section.name}]", f"topic name {name[:80]!r} cannot be used: {fault}")
    inherited = {key.attribute: getattr(system, key.attribute) for key in TOPIC_KEYS}
    values: dict[str, Any] = read_section(section, TOPIC_KEYS, source, inherited)
    values["data_path"] = str(Path(values["data_path"]).expanduser().absolute())
    topic = TopicConfig(**values)
    check_topic_allow_lists(section, topic, system.tls_client_auth, source)
    return name, topic


def is_unmatched(name: str, names: Iterable[str]) -> bool:
    """Return whether MetaQ would not match a name with itself, and no wildcard covers the name."""
    is_special = any(each in name for each in SPECIAL)
    return is_special and not any(covers(pattern, name) for pattern in names if _WILDCARD in pattern)


def _warnings(sections: Mapping[str, Section], source: str) -> list[str]:
    known = ("system", "zookeeper", ROCKETMQ, HTTP, *SECTIONS)
    unknown = [
        f"{source} [{name}]: unknown section, ignored"
        for name in sections
        if name not in known and not name.startswith("topic")
    ]
    return unknown + [
        f"{source} [{name}] {key}: ignored; {reason}"
        for name, section in sections.items()
        for key, reason in ignored_keys(section).items()
    ]


def _has_blank_host(section: Section) -> bool:
    return section.values.get("hostName") == ""


def _host_warnings(section: Section, system: SystemConfig, source: str) -> list[str]:
    """Return what a blank ``hostName`` stands for."""
    if not _has_blank_host(section):
        return []
    where, used = f"{source} [system] hostName", f"clients are given {system.host_name}"
    if is_loopback(system.host_name):
        return [f"{where}: blank, and this machine has no other address: {used}"]
    text = f"{where}: blank; {used}, the first address of this machine that is not loopback"
    if is_loopback(system.bind_address):
        text += f". They cannot connect there while bindAddress is {system.bind_address}"
    return [text]


def unguarded_port_warning(config: BrokerConfig) -> str | None:
    """Return a warning if RocketMQ's clients need accounts and MetaQ's do not, else ``None``."""
    rocketmq, system = config.rocketmq, config.system
    if rocketmq is None or not rocketmq.accounts or rocketmq.metaq_accounts:
        return None
    if system.allow_publish and system.allow_subscribe:
        return None
    return (
        f"WARNING: aclEnable=true guards port {rocketmq.port} only: on MetaQ's port {system.server_port} everybody who "
        "reaches it reads and writes the same topics without an account. Set aclMetaqPort=true in [rocketmq], or "
        "allowPublish and allowSubscribe in [system]"
    )


IGNORED_PLUGINS: Final = ("jettybroker",)
"""Plugins of MetaQ that are configured elsewhere here and do not affect messages."""


def with_plugin(config: BrokerConfig, argument: str) -> BrokerConfig:
    """Return ``config`` with the role of an ``-F`` argument such as ``metaslave=async_slave.properties``.

    Raises:
        ConfigError: There is no such role or file, the file has an error, or there is a role already.
    """
    name, _, file = argument.partition("=")
    if name.lower() in IGNORED_PLUGINS:
        warning = f"-F{argument}: ignored; HTTP access is the section [http] here"
        return dataclasses.replace(config, warnings=(*config.warnings, warning))
    section = PLUGINS.get(name.lower())
    if section is None or not file:
        allowed = "metaslave=FILE, samsa=FILE or gregor=FILE"
        raise ConfigError(f"-F{argument}", f"expected {allowed}")
    if config.role is not None:
        raise ConfigError(f"-F{argument}", "the broker has a role already; it can have only one")
    role = READERS[section](_properties_section(section, file), file)
    check_master(role, config.zookeeper.has_address, f"{file} master")
    warnings = (*config.warnings, *role_warnings(role, config.system.tls_cert_file, file))
    return dataclasses.replace(config, role=role, warnings=warnings)


def _properties_section(name: str, file: str) -> Section:
    """Read a file of properties, which Java reads as ISO 8859-1, as a section."""
    raw = read_file(file).removeprefix(b"\xef\xbb\xbf")
    try:
        found = read_properties(raw.decode("latin-1"))
    except ValueError as error:
        raise ConfigError(file, str(error)) from None
    values = {key: value.strip() for key, value in found.items() if not key.startswith(";")}
    inner = next((key for key in values if key.startswith("[")), None)
    if inner is not None:
        raise ConfigError(f"{file} {inner}", "a file of properties has no sections")
    return Section(name, 1, values)
