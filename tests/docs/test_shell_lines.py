"""Every shell line of README and docs: run, or read by the parser of its program, or tested where the table says.

A line that is in none of the three tables fails the test, and so does an entry that no page has any more.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
from doc_blocks import ROOT, SHELL, blocks
from examples import in_one_test
from fix_broker import RunningBroker, StartBroker, wait_until

from metaq.backends.metaq.pool import shared_pool
from metaq.backends.metaq.puts import put
from metaq.model import Message

LINES = {line: str(block) for block in blocks(*SHELL) for line in block.commands}

ELSEWHERE: Mapping[str, str] = {
    "python3 -m venv env && . env/bin/activate": "tests/packaging/test_wheel.py",
    "pip install 'metaq_spark-0.1.0-py3-none-any.whl[spark]'": "tests/packaging/test_wheel.py",
    "pip install 'dist/metaq_spark-0.1.0-py3-none-any.whl[spark,console]'": "tests/packaging/test_wheel.py",
    "PYTHONPATH=/shared/metaq_spark-0.1.0-py3-none-any.whl spark-submit": "tests/packaging/test_standalone_cluster.py",
    "SPARK_CONF_DIR=spark-conf PYSPARK_PYTHON=/opt/metaq/bin/python spark-submit": (
        "tests/packaging/test_standalone_cluster.py"
    ),
    "python3 -m venv /opt/metaq && /opt/metaq/bin/pip install": "tests/packaging/test_wheel.py",
    "/opt/metaq/bin/metaq-broker init /etc/metaq": "tests/broker/operate/test_init.py",
    "metaq-broker ctl --data DIR promote": "tests/broker/replication/test_roles.py",
    "metaq-broker ctl --data DIR status": "tests/broker/replication/driver/test_pair_process.py",
    "metaq-broker ctl --data DIR switch": "tests/broker/replication/driver/test_pair_process.py",
    "metaq-broker ctl --data DIR leave": "tests/broker/replication/driver/test_pair_process.py",
    "metaq-broker ctl --data DIR join": "tests/broker/replication/driver/test_pair_process.py",
    "metaq-broker begin-pair -f": "tests/broker/replication/driver/test_begin_pair_process.py",
    'spark-submit "$(metaq-spark jobs mirror_topics)" --help': "tests/packaging/test_wheel.py",
    "metaq-broker dev metaq-data --dashboard": "tests/broker/test_dev.py",
    "metaq-spark diagnose ": "tests/metaq_spark/diagnosis/test_diagnose_command.py",
    "metaq-spark compile": "tests/metaq_spark/columns/test_compiling_command.py",
    "METAQ_GROUP_ROUNDS=60 make test-java": "tests/java/test_mixed_group.py",
    'SPARK_VERSIONS="4.0 4.1" SPARK_TESTS=': "tests/spark_versions/test_six_steps.py",
    "python -m peers.metaq.broker": "tests/peers/test_isolation.py",
    "METAQ_ROCKETMQ=5.5.0 make test-rocketmq": "tests/rocketmq/test_rocketmq_peers.py",
    "metaq-namesrv start": "tests/broker/rocketmq/nameserver/test_name_server_process.py",
    "python -m metaq_console": "tests/console/test_http_page.py",
    "curl -s": "tests/console/test_http_page.py",
    "metaq ": "tests/docs/test_cli_page.py",
    "metaq dashboard": "tests/metaq/cli/test_dashboard.py",
    "printf 'one tea": "tests/docs/test_cli_page.py",
}
"""Beginnings of lines, and the file whose tests do what the line does, with other places and names."""

NOT_RUN: Mapping[str, str] = {
    "python -m venv metaq-env && metaq-env/bin/pip install": "venv-pack is for YARN, and no dependency",
    "metaq-env/bin/venv-pack": "venv-pack is for YARN, and no dependency",
    "PYSPARK_PYTHON=./environment/bin/python spark-submit --master yarn": "needs YARN",
    "spark-submit --master k8s": "needs Kubernetes",
    "useradd --system metaq": "needs root, and changes the machine",
    "cp deploy/systemd/metaq-broker.service": "needs root and systemd",
    "systemctl daemon-reload": "needs root and systemd",
}
"""Beginnings of lines that no test runs, and why; their syntax is checked, and that the files they name exist."""


def in_table(table: Mapping[str, str]) -> dict[str, str]:
    """The lines that begin like an entry of ``table``, each with that entry."""
    return {line: start for line in LINES for start in table if line.startswith(start)}


def parsed(line: str) -> Callable[[], object] | None:
    """What reads the arguments of ``line``, for programs that run for minutes or hours."""
    words = shlex.split(line)
    if words[0] == "make":
        return lambda: subprocess.run(["make", "--dry-run", *words[1:]], cwd=ROOT, check=True, capture_output=True)
    if words[:2] == ["python", "-m"] and words[2].partition(".")[0] == "faults":
        return lambda: _parse_faults(words[2], words[3:])
    if words[0].endswith("python") and words[1].startswith("benchmarks/"):
        help_command = [sys.executable, words[1], "--help"]
        return lambda: _options_are_known(subprocess.check_output(help_command, cwd=ROOT, text=True), words[2:])
    return None


def _parse_faults(module: str, arguments: list[str]) -> object:
    """Have a program's parser read its arguments; it is beside the program's ``__main__`` or in it."""
    has_cli = importlib.util.find_spec(f"{module}.cli") is not None
    program = importlib.import_module(f"{module}.cli" if has_cli else f"{module}.__main__")
    return program._parser().parse_args([word.replace("N", "1") if word == "N" else word for word in arguments])


def _options_are_known(help_text: str, words: list[str]) -> None:
    unknown = [word for word in words if word.startswith("--") and word not in help_text]
    assert not unknown, f"{unknown} is not in the program's help"


PARSED = {part: reader for line in LINES for part in line.split(" && ") if (reader := parsed(part))}
RUN = {
    "metaq-broker dev",
    "metaq-broker init metaq",
    "metaq-broker start -f metaq/server.ini",
    "metaq-broker ctl -f metaq/server.ini status",
    "metaq-broker dev metaq-data",
    "metaq-broker dev --port 8123",
    "metaq-broker dev --dashboard",
    "metaq-spark checkpoint show progress --brokers 127.0.0.1:8123",
    *(line for line in LINES if re.match(r"SPARK_CONF_DIR=spark-conf spark-submit jobs/", line)),
}
"""What the tests below run as it stands, with the addresses and the folders of the test."""


END_OF_JOB = "---- end of the job\n"

DRIVER = f"""
import runpy, shlex, sys
for line in sys.argv[1:]:
    job, *arguments = shlex.split(line)
    sys.argv = [job, *arguments]
    try:
        runpy.run_path(job, run_name="__main__")
    except SystemExit as ended:
        if ended.code:
            sys.exit(f"{{line}}: {{ended.code}}")
    print({END_OF_JOB!r}, end="", flush=True)
"""
"""Runs jobs, each given as one argument, as ``spark-submit`` does."""


class Terminal:
    """Runs shell lines in ``folder``, with the brokers of the docs standing for one that runs."""

    def __init__(self, folder: Path, broker: RunningBroker | None = None) -> None:
        self.folder, self.broker = folder, broker
        self.environment = {
            **{name: value for name, value in os.environ.items() if name != "SPARK_CONF_DIR"},
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
        }

    def line(self, text: str) -> str:
        """The line as it is run."""
        if self.broker is None:
            return text
        text = re.sub(r"(10\.\d\.0\.\d|127\.0\.0\.1):8123(,10\.0\.0\.2:8123)?", str(self.broker.address), text)
        return text.replace("CHANGELOG.md", "app.log")

    def run(self, text: str) -> str:
        """Run a line that ends; return what it printed."""
        done = subprocess.run(
            ["bash", "-c", self.line(text)], cwd=self.folder, env=self.environment, capture_output=True, text=True
        )
        assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def run_jobs(self, texts: Sequence[str]) -> list[str]:
        """Run lines with ``spark-submit`` one after the other in one driver, which starts Spark once for all of them.

        Return what each printed.
        """
        lines = [self.line(text).partition(" spark-submit ")[2] for text in texts]
        assert all(lines), texts
        environment = self.environment | {
            "SPARK_CONF_DIR": "spark-conf",
            "PYTHONPATH": os.pathsep.join(["jobs", os.environ.get("PYTHONPATH", "")]),
        }
        done = subprocess.run(
            [sys.executable, "-c", DRIVER, *lines],
            cwd=self.folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout.split(END_OF_JOB)[:-1]

    def run_until(self, text: str, words: str, then: Callable[[str], object] = str) -> str:
        """Run a line that goes on until it has printed ``words``, call ``then``, and end it as Ctrl-C does."""
        log = self.folder / "running.log"
        with (
            log.open("w") as out,
            subprocess.Popen(
                ["bash", "-c", self.line(text)],
                cwd=self.folder,
                env=self.environment,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            ) as process,
        ):
            try:
                wait_until(lambda: words in log.read_text() or process.poll() is not None, f"{words!r}", 120)
                then(log.read_text())
            finally:
                os.killpg(process.pid, signal.SIGINT)
                process.wait(60)
        return log.read_text()


def test_every_block_says_what_it_is() -> None:
    """``text`` is for what is shown and not typed: output, layouts, synopses. ``bytes KIND`` is hexadecimal."""
    known = {"sh", "console", "python", "ini", "json", "text", "wire", "bytes", "dockerfile", "nginx"}
    assert not [f"{block} {block.language!r}" for block in blocks() if block.language.partition(" ")[0] not in known]


def test_nothing_that_is_typed_is_called_text() -> None:
    typed = re.compile(
        r"^\$? ?(make|pip|python3?|metaq-broker|metaq-spark|spark-submit|SPARK_CONF_DIR=\S+) [^\[\]|.]*$"
    )
    shown = [block for block in blocks("text") if "[" not in block.text]  # with brackets it is a synopsis
    assert not [f"{block}: {line}" for block in shown for line in block.text.splitlines() if typed.match(line)]


def test_every_line_is_tested_somewhere() -> None:
    somewhere = {*in_table(ELSEWHERE), *in_table(NOT_RUN), *RUN}
    left = [
        f"{place}: {line}"
        for line, place in LINES.items()
        if line not in somewhere and not all(part in PARSED for part in line.split(" && "))
    ]
    assert not left


def test_no_entry_is_left_over() -> None:
    assert set(in_table(ELSEWHERE).values()) == set(ELSEWHERE)
    assert set(in_table(NOT_RUN).values()) == set(NOT_RUN)
    assert set(LINES) >= RUN


@pytest.mark.parametrize("file", sorted(set(ELSEWHERE.values())))
def test_the_other_tests_are_there(file: str) -> None:
    assert (ROOT / file).is_file()


@pytest.mark.process
@in_one_test("line", LINES)
def test_a_shell_can_read_it(line: str) -> None:
    done = subprocess.run(["bash", "-n", "-c", line], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    missing = [word for word in re.findall(r"(?<![\w/.])(?:jobs|broker|benchmarks)/[\w./-]+", line) if _absent(word)]
    assert not missing


def _absent(word: str) -> bool:
    return not (ROOT / word).exists()


@pytest.mark.process
@in_one_test("line", PARSED)
def test_its_program_takes_the_arguments(line: str) -> None:
    PARSED[line]()


@pytest.mark.process
@pytest.mark.parametrize(
    "line", ["metaq-broker dev metaq-data", "metaq-broker dev --port 8123", "metaq-broker dev --dashboard"]
)
def test_the_broker_starts(line: str, start_broker: StartBroker, tmp_path: Path) -> None:
    words = shlex.split(line.replace("8123", "0").replace("metaq-data", str(tmp_path / "data")))[1:]
    broker = start_broker(*words, *(() if "--port" in words else ("--port", "0")))
    assert broker.stop() == 0


@pytest.mark.process
def test_a_first_configuration(tmp_path: Path) -> None:
    """The lines of broker/README.md, in their order and folder; the file has its own port, so that is changed."""
    terminal = Terminal(tmp_path)
    terminal.run("metaq-broker init metaq")
    settings = tmp_path / "metaq" / "server.ini"
    text = re.sub(r"(?m)^;?\s*serverPort\s*=.*", "serverPort=0", settings.read_text())
    settings.write_text(re.sub(r"(?m)^;?\s*dataPath\s*=.*", f"dataPath={tmp_path / 'data'}", text))

    def status(_log: str) -> bool:
        assert "ready on 127.0.0.1:" in _log
        return "broker" in terminal.run("metaq-broker ctl -f metaq/server.ini status")

    terminal.run_until("metaq-broker start -f metaq/server.ini", " ready on ", then=status)


# ---- with Spark


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the lines are run: with the jobs and the settings of Spark, as in a checkout."""
    made = tmp_path_factory.mktemp("checkout")
    for name in ("jobs", "spark-conf"):
        (made / name).symlink_to(ROOT / name)
    (made / "app.log").write_bytes(b"one\ntwo\n")
    return made


def the_line(start: str) -> str:
    """The only line with these words."""
    [found] = [line for line in RUN if start in line]
    return found


@pytest.mark.spark
@pytest.mark.process
@pytest.mark.slow
@pytest.mark.long
def test_the_jobs_run(start_broker: StartBroker, tmp_path: Path, folder: Path) -> None:
    broker = start_broker("dev", tmp_path / "data", "--port", "0")
    terminal = Terminal(folder, broker)
    with shared_pool().lease(broker.address) as session:
        for topic in ("orders", "payments"):
            put(session, topic, 0, Message(b"first", "paid"))
    assert "mirror_topics" in terminal.run_until(the_line("--pattern 'orders.*'"), "1 rows out")
    expected = {
        "jobs/lines_to_topic.py": "2 rows in, 2 rows out",
        "jobs/mirror_topics.py --help": "usage",
        "--topics orders,payments --output archive": "2 rows out",
        "--output archive --verify": "",
        "jobs/replay_range.py": "",
        "jobs/restore_topic.py": "1 rows out",
    }
    printed = terminal.run_jobs([the_line(start) for start in expected])
    missing = [text for words, text in zip(expected.values(), printed, strict=True) if words not in text]
    assert not missing
    shown = terminal.run(the_line("checkpoint show").replace(" progress ", " progress/mirror "))
    assert "orders/0-0" in shown
