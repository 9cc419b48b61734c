"""Virtual environments for the tests of what gets installed."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Environment:
    """A virtual environment. Programs run in its folder, so that nothing is imported from the source tree."""

    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    def run(self, *command: str | Path) -> str:
        """Run a command; return what it printed, or fail with all it said."""
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def install(self, *arguments: str | Path) -> None:
        quiet = ("--quiet", "--disable-pip-version-check")
        self.run(sys.executable, "-m", "pip", "--python", self.python, "install", *quiet, *arguments)


def make_environment(folder: Path) -> Environment:
    """Make an environment without a pip of its own, which takes longer to install than all else; ours serves it."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    return Environment(folder)
