"""The ``[http]`` section: HTTP access, which a process of its own serves beside the broker.

Source: docs/http.md.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from metaq import ports
from metaq_broker.operate.config.access import is_loopback
from metaq_broker.operate.config.ini import ConfigError, Section
from metaq_broker.operate.config.keys import OUR_OWN, key, keys_of, read_section
from metaq_broker.operate.config.sections import SystemConfig
from metaq_broker.operate.config.values import boolean, file_path, host, number, plain

SECTION: Final = "http"


def _paths(text: str) -> tuple[str, ...]:
    return tuple(file_path(one.strip()) for one in text.split(",") if one.strip())


def _hosts(text: str) -> tuple[str, ...]:
    return tuple(host(one.strip()) for one in text.split(",") if one.strip())


def _networks(text: str) -> tuple[str, ...]:
    found = tuple(one.strip() for one in text.split(",") if one.strip())
    try:
        for one in found:
            ipaddress.ip_network(one)
    except ValueError:
        raise ValueError("addresses, and networks such as 10.0.0.0/8, with commas between them") from None
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpConfig:
    """Where the process listens, what it may do, and how it reaches the broker."""

    # fmt: off
    enabled: bool = key("enabled", boolean, "whether HTTP is served", True, kind=OUR_OWN)
    port: int = key("port", number(0, 65535), "0 = any free port", ports.METAQ_DASHBOARD, kind=OUR_OWN)
    bind_address: str = key(
        "bindAddress", host,
        "address to listen on; any other than loopback needs `tokenFile`", "127.0.0.1", kind=OUR_OWN,
    )
    write: bool = key(
        "write", boolean, "whether requests may change something: put, reset offsets, send dead letters again", False,
        kind=OUR_OWN,
    )
    token_file: str = key(
        "tokenFile", file_path, "file with the token that every client must send, 16 characters or more", "",
        kind=OUR_OWN,
    )
    tls_cert_file: str = key(
        "tlsCertFile", file_path, "certificate with its chain, PEM; set, the port speaks HTTPS only", "", kind=OUR_OWN,
    )
    tls_key_file: str = key(
        "tlsKeyFile", file_path, "its key, PEM, if that is not in `tlsCertFile`", "", kind=OUR_OWN,
    )
    allowed_hosts: tuple[str, ...] = key(
        "allowedHosts", _hosts,
        "names, with commas between them, that clients may use for this server in the `Host` header, beside "
        "addresses, `localhost` and the name of the machine", (), shown="none", kind=OUR_OWN,
    )
    proxies: tuple[str, ...] = key(
        "proxies", _networks,
        "addresses or networks of proxies in front of it, with commas between them, whose `X-Forwarded-Proto` counts",
        (), shown="none", kind=OUR_OWN,
    )
    checkpoints: tuple[str, ...] = key(
        "checkpoints", _paths,
        "`checkpointLocation` folders of Spark queries that are shown, with commas between them", (), shown="none",
        kind=OUR_OWN,
    )
    cluster: str = key(
        "cluster", plain,
        "the cluster that is shown, as `metaq --cluster` names it, such as `zk://zk1:2181/meta`", "",
        shown="this broker", kind=OUR_OWN,
    )
    client_ca_file: str = key(
        "clientCaFile", file_path, "authorities that signed the broker's certificate, PEM, if its port speaks TLS", "",
        kind=OUR_OWN,
    )
    client_cert_file: str = key(
        "clientCertFile", file_path, "certificate that is shown to the broker, PEM, if it asks for one", "",
        kind=OUR_OWN,
    )
    client_key_file: str = key(
        "clientKeyFile", file_path, "its key, PEM, if that is not in `clientCertFile`", "", kind=OUR_OWN,
    )
    # fmt: on


def read_http(sections: Mapping[str, Section], system: SystemConfig, source: str) -> HttpConfig | None:
    """Return the section; ``None`` if there is none, or it does not enable HTTP.

    Raises:
        ConfigError: An unknown key, a wrong value, or values that contradict each other or ``system``.
    """
    section = sections.get(SECTION)
    if section is None:
        return None
    values: dict[str, Any] = read_section(section, keys_of(HttpConfig), source)
    config = HttpConfig(**values)
    if not config.enabled:
        return None
    _check(config, system, f"{source} [{SECTION}]")
    return config


def _check(config: HttpConfig, system: SystemConfig, where: str) -> None:
    if not is_loopback(config.bind_address) and not config.token_file:
        allowed = "127.0.0.1, or any address together with tokenFile"
        raise ConfigError(f"{where} bindAddress", f"value {config.bind_address!r}; expected {allowed}")
    for name, given, needed, other in (
        ("tlsKeyFile", config.tls_key_file, config.tls_cert_file, "tlsCertFile"),
        ("clientKeyFile", config.client_key_file, config.client_cert_file, "clientCertFile"),
    ):
        if given and not needed:
            raise ConfigError(f"{where} {name}", f"has no effect without {other}; set that as well")
    if config.cluster or not system.tls_cert_file:
        return
    if not config.client_ca_file:
        raise ConfigError(f"{where} clientCaFile", "is required with tlsCertFile in [system] and has no value")
    if system.tls_client_auth == "required" and not config.client_cert_file:
        raise ConfigError(f"{where} clientCertFile", "is required with tlsClientAuth=required and has no value")
