"""RocketMQ clients of six kinds, unmodified, each fetched with its language's own tool and started as a process.

    client("go").command("127.0.0.1:9876", role="producer", group="shop")

Each is a small program beside this file (``java``, ``python``, ``javascript``, ``go``,
``rust``) that speaks the line protocol of
``conversation``. Fetched and built files are kept in the cache of ``jars``; only one process fetches at a time.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from peers.jvm import OPENED
from peers.rocketmq.jars import Unavailable, alone, cache, release
from peers.rocketmq.programs import QUICK

HERE: Final = Path(__file__).parent
PYTHON_PACKAGE: Final = "rocketmq==0.4.4"
FETCH_DEADLINE_S: Final = 300
CARGO_DEADLINE_S: Final = 3600
"""It builds some 350 packages: minutes of all cores."""

SENDS: Final = frozenset({"send", "tags", "ordered", "delay", "groups", "retry", "restart"})
"""Features of every client."""


@dataclass(frozen=True, slots=True)
class Client:
    """One kind of client. ``features`` are the columns of the table in the docs that it supports."""

    name: str
    program: tuple[str, ...]
    environment: Mapping[str, str]
    features: frozenset[str]

    def command(self, name_servers: str, **arguments: object) -> list[str]:
        """Return the command line of the program."""
        given = {"nameServers": name_servers, **arguments}
        return [*self.program, *(f"{key}={value}" for key, value in given.items())]


def client(name: str) -> Client:
    """Return a client; fetch and build it if necessary.

    Raises:
        Unavailable: Its language is not on this machine, or its packages cannot be fetched.
    """
    return _CLIENTS[name](name)


def _java(name: str) -> Client:
    there = release(name.removeprefix("java-"))
    quiet = ("-Drocketmq.client.logLevel=WARN", "-Dfile.encoding=UTF-8")
    program = ("java", *QUICK, *OPENED, *quiet, "-cp", there.class_path, "Client")
    return Client(name, program, {}, SENDS | {"batch", "transactions", "lite", "sql", "request"})


def _python(name: str) -> Client:
    environment = cache() / "clients" / f"python-{sys.version_info.major}.{sys.version_info.minor}"
    python = environment / "bin" / "python"

    def fetch() -> None:
        _run([sys.executable, "-m", "venv", str(environment)], environment)
        _run([str(python), "-m", "pip", "install", "--quiet", PYTHON_PACKAGE], environment)

    _made(environment, PYTHON_PACKAGE, fetch)
    # Its batches arrive as one message without a body, at RocketMQ 4.9.7 as well, so they are not in the list.
    return Client(name, (str(python), str(HERE / "python" / "client.py")), {}, SENDS)


def _javascript(name: str) -> Client:
    node, npm = _tool("node"), _tool("npm")
    folder = cache() / "clients" / "javascript"
    package = HERE / "javascript" / "package.json"

    def fetch() -> None:
        shutil.copy(package, folder)
        _run([npm, "install", "--no-audit", "--no-fund", "--loglevel=error"], folder)

    _made(folder, package.read_text(), fetch)
    environment = {"NODE_PATH": str(folder / "node_modules")}
    return Client(name, (node, str(HERE / "javascript" / "client.js")), environment, SENDS)


def _go(name: str) -> Client:
    go = _tool("go")
    folder, sources = cache() / "clients" / "go", [HERE / "go" / file for file in ("main.go", "go.mod", "go.sum")]

    def build() -> None:
        for each in sources:
            shutil.copy(each, folder)
        _run([go, "build", "-o", "client", "."], folder)

    _made(folder, "\0".join(each.read_text() for each in sources), build)
    environment = {"ROCKETMQ_GO_LOG_LEVEL": "error"}
    return Client(name, (str(folder / "client"),), environment, SENDS | {"batch", "transactions", "sql", "request"})


def _rust(name: str) -> Client:
    cargo = _tool("cargo")
    folder = cache() / "clients" / "rust"
    sources = [HERE / "rust" / file for file in ("main.rs", "Cargo.toml", "Cargo.lock")]

    def build() -> None:
        for each in sources:
            shutil.copy(each, folder)
        _run([cargo, "build", "--quiet", "--locked"], folder, CARGO_DEADLINE_S)

    _made(folder, "\0".join(each.read_text() for each in sources), build)
    program = (str(folder / "target" / "debug" / "client"),)
    # Its requests are not in the list: it loses a reply that arrives before it waits, at RocketMQ 5.5.0 as well.
    return Client(name, program, {}, SENDS | {"batch", "transactions", "sql"})


_CLIENTS: Final[Mapping[str, Callable[[str], Client]]] = {
    "java-4.9.7": _java,
    "java-5.5.0": _java,
    "python": _python,
    "javascript": _javascript,
    "go": _go,
    "rust": _rust,
}

NAMES: Final = tuple(_CLIENTS)


def _tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise Unavailable(f"there is no {name} on this machine")
    return found


def _made(folder: Path, content: str, make: Callable[[], None]) -> None:
    """Call ``make`` for ``folder`` unless it was made of the same ``content`` before."""
    folder.mkdir(parents=True, exist_ok=True)
    mark = hashlib.sha256(content.encode()).hexdigest()
    with alone(folder.with_name(f"{folder.name}.lock")):
        complete = folder / "complete"
        if not complete.exists() or complete.read_text() != mark:
            complete.unlink(missing_ok=True)
            make()
            complete.write_text(mark)


def _run(command: Sequence[str], folder: Path, deadline_s: float = FETCH_DEADLINE_S) -> None:
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=deadline_s)
    except subprocess.TimeoutExpired:
        raise Unavailable(f"{command[0]} did not end within {deadline_s:g} s") from None
    if done.returncode:
        raise Unavailable(f"{' '.join(command)}: {' '.join((done.stdout + done.stderr).split()[-60:])}")
