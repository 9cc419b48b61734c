"""What the configuration may say about replication, and what it may not."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from fix_broker import system_section
from metaq_broker.operate.config.configuration import BrokerConfig, parse, with_plugin
from metaq_broker.operate.config.ini import ConfigError
from metaq_broker.operate.config.keys import keys_of
from metaq_broker.operate.config.replication import GregorConfig, PairConfig, Role, SamsaConfig, SlaveConfig, check_pair

from metaq.model import Address

MINIMAL = system_section(maxSegmentSize=1024, maxTransferSize=1024) + "[topic=t]\n"
MASTER = Address("10.0.0.1", 8123)


def slave(slave_id: int, **others: object) -> SlaveConfig:
    given = {"group": f"meta-slave-group_{slave_id}", "master": MASTER, "delay_ms_max": 500, "follows_config": False}
    return SlaveConfig(slave_id=slave_id, **given | others)  # type: ignore[arg-type]


def samsa(timeout_ms: int, check_interval_ms: int, **others: object) -> SamsaConfig:
    given = {key.attribute: key.default for key in keys_of(SamsaConfig)} | {"slave": MASTER} | others
    return SamsaConfig(**given | {"timeout_ms": timeout_ms, "check_interval_ms": check_interval_ms})


@pytest.mark.parametrize(
    ("section", "role"),
    [
        ("", None),
        ("[slave]\nslaveId=0\nmaster=10.0.0.1:8123", slave(0)),
        (
            "[slave]\nslaveId=7\nslaveGroup=g\nslaveMaxDelayInMills=2*10\nautoSyncMasterConfig=false\n"
            "master=meta://10.0.0.1:8123",
            slave(7, group="g", delay_ms_max=20),
        ),
        (
            "[slave]\nslaveId=0\nautoSyncMasterConfig=true\nmaster=10.0.0.1:8123",
            slave(0, follows_config=True),
        ),
        ("[samsa]\nslave=10.0.0.1:8123", samsa(2000, 100)),
        (
            "[samsa]\nslave=10.0.0.1:8123\nsendToSlaveTimeoutInMills=1\ncheckSlaveIntervalInMills=2\n"
            "callbackThreadCount=3\nrecoverOffset=false\nrecoverParallel=true\nrecoverParallelHint=4\n"
            "slaveContinuousFailureThreshold=5",
            samsa(
                1,
                2,
                callback_thread_count=3,
                recover_parallel_hint=4,
                failure_threshold=5,
            ),
        ),
        ("[gregor]", GregorConfig(master=None)),
        ("[gregor]\nmaster=10.0.0.1:8123", GregorConfig(master=MASTER)),
    ],
)
def test_a_role(section: str, role: Role | None, tmp_path: Path) -> None:
    assert parse((MINIMAL + section).encode()).role == role
    if role is not None:  # the same as a properties file of MetaQ
        name, keys = section.removeprefix("[").split("]")
        file = tmp_path / "plugin.properties"
        file.write_text(f"# a comment\n{keys}\n")
        plugin = {"slave": "metaSlave"}.get(name, name)
        assert with_plugin(parse(MINIMAL.encode()), f"{plugin}={file}").role == role


def test_metaqs_own_slave_configuration() -> None:
    """Its sample has slaveId=-1, which is no slave, and no address: the master is looked up in ZooKeeper."""
    zookeeper = "[zookeeper]\nzk.zkConnect=z:2181\n"
    assert parse(f"{MINIMAL}[slave]\nslaveId=-1\nslaveGroup=meta-slave-group\n".encode()).role is None
    assert parse(f"{MINIMAL}{zookeeper}[slave]\nslaveId=3\n".encode()).role == slave(3, master=None)


def test_plugins_without_a_counterpart_are_ignored_with_a_warning() -> None:
    config = with_plugin(parse(MINIMAL.encode()), "jettyBroker=jettyBroker.properties")
    assert config.role is None
    assert config.warnings == ("-FjettyBroker=jettyBroker.properties: ignored; HTTP access is the section [http] here",)


def with_file(folder: Path, argument: str, text: bytes) -> BrokerConfig:
    (folder / "plugin.properties").write_bytes(text)
    return with_plugin(parse(MINIMAL.encode()), f"{argument}={folder / 'plugin.properties'}")


@pytest.mark.parametrize(
    "text",
    [
        b"slave=10.0.0.1\\:8123",
        b"slave : 10.0.0.1:8123 \r\n",
        b"\\u0073lave 10.0.\\\n   0.1:8123",
        b"! a comment\nslave=h:1\nslave=10.0.0.1:8123\n; of nobody\n",
        "# 说明\nslave=10.0.0.1:8123\n".encode("gbk"),
        b"\xef\xbb\xbfslave=10.0.0.1:8123",
    ],
)
def test_a_file_of_properties_is_read_as_java_reads_it(text: bytes, tmp_path: Path) -> None:
    role = with_file(tmp_path, "samsa", text).role
    assert isinstance(role, SamsaConfig)
    assert role.slave == MASTER


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (b"slave=h\\u12", "must be followed by four hex digits"),
        (b"[samsa]\nslave=h:1", "a file of properties has no sections"),
        (b"slave=h", "plugin.properties [samsa] slave: value 'h'; expected HOST:PORT"),
        (b"slave=\\\n", "plugin.properties [samsa] slave: is required and has no value"),
        (b"slaves=h:1", "[samsa] slaves: unknown key; the nearest valid key is slave"),
    ],
)
def test_what_is_wrong_in_a_file_of_properties(text: bytes, error: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        with_file(tmp_path, "samsa", text)
    assert error in str(refused.value)


def test_offsets_that_are_to_be_recovered_are_warned_of(tmp_path: Path) -> None:
    warning = "[samsa] recoverOffset: ignored; offsets are the same on both brokers of a pair"
    config = parse(f"{MINIMAL}[samsa]\nslave=h:1\nrecoverOffset=true".encode(), "server.ini")
    assert config.warnings == (f"server.ini {warning}",)
    (said,) = with_file(tmp_path, "samsa", b"slave=h:1\nrecoverOffset=true").warnings
    assert said == f"{tmp_path / 'plugin.properties'} {warning}"
    assert not with_file(tmp_path, "samsa", b"slave=h:1\nrecoverOffset=false").warnings


def test_all_keys_that_are_missing_are_named_at_once() -> None:
    with pytest.raises(ConfigError) as refused:
        parse(b"[system]\nbrokerId=\n[topic=t]\n[samsa]\nrecoverOffset=true\n", "server.ini")
    assert str(refused.value) == "server.ini: [system] brokerId and [samsa] slave are required and have no value"


@pytest.mark.parametrize(
    ("section", "error"),
    [
        ("[slave]\nmaster=h:1", "[slave] slaveId: is required"),
        ("[slave]\nslaveId=0", "[slave] master: is required where there is no zk.zkConnect"),
        ("[slave]\nslaveId=-2\nmaster=h:1", "[slave] slaveId: value '-2'; expected a number of -1.."),
        (
            "[slave]\nslaveId=0\nmaster=h",
            "[slave] master: value 'h'; expected HOST:PORT, port 1..65535",
        ),
        ("[slave]\nslaveId=0\nmaster=h:1\nslaveGroup=a b", "[slave] slaveGroup: value 'a b'; expected a name"),
        ("[slave]\nslaveId=0\nmaster=h:1\nautoSyncMasterConfig=x", "[slave] autoSyncMasterConfig: value 'x'"),
        ("[slave]\nslaveIdd=0", "[slave] slaveIdd: unknown key; the nearest valid key is slaveId"),
        ("[samsa]", "[samsa] slave: is required"),
        ("[samsa]\nslave=h:1\nsendToSlaveTimeoutInMills=0", "[samsa] sendToSlaveTimeoutInMills: value '0'"),
        ("[gregor]\nslave=h:1", "[gregor] slave: unknown key"),
        (
            "[gregor]\n[samsa]\nslave=h:1",
            "expected only one of [slave], [samsa], [gregor] and [pair]; [samsa] is there already",
        ),
    ],
)
def test_what_is_wrong_is_named(section: str, error: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse((MINIMAL + section).encode())
    assert error in str(refused.value)


ZOOKEEPER = "[zookeeper]\nzk.zkConnect=z:2181\n"


@pytest.mark.parametrize(
    ("keys", "role"),
    [
        ("other=10.0.0.1:8123", PairConfig(other=MASTER, min_in_sync=1, session_ms=6_000, timeout_ms=2_000)),
        (
            "other=10.0.0.1:8123\nminInSync=2\nsessionMs=2*1000\nanswerTimeoutMs=500",
            PairConfig(other=MASTER, min_in_sync=2, session_ms=2_000, timeout_ms=500),
        ),
    ],
)
def test_a_member_of_a_pair(keys: str, role: PairConfig) -> None:
    config = parse(f"{MINIMAL}{ZOOKEEPER}[pair]\n{keys}\n".encode())
    assert config.role == role
    assert config.warnings == ()


@pytest.mark.parametrize(
    ("sections", "error"),
    [
        ("[pair]\n", "server.ini [pair] other: is required and has no value"),
        ("[pair]\nother=h\n", "[pair] other: value 'h'; expected HOST:PORT, port 1..65535"),
        ("[pair]\nother=h:1\nminInSync=0\n", "[pair] minInSync: value '0'; expected a number of 1..2"),
        ("[pair]\nother=h:1\nminInSync=3\n", "[pair] minInSync: value '3'; expected a number of 1..2"),
        ("[pair]\nother=h:1\nsessionMs=10\n", "[pair] sessionMs: value '10'; expected a number of 500..60000"),
        ("[pair]\nother=h:1\nmaster=h:2\n", "[pair] master: unknown key"),
        ("[pair]\nother=h:1\n[samsa]\nslave=h:1\n", "server.ini [pair]: expected only one of [slave], [samsa],"),
        ("[pair]\nother=h:1\n[gregor]\n", "[gregor] is there already"),
        ("[pair]\nother=h:1\n[slave]\nslaveId=0\nmaster=h:1\n", "[slave] is there already"),
    ],
)
def test_what_is_wrong_with_a_pair(sections: str, error: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse((MINIMAL + ZOOKEEPER + sections).encode())
    assert error in str(refused.value)


def test_a_member_is_not_its_own_other_member() -> None:
    system = system_section(maxSegmentSize=1024, maxTransferSize=1024, serverPort=8123)
    with pytest.raises(ConfigError) as refused:
        parse(f"{system}[topic=t]\n{ZOOKEEPER}[pair]\nother=127.0.0.1:8123\n".encode())
    assert "[pair] other: value '127.0.0.1:8123' is this broker's own address" in str(refused.value)


@pytest.mark.parametrize("zookeeper", ["", f"{ZOOKEEPER}zk.zkEnable=false\n"])
def test_a_pair_needs_zookeeper(zookeeper: str) -> None:
    with pytest.raises(ConfigError, match=r"a pair needs ZooKeeper, which has its record; set zk\.zkConnect"):
        parse(f"{MINIMAL}{zookeeper}[pair]\nother=h:1\n".encode())


@pytest.mark.parametrize("section", ["[pair]\nother=h:1\n", "[gregor]\n"])
def test_the_other_broker_connects_without_tls(section: str) -> None:
    system = system_section(maxSegmentSize=1024, maxTransferSize=1024, tlsCertFile="/etc/metaq/server.pem")
    [warning] = parse(f"{system}[topic=t]\n{ZOOKEEPER}{section}".encode()).warnings
    assert warning.endswith(
        "[system] tlsCertFile: the other broker connects to this port, and links between brokers have no TLS; "
        "it needs a tunnel such as stunnel"
    )


def test_a_port_of_the_command_line_is_checked_against_the_other_member() -> None:
    config = parse(f"{MINIMAL}{ZOOKEEPER}[pair]\nother=127.0.0.1:8124\n".encode())
    with pytest.raises(ConfigError, match="is this broker's own address"):
        check_pair(config.role, Address("127.0.0.1", 8124), True, "--port 8124")


def test_what_a_command_line_may_not_say(tmp_path: Path) -> None:
    config = parse(MINIMAL.encode())
    file = tmp_path / "a.properties"
    file.write_text("[slave]\nslaveId=0\n")
    taken = dataclasses.replace(config, role=GregorConfig(master=None))
    for given, argument, error in (
        (config, "jetty=x", "-Fjetty=x: expected metaslave=FILE, samsa=FILE or gregor=FILE"),
        (config, "samsa", "-Fsamsa: expected"),
        (config, f"gregor={tmp_path / 'none'}", "cannot be read: No such file"),
        (taken, f"gregor={file}", "has a role already"),
        (config, f"metaslave={file}", "[slave]"),
    ):
        with pytest.raises(ConfigError) as refused:
            with_plugin(given, argument)
        assert error in str(refused.value)
