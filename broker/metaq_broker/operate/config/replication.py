"""The sections about replication, ``[slave]``, ``[samsa]``, ``[gregor]`` and ``[pair]``, or the plugin files in the
place of the first three.

A broker is at most one of them: the asynchronous slave of a master (``[slave]``), the master of a synchronous pair
(``[samsa]``), its slave (``[gregor]``), or a member of a pair that elects its master (``[pair]``). MetaQ has the keys
of the first three in properties files that the command line names: ``-Fmetaslave=FILE``, ``-Fsamsa=FILE``,
``-Fgregor=FILE``. All are read here.

Source: docs/replication.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from metaq.model import INT32_MAX, Address
from metaq_broker.operate.config.ini import ConfigError, Section
from metaq_broker.operate.config.keys import OUR_OWN, WITHOUT_EFFECT, key, keys_of, read_section
from metaq_broker.operate.config.values import boolean, number, plain

SLAVE, SAMSA, GREGOR, PAIR = "slave", "samsa", "gregor", "pair"

NO_SLAVE: Final = -1
"""The slaveId in MetaQ's sample configuration; it means that this broker is not a slave."""


PLUGINS: Final = {"metaslave": SLAVE, "samsa": SAMSA, "gregor": GREGOR}
"""Name of a role for ``-F``, in lower case -> the section of the same role."""

SECTIONS: Final = (SLAVE, SAMSA, GREGOR, PAIR)

SESSION_MS_MIN: Final = 500
SESSION_MS_MAX: Final = 60_000

_MILLISECONDS: Final = number(1, INT32_MAX)


def _address(text: str) -> Address:
    try:
        return Address.parse(text)
    except ValueError:
        raise ValueError("HOST:PORT, port 1..65535") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class SlaveConfig:
    """The asynchronous slave ``slave_id`` of the broker at ``master``, which has the same broker id.

    ``master`` is ``None`` if ZooKeeper has the address. ``delay_ms_max`` is the longest pause between two requests of a
    slave that has everything.
    """

    # fmt: off
    slave_id: int = key(
        "slaveId", number(NO_SLAVE, INT32_MAX),
        "0 and up, different for each slave of a master; -1: no slave, as in MetaQ's sample",
    )
    master: Address | None = key(
        "master", _address, "address of the master, `HOST:PORT`; required without `zk.zkConnect`", None,
        shown="looked up in ZooKeeper, as MetaQ's slaves do", kind=OUR_OWN,
    )
    group: str = key(
        "slaveGroup", plain, "consumer group under which the slave reads", "", shown="`meta-slave-group_SLAVEID`",
    )
    delay_ms_max: int = key(
        "slaveMaxDelayInMills", _MILLISECONDS,
        "longest pause before the slave polls again when it has everything; it starts at 10 ms", 500,
    )
    follows_config: bool = key(
        "autoSyncMasterConfig", boolean,
        "`true`: the slave takes over the topics of its master's file, see [below](#following-the-masters-topics). "
        "`false`: the operator keeps both files the same", False,
    )
    # fmt: on


@dataclass(frozen=True, slots=True, kw_only=True)
class SamsaConfig:
    """The master of a synchronous pair. ``timeout_ms``: longest wait for the slave's answer to one block of the log.

    The keys without effect have no counterpart here: there are no threads to count, no consumers' offsets to repair,
    and the pair is out of sync after the first failure.
    """

    # fmt: off
    slave: Address = key("slave", _address, "address of the slave")
    timeout_ms: int = key(
        "sendToSlaveTimeoutInMills", _MILLISECONDS,
        "longest wait for the slave's answer to one block of the log", 2_000,
    )
    check_interval_ms: int = key(
        "checkSlaveIntervalInMills", _MILLISECONDS, "pause before the next attempt to bring the slave in sync", 100,
    )
    callback_thread_count: int = key("callbackThreadCount", number(1, INT32_MAX), "", 1, kind=WITHOUT_EFFECT)
    recover_offset: bool = key("recoverOffset", boolean, "", False, kind=WITHOUT_EFFECT)
    recover_parallel: bool = key("recoverParallel", boolean, "", True, kind=WITHOUT_EFFECT)
    recover_parallel_hint: int = key("recoverParallelHint", number(1, INT32_MAX), "", 1, kind=WITHOUT_EFFECT)
    failure_threshold: int = key(
        "slaveContinuousFailureThreshold", number(1, INT32_MAX), "", 100, kind=WITHOUT_EFFECT,
    )
    # fmt: on


@dataclass(frozen=True, slots=True, kw_only=True)
class GregorConfig:
    """The slave of a synchronous pair: its master connects to it. A promotion checks whether ``master`` listens."""

    # fmt: off
    master: Address | None = key(
        "master", _address, "address that is checked for a running master at a promotion", None, shown="none",
        kind=OUR_OWN,
    )
    # fmt: on


@dataclass(frozen=True, slots=True, kw_only=True)
class PairConfig:
    """One of the two members of a pair that elects its master; ``other`` is the address of the other one.

    The file of both members is the same but for addresses and folders: it names no role. ``min_in_sync``: how many
    members must have a message before it is acknowledged. ``session_ms``: after so long a silence a master counts as
    gone. ``timeout_ms``: longest wait for the other member's answer to one block of a log.
    """

    # fmt: off
    other: Address = key("other", _address, "address of the other member, `HOST:PORT`", kind=OUR_OWN)
    min_in_sync: int = key(
        "minInSync", number(1, 2),
        "1: a member goes on alone when the other one is away. 2: then it refuses messages", 1, kind=OUR_OWN,
    )
    session_ms: int = key(
        "sessionMs", number(SESSION_MS_MIN, SESSION_MS_MAX),
        "ms of silence after which a master counts as gone, and its slave is elected; also the timeout of its session "
        "in ZooKeeper, within the limits of ZooKeeper", 6_000, kind=OUR_OWN,
    )
    timeout_ms: int = key(
        "answerTimeoutMs", _MILLISECONDS,
        "longest wait for the other member's answer; after that the master tries to go on without it", 2_000,
        kind=OUR_OWN,
    )
    # fmt: on


Role = SlaveConfig | SamsaConfig | GregorConfig | PairConfig


def read_role(sections: Mapping[str, Section], source: str) -> Role | None:
    """Return the role in the sections of a server.ini; ``None`` if there is none.

    Raises:
        ConfigError: A key or a value is wrong, or there are two roles.
    """
    found = [name for name in SECTIONS if name in sections]
    if len(found) > 1:
        allowed = "expected only one of [slave], [samsa], [gregor] and [pair]"
        raise ConfigError(f"{source} [{found[1]}]", f"{allowed}; [{found[0]}] is there already")
    return READERS[found[0]](sections[found[0]], source) if found else None


def role_warnings(role: Role | None, tls_cert_file: str, source: str) -> list[str]:
    """Return warnings: keys that a role ignores, or that keep the other broker from connecting.

    ``tls_cert_file``: of this broker's port.
    """
    if isinstance(role, SamsaConfig) and role.recover_offset:
        return [f"{source} [{SAMSA}] recoverOffset: ignored; offsets are the same on both brokers of a pair"]
    if tls_cert_file and isinstance(role, PairConfig | GregorConfig):
        why = "the other broker connects to this port, and links between brokers have no TLS"
        return [f"{source} [system] tlsCertFile: {why}; it needs a tunnel such as stunnel"]
    return []


def check_master(role: Role | None, has_registry: bool, where: str) -> None:
    """Check that a slave can find its master; ``has_registry``: ZooKeeper is configured.

    Raises:
        ConfigError: There is neither an address nor ZooKeeper.
    """
    if isinstance(role, SlaveConfig) and role.master is None and not has_registry:
        raise ConfigError(where, "is required where there is no zk.zkConnect to look the master up")


def check_pair(role: Role | None, own: Address, has_registry: bool, source: str) -> None:
    """Check that a member of a pair has ZooKeeper (``has_registry``) and is not its own other member.

    Raises:
        ConfigError: ZooKeeper is not configured, or ``other`` is this broker's own address.
    """
    if not isinstance(role, PairConfig):
        return
    if not has_registry:
        raise ConfigError(f"{source} [{PAIR}]", "a pair needs ZooKeeper, which has its record; set zk.zkConnect")
    if role.other == own:
        raise ConfigError(
            f"{source} [{PAIR}] other",
            f"value '{role.other}' is this broker's own address; expected the address of the other member",
        )


def _slave(section: Section, source: str) -> SlaveConfig | None:
    values = read_section(section, keys_of(SlaveConfig), source)
    if values["slave_id"] == NO_SLAVE:
        return None
    values["group"] = values["group"] or f"meta-slave-group_{values['slave_id']}"
    if " " in values["group"]:
        where = f"{source} [{section.name}] slaveGroup"
        raise ConfigError(where, f"value {values['group']!r}; expected a name without blanks")
    return SlaveConfig(**values)


def _samsa(section: Section, source: str) -> SamsaConfig:
    return SamsaConfig(**read_section(section, keys_of(SamsaConfig), source))


def _gregor(section: Section, source: str) -> GregorConfig:
    return GregorConfig(**read_section(section, keys_of(GregorConfig), source))


def _pair(section: Section, source: str) -> PairConfig:
    return PairConfig(**read_section(section, keys_of(PairConfig), source))


ROLES: Final[Mapping[str, type[Role]]] = {
    SLAVE: SlaveConfig,
    SAMSA: SamsaConfig,
    GREGOR: GregorConfig,
    PAIR: PairConfig,
}
"""Section -> what is read from it."""

ROLE_KEYS: Final = {section: keys_of(role) for section, role in ROLES.items()}
READERS: Final[Mapping[str, Any]] = {SLAVE: _slave, SAMSA: _samsa, GREGOR: _gregor, PAIR: _pair}
