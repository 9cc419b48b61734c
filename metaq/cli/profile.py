"""Which cluster the command talks to, and how connections are secured: arguments, environment, configuration file.

The file is ``$METAQ_CONFIG``, else ``~/.config/metaq/config.ini``. Each section is a profile::

    [staging]
    cluster = zk://zk1:2181,zk2:2181/meta
    ca_file = /etc/metaq/ca.pem

Source: docs/cli.md, "Profiles".
"""

from __future__ import annotations

import configparser
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from metaq.client.metaq import MetaQ

DEFAULT_CLUSTER: Final = "127.0.0.1:8123"
_KEYS: Final = ("cluster", "ca_file", "cert_file", "key_file")


class ProfileError(Exception):
    """The configuration file, or a profile in it, cannot be used. The text says why."""


@dataclass(frozen=True, slots=True)
class Profile:
    """A cluster, as ``MetaQ`` takes it, and the files that secure connections to it."""

    cluster: str = DEFAULT_CLUSTER
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None

    def connect(self) -> MetaQ:
        """Return the cluster; nothing is opened yet.

        Raises:
            ValueError: ``cluster`` is not of a known form.
        """
        from metaq.client.metaq import MetaQ
        from metaq.net.tls import TlsSettings

        secured = self.ca_file is not None or self.cert_file is not None
        tls = TlsSettings(self.ca_file, self.cert_file, self.key_file) if secured else None
        return MetaQ(self.cluster, tls=tls)


def read_profile(name: str | None, cluster: str | None) -> Profile:
    """Return profile ``name``, else that of ``$METAQ_PROFILE``, else none; ``cluster`` and ``$METAQ_CLUSTER`` win.

    Raises:
        ProfileError: The profile does not exist, or the file cannot be read or has an unknown key.
    """
    chosen = name or os.environ.get("METAQ_PROFILE")
    keys = _section(chosen) if chosen else {}
    given = cluster or os.environ.get("METAQ_CLUSTER")
    if given:
        keys["cluster"] = given
    return Profile(**keys)


def _section(name: str) -> dict[str, str]:
    path = Path(os.environ.get("METAQ_CONFIG") or Path.home() / ".config" / "metaq" / "config.ini")
    parser = configparser.ConfigParser(interpolation=None)
    try:
        with path.open(encoding="utf-8") as file:
            parser.read_file(file)
    except (OSError, UnicodeDecodeError, configparser.Error) as error:
        raise ProfileError(f"profile {name!r}: {path} cannot be read: {_reason(error)}") from None
    if not parser.has_section(name):
        known = ", ".join(parser.sections()) or "none"
        raise ProfileError(f"profile {name!r}: {path} has no such section; it has {known}")
    keys = dict(parser.items(name))
    if unknown := sorted(set(keys) - set(_KEYS)):
        raise ProfileError(f"profile {name!r}: {path}: unknown key {unknown[0]!r}; allowed are {', '.join(_KEYS)}")
    return keys


def _reason(error: Exception) -> str:
    return (getattr(error, "strerror", None) or str(error)).splitlines()[0]
