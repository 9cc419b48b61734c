"""The rules between the keys of server.ini about TLS and allow lists.

Source: docs/operations.md, "TLS" and "Who may do what".
"""

from __future__ import annotations

import ipaddress
from typing import Any, Protocol

from metaq_broker.operate.config.ini import ConfigError, Section

_WILDCARD = "*"


class ListenSettings(Protocol):
    """The part of ``SystemConfig`` about where the broker listens."""

    @property
    def bind_address(self) -> str: ...

    @property
    def tls_cert_file(self) -> str: ...


class AllowLists(Protocol):
    """The part of ``SystemConfig`` and ``TopicConfig`` about access; an empty list allows everyone."""

    @property
    def allow_publish(self) -> tuple[str, ...]: ...

    @property
    def allow_subscribe(self) -> tuple[str, ...]: ...


def settle_tls(values: dict[str, Any], source: str) -> None:
    """Check the TLS keys of ``[system]`` against each other, and set the defaults that depend on other keys.

    ``tlsKeyFile`` defaults to the file of the certificate; with ``tlsClientCaFile``, clients must show certificates by
    default.

    Raises:
        ConfigError: Keys contradict each other.
    """
    if not values["tls_cert_file"]:
        for name, attribute in (
            ("tlsKeyFile", "tls_key_file"),
            ("tlsClientCaFile", "tls_client_ca_file"),
            ("tlsClientAuth", "tls_client_auth"),
        ):
            if values[attribute] not in ("", "none"):
                raise ConfigError(f"{source} [system] {name}", "has no effect without tlsCertFile; set that as well")
    values["tls_key_file"] = values["tls_key_file"] or values["tls_cert_file"]
    has_ca = bool(values["tls_client_ca_file"])
    values["tls_client_auth"] = values["tls_client_auth"] or ("required" if has_ca else "none")
    if has_ca != (values["tls_client_auth"] != "none"):
        where = f"{source} [system] tlsClientAuth"
        if has_ca:
            raise ConfigError(where, "value 'none'; with tlsClientCaFile, expected optional or required")
        auth = values["tls_client_auth"]
        file = "tlsClientCaFile, the file of the authorities that sign clients' certificates"
        raise ConfigError(where, f"value {auth!r}; expected {file}")


def check_topic_allow_lists(section: Section, lists: AllowLists, client_auth: str, source: str) -> None:
    """Check the allow lists of a ``[topic=NAME]``.

    Raises:
        ConfigError: As ``check_allow_lists``; or the section has a wildcard, where lists would not apply.
    """
    check_allow_lists(section.name, lists.allow_publish, lists.allow_subscribe, client_auth, source)
    for name in ("allowPublish", "allowSubscribe"):
        if _WILDCARD in section.name and section.values.get(name):
            raise ConfigError(
                f"{source} [{section.name}] {name}",
                "a topic that only a wildcard admits has the lists of [system]; write it there, or give the topic "
                "a section of its own",
            )


def check_allow_lists(
    section: str, publish: tuple[str, ...], subscribe: tuple[str, ...], client_auth: str, source: str
) -> None:
    """Refuse allow lists where no client shows a certificate.

    Raises:
        ConfigError: There is a list, but ``client_auth`` is ``none``.
    """
    for name, allowed in (("allowPublish", publish), ("allowSubscribe", subscribe)):
        if allowed and client_auth == "none":
            what = "an allow list needs certificates of clients; set tlsCertFile and tlsClientCaFile in [system]"
            raise ConfigError(f"{source} [{section}] {name}", what)


def exposure_warning(system: ListenSettings) -> str | None:
    """Return a warning if other machines reach the broker without TLS, else ``None``."""
    if system.tls_cert_file or is_loopback(system.bind_address):
        return None
    return (
        f"WARNING: bindAddress={system.bind_address} without TLS: every machine that reaches this port can read, write "
        "and change everything here, and messages cross the network in the open. Set tlsCertFile and "
        "tlsClientCaFile, or bindAddress=127.0.0.1"
    )


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach ``host``; any name but localhost counts as reachable by others."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.split("%")[0]).is_loopback
    except ValueError:
        return False
