"""Roles that the command line gives a broker: ``-F metaslave=FILE``, ``samsa`` and ``gregor``, as for a Java broker."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Final

from metaq_broker.operate.config.configuration import BrokerConfig
from metaq_broker.operate.config.ini import ConfigError, parse_ini
from metaq_broker.operate.config.replication import PLUGINS, READERS, check_master

IGNORED_PLUGINS: Final = ("jettybroker",)
"""Plugins of MetaQ that have no counterpart here and do not affect messages."""


def with_plugin(config: BrokerConfig, argument: str) -> BrokerConfig:
    """Return ``config`` with the role of an ``-F`` argument such as ``metaslave=async_slave.properties``.

    Raises:
        ConfigError: There is no such role or file, the file has an error, or there is a role already.
    """
    name, _, file = argument.partition("=")
    if name.lower() in IGNORED_PLUGINS:
        warning = f"-F{argument}: ignored; there is no HTTP access"
        return dataclasses.replace(config, warnings=(*config.warnings, warning))
    section = PLUGINS.get(name.lower())
    if section is None or not file:
        allowed = "metaslave=FILE, samsa=FILE or gregor=FILE"
        raise ConfigError(f"-F{argument}", f"allowed is {allowed}")
    if config.role is not None:
        raise ConfigError(f"-F{argument}", "the broker has a role already; allowed is one")
    try:
        raw = Path(file).read_bytes()
    except OSError as error:
        raise ConfigError(file, f"cannot be read: {error.strerror}") from None
    read, *others = parse_ini(f"[{section}]\n".encode() + raw.removeprefix(b"\xef\xbb\xbf"), file)
    if others:
        raise ConfigError(f"{file} [{others[0].name}]", "a file of properties has no sections")
    role = READERS[section](read, file)
    check_master(role, config.zookeeper.has_address, f"{file} master")
    return dataclasses.replace(config, role=role)
