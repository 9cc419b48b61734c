"""The section [http] of server.ini."""

from __future__ import annotations

from pathlib import Path

import pytest
from fix_broker import system_section
from metaq_broker.operate.config.configuration import parse
from metaq_broker.operate.config.http import HttpConfig
from metaq_broker.operate.config.ini import ConfigError


def read(http: str, **system: object) -> HttpConfig | None:
    return parse(f"{system_section(**system)}[topic=*]\n{http}".encode()).http  # type: ignore[arg-type]


def test_without_the_section_there_is_none() -> None:
    assert read("") is None
    assert read("[http]\nenabled=false\n") is None


def test_defaults() -> None:
    found = read("[http]\n")
    assert found is not None
    assert (found.port, found.bind_address, found.write, found.token_file) == (8120, "127.0.0.1", False, "")


def test_values() -> None:
    text = "[http]\nport=0\nwrite=true\nbindAddress=0.0.0.0\ntokenFile=/etc/t\nallowedHosts=a.example, b.example\n"
    found = read(f"{text}checkpoints=/a,/b\nproxies=10.0.0.0/8, ::1\ncluster=zk://zk1:2181/meta\n")
    assert found is not None
    assert (found.write, found.token_file, found.cluster) == (True, "/etc/t", "zk://zk1:2181/meta")
    assert (found.allowed_hosts, found.checkpoints) == (("a.example", "b.example"), ("/a", "/b"))
    assert found.proxies == ("10.0.0.0/8", "::1")


@pytest.mark.parametrize(
    ("http", "system", "sentence"),
    [
        (
            "proxies=proxy.example",
            {},
            "server.ini [http] proxies: value 'proxy.example'; expected addresses, and networks such as 10.0.0.0/8, "
            "with commas between them",
        ),
        ("port=70000", {}, "server.ini [http] port: value '70000'; expected a number of 0..65535"),
        ("prot=1", {}, "server.ini [http] prot: unknown key; the nearest valid key is port"),
        (
            "bindAddress=0.0.0.0",
            {},
            "server.ini [http] bindAddress: value '0.0.0.0'; expected 127.0.0.1, or any address together with token",
        ),
        ("tlsKeyFile=k", {}, "server.ini [http] tlsKeyFile: has no effect without tlsCertFile; set that as well"),
        (
            "clientKeyFile=k",
            {},
            "server.ini [http] clientKeyFile: has no effect without clientCertFile; set that as well",
        ),
        (
            "write=true",
            {"tlsCertFile": "c"},
            "server.ini [http] clientCaFile: is required with tlsCertFile in [system] and has no value",
        ),
        (
            "clientCaFile=ca",
            {"tlsCertFile": "c", "tlsClientCaFile": "ca"},
            "server.ini [http] clientCertFile: is required with tlsClientAuth=required and has no value",
        ),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(http: str, system: dict[str, object], sentence: str) -> None:
    with pytest.raises(ConfigError) as failed:
        read(f"[http]\n{http}\n", **system)
    assert str(failed.value).startswith(sentence)


def test_another_cluster_needs_no_files_for_this_broker() -> None:
    found = read("[http]\ncluster=10.0.0.1:8123\n", tlsCertFile=str(Path("c")))
    assert found is not None
    assert found.client_ca_file == ""
