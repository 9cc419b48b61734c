"""RocketMQ's administration tool, ``mqadmin``, of a release: one command, one Java process."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from peers.jvm import OPENED
from peers.rocketmq.jars import Release
from peers.rocketmq.programs import QUICK
from peers.rocketmq.servers import write_logging

DEADLINE_S: Final = 90.0
MAIN: Final = "org.apache.rocketmq.tools.command.MQAdminStartup"


@dataclass(frozen=True, slots=True)
class Admin:
    """The tool of a release. ``folder`` is its home."""

    release: Release
    folder: Path
    name_servers: str

    def run(self, command: str, *options: str) -> str:
        """Run a command and return its output.

        Raises:
            RuntimeError: It failed, which the tool reports only in its output.
        """
        write_logging(self.folder)
        home = [f"-Drocketmq.home.dir={self.folder}", f"-Duser.home={self.folder}"]
        quiet = ["-Drocketmq.client.logUseSlf4j=true"]
        words = ["java", *QUICK, *OPENED, *home, *quiet, "-cp", self.release.class_path, MAIN]
        done = subprocess.run(
            [*words, command, *options, "-n", self.name_servers], capture_output=True, text=True, timeout=DEADLINE_S
        )
        said = done.stdout + done.stderr
        if done.returncode or "SubCommandException" in said:
            raise RuntimeError(f"mqadmin {command} {' '.join(options)}: {said[-3000:]}")
        return done.stdout
