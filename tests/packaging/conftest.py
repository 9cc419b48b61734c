"""Builds the distribution once, and environments to install it into."""

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from environments import ROOT, Environment, make_environment


@pytest.fixture(scope="session")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, and the wheel that was built from the sdist."""
    folder = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT]
    done = subprocess.run(build, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="session")
def wheel(distributions: Path) -> Path:
    [wheel] = distributions.glob("*.whl")
    return wheel


@pytest.fixture(scope="session")
def bare_environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """An environment with the wheel and what it requires, and nothing else."""
    environment = make_environment(tmp_path_factory.mktemp("bare"))
    environment.install(wheel)
    return environment


@pytest.fixture(scope="session")
def spark_environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """An environment with the wheel; Spark and the rest come from the environment that runs the tests.

    That one's editable installation stays out of sight: only folders of site-packages have their ``.pth`` files read.
    """
    environment = make_environment(tmp_path_factory.mktemp("spark"))
    environment.install("--no-deps", wheel)
    [packages] = (environment.folder / "lib").glob("python*/site-packages")
    (packages / "packages_of_the_tests.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return environment
