"""PostgreSQL, MariaDB and MySQL on a free port of 127.0.0.1, with one empty database.

The programs are from the machine's packages (Debian: ``postgresql``, ``mariadb-server``), and from an npm package for
MySQL. A server keeps its port and its files over ``kill`` and ``start``. PostgreSQL does not run as root, so root
starts it as another user.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Self

from peers.databases.mysql_package import mysql_package
from peers.maven import Unavailable

DATABASE: Final = "metaq"
DEADLINE_S: Final = 60.0
_OTHER_USERS: Final = ("postgres", "nobody")


class DatabaseServer(ABC):
    """A server in ``folder``; use it in a ``with`` block."""

    name: str
    package: str

    def __init__(self, folder: Path) -> None:
        self.folder: Final = folder
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port: Final[int] = probe.getsockname()[1]
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self._create()
        self.start()
        self._create_database()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        """Start the server with its existing data, and wait until it serves; do nothing if it runs."""
        if self._process is not None:
            return
        with open(self.folder / "server.log", "ab") as log:
            self._process = subprocess.Popen(
                self._command(), stdout=log, stderr=log, start_new_session=True, cwd=self.folder, **self._user()
            )
        deadline_s = time.monotonic() + DEADLINE_S
        while not self._serves():
            if self._process.poll() is not None or time.monotonic() > deadline_s:
                said = (self.folder / "server.log").read_text(errors="replace")[-2000:]
                self.kill()
                raise RuntimeError(f"{self.name} does not serve: {said}")
            time.sleep(0.05)

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Stop all its processes within the block, as on a machine that is suspended: connections stay open."""
        if self._process is None:
            raise RuntimeError(f"{self.name} does not run")
        pids = _descendants(self._process.pid)
        try:
            for pid in pids:
                with suppress(ProcessLookupError):  # one that served a connection has ended with it
                    os.kill(pid, signal.SIGSTOP)
            yield
        finally:
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    def kill(self) -> None:
        """Kill the server with all its processes."""
        process, self._process = self._process, None
        if process is not None:
            with suppress(ProcessLookupError):  # it has ended by itself
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(DEADLINE_S)

    @abstractmethod
    def connect(self, driver: str, database: str = DATABASE) -> Any:
        """Return a connection of one of ``drivers``."""

    @property
    @abstractmethod
    def drivers(self) -> Sequence[str]:
        """Names of Python drivers for it."""

    @abstractmethod
    def _create(self) -> None:
        ...

    @abstractmethod
    def _command(self) -> list[str]:
        """Return the command that runs it in the foreground."""

    @abstractmethod
    def _create_database(self) -> None:
        """Create the database, unless it exists."""

    def _user(self) -> dict[str, Any]:
        return {}

    def _serves(self) -> bool:
        try:
            self.connect(self.drivers[0], self._first_database()).close()
        except Exception:  # an error of any driver: not ready yet
            return False
        return True

    def _first_database(self) -> str:
        return DATABASE

    def _program(self, name: str, *folders: str) -> str:
        found = shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), *folders]))
        if found is None:
            raise Unavailable(f"{self.name}: there is no {name} on this machine; install {self.package}")
        return found

    def _run(self, command: list[str]) -> None:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=DEADLINE_S, cwd=self.folder, **self._user()
        )
        if done.returncode:
            raise RuntimeError(f"{command[0]}: {(done.stdout + done.stderr)[-2000:]}")


def _descendants(pid: int) -> list[int]:
    """Return a process and all that it has started, the first one first: PostgreSQL's have sessions of their own."""
    found = [pid]
    for parent in found:
        for children in Path(f"/proc/{parent}/task").glob("*/children"):
            with suppress(OSError):
                found += map(int, children.read_text().split())
    return found


class PostgresServer(DatabaseServer):
    name, package = "PostgreSQL", "postgresql"
    drivers = ("psycopg", "pg8000")

    def connect(self, driver: str, database: str = DATABASE) -> Any:
        module = import_module(driver)
        if driver == "psycopg":
            where = {"host": "127.0.0.1", "port": self.port, "user": DATABASE, "dbname": database}
            return module.connect(**where, connect_timeout=5, sslmode="disable")
        return module.dbapi.connect(DATABASE, host="127.0.0.1", port=self.port, database=database, timeout=5)

    def _create(self) -> None:
        if user := self._user():
            shutil.chown(self.folder, user["user"])
        initdb = [
            "--pgdata",
            str(self.folder / "data"),
            "--username",
            DATABASE,
            "--auth",
            "trust",
            "--encoding",
            "UTF8",
        ]
        self._run([self._found("initdb"), *initdb, "--locale", "C", "--no-sync"])

    def _command(self) -> list[str]:
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": self.port,
            "unix_socket_directories": "",
            "timezone": "UTC",
        }
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        return [self._found("postgres"), "-D", str(self.folder / "data"), *options]

    def _create_database(self) -> None:
        connection = self.connect("psycopg", "postgres")
        connection.autocommit = True
        if connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [DATABASE]).fetchone() is None:
            connection.execute(f"CREATE DATABASE {DATABASE}")
        connection.close()

    def _first_database(self) -> str:
        return "postgres"

    def _found(self, name: str) -> str:
        return self._program(name, *map(str, sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)))

    def _user(self) -> dict[str, Any]:
        if os.geteuid() != 0:
            return {}
        import pwd

        there = {one.pw_name for one in pwd.getpwall()}
        return {"user": next(user for user in _OTHER_USERS if user in there), "extra_groups": []}


class MariaServer(DatabaseServer):
    name, package = "MariaDB", "mariadb-server"
    drivers = ("pymysql", "mysql.connector")

    @property
    def jdbc_url(self) -> str:
        """The URL for Java's driver."""
        return f"jdbc:mariadb://127.0.0.1:{self.port}/{DATABASE}?user=root"

    def connect(self, driver: str, database: str = DATABASE) -> Any:
        where: dict[str, Any] = {"host": "127.0.0.1", "port": self.port, "user": "root", "database": database}
        module = import_module(driver)
        if driver == "pymysql":
            return module.connect(**where, connect_timeout=5)
        collation = {"charset": "utf8mb4", "collation": "utf8mb4_general_ci"}  # not MySQL 9's default
        return module.connect(**where, **collation, connection_timeout=5)

    def _create(self) -> None:
        options = ["--auth-root-authentication-method=normal", "--skip-test-db", *self._as_root()]
        install = self._program("mariadb-install-db", "/usr/sbin")
        self._program("mariadbd", "/usr/sbin")
        self._run([install, "--no-defaults", f"--datadir={self.folder / 'data'}", *options])

    def _command(self) -> list[str]:
        files = [f"--{name}={self.folder / name}" for name in ("socket", "pid-file")]
        where = ["--bind-address=127.0.0.1", f"--port={self.port}", f"--datadir={self.folder / 'data'}"]
        return [self._program("mariadbd", "/usr/sbin"), "--no-defaults", *where, *files, *self._as_root()]

    def _create_database(self) -> None:
        connection = self.connect("pymysql", "mysql")
        connection.cursor().execute(f"CREATE DATABASE IF NOT EXISTS {DATABASE}")
        connection.close()

    def _first_database(self) -> str:
        return "mysql"

    @staticmethod
    def _as_root() -> list[str]:
        return ["--user=root"] if os.geteuid() == 0 else []


class MysqlServer(MariaServer):
    """MySQL 5.6 from its npm package."""

    name, package = "MySQL", "npm"

    def _create(self) -> None:
        shutil.copytree(mysql_package() / "data" / "mysql", self.folder / "data")

    def _command(self) -> list[str]:
        package = mysql_package()
        files = [f"--{name}={self.folder / name}" for name in ("socket", "pid-file")]
        where = ["--bind-address=127.0.0.1", f"--port={self.port}", f"--datadir={self.folder / 'data'}"]
        own = [f"--basedir={package}", f"--lc-messages-dir={package / 'share'}"]
        small = ["--innodb-buffer-pool-size=16M", "--innodb-log-file-size=4M"]
        return [str(package / "mysqld"), "--no-defaults", *own, *where, *files, *small, *self._as_root()]


SERVERS: Final[dict[str, Callable[[Path], DatabaseServer]]] = {
    "postgresql": PostgresServer,
    "mariadb": MariaServer,
    "mysql": MysqlServer,
}
