"""scripts/check-machine: one sentence for a machine without what is needed, silence for one with it."""

import shutil
import subprocess
from pathlib import Path

import pytest
from environments import ROOT

pytestmark = pytest.mark.process

SCRIPT = ROOT / "scripts" / "check-machine"
TOOLS = ("sed", "head", "basename", "sh", "uname")

NO_PYTHON = (
    "Please install Python 3.11 or newer, or let PYTHON name one that is not on the PATH: make PYTHON=/path/to/python3"
)
JAVA_SAYS = {
    "17": 'openjdk version "17.0.15" 2025-04-15',
    "21 early access": 'openjdk version "21-ea" 2023-09-19',
    "25": 'openjdk version "25" 2025-09-16 LTS',
    "8": 'java version "1.8.0_392"',
    "11": 'Picked up JAVA_TOOL_OPTIONS: -Xmx1g\nopenjdk version "11.0.2" 2019-01-15',
    "the stub of macOS": "The operation couldn't be completed. Unable to locate a Java Runtime.",
}


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A folder to be the whole PATH: the few tools that the script uses, neither Python nor Java."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for tool in TOOLS:
        found = shutil.which(tool)
        assert found is not None
        (programs / tool).symlink_to(found)
    return programs


def add_program(path: Path, script: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def add_java(path: Path, says: str) -> None:
    add_program(path, f"cat_() {{ while IFS= read -r line; do echo \"$line\" >&2; done; }}; cat_ <<'END'\n{says}\nEND")


def add_python(path: Path, version: tuple[int, int], has_venv: bool = True) -> None:
    """A Python that answers the script's three questions."""
    new_enough = 0 if version >= (3, 11) else 1
    add_program(
        path,
        f"""case "$2" in
        *version_info*3,*) exit {new_enough};;
        *version_info*) echo {version[0]}.{version[1]};;
        *ensurepip*) exit {0 if has_venv else 1};;
        esac""",
    )


def check(what: str, programs: Path, *arguments: str, **environment: str) -> tuple[int, str, str]:
    words = [SCRIPT, what, *arguments]
    done = subprocess.run(words, env={"PATH": str(programs), **environment}, capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("name", ["17", "21 early access", "25"])
def test_java_that_will_do(machine: Path, name: str) -> None:
    add_java(machine / "java", JAVA_SAYS[name])
    assert check("java", machine) == (0, "", "")


@pytest.mark.parametrize(
    ("name", "found"),
    [("8", "found Java 8 on the PATH."), ("11", "found Java 11 on the PATH."), ("the stub of macOS", "found none")],
)
def test_java_that_will_not_do(machine: Path, name: str, found: str) -> None:
    add_java(machine / "java", JAVA_SAYS[name])
    status, said, complaint = check("java", machine)
    assert (status, said) == (1, "")
    assert complaint.startswith("Please install Java 17 or newer")
    assert found in complaint
    assert complaint.count("\n") == 1


def test_no_java(machine: Path) -> None:
    status, said, complaint = check("java", machine)
    assert (status, said, complaint.count("\n")) == (1, "", 1)
    assert "Please install Java 17 or newer" in complaint
    assert "found none on the PATH." in complaint


def test_java_home_is_obeyed(machine: Path, tmp_path: Path) -> None:
    add_java(machine / "java", JAVA_SAYS["8"])
    add_java(tmp_path / "jdk" / "bin" / "java", JAVA_SAYS["25"])
    assert check("java", machine, JAVA_HOME=str(tmp_path / "jdk")) == (0, "", "")
    status, _, complaint = check("java", machine, JAVA_HOME=str(tmp_path / "gone"))
    assert (status, complaint.count("\n")) == (1, 1)
    assert f"found none in JAVA_HOME={tmp_path}/gone." in complaint


def test_python_that_will_do_is_named(machine: Path) -> None:
    add_python(machine / "python3", (3, 12))
    assert check("python", machine) == (0, "python3\n", "")


def test_a_system_other_than_linux_is_said_to_be_untested(machine: Path) -> None:
    add_python(machine / "python3", (3, 12))
    (machine / "uname").unlink()
    add_program(machine / "uname", "echo Darwin")
    note = "MetaQ for Spark is tested on Linux; on Darwin it is not tested.\n"
    assert check("python", machine) == (0, "python3\n", note)


def test_an_old_python3_is_passed_over_for_a_newer_one(machine: Path) -> None:
    add_python(machine / "python3", (3, 9))
    add_python(machine / "python3.11", (3, 11))
    assert check("python", machine) == (0, "python3.11\n", "")


@pytest.mark.parametrize(
    ("pythons", "said"),
    [
        ({}, f"{NO_PYTHON} (found none).\n"),
        ({"python3": (3, 9)}, f"{NO_PYTHON} (found Python 3.9).\n"),
    ],
)
def test_no_python_that_will_do(machine: Path, pythons: dict[str, tuple[int, int]], said: str) -> None:
    for name, version in pythons.items():
        add_python(machine / name, version)
    assert check("python", machine) == (1, "", said)


def test_python_without_venv_says_which_package_to_install(machine: Path) -> None:
    add_python(machine / "python3", (3, 11), has_venv=False)
    status, said, complaint = check("python", machine)
    assert (status, said, complaint.count("\n")) == (1, "", 1)
    assert "apt install python3-venv" in complaint


def test_python_named_by_the_user_is_the_only_one_tried(machine: Path, tmp_path: Path) -> None:
    add_python(machine / "python3", (3, 12))
    add_python(tmp_path / "mine", (3, 8))
    status, _, complaint = check("python", machine, PYTHON=str(tmp_path / "mine"))
    assert (status, complaint) == (1, f"{NO_PYTHON} (found Python 3.8).\n")


@pytest.mark.parametrize("character", " \n:;&|<>()$`\\\"'")
def test_a_place_with_a_character_of_the_shell_is_refused(machine: Path, character: str) -> None:
    place = f"/home/me/a{character}b"
    status, said, complaint = check("place", machine, place)
    assert (status, said) == (1, "")
    assert complaint.endswith(f"\\: please move the clone out of {place}.\n")


@pytest.mark.parametrize("place", ["/srv/metaq", "/home/me/a-b_c.d+e,f@g=h%i~j#k", "/home/我/克隆"])
def test_any_other_place_will_do(machine: Path, place: str) -> None:
    assert check("place", machine, place) == (0, "", "")


def test_wrong_use_is_reported(machine: Path) -> None:
    assert check("spark", machine) == (1, "", "usage: check-machine python|java|place FOLDER\n")
