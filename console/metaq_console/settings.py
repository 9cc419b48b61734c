"""What a console is started with: the cluster it asks, where it listens, and what it allows."""

from __future__ import annotations

import dataclasses
import ipaddress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from metaq import ports
from metaq.client.profile import Profile

TOKEN_CHARS_MIN: Final = 16
"""Shortest token that is accepted: it guards everything that the console may do."""


class SettingsError(Exception):
    """A setting is wrong. The text is one sentence that names the setting, its value, and what is allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleSettings:
    """Settings of one process.

    ``port`` 0 is any free port. ``write`` allows requests that change something. ``token`` is asked of every client;
    without one, only loopback addresses may be listened at. ``allowed_hosts`` are names, beside this machine's, that
    clients may use in the ``Host`` header. ``proxies`` are addresses and networks of proxies, which say in
    ``X-Forwarded-Proto`` whether a client speaks HTTPS. ``checkpoints`` are ``checkpointLocation`` folders of Spark
    queries. ``question_s`` is the longest time that one question to the cluster may take, ``sample_s`` the time between
    two samples of the history.

    Raises:
        SettingsError: A value is outside its range, or values contradict each other.
    """

    profile: Profile = field(default_factory=Profile)
    host: str = "127.0.0.1"
    port: int = ports.METAQ_DASHBOARD
    write: bool = False
    token: str | None = field(default=None, repr=False)
    tls_cert_file: str | None = None
    tls_key_file: str | None = None
    allowed_hosts: tuple[str, ...] = ()
    proxies: tuple[str, ...] = ()
    checkpoints: tuple[Path, ...] = ()
    question_s: float = 10.0
    sample_s: float = 10.0

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise SettingsError(f"port {self.port}: expected 0..65535")
        if self.token is not None and len(self.token) < TOKEN_CHARS_MIN:
            raise SettingsError(f"token of {len(self.token)} characters: expected {TOKEN_CHARS_MIN} or more")
        if self.token is None and not is_loopback(self.host):
            raise SettingsError(
                f"host {self.host!r}: other machines reach it, so a token is required; give one, or 127.0.0.1"
            )
        if self.tls_key_file is not None and self.tls_cert_file is None:
            raise SettingsError("a TLS key without a certificate: give both, or neither")
        for proxy in self.proxies:
            try:
                ipaddress.ip_network(proxy)
            except ValueError:
                allowed = "expected an address, or a network such as 10.0.0.0/8"
                raise SettingsError(f"proxy {proxy!r}: {allowed}") from None
        for name, value in (("question", self.question_s), ("sample", self.sample_s)):
            if not 0.1 <= value <= 3600:
                raise SettingsError(f"{name} {value:g} s: expected 0.1..3600")

    @property
    def client_profile(self) -> Profile:
        """The profile with a timeout for each request that leaves time for an error before a question's deadline."""
        if self.profile.timeout is not None:
            return self.profile
        return dataclasses.replace(self.profile, timeout=self.question_s * 0.8)


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches an address; names other than ``localhost`` are not looked up."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
