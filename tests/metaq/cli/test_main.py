"""The command ``metaq``: formats, arguments, profiles, and what a user sees of errors, pipes and Ctrl-C."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from fix_broker import RunningBroker, wait_until

from metaq import AsyncMetaQ, AsyncRocketMQ, MetaQ, RocketMQ
from metaq.cli.arguments import parse_start, parse_time
from metaq.cli.consume import uninterrupted
from metaq.cli.main import EXIT_FAILED, EXIT_PIPE, EXIT_USAGE, main
from metaq.cli.message_form import compile_format
from metaq.cli.output import json_value, print_rows, time_text
from metaq.cli.profile import CommandProfile, ProfileError, read_profile
from metaq.client.records import Received
from metaq.formats.message_id import EPOCH_MS, TIME_SHIFT
from metaq.model import Partition

MESSAGE_ID = (1_700_000_000_123 - EPOCH_MS) << TIME_SHIFT
MESSAGE = Received(
    topic="orders",
    partition=Partition(0, 1),
    offset=57,
    end=80,
    message_id=MESSAGE_ID,
    attribute="paid",
    data=b"\xffraw",
)
COMMAND = [sys.executable, "-m", "metaq.cli.main"]


@pytest.mark.parametrize(
    ("text", "written"),
    [
        (r"%v\n", b"\xffraw\n"),
        (r"%t/%p\t%o %i %s%%\0\\", b"orders/0-1\t57 %d 4%%\0\\" % MESSAGE_ID),
        ("%T %a", b"2023-11-14T22:13:20.123Z paid"),
        ("", b""),
    ],
)
def test_formats(text: str, written: bytes) -> None:
    assert compile_format(text)(MESSAGE) == written


@pytest.mark.parametrize("text", ["%q", "%", r"\x", "\\"])
def test_unknown_letters_of_a_format_are_named(text: str) -> None:
    with pytest.raises(ValueError, match=r"--format: .* is unknown; expected %t, %p"):
        compile_format(f"a{text}")


@pytest.mark.parametrize(
    ("text", "ms"),
    [("@5", 5), ("15m", 1_000_000 - 900_000), ("7d", 0), ("1970-01-01T00:00:01Z", 1000), ("1970-01-01T01:00+01:00", 0)],
)
def test_times(text: str, ms: int) -> None:
    assert parse_time(text, "--at", lambda: 1_000_000) == ms


def test_starts() -> None:
    assert parse_start("earliest", None) == "earliest"
    assert parse_start("latest", None) == "latest"
    assert parse_start("12", [Partition(0, 1)]) == {Partition(0, 1): 12}
    with pytest.raises(ValueError, match="--from 12: an offset needs exactly one --partition"):
        parse_start("12", None)
    with pytest.raises(ValueError, match="--from soon: expected earliest, latest, an offset, or a time such as"):
        parse_start("soon", None)


def test_values_that_are_not_text_are_base64() -> None:
    assert json_value("é".encode()) == {"value": "é"}
    assert json_value(b"\xff") == {"value_base64": "/w=="}


def test_columns_are_as_wide_as_a_terminal_shows_them(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"a": "日本", "n": 1}, {"a": "e\u0301", "n": 2}, {"a": "x\n\x1b[2J", "n": 3}]
    print_rows(rows, ("a", "n"), as_json=False)
    shown = ["a" + 11 * " " + "n", "日本" + 8 * " " + "1", "e\u0301" + 11 * " " + "2", "x\\n\\x1b[2J  3"]
    assert capsys.readouterr().out.splitlines() == shown


@pytest.mark.parametrize(
    ("ms", "text"), [(0, "1970-01-01T00:00:00.000Z"), (-1, "1969-12-31T23:59:59.999Z"), (1 << 60, f"@{1 << 60}")]
)
def test_times_are_shown_also_where_no_calendar_reaches(ms: int, text: str) -> None:
    assert time_text(ms) == text


def test_tables(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows([{"a": "x", "n": 1234}, {"a": "long", "n": None}], ("a", "n"), as_json=False)
    assert capsys.readouterr().out == "a         n\nx     1,234\nlong      -\n"
    print_rows([], ("a", "n"), as_json=False)
    assert capsys.readouterr().out == "a  n\n"


class TestProfiles:
    @pytest.fixture(autouse=True)
    def file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        path = tmp_path / "config.ini"
        path.write_text("[staging]\ncluster = zk://zk1:2181/meta\nca_file = ca.pem\n[wrong]\nclusters = x\n")
        monkeypatch.setenv("METAQ_CONFIG", str(path))
        for name in ("METAQ_CLUSTER", "METAQ_PROFILE"):
            monkeypatch.delenv(name, raising=False)
        return path

    def test_the_order(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert read_profile(None, None) == CommandProfile()
        assert read_profile("staging", None) == CommandProfile("zk://zk1:2181/meta", "ca.pem")
        monkeypatch.setenv("METAQ_PROFILE", "staging")
        monkeypatch.setenv("METAQ_CLUSTER", "a:1")
        assert read_profile(None, None) == CommandProfile("a:1", "ca.pem")
        assert read_profile(None, "b:2") == CommandProfile("b:2", "ca.pem")

    @pytest.mark.parametrize("client", [MetaQ, AsyncMetaQ])
    def test_a_program_takes_its_cluster_from_the_environment(
        self, client: type[MetaQ | AsyncMetaQ], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert "127.0.0.1:8123" in repr(client.from_env())
        monkeypatch.setenv("METAQ_CLUSTER", "a:1")
        assert "'a:1'" in repr(client.from_env())
        monkeypatch.setenv("METAQ_CLUSTER", "rocketmq://ns1:9876")
        with pytest.raises(ValueError, match="rocketmq://ns1:9876: RocketMQ's name servers, not a MetaQ cluster"):
            client.from_env()
        with pytest.raises(ProfileError, match="no such section"):
            client.from_env("prod")

    @pytest.mark.parametrize("client", [RocketMQ, AsyncRocketMQ])
    def test_so_does_one_of_rocketmq(
        self, client: type[RocketMQ | AsyncRocketMQ], file: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with pytest.raises(ValueError, match=r"127\.0\.0\.1:8123: a MetaQ cluster; RocketMQ's name servers begin with"):
            client.from_env()
        file.write_text("[rocket]\ncluster = rocketmq://ns1:9876,ns2:9876\naccess_key = reader\n")
        monkeypatch.setenv("METAQ_PROFILE", "rocket")
        with pytest.raises(ValueError, match="access_key and secret_key: expected both or none"):
            client.from_env()
        file.write_text(file.read_text() + "secret_key = s\ntimeout = 2.5\n")
        assert "ns1:9876,ns2:9876" in repr(client.from_env())

    def test_what_is_wrong_is_named(self, file: Path) -> None:
        with pytest.raises(ProfileError, match=r"profile 'prod': .*config.ini has no such section; it has staging, wr"):
            read_profile("prod", None)
        with pytest.raises(ProfileError, match="unknown key 'clusters'; expected cluster, ca_file"):
            read_profile("wrong", None)
        file.write_text("cluster=x")
        with pytest.raises(ProfileError, match="cannot be read: File contains no section headers"):
            read_profile("staging", None)
        file.unlink()
        with pytest.raises(ProfileError, match="cannot be read: No such file"):
            read_profile("staging", None)


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        ([], EXIT_USAGE, "usage: metaq"),
        (["-c", "nonsense", "topics"], EXIT_USAGE, "metaq: cluster 'nonsense': expected host:port,host:port"),
        (["-c", "127.0.0.1:1", "topics"], EXIT_FAILED, "metaq: broker 127.0.0.1:1: connect failed: Connection refused"),
        (["-c", "zk://127.0.0.1:1/meta", "groups"], EXIT_FAILED, "metaq: ZooKeeper at 127.0.0.1:1 cannot be reached"),
        (["consume", "t", "--format", "%q"], EXIT_USAGE, "metaq: --format: '%q' is unknown"),
        (["consume", "t", "-p", "x"], EXIT_USAGE, "metaq: partition 'x': expected BROKER_ID-INDEX"),
        (["produce", "t", "/no/such/file"], EXIT_FAILED, "No such file or directory: '/no/such/file'"),
        (
            ["consume", "t", "--from", "soon"],
            EXIT_USAGE,
            "metaq: --from soon: expected earliest, latest, an offset, or",
        ),
        (["produce", "t", "-k", ""], EXIT_USAGE, "metaq: --key-separator: expected a text that is not empty"),
    ],
)
def test_errors_are_one_sentence(
    arguments: Sequence[str], status: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == status
    reported = capsys.readouterr().err
    assert says in reported
    assert "Traceback" not in reported


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["consume", ""], "argument topic: '': expected the name of a topic"),
        (["dlq", "list"], "the following arguments are required: group\n"),
        (["consume", "t", "--count", "0"], "'0': expected a number above 0"),
        (["consume", "t", "--hex", "--json"], "not allowed with argument"),
        (["lst"], "metaq: there is no command 'lst'; metaq --help lists them"),
    ],
)
def test_wrong_arguments(arguments: Sequence[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert says in capsys.readouterr().err


def test_help_is_also_a_word(capsys: pytest.CaptureFixture[str]) -> None:
    shown = []
    for arguments in (["--help"], ["help"], ["consume", "--help"], ["help", "consume"]):
        with pytest.raises(SystemExit, match="0"):
            main(arguments)
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1]
    assert shown[2] == shown[3]
    assert "metaq consume orders --follow" in shown[0]
    assert "--from START" in shown[2]


@pytest.mark.process
def test_the_help_takes_less_than_150_ms_of_cpu() -> None:
    def cpu_s() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([*COMMAND, "--help"], check=True, stdout=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    assert min(cpu_s() for _ in range(3)) < 0.15


def test_the_cluster_may_be_named_before_and_behind_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (
        ["-c", "127.0.0.1:1", "topics"], ["topics", "-c", "127.0.0.1:1"],
        ["-c", "nonsense", "--timeout", "3", "topics", "--cluster", "127.0.0.1:1"],
    ):  # fmt: skip
        assert main(arguments) == EXIT_FAILED
        assert "broker 127.0.0.1:1: connect failed" in capsys.readouterr().err


def test_ctrl_c_waits_for_what_must_not_be_interrupted() -> None:
    def block(presses: int) -> None:
        with uninterrupted():
            for _ in range(presses):
                signal.raise_signal(signal.SIGINT)
            done.append(presses)

    done: list[int] = []
    block(0)
    for presses in (1, 2):
        with pytest.raises(KeyboardInterrupt):
            block(presses)
    assert done == [0, 1]
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_ctrl_c_that_is_ignored_stays_ignored() -> None:
    """A shell starts its background jobs so."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with uninterrupted():
            for _ in range(2):
                signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.process
@pytest.mark.slow
class TestWithBroker:
    @pytest.fixture
    def environment(self, dev_broker: RunningBroker) -> dict[str, str]:
        return {**os.environ, "METAQ_CLUSTER": str(dev_broker.address)}

    def test_a_reader_that_goes_away_and_ctrl_c(self, environment: dict[str, str]) -> None:
        with MetaQ(environment["METAQ_CLUSTER"]) as mq, mq.producer() as producer:
            producer.send_many("many", [b"%d" % number for number in range(100_000)])
            with subprocess.Popen(
                [*COMMAND, "consume", "many"], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            ) as piped:
                assert piped.stdout is not None
                assert piped.stderr is not None
                assert piped.stdout.readline() == b"0\n"
                piped.stdout.close()
                assert (piped.wait(60), piped.stderr.read()) == (EXIT_PIPE, b"")
            with subprocess.Popen(
                [*COMMAND, "consume", "many", "-f", "--from", "latest"],
                env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            ) as following:  # fmt: skip
                assert following.stdout is not None
                assert following.stderr is not None
                os.set_blocking(following.stdout.fileno(), False)

                def is_shown() -> bool:
                    producer.send("many", b"new")
                    return following.stdout.read() not in (None, b"")  # type: ignore[union-attr]

                wait_until(is_shown, "it follows")
                following.send_signal(signal.SIGINT)
                assert (following.wait(60), following.stderr.read()) == (130, b"")

    def test_keys_and_unknown_partitions(self, environment: dict[str, str]) -> None:
        keyed = subprocess.run(
            [*COMMAND, "produce", "orders", "-k", ":", "-v"], env=environment, input=b"a:1\na:2\n", capture_output=True
        )
        places = {line.split(b" ")[0] for line in keyed.stdout.splitlines()}
        assert len(places) == 1
        wrong = subprocess.run(
            [*COMMAND, "produce", "orders", "-k", ":"], env=environment, input=b"a:1\nb\n", capture_output=True
        )
        assert wrong.returncode == EXIT_USAGE
        assert b"metaq: line 2: it does not contain the key separator ':'" in wrong.stderr
        missing = subprocess.run(
            [*COMMAND, "consume", "orders", "-p", "0-9"], env=environment, capture_output=True, text=True
        )
        assert (missing.returncode, missing.stderr) == (
            EXIT_USAGE, "metaq: topic 'orders' has no partition 0-9; it has 0-0, 0-1\n",
        )  # fmt: skip
