"""Profiles: which cluster a program uses and how connections are secured, from arguments, environment and a file.

The file is ``$METAQ_CONFIG``, else ``~/.config/metaq/config.ini``. Each section is a profile::

    [staging]
    cluster = zk://zk1:2181,zk2:2181/meta
    ca_file = /etc/metaq/ca.pem

Source: docs/cli.md, "Profiles".
"""

from __future__ import annotations

import configparser
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypedDict

from metaq import ports

if TYPE_CHECKING:
    from metaq.backends.rocketmq.pool import Credentials
    from metaq.net.tls import TlsSettings
    from metaq.net.transport import Timeouts

ROCKETMQ_SCHEME: Final = "rocketmq://"
DEFAULT_CLUSTER: Final = ports.METAQ_HERE
_KEYS: Final = (
    "cluster",
    "ca_file",
    "cert_file",
    "key_file",
    "access_key",
    "secret_key",
    "security_token",
    "namespace",
    "timeout",
)


class MetaqArguments(TypedDict):
    cluster: str
    timeouts: Timeouts
    tls: TlsSettings | None


class RocketmqArguments(TypedDict):
    name_servers: str
    credentials: Credentials | None
    namespace: str | None
    timeouts: Timeouts
    tls: TlsSettings | None


class ProfileError(Exception):
    """The configuration file, or a profile in it, cannot be used. The text says why."""


@dataclass(frozen=True, slots=True)
class Profile:
    """A cluster, and the files and keys that secure connections to it.

    ``cluster`` is an argument of ``MetaQ``, or ``rocketmq://`` and an argument of ``RocketMQ``. ``timeout`` is how long
    to wait for an answer, in seconds; the default depends on the client.
    """

    cluster: str = DEFAULT_CLUSTER
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    access_key: str | None = None
    secret_key: str | None = field(default=None, repr=False)
    security_token: str | None = field(default=None, repr=False)
    namespace: str | None = None
    timeout: float | None = None

    @property
    def timeouts(self) -> Timeouts:
        """Timeouts of connections and answers."""
        from metaq.net.transport import DEFAULT_TIMEOUTS, Timeouts

        if self.timeout is None:
            return DEFAULT_TIMEOUTS
        return Timeouts(min(DEFAULT_TIMEOUTS.connect_s, self.timeout), self.timeout)

    @property
    def tls(self) -> TlsSettings | None:
        """TLS settings; ``None`` without TLS."""
        from metaq.net.tls import TlsSettings

        if self.ca_file is None and self.cert_file is None:
            return None
        return TlsSettings(self.ca_file, self.cert_file, self.key_file)

    def metaq(self) -> MetaqArguments:
        """Return the arguments of ``MetaQ``.

        Raises:
            ValueError: The cluster is RocketMQ's, or a key is set that only RocketMQ clusters have.
        """
        if self.cluster.startswith(ROCKETMQ_SCHEME):
            raise ValueError(f"{self.cluster}: RocketMQ's name servers, not a MetaQ cluster")
        if named := [key for key in ("access_key", "namespace") if getattr(self, key) is not None]:
            raise ValueError(
                f"{named[0]}: only for clusters that begin with {ROCKETMQ_SCHEME}, not for {self.cluster!r}"
            )
        return {"cluster": self.cluster, "timeouts": self.timeouts, "tls": self.tls}

    def rocketmq(self) -> RocketmqArguments:
        """Return the arguments of ``RocketMQ``.

        Raises:
            ValueError: The cluster is MetaQ's, or only one of the account's two keys is set.
        """
        from metaq.backends.rocketmq.pool import Credentials

        if not self.cluster.startswith(ROCKETMQ_SCHEME):
            raise ValueError(f"{self.cluster}: a MetaQ cluster; RocketMQ's name servers begin with {ROCKETMQ_SCHEME}")
        if (self.access_key is None) != (self.secret_key is None):
            raise ValueError("access_key and secret_key: expected both or none")
        credentials = None
        if self.access_key is not None and self.secret_key is not None:
            credentials = Credentials(self.access_key, self.secret_key, self.security_token)
        return {
            "name_servers": self.cluster.removeprefix(ROCKETMQ_SCHEME),
            "credentials": credentials,
            "namespace": self.namespace,
            "timeouts": self.timeouts,
            "tls": self.tls,
        }


def read_profile(name: str | None, cluster: str | None, timeout: float | None = None) -> Profile:
    """Return profile ``name``, else ``$METAQ_PROFILE``, else an empty one.

    ``cluster``, else ``$METAQ_CLUSTER``, and ``timeout`` override the profile.

    Raises:
        ProfileError: The profile does not exist, or the file cannot be read or has an unknown key.
    """
    chosen = name or os.environ.get("METAQ_PROFILE")
    keys = _section(chosen) if chosen else {}
    given = cluster or os.environ.get("METAQ_CLUSTER")
    if given:
        keys["cluster"] = given
    return _profile(chosen, keys, timeout)


def _profile(name: str | None, keys: dict[str, str], timeout: float | None = None) -> Profile:
    in_profile = keys.pop("timeout", None)
    if timeout is None and in_profile is not None:
        timeout = parse_timeout(in_profile, f"profile {name!r}: timeout")
    return Profile(**keys, timeout=timeout)


def parse_timeout(text: str, what: str = "--timeout") -> float:
    """Parse a number of seconds.

    Raises:
        ProfileError: The text is not a number above 0.
    """
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise ProfileError(f"{what} {text}: expected a number of seconds above 0")
    return seconds


def named_cluster(text: str) -> Profile:
    """Return the cluster for an argument: an address as for ``--cluster``, else the name of a profile.

    Raises:
        ProfileError: As ``read_profile``.
    """
    return Profile(cluster=text) if ":" in text else _profile(text, _section(text))


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
        raise ProfileError(f"profile {name!r}: {path}: unknown key {unknown[0]!r}; expected {', '.join(_KEYS)}")
    return keys


def _reason(error: Exception) -> str:
    return (getattr(error, "strerror", None) or str(error)).splitlines()[0]
