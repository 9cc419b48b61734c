"""server.ini: TLS and allow lists. What follows from the keys, and which of them make no sense together."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
import trustme
from fix_tls import Certificates, ini_text
from metaq_broker.cli import main
from metaq_broker.operate.config.access import exposure_warning, is_loopback
from metaq_broker.operate.config.configuration import BrokerConfig, parse
from metaq_broker.operate.config.ini import ConfigError
from metaq_broker.serve.tls import names_of, server_context

TLS = "tlsCertFile=/c/cert.pem\ntlsKeyFile=/c/key.pem\n"
MUTUAL = TLS + "tlsClientCaFile=/c/ca.pem\n"


def read(system: str, topics: str = "[topic=*]\n") -> BrokerConfig:
    return parse(ini_text(Path("/d"), system, topics).encode())


class TestWhatFollows:
    def test_without_keys_there_is_no_tls_and_everyone_may_do_everything(self) -> None:
        system = read("").system
        assert (system.tls_cert_file, system.tls_key_file, system.tls_client_auth) == ("", "", "none")
        assert (system.allow_publish, system.allow_subscribe) == ((), ())
        assert server_context(system) is None

    @pytest.mark.parametrize(
        ("lines", "auth"),
        [
            (TLS, "none"),
            (TLS + "tlsClientAuth=none\n", "none"),
            (MUTUAL, "required"),
            (MUTUAL + "tlsClientAuth=optional\n", "optional"),
            (MUTUAL + "tlsClientAuth=required\n", "required"),
            ("tlsClientAuth=none\n", "none"),
        ],
    )
    def test_whether_clients_show_certificates(self, lines: str, auth: str) -> None:
        assert read(lines).system.tls_client_auth == auth

    def test_a_key_may_be_in_the_file_of_the_certificate(self) -> None:
        assert read("tlsCertFile=/c/both.pem\n").system.tls_key_file == "/c/both.pem"

    def test_a_topics_lists_take_the_place_of_the_systems(self) -> None:
        topics = "[topic=a]\nallowPublish=x, y\n[topic=b]\nallowPublish=*\nallowSubscribe=z\n[topic=c]\n[topic=w-*]\n"
        config = read(MUTUAL + "allowPublish=system\n", topics)
        lists = {name: (topic.allow_publish, topic.allow_subscribe) for name, topic in config.topics.items()}
        assert lists == {
            "a": (("x", "y"), ()),
            "b": ((), ("z",)),
            "c": (("system",), ()),
            "w-*": (("system",), ()),
        }
        assert config.topic_settings("w-1").allow_publish == ("system",)


@pytest.mark.parametrize(
    ("system", "topics", "error"),
    [
        ("tlsKeyFile=/c/key.pem\n", "", r"\[system\] tlsKeyFile: has no effect without tlsCertFile"),
        ("tlsClientCaFile=/c/ca.pem\n", "", r"\[system\] tlsClientCaFile: has no effect without tlsCertFile"),
        ("tlsClientAuth=required\n", "", r"\[system\] tlsClientAuth: has no effect without tlsCertFile"),
        (TLS + "tlsClientAuth=maybe\n", "", r"\[system\] tlsClientAuth: value 'maybe'; expected none or optional or"),
        (TLS + "tlsClientAuth=required\n", "", r"\[system\] tlsClientAuth: value 'required'; expected tlsClientCaFile"),
        (MUTUAL + "tlsClientAuth=none\n", "", r"\[system\] tlsClientAuth: value 'none'; with tlsClientCaFile, exp"),
        (MUTUAL + "allowPublish=a,,b\n", "", r"\[system\] allowPublish: value 'a,,b'; expected names of cert"),
        (MUTUAL + "allowPublish=a,*\n", "", r"\[system\] allowPublish: value 'a,\*'; expected names of cert"),
        ("allowPublish=a\n", "", r"\[system\] allowPublish: an allow list needs certificates of clients"),
        (TLS + "allowSubscribe=a\n", "", r"\[system\] allowSubscribe: an allow list needs certificates of clients"),
        ("", "[topic=t]\nallowPublish=a\n", r"\[topic=t\] allowPublish: an allow list needs certificates of clients"),
        (MUTUAL, "[topic=w-*]\nallowSubscribe=a\n", r"\[topic=w-\*\] allowSubscribe: a topic that only a wildcard"),
    ],
)
def test_what_makes_no_sense_is_an_error(system: str, topics: str, error: str) -> None:
    with pytest.raises(ConfigError, match=f"^server.ini {error}"):
        read(system, topics or "[topic=*]\n")


class TestFiles:
    def test_good_ones(self, certificates: Certificates) -> None:
        lines = f"{certificates.server_keys}tlsClientCaFile={certificates.ca_file}\n"
        context = server_context(read(lines).system)
        assert context is not None
        assert context.minimum_version == ssl.TLSVersion.TLSv1_2
        assert context.verify_mode == ssl.CERT_REQUIRED

    def test_bad_ones_are_named_with_what_is_wrong(self, certificates: Certificates, tmp_path: Path) -> None:
        folder = certificates.folder
        other = tmp_path / "other.key"
        trustme.CA().issue_cert("x").private_key_pem.write_to_path(str(other))
        (tmp_path / "text.pem").write_text("no certificate")
        cert, text = f"tlsCertFile={folder / 'server.pem'}\n", tmp_path / "text.pem"
        for lines, error in (
            ("tlsCertFile=/nowhere/cert.pem\n", r"tlsCertFile: /nowhere/cert.pem cannot be read: No such file"),
            (cert + "tlsKeyFile=/nowhere/key.pem\n", r"tlsKeyFile: /nowhere/key.pem cannot be read: No such file"),
            (cert, r"tlsKeyFile: .* do not hold a certificate and its key in PEM format"),
            (f"tlsCertFile={text}\n", r"tlsKeyFile: .*text.pem do not hold a certificate and its key in PEM format"),
            (cert + f"tlsKeyFile={other}\n", r"tlsKeyFile: .*other.key: the key does not belong to the certificate in"),
            (certificates.server_keys + f"tlsClientCaFile={text}\n", r"tlsClientCaFile: .* holds no certificates in"),
        ):
            with pytest.raises(ConfigError, match=rf"^\[system\] {error}"):
                server_context(read(lines).system)

    def test_a_key_with_a_password_is_refused_and_nobody_is_asked(self, tmp_path: Path) -> None:
        from cryptography.hazmat.primitives import serialization

        issued = trustme.CA().issue_cert("x")
        key = serialization.load_pem_private_key(issued.private_key_pem.bytes(), None)
        locked = serialization.BestAvailableEncryption(b"secret")
        pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, locked)
        (tmp_path / "locked.pem").write_bytes(pem + issued.cert_chain_pems[0].bytes())
        with pytest.raises(ConfigError, match=r"tlsKeyFile: .*locked.pem: the key is encrypted"):
            server_context(read(f"tlsCertFile={tmp_path / 'locked.pem'}\n").system)

    def test_the_command_ends_before_anything_is_opened(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "server.ini").write_text(ini_text(tmp_path / "data", "tlsCertFile=/nowhere/cert.pem\n"))
        assert main(["start", "-f", str(tmp_path / "server.ini"), "--port", "0"]) == 2
        complaint = "metaq-broker: [system] tlsCertFile: /nowhere/cert.pem cannot be read: No such file or directory\n"
        assert capsys.readouterr().err == complaint
        assert not (tmp_path / "data").exists()


class TestNames:
    def test_common_and_alternative_names(self) -> None:
        certificate = {
            "subject": ((("organizationName", "ACME"),), (("commonName", "Orders App"),)),
            "subjectAltName": (("DNS", "orders.example"), ("URI", "spiffe://a/b"), ("email", "a@b.example")),
        }
        assert names_of(certificate) == {"Orders App", "orders.example", "spiffe://a/b", "a@b.example"}

    def test_none(self) -> None:
        assert names_of(None) == names_of({}) == names_of({"subject": ()}) == frozenset()


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        *[(host, True) for host in ("127.0.0.1", "127.3.4.5", "::1", "localhost")],
        *[(host, False) for host in ("0.0.0.0", "::", "10.0.0.1", "fe80::1%eth0", "broker.example", "")],
    ],
)
def test_the_warning_is_for_brokers_that_others_reach_without_tls(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback
    if host:
        warning = exposure_warning(read(f"bindAddress={host}\n").system)
        assert (warning is None) is loopback
        assert warning is None or (f"bindAddress={host} without TLS" in warning and "127.0.0.1" in warning)
        assert exposure_warning(read(f"bindAddress={host}\n{TLS}").system) is None
