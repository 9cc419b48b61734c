"""server.ini: every key, every default, and errors that name file, section, key, value and what is allowed."""

from __future__ import annotations

import ipaddress
import re
import socket
import zlib
from pathlib import Path

import pytest
from examples import in_one_test
from metaq_broker.operate.config.configuration import BrokerConfig, covers, development, load, parse
from metaq_broker.operate.config.ini import ConfigError
from metaq_broker.operate.config.keys import REQUIRED
from metaq_broker.operate.config.own_address import first_address
from metaq_broker.operate.config.sections import SYSTEM_KEYS

REQUIRED_LINES = (
    "brokerId=7\nnumPartitions=3\nunflushThreshold=0\nunflushInterval=10000\n"
    "maxSegmentSize=1024*1024*64\nmaxTransferSize=1048576\n"
)
MINIMAL = f"[system]\n{REQUIRED_LINES}[topic=test]\n"


def read(text: str) -> BrokerConfig:
    return parse(text.encode(), "server.ini")


def test_defaults_are_metaqs_own() -> None:
    system = read(MINIMAL).system
    assert (system.broker_id, system.num_partitions, system.server_port) == (7, 3, 8123)
    assert system.segment_bytes_max == 64 << 20
    assert system.data_path == str(Path.home() / "meta") == system.data_log_path
    assert (system.delete_policy, system.delete_when) == ("delete,168", "0 0 6,18 * * ?")
    assert (system.transaction_flush, system.transaction_timeout_s_max, system.checkpoints_max) == (1, 60, 3)
    assert (system.transaction_timers_max, system.checkpoint_interval_ms) == (30_000, 3_600_000)
    assert (system.accept_publish, system.accept_subscribe) == (True, True)
    assert (system.stat, system.update_consumer_offsets, system.load_message_stores_in_parallel) == (False,) * 3
    assert (system.message_bytes_max, system.batch_bytes_max, system.line_bytes_max) == (4 << 20, 8 << 20, 65536)
    assert (system.connections_max, system.pipelined_requests_max, system.output_bytes_max) == (10_000, 10_000, 8 << 20)
    assert (system.idle_timeout_ms, system.index_interval_bytes) == (300_000, 4096)
    assert system.verify_at_start == "tail"


def test_other_machines_reach_a_broker_only_if_it_is_configured_so() -> None:
    """MetaQ's defaults are all addresses, and the first one that is not loopback as ``hostName``."""
    system = read(MINIMAL).system
    assert (system.host_name, system.bind_address) == ("127.0.0.1", "127.0.0.1")


def test_a_broker_needs_only_its_id() -> None:
    system = read("[system]\nbrokerId=7\n[topic=test]\n").system
    assert (system.num_partitions, system.segment_bytes_max, system.transfer_bytes_max) == (1, 1 << 30, 1 << 20)
    assert (system.unflush_threshold, system.unflush_interval_ms) == (0, 10_000)
    assert [key.name for key in SYSTEM_KEYS if key.default is REQUIRED] == ["brokerId"]


@pytest.mark.parametrize("key", [key.name for key in SYSTEM_KEYS if key.default is REQUIRED])
def test_a_required_key_may_be_neither_missing_nor_blank(key: str) -> None:
    lines = [line for line in MINIMAL.splitlines() if not line.startswith(key + "=")]
    for text in ("\n".join(lines), "\n".join([lines[0], f"{key}=", *lines[1:]])):
        with pytest.raises(ConfigError, match=rf"server.ini \[system\] {key}: is required"):
            read(text)


def test_a_topic_overrides_the_system_and_blank_means_the_systems_value() -> None:
    config = read(MINIMAL + "numPartitions=\nstat=true\nunflushThreshold=1000\ndataPath=/var/lib/a\n")
    topic = config.topics["test"]
    assert (topic.num_partitions, topic.stat, topic.unflush_threshold, topic.data_path) == (3, True, 1000, "/var/lib/a")
    assert config.data_paths() == [config.system.data_path, "/var/lib/a"]


def test_a_topic_that_only_a_wildcard_admits_has_the_systems_settings() -> None:
    config = read(MINIMAL + "[topic=log-*]\nnumPartitions=9\n")
    assert config.accepts("log-1")
    assert config.accepts("log-*")
    assert not config.accepts("blog-1")
    assert config.topic_settings("log-1").num_partitions == 3
    assert config.topic_settings("log-*").num_partitions == 9


@pytest.mark.parametrize(
    ("name", "unmatched"),
    [("!@#$%", True), ("a+b", True), ("a|b", True), ("a(b", True), ("a.b", False), ("a-b_%]}~", False), ("a*", False)],
)
def test_a_name_that_is_no_pattern_of_itself_is_warned_of(name: str, unmatched: bool) -> None:
    config = read(f"{MINIMAL}[topic={name}]\n")
    assert config.unmatched == ({name} if unmatched else set())
    said = "puts are refused, as in MetaQ, where such a name does not match itself, unless messages of the topic are "
    said += "stored already; use a name without $ ^ + ? ( ) [ { | \\"
    assert config.warnings == ((f"server.ini [topic={name}]: {said}",) if unmatched else ())
    assert read(f"{MINIMAL}[topic={name}]\n[topic=*]\n").unmatched == set(), "a wildcard covers it"


@pytest.mark.parametrize(
    ("pattern", "topic", "covered"),
    [
        ("*", "anything", True),
        ("a*", "a", True),
        ("a*b", "a-x-b", True),
        ("a*b", "a-x-bc", False),
        ("a.c*", "abc1", False),
        ("a.c*", "a.c1", True),
        ("[", "[", True),
    ],
)
def test_only_the_star_is_special_in_a_wildcard(pattern: str, topic: str, covered: bool) -> None:
    assert covers(pattern, topic) is covered


@pytest.mark.parametrize(
    ("value", "number"),
    [("5", 5), ("2*3+1", 7), ("(1+2)*4", 12), ("7/2", 3), ("7%4", 3), ("-1+3", 2), ("+4", 4), (" 10 - 2 ", 8)],
)
def test_numbers_may_be_arithmetic(value: str, number: int) -> None:
    assert read(MINIMAL.replace("brokerId=7", f"brokerId={value}")).system.broker_id == number


@pytest.mark.parametrize(
    ("value", "size"), [("10 MB", 10 << 20), ("10mb", 10 << 20), ("10m", 10 << 20), ("64*64", 4096)]
)
@pytest.mark.parametrize(
    ("key", "field"),
    [
        ("maxSegmentSize", "segment_bytes_max"),
        ("maxOutputBuffer", "output_bytes_max"),
        ("indexInterval", "index_interval_bytes"),
        ("diskFreeResumeBytes", "disk_free_bytes_resume"),
    ],
)
def test_sizes_may_have_a_unit(key: str, field: str, value: str, size: int) -> None:
    text = MINIMAL.replace("maxSegmentSize=1024*1024*64\n", "maxSegmentSize=1g\n" if key != "maxSegmentSize" else "")
    config = read(text.replace("[topic=test]", f"diskFreeMinBytes=0\n{key}={value}\n[topic=test]"))
    assert getattr(config.system, field) == size


@pytest.mark.parametrize(
    ("value", "allowed"),
    [
        ("10 miles", "a number of bytes such as 65536, 1024*1024, 64m or 10 MB"),
        ("2g", "a number of bytes, 1..1073741824"),
        ("-1", "a number of bytes, 1..1073741824"),
    ],
)
def test_a_size_that_cannot_be(value: str, allowed: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"[system] maxBatchSize: value {value!r}; expected {allowed}")):
        read(MINIMAL.replace("[topic=test]", f"maxBatchSize={value}\n[topic=test]"))


NUMBER = "a whole number or arithmetic on whole numbers such as 1024*1024"


@in_one_test(
    "line, message",
    [
        ("brokerId=1024", "[system] brokerId: value '1024'; expected a number of 0..1023"),
        ("brokerId=-1", "[system] brokerId: value '-1'; expected a number of 0..1023"),
        ("brokerId=one", f"[system] brokerId: value 'one'; expected {NUMBER}"),
        ("brokerId=2**3", f"[system] brokerId: value '2**3'; expected {NUMBER}"),
        ("brokerId=1.5", f"[system] brokerId: value '1.5'; expected {NUMBER}"),
        ("brokerId=1/0", f"[system] brokerId: value '1/0'; expected {NUMBER}"),
        ("brokerId=True", f"[system] brokerId: value 'True'; expected {NUMBER}"),
        ("brokerId=__import__('os')", f"""[system] brokerId: value "__import__('os')"; expected {NUMBER}"""),
        ("stat=yes", "[system] stat: value 'yes'; expected true or false"),
        ("serverPort=65536", "[system] serverPort: value '65536'; expected a number of 0..65535"),
        ("flushTxLogAtCommit=3", "[system] flushTxLogAtCommit: value '3'; expected a number of 0..2"),
        ("deletePolicy=keep", "[system] deletePolicy: value 'keep'; expected delete,TIME or archive,TIME[,true]"),
        ("deleteWhen=daily", "[system] deleteWhen: value 'daily'; expected a Quartz schedule of six or seven"),
        ("deleteWhen=0 0 25 * * ?", "expected a Quartz schedule of six or seven"),
        ("hostName=a b", "[system] hostName: value 'a b'; expected a host name or an address"),
        ("maxBatchSize=1024", "[system] maxBatchSize: value 1024; expected at least maxMessageSize (4194304)"),
        ("brokerid=1", "[system] brokerid: unknown key; the nearest valid key is brokerId"),
        ("unflushTreshold=1", "[system] unflushTreshold: unknown key; the nearest valid key is unflushThreshold"),
        ("diamondZKDataId=x", "[system] diamondZKDataId: diamond is not supported; remove this key and write"),
        ("no equals sign", "line 2: 'no equals sign' is not of the form key=value"),
        ("=5", "line 2: '=5' is not of the form key=value"),
    ],
)  # fmt: skip
def test_a_wrong_line_is_named_with_what_is_allowed(line: str, message: str) -> None:
    rest = [old for old in MINIMAL.splitlines() if not old.startswith(line.split("=")[0] + "=")]
    with pytest.raises(ConfigError) as error:
        read("\n".join([rest[0], line, *rest[1:]]))
    assert str(error.value).startswith("server.ini ")
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"[system]\n{REQUIRED_LINES}", "no topic is configured"),
        ("[topic=test]\n", "section [system] is missing"),
        (MINIMAL + "[slave]\nslaveId=1\n", "[slave] master: is required where there is no zk.zkConnect"),
        (MINIMAL + "[system]\n", "section [system] is given twice, first on line 1"),
        (MINIMAL + "stat=true\nstat=false\n", "key 'stat' is given twice in [topic=test]"),
        (MINIMAL + "serverPort=1\n", "[topic=test] serverPort: unknown key; the nearest valid key is"),
        (MINIMAL + "[topic=]\n", "a topic's section is written [topic=NAME]"),
        (MINIMAL + "[topics]\n", "a topic's section is written [topic=NAME]"),
        (MINIMAL + "[topic=a/b]\n", "topic name 'a/b' cannot be used: it contains a slash"),
        (MINIMAL + "[topic=a b]\n", "topic name 'a b' cannot be used: it contains a blank"),
        (MINIMAL + f"[topic={'x' * 300}]\n", "it takes 300 bytes in UTF-8, 200 are possible"),
        (MINIMAL + "[zookeeper]\nzkConnect=a\n", "[zookeeper] zkConnect: unknown key; the nearest valid key is zk."),
        (MINIMAL + "[zookeeper]\ndiamondZKGroup=a\n", "[zookeeper] diamondZKGroup: diamond is not supported"),
        (MINIMAL + "[zookeeper]\nzk.zkEnable=1\n", "[zookeeper] zk.zkEnable: value '1'; expected true or false"),
        ("stat=true\n" + MINIMAL, "line 1: 'stat=true' stands before the first section"),
        (MINIMAL + "[open\n", "is no section"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        read(text)
    assert message in str(error.value)


def test_comments_blank_lines_and_both_separators() -> None:
    text = "; one\n\n# two\n" + MINIMAL.replace("brokerId=7", "  brokerId : 7  ").replace("numP", "#x=1\nnumP", 1)
    assert read(text).system.broker_id == 7


@pytest.mark.parametrize("encoding", ["utf-8", "gbk", "utf-8-sig"])
def test_files_are_utf8_or_gbk_and_their_bytes_are_kept(encoding: str, tmp_path: Path) -> None:
    raw = (MINIMAL + "; 注释\n[topic=订单]\n").encode(encoding)
    file = tmp_path / "server.ini"
    file.write_bytes(raw)
    config = load(file)
    assert list(config.topics) == ["test", "订单"]
    assert (config.text, config.checksum) == (raw, zlib.crc32(raw))


def test_other_bytes_and_a_missing_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="neither UTF-8 nor GBK"):
        parse(b"[system]\n; \xff\xff\xff\n")
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        load(tmp_path / "absent.ini")


def test_zookeeper_keys_are_read() -> None:
    zookeeper = read(MINIMAL + "[zookeeper]\nzk.zkConnect=a:2181,b:2181\nzk.zkSyncTimeMs=1000\n").zookeeper
    assert (zookeeper.connect, zookeeper.enable, zookeeper.sync_time_ms) == ("a:2181,b:2181", True, 1000)
    assert (zookeeper.root, zookeeper.session_timeout_ms) == ("/meta", 30_000)
    assert (zookeeper.connection_timeout_ms, read(MINIMAL).zookeeper.sync_time_ms) == (30_000, 5_000)


def test_unknown_sections_are_ignored_with_a_warning() -> None:
    config = read(MINIMAL + "[plugin]\nanything=goes\n")
    assert config.warnings == ("server.ini [plugin]: unknown section, ignored",)


def test_development_accepts_every_topic() -> None:
    config = development("/var/lib/x", 0, 4)
    assert config.accepts("anything")
    assert config.topic_settings("anything").num_partitions == 4
    assert config.topic_settings("anything").unflush_threshold == 0
    assert b"[topic=*]" in config.text


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        (MINIMAL + "group.g=com.example.F\n", "server.ini [topic=test] group.g: ignored; filters"),
        (MINIMAL.replace("[topic", "localWrites=true\n[topic"), "server.ini [system] localWrites: ignored; "),
        (MINIMAL.replace("[topic", "localReads=false\n[topic"), "server.ini [system] localReads: ignored; "),
        (MINIMAL.replace("[topic", "localReads=perhaps\n[topic"), "server.ini [system] localReads: ignored; "),
    ],
)
def test_keys_without_effect_are_ignored_with_a_warning(text: str, warning: str) -> None:
    (found,) = read(text).warnings
    assert found.startswith(warning)


def test_a_blank_host_name_is_the_first_address_that_is_not_loopback_and_a_warning_says_which(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("metaq_broker.operate.config.configuration.first_address", lambda: "10.1.2.3")
    config = read(MINIMAL.replace("[system]\n", "[system]\nhostName=\nbindAddress=0.0.0.0\n"))
    assert config.system.host_name == "10.1.2.3"
    assert config.warnings == (
        "server.ini [system] hostName: blank; clients are given 10.1.2.3, the first address of this machine that is "
        "not loopback",
    )
    (warning,) = read(MINIMAL.replace("[system]\n", "[system]\nhostName=\n")).warnings
    assert warning.endswith("They cannot connect there while bindAddress is 127.0.0.1")


def test_a_blank_host_name_of_a_machine_that_has_only_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metaq_broker.operate.config.configuration.first_address", lambda: None)
    config = read(MINIMAL.replace("[system]\n", "[system]\nhostName=\n"))
    assert config.system.host_name == "127.0.0.1"
    assert config.warnings == (
        "server.ini [system] hostName: blank, and this machine has no other address: clients are given 127.0.0.1",
    )


def test_the_first_address_is_one_of_this_machine() -> None:
    found = first_address()
    if found is None:
        pytest.skip("this machine has only loopback")
    assert not ipaddress.ip_address(found).is_loopback
    with socket.socket() as listener:
        listener.bind((found, 0))


@pytest.mark.parametrize("value", ["10.0.0.5:10911", "a b", "300.1.1.1", "", "a/b", "-" * 300])
def test_values_of_broker_ip_that_are_no_host(value: str) -> None:
    text = f"{MINIMAL}[rocketmq]\nenabled=true\nbrokerIP1={value}\n"
    if not value:
        assert read(text).rocketmq is not None
        return
    with pytest.raises(ConfigError, match="expected an IP address, or the name of a host, without a port"):
        read(text)


@pytest.mark.parametrize("value", ["host.docker.internal", "10.0.0.5", "[::1]", "broker-1", "a_b.example."])
def test_values_of_broker_ip_that_are_a_host(value: str) -> None:
    found = read(f"{MINIMAL}[rocketmq]\nenabled=true\nbrokerIP1={value}\n").rocketmq
    assert found is not None
    assert found.advertised_host == value.strip("[]")
