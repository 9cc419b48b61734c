"""make and scripts/set-up: an environment that works is kept, one that does not is made again, by ``make`` alone."""

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
from environments import ROOT
from test_check_machine import add_program

pytestmark = pytest.mark.process

# A Python that makes environments with a copy of itself, and notes what else it is asked.
PYTHON = """case "$*" in
  *"venv --clear"*)
    echo made >> "{log}"
    rm -rf "$4"; mkdir -p "$4/bin"; cp "$0" "$4/bin/python"; touch "$4/pip"
    for each in ruff mypy metaq-spark; do printf '#!/bin/sh\\n' > "$4/bin/$each"; chmod 755 "$4/bin/$each"; done ;;
  *"pip --version"*) [ -e "${{0%/bin/*}}/pip" ] ;;
  *"pip install"*) echo installed >> "{log}" ;;
esac"""


@dataclass(frozen=True)
class Clone:
    """A folder with what ``make lint`` uses until the environment is there."""

    folder: Path
    python: Path
    log: Path

    def moved_to(self, folder: Path) -> "Clone":
        return Clone(self.folder.rename(folder), self.python, self.log)

    def done_by_make(self) -> list[str]:
        """Run ``make lint``; return what it did to get an environment."""
        self.log.write_text("")
        self.make().check_returncode()
        return self.log.read_text().split()

    def make(self) -> subprocess.CompletedProcess[str]:
        command = ["make", "--directory", self.folder, f"PYTHON={self.python}", "lint"]
        return subprocess.run(command, env={"PATH": os.environ["PATH"]}, capture_output=True, text=True)


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    clone = Clone(tmp_path / "clone", tmp_path / "programs" / "python3", tmp_path / "log")
    shutil.copytree(ROOT / "scripts", clone.folder / "scripts")
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy2(ROOT / name, clone.folder)
    add_program(clone.python, PYTHON.format(log=clone.log))
    return clone


def test_an_environment_is_made_once(clone: Clone) -> None:
    assert clone.done_by_make() == ["made", "installed"]
    assert clone.done_by_make() == []


def test_a_changed_pyproject_is_installed_into_the_environment(clone: Clone) -> None:
    clone.done_by_make()
    later = (clone.folder / ".venv" / ".ready").stat().st_mtime + 10
    os.utime(clone.folder / "pyproject.toml", (later, later))
    assert clone.done_by_make() == ["installed"]


@pytest.mark.parametrize(("lost", "done"), [((".ready",), ["installed"]), ((".ready", "pip"), ["made", "installed"])])
def test_an_interrupted_set_up_is_finished(clone: Clone, lost: tuple[str, ...], done: list[str]) -> None:
    """While it installs, or while ``python -m venv`` has not yet brought pip."""
    clone.done_by_make()
    for name in lost:
        (clone.folder / ".venv" / name).unlink()
    assert clone.done_by_make() == done


def test_an_environment_whose_python_has_gone_is_made_again(clone: Clone) -> None:
    clone.done_by_make()
    (clone.folder / ".venv" / "bin" / "python").unlink()
    assert clone.done_by_make() == ["made", "installed"]


def test_a_clone_that_was_moved_or_copied_gets_its_own_environment(clone: Clone, tmp_path: Path) -> None:
    clone.done_by_make()
    moved = clone.moved_to(tmp_path / "moved")
    assert moved.done_by_make() == ["made", "installed"]
    shutil.copytree(moved.folder, tmp_path / "copy")
    assert Clone(tmp_path / "copy", clone.python, clone.log).done_by_make() == ["made", "installed"]
    assert moved.done_by_make() == []


@pytest.mark.parametrize("name", ["my clone", "you&me", "o'clock"])
def test_a_place_that_cannot_work_is_refused_before_anything_is_fetched(
    clone: Clone, tmp_path: Path, name: str
) -> None:
    clone.log.write_text("")
    done = clone.moved_to(tmp_path / name).make()
    assert done.returncode != 0
    assert f"please move the clone out of {tmp_path / name}." in done.stderr
    assert clone.log.read_text() == ""
