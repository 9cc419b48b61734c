"""What people at a terminal get beside the output: colours, progress, what a command waits for, and suggestions."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import termios
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cli_commands import run_command
from local_servers import broker_thread

import metaq_spark.cli
from metaq.cli import status_line
from metaq.cli.colours import RED, painted
from metaq.cli.main import main
from metaq.cli.output import counted, print_rows
from metaq.cli.parser import suggestion
from metaq.cli.status_line import StatusLine

COMMAND = [sys.executable, "-m", "metaq.cli.main"]
CLEAR = "\r\x1b[K"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    return Terminal()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with broker_thread(tmp_path_factory.mktemp("terminal"), "[topic=*]\n") as address:
        assert run_command(main, "-c", address, "produce", "orders", "-m", "one tea")[0] == 0
        yield str(address)


class TestColours:
    def test_only_a_terminal_has_them(self, terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
        assert painted("no", RED, terminal) == "\x1b[31mno\x1b[0m"
        assert painted("no", RED, io.StringIO()) == painted("no", RED, None) == "no"
        for name, value in (("NO_COLOR", "1"), ("TERM", "dumb")):
            with monkeypatch.context() as changed:
                changed.setenv(name, value)
                assert painted("no", RED, terminal) == "no"

    def test_the_head_of_a_table(self, monkeypatch: pytest.MonkeyPatch, terminal: Terminal) -> None:
        monkeypatch.setattr(sys, "stdout", screen := Terminal())
        print_rows([{"a": 1}], ("a",), as_json=False)
        print_rows([{"a": 1}], ("a",), as_json=True)
        assert screen.getvalue() == '\x1b[1ma\x1b[0m\n1\n{"a": 1}\n'


class TestStatusLine:
    def test_a_line_replaces_the_one_before(self, terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "stderr", terminal)
        line = StatusLine()
        for text in ("one", "one", "two", "x" * 500):
            line.show(text)
        with line.hidden():
            terminal.write("output\n")
        line.clear()
        first, second, third, output = terminal.getvalue().split(CLEAR)[1:]
        assert (first, second, output) == ("one", "two", "output\n")
        assert 0 < len(third) < 500

    def test_it_fits_the_terminal_on_the_standard_error(
        self, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Whose width is counted in columns, of which a Chinese character takes two; the output may be a file."""
        import pty

        main_end, terminal_end = pty.openpty()
        termios.tcsetwinsize(terminal_end, (24, 60))
        monkeypatch.setattr(sys, "stdout", io.StringIO())
        with open(terminal_end, "w", encoding="utf-8") as stream, open(main_end, "rb", buffering=0) as shown:
            monkeypatch.setattr(sys, "stderr", stream)
            for text, fits in (("x" * 59, 59), ("x" * 60, 59), ("订" * 29, 29), ("x" + "订" * 29, 30), ("订" * 30, 29)):
                StatusLine().show(text)
                assert shown.read(1000).decode() == CLEAR + text[:fits]

    def test_elsewhere_there_is_none(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for stream in (io.StringIO(), None):
            monkeypatch.setattr(sys, "stderr", stream)
            with (line := StatusLine()).progress(lambda: 1, "sent"):
                line.show("some")
            assert stream is None or stream.getvalue() == ""

    def test_progress_is_shown_while_it_lasts(self, terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "stderr", terminal)
        monkeypatch.setattr(status_line, "FIRST_S", 0.01)
        monkeypatch.setattr(status_line, "EACH_S", 0.01)
        asked, enough = 0, threading.Event()

        def count() -> int:
            nonlocal asked
            asked += 1
            if asked == 3:
                enough.set()
            return asked * 1000

        with StatusLine().progress(count, "sent to orders"):
            assert enough.wait(60)
        shown = terminal.getvalue().split(CLEAR)
        assert [text.partition(" sent to orders, ")[0] for text in shown[1:3]] == ["1,000 messages", "2,000 messages"]
        assert shown[-1] == ""  # it is gone

    @pytest.mark.parametrize(
        ("arguments", "shown"),
        [
            ("produce sent -m x", "1 message sent to sent"),
            ("consume orders", "1 message of orders"),
            ("consume orders --group g", "1 message of orders"),
            ("find orders --key nobody", "1 message read"),
            ("mirror {cluster} {cluster} orders --prefix copy- --checkpoint {folder}/mirror", "1 message copied"),
            ("bench put put --count 3", "3 messages sent"),
            ("bench get orders", "1 message read"),
        ],
    )
    def test_long_work_has_it(
        self,
        arguments: str,
        shown: str,
        command: Callable[..., tuple[int, str, str]],
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        seen: list[str] = []

        @contextmanager
        def progress(_self: StatusLine, count: Callable[[], int], does: str) -> Iterator[None]:
            yield
            seen.append(f"{counted(count())} {does}")

        with broker_thread(tmp_path, "[topic=*]\n") as cluster:
            command("-c", str(cluster), "produce", "orders", "-m", "one tea")
            monkeypatch.setattr(StatusLine, "progress", progress)
            command("-c", str(cluster), *arguments.format(cluster=cluster, folder=tmp_path).split())
        assert seen == [shown]


FRONT, BEHIND = "in front of the command", "options of a command come after its name"


class TestSuggestions:
    @pytest.mark.parametrize(
        ("arguments", "says"),
        [
            ("topcis", "metaq: there is no command 'topcis'; did you mean 'topics'?\n"),
            ("help topcis", "metaq: there is no command 'topcis'; did you mean 'topics'?\n"),
            ("frobnicate", "metaq: there is no command 'frobnicate'; metaq --help lists them\n"),
            ("consume orders --jsno", "metaq: error: consume has no option '--jsno'; did you mean '--json'?\n"),
            ("topics --zzz=1", "metaq: error: topics has no option '--zzz'; metaq help topics lists them\n"),
            ("--clustr x topics", f"metaq: there is no option '--clustr' {FRONT}; did you mean '--cluster'?\n"),
            ("-c 1.2.3.4:1 --json topics", f"metaq: there is no option '--json' {FRONT}; {BEHIND}\n"),
            ("-c1.2.3.4:1 --clus=1.2.3.4:1 -b 1 topics", f"metaq: there is no option '-b' {FRONT}; {BEHIND}\n"),
            ("bench putt orders", "'putt': expected one of put, get; did you mean 'put'?\n"),
        ],
    )
    def test_what_was_meant(self, arguments: str, says: str) -> None:
        status, out, err = run_command(main, *arguments.split())
        assert (status, out) == (2, "")
        assert err.endswith(says)

    def test_nothing_is_near(self) -> None:
        assert suggestion("frobnicate", ["topics", "produce"]) == ""

    def test_a_topic_that_nobody_has_sent_to(self, cluster: str, command: Callable[..., tuple[int, str, str]]) -> None:
        says = "metaq: nobody has sent a message to topic"
        assert command("-c", cluster, "consume", "order") == (
            0, "", f"{says} 'order' yet; did you mean 'orders'?\n",
        )  # fmt: skip
        assert command("-c", cluster, "consume", "bills")[2] == f"{says} 'bills' yet; topics there: orders\n"


def test_metaq_spark_lists_its_commands_without_sparks_packages() -> None:
    block = "import sys; sys.modules.update(dict.fromkeys(['pyarrow', 'pyspark', 'numpy', 'numba'])); "
    call = f"{block}from metaq_spark.cli import main; sys.exit(main(sys.argv[1:]))"
    ran = {
        command: subprocess.run([sys.executable, "-c", call, command], capture_output=True, text=True, check=False)
        for command in ("--help", "jobs", "checkpoint", "chekpoint")
    }
    assert [one.returncode for one in ran.values()] == [0, 0, 1, 2]
    assert all(f"  {row.name} " in ran["--help"].stdout or f"  {row.name}\n" in ran["--help"].stdout
               for row in metaq_spark.cli.COMMANDS)  # fmt: skip
    assert "install it with: pip install 'metaq-spark[spark]'" in ran["checkpoint"].stderr
    assert ran["chekpoint"].stderr == "metaq-spark: there is no command 'chekpoint'; did you mean 'checkpoint'?\n"


@pytest.mark.process
def test_a_note_that_nobody_reads_changes_no_status(cluster: str, tmp_path: Path) -> None:
    """All is sent, and the reader of the standard error is gone."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [*COMMAND, "-c", cluster, "produce", "notes", "-m", "one tea"]
    environment = {**os.environ, "METAQ_CONFIG": str(tmp_path / "config.ini")}
    assert subprocess.run(command, stderr=writer, env=environment, check=False).returncode == 0
    os.close(writer)


@pytest.mark.process
@pytest.mark.parametrize("group", [(), ("--group", "g")], ids=["alone", "group"])
def test_follow_shows_that_it_waits_and_ctrl_c_ends_it(cluster: str, tmp_path: Path, group: tuple[str, ...]) -> None:
    """In a real terminal: the messages, the line, and nothing of it when the command has ended."""
    import pty

    main_end, terminal_end = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "METAQ_CONFIG": str(tmp_path / "config.ini")}
    command = [*COMMAND, "-c", cluster, "consume", "orders", "-f", *group]
    with subprocess.Popen(command, stdout=terminal_end, stderr=terminal_end, env=environment) as running:
        os.close(terminal_end)
        shown = b""
        try:
            while b"1 message; waiting" not in shown:
                shown += os.read(main_end, 1000)
            running.send_signal(signal.SIGINT)
            assert running.wait(30) == 130
        finally:
            running.kill()
    while True:
        try:
            shown += os.read(main_end, 1000)
        except OSError:  # the other end is closed
            break
    os.close(main_end)
    said = shown.decode().replace("\r\n", "\n")
    if group:  # it may wait for its partitions first
        said = said.removeprefix(f"{CLEAR}waiting for more, Ctrl-C ends{CLEAR}")
    assert said == f"one tea\n{CLEAR}1 message; waiting for more, Ctrl-C ends{CLEAR}"
