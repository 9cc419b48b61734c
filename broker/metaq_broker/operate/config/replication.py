"""How a broker's partitions get to a second broker: ``[slave]``, ``[samsa]`` and ``[gregor]``, or plugin files.

A broker is at most one of them: the asynchronous slave of a master (``[slave]``), the master of a synchronous pair
(``[samsa]``) or its slave (``[gregor]``). MetaQ says the same in properties files that the command line names:
``-Fmetaslave=FILE``, ``-Fsamsa=FILE``, ``-Fgregor=FILE``; both ways are read here, with MetaQ's keys.

Source: docs/replication.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from metaq.model import INT32_MAX, Address
from metaq_broker.operate.config.ini import ConfigError, Section
from metaq_broker.operate.config.keys import Key, read_section
from metaq_broker.operate.config.values import boolean, number, plain

SLAVE, SAMSA, GREGOR = "slave", "samsa", "gregor"

NO_SLAVE: Final = -1
"""The slaveId in MetaQ's sample configuration: this broker is none."""


PLUGINS: Final = {"metaslave": SLAVE, "samsa": SAMSA, "gregor": GREGOR}
"""What ``-F`` calls a role (in any case) -> the section that says the same."""


@dataclass(frozen=True, slots=True)
class SlaveConfig:
    """The asynchronous slave ``slave_id`` of the broker at ``master``, which has the same broker id.

    ``master`` is ``None`` where ZooKeeper has to be asked.

    ``group`` is the consumer group that it reads as; ``delay_ms_max`` is how long it waits, when it has everything,
    before it asks for more. ``follows_config``: it takes over the topics of the master's configuration.
    """

    slave_id: int
    group: str
    master: Address | None
    delay_ms_max: int
    follows_config: bool = False


@dataclass(frozen=True, slots=True)
class SamsaConfig:
    """The master of a synchronous pair. ``timeout_ms``: longest wait for the slave's answer to one run of frames."""

    slave: Address
    timeout_ms: int
    check_interval_ms: int


@dataclass(frozen=True, slots=True)
class GregorConfig:
    """The slave of a synchronous pair: its master connects to it. A promotion checks whether ``master`` listens."""

    master: Address | None = None


Role = SlaveConfig | SamsaConfig | GregorConfig


_MILLISECONDS = number(1, INT32_MAX)


def _address(text: str) -> Address:
    try:
        return Address.parse(text)
    except ValueError:
        raise ValueError("HOST:PORT, port 1..65535") from None


SLAVE_KEYS: Final = (
    Key("slaveId", "slave_id", number(NO_SLAVE, INT32_MAX)),
    Key("slaveGroup", "group", plain, ""),
    Key("slaveMaxDelayInMills", "delay_ms_max", _MILLISECONDS, 500),
    Key("autoSyncMasterConfig", "follows_config", boolean, False),
    # Not MetaQ's, whose slaves ask ZooKeeper for it; so do ours without.
    Key("master", "master", _address, None),
)

SAMSA_KEYS: Final = (
    Key("slave", "slave", _address),
    Key("sendToSlaveTimeoutInMills", "timeout_ms", _MILLISECONDS, 2_000),
    Key("checkSlaveIntervalInMills", "check_interval_ms", _MILLISECONDS, 100),
    # What these mean to MetaQ has no counterpart here: there are no threads to count, no consumers' offsets to repair,
    # and the pair is out of sync after the first failure.
    Key("callbackThreadCount", "callback_thread_count", number(1, INT32_MAX), 1),
    Key("recoverOffset", "recover_offset", boolean, False),
    Key("recoverParallel", "recover_parallel", boolean, True),
    Key("recoverParallelHint", "recover_parallel_hint", number(1, INT32_MAX), 1),
    Key("slaveContinuousFailureThreshold", "failure_threshold", number(1, INT32_MAX), 100),
)

GREGOR_KEYS: Final = (Key("master", "master", _address, None),)


def read_role(sections: Mapping[str, Section], source: str) -> Role | None:
    """Return what the sections of a server.ini say about replication, ``None`` if nothing.

    Raises:
        ConfigError: A key or a value is wrong, or there are two roles.
    """
    found = [name for name in PLUGINS.values() if name in sections]
    if len(found) > 1:
        raise ConfigError(f"{source} [{found[1]}]", f"allowed is one of [slave], [samsa] and [gregor]; [{found[0]}] is")
    return READERS[found[0]](sections[found[0]], source) if found else None


def check_master(role: Role | None, has_registry: bool, where: str) -> None:
    """Check that a slave can find its master: ``has_registry`` says whether there is a ZooKeeper to ask.

    Raises:
        ConfigError: It is neither configured nor is there a ZooKeeper to ask.
    """
    if isinstance(role, SlaveConfig) and role.master is None and not has_registry:
        raise ConfigError(where, "is required where there is no zk.zkConnect to look the master up")


def _slave(section: Section, source: str) -> SlaveConfig | None:
    values = read_section(section, SLAVE_KEYS, source)
    if values["slave_id"] == NO_SLAVE:
        return None
    values["group"] = values["group"] or f"meta-slave-group_{values['slave_id']}"
    if " " in values["group"]:
        raise ConfigError(f"{source} [{section.name}] slaveGroup", "allowed is a name without blanks")
    return SlaveConfig(**values)


def _samsa(section: Section, source: str) -> SamsaConfig:
    values = read_section(section, SAMSA_KEYS, source)
    if values["recover_offset"]:
        where = f"{source} [{section.name}] recoverOffset"
        raise ConfigError(where, "value 'true'; allowed is false: offsets are the same on both brokers of a pair")
    return SamsaConfig(values["slave"], values["timeout_ms"], values["check_interval_ms"])


def _gregor(section: Section, source: str) -> GregorConfig:
    return GregorConfig(**read_section(section, GREGOR_KEYS, source))


READERS: Final[Mapping[str, Any]] = {SLAVE: _slave, SAMSA: _samsa, GREGOR: _gregor}
