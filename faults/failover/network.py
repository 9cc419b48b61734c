"""A network of this machine alone: each host is a network namespace behind one bridge, and any way can be cut.

A way is cut in one direction by a wrong hardware address for the other host: packets are sent and arrive nowhere, as
with a broken cable, and nobody is told. Needs root; ``available`` says whether it can be used.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from typing import Final

NOWHERE: Final = "02:00:00:00:fa:11"
_PREFIX_LENGTH: Final = 24
_SUBNETS: Final = 200


def available() -> bool:
    """Return whether network namespaces can be made here."""
    if os.geteuid() != 0:
        return False
    name = f"metaq-probe-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False)
    subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
    return made.returncode == 0


def _ip(*arguments: str, namespace: str | None = None) -> None:
    within = [] if namespace is None else ["netns", "exec", namespace, "ip"]
    subprocess.run(["ip", *within, *arguments], check=True, capture_output=True)


def _free_subnet() -> str:
    """Return the first three numbers of addresses that no network of this machine has."""
    used = subprocess.run(["ip", "-4", "-o", "addr"], capture_output=True, text=True, check=True).stdout
    first = os.getpid() % _SUBNETS
    numbers = [*range(first, _SUBNETS), *range(first)]
    return next(subnet for number in numbers if f" {(subnet := f'10.231.{number}')}." not in used)


class Host:
    """One namespace; ``address`` is its IP address, ``port`` its end at the bridge."""

    def __init__(self, name: str, address: str, port: str) -> None:
        self.name, self.address, self.port = name, address, port

    @property
    def command(self) -> Sequence[str]:
        """Return the prefix of commands that run on this host."""
        return ("ip", "netns", "exec", self.name)


class Network:
    """A bridge with this process and the hosts ``names``; a context manager. One of a process at a time."""

    def __init__(self, names: Sequence[str]) -> None:
        process, subnet = os.getpid(), _free_subnet()
        self._bridge = f"mqb{process}"
        self.own_address = f"{subnet}.1"
        self.hosts = {
            name: Host(f"mq{process}-{name}", f"{subnet}.{place}", f"mqp{process}-{place}")
            for place, name in enumerate(names, 2)
        }

    def __enter__(self) -> Network:
        try:
            self._build()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _build(self) -> None:
        _ip("link", "add", self._bridge, "type", "bridge")
        _ip("addr", "add", f"{self.own_address}/{_PREFIX_LENGTH}", "dev", self._bridge)
        _ip("link", "set", self._bridge, "up")
        for host in self.hosts.values():
            _ip("netns", "add", host.name)
            _ip("link", "add", host.port, "type", "veth", "peer", "name", "eth0", "netns", host.name)
            _ip("link", "set", host.port, "master", self._bridge, "up")
            _ip("link", "set", "lo", "up", namespace=host.name)
            _ip("addr", "add", f"{host.address}/{_PREFIX_LENGTH}", "dev", "eth0", namespace=host.name)
            _ip("link", "set", "eth0", "up", namespace=host.name)

    def __exit__(self, *error: object) -> None:
        for host in self.hosts.values():
            subprocess.run(["ip", "netns", "del", host.name], capture_output=True, check=False)
        subprocess.run(["ip", "link", "del", self._bridge], capture_output=True, check=False)

    def cut(self, source: Host, target: str) -> None:
        """Let nothing that ``source`` sends arrive at the address ``target``, until ``heal``."""
        _ip("neigh", "replace", target, "lladdr", NOWHERE, "dev", "eth0", "nud", "permanent", namespace=source.name)

    def unplug(self, host: Host) -> None:
        """Let nothing arrive that ``host`` sends or is sent, until ``heal``; its own link stays up."""
        _ip("link", "set", host.port, "nomaster")

    def heal(self) -> None:
        """Repair all ways."""
        for host in self.hosts.values():
            _ip("link", "set", host.port, "master", self._bridge)
        addresses = [self.own_address, *(host.address for host in self.hosts.values())]
        for host in self.hosts.values():
            for address in addresses:
                subprocess.run(
                    ["ip", "netns", "exec", host.name, "ip", "neigh", "del", address, "dev", "eth0"],
                    capture_output=True,
                    check=False,
                )
