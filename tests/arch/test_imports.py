"""Who may import whom: the rules that let executors run without the broker, and the broker without Spark."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Collection
from dataclasses import dataclass

import pytest
from examples import in_one_test
from sources import ROOT, Source, imports, parse, sources

PROCESS = ("metaq_broker.operate.control", "metaq_broker.app", "metaq_broker.process")
CORE_ABOVE = ("metaq_broker.text", "metaq_broker.rocketmq", *PROCESS)
REQUESTS_OF_ROCKETMQ = tuple(
    f"metaq_broker.rocketmq.{part}"
    for part in (
        *("session", "dispatcher", "refusals", "server", "front_end", "access", "system_topics", "parts", "standby"),
        *("sends", "pulls", "messages", "administration", "nameserver", "registration", "name_server_link"),
    )
)
"""What speaks RocketMQ's protocol; the rules about groups, delays and half messages know nothing of it."""
STANDARD = frozenset(sys.stdlib_module_names)
SPARK = frozenset({"pyspark", "pyarrow", "py4j", "pandas"})
ABOVE = ("discovery", "client", "operate", "testing")
REMOTING = tuple(f"remoting_{part}.py" for part in ("connection", "links", "client", "requests"))
"""Of metaq/net: a channel of RocketMQ's protocol needs sockets, threads and clocks."""
IO = frozenset({"socket", "asyncio", "select", "selectors", "ssl", "threading", "time", "logging", "os", "kazoo"})


@dataclass(frozen=True)
class Forbidden:
    """No file below ``folder`` imports any of ``names``, except the files and folders in ``doors``."""

    folder: str
    names: frozenset[str]
    doors: frozenset[str] = frozenset()


def forbidden(folder: str, *names: str, doors: tuple[str, ...] = ()) -> Forbidden:
    return Forbidden(folder, frozenset(names), frozenset(f"{folder}/{door}" for door in doors))


RULES = [
    # packages know only those below them
    forbidden("metaq", "metaq_spark", "metaq_broker", "metaq_console", *SPARK),
    forbidden("metaq_spark", "metaq_broker", "metaq_console"),
    forbidden("broker/metaq_broker", "metaq_spark", "metaq_console", *SPARK),
    forbidden("console/metaq_console", "metaq_broker", *SPARK),
    forbidden("console/metaq_console", "metaq_spark", doors=("queries",)),
    forbidden("jobs", "metaq_broker", "metaq_console"),
    # only the backends of the connector speak to brokers; nothing else of it builds a command or opens a connection
    forbidden(
        "metaq_spark", "metaq.protocols", "metaq.backends", "metaq.discovery", "metaq.client", doors=("backends",)
    ),
    *(
        forbidden(f"metaq_spark/{part}", "metaq_spark.backends")
        for part in ("source", "sink", "options", "columns", "checkpoint", "lag", "offsets.py", "datasource.py")
    ),
    forbidden("metaq_spark/backends/metaq", "metaq.protocols.remoting", "metaq.backends.rocketmq"),
    # inside metaq: model, formats, protocols, net, backends, discovery, client
    forbidden("metaq/formats", *(f"metaq.{name}" for name in ("protocols", "net", "backends", *ABOVE)), *IO),
    forbidden("metaq/protocols", *(f"metaq.{name}" for name in ("net", "backends", *ABOVE)), *IO),
    forbidden("metaq/net", *(f"metaq.{name}" for name in ("formats", "backends", *ABOVE)), "metaq.protocols.text"),
    forbidden("metaq/net", "metaq.protocols", doors=REMOTING),
    forbidden("metaq/backends", *(f"metaq.{name}" for name in ABOVE)),
    forbidden("metaq/backends/metaq", "metaq.backends.rocketmq", "metaq.protocols.remoting", "metaq.formats.rocketmq"),
    forbidden("metaq/backends/rocketmq", "metaq.backends.metaq", "metaq.protocols.text"),
    forbidden("metaq/discovery", "metaq.client", "metaq.operate", "metaq.testing"),
    forbidden("metaq/client", "metaq.cli", "metaq.operate", "metaq.testing"),
    forbidden("metaq/operate", "metaq.cli", "metaq.testing"),
    forbidden(
        "metaq/cli",
        "metaq.backends",
        "metaq.discovery",
        "metaq.protocols",
        "metaq.net",
        "metaq.testing",
        doors=("profile.py",),
    ),
    forbidden("metaq/model.py", "metaq"),
    *(forbidden("metaq/errors.py", f"metaq.{name}") for name in ("formats", "protocols", "net", "backends", *ABOVE)),
    forbidden("metaq/statuses.py", "metaq"),
    # time, network and ZooKeeper have one door each
    forbidden("metaq", "socket", doors=("net/transport.py", "net/loopback.py", "net/duplex.py", "testing/ports.py")),
    forbidden("metaq", "time", doors=("net/clock.py",)),
    forbidden("metaq", "kazoo", doors=("discovery/zk_client.py",)),
    forbidden("metaq", "pytest", doors=("testing/pytest_plugin.py",)),
    forbidden("broker/metaq_broker", "time", doors=("clock.py",)),
    # the broker's core knows no protocol, and its data no operating system
    *(
        forbidden(f"broker/metaq_broker/{part}", "metaq.protocols", "metaq.backends")
        for part in ("log", "transactions", "operate", "replication", "serve", "statistics.py", "histogram.py")
    ),
    *(
        forbidden(f"broker/metaq_broker/{part}", "metaq.formats.rocketmq", *CORE_ABOVE)
        for part in (
            *("log", "transactions", "serve"),
            *("operate/registration", "operate/monitoring", "operate/config"),
        )
    ),
    forbidden("broker/metaq_broker/log/engine", "socket"),
    forbidden(
        *("broker/metaq_broker/log", "os", "socket", "metaq_broker.log.engine"),
        doors=("engine", "retention", "files/files.py", "files/open_files.py"),
    ),
    forbidden(
        *("broker/metaq_broker/transactions", "os", "socket", "metaq_broker.log.engine.engine"),
        doors=("partitions.py",),
    ),
    forbidden("broker/metaq_broker/replication", "metaq.formats.rocketmq", *CORE_ABOVE[:2], "metaq_broker.app"),
    # the core of a pair is driven by events: a simulator runs the code that the broker runs
    forbidden(
        *("broker/metaq_broker/replication/pair", *IO, "io", "pathlib", "random", "uuid", "datetime"),
        *(f"metaq_broker.{name}" for name in ("clock", "operate", "serve", "text", "transactions", "rocketmq")),
        *(f"metaq_broker.log.{name}" for name in ("engine", "files", "partitions", "retention", "segments", "sync")),
    ),
    forbidden("broker/metaq_broker/serve", "metaq_broker.log.engine", "metaq_broker.transactions"),
    # RocketMQ's protocol is carried without MetaQ's, its rules without either, and its name server has no log
    forbidden("broker/metaq_broker/rocketmq", "metaq_broker.text"),
    *(
        forbidden(
            *(f"broker/metaq_broker/rocketmq/{part}", "metaq.protocols", "metaq.backends", "metaq.formats.rocketmq"),
            *(*PROCESS, *REQUESTS_OF_ROCKETMQ),
            doors=requests,
        )
        for part, requests in {
            "groups": (
                *("member_requests.py", "offset_requests.py", "client_questions.py", "replies.py", "retries.py"),
                "unused_groups.py",
            ),
            "delays": ("delays.py", "recalls.py", "waiting_messages.py", "waiting_parts.py"),
            "half_messages": ("transactions.py",),
            "key_index": (),
            "moves": (),
        }.items()
    ),
    *(
        forbidden(f"broker/metaq_broker/rocketmq/{part}", "metaq_broker.rocketmq.nameserver")
        for part in ("sends", "messages", "pulls", "groups", "delays", "half_messages", "administration", "session.py")
    ),
    forbidden(
        "broker/metaq_broker/rocketmq/nameserver",
        *(f"metaq_broker.{part}" for part in ("log.engine", "log.retention", "transactions", "replication", "text")),
    ),
]

FOREIGN_PACKAGES = {
    # folder -> what may be imported beside the standard library and the project's own packages; of metaq's, all but
    # kazoo only if they are installed
    "metaq": {"kazoo", "isal", "lz4", "zstandard", "pytest", "numpy", "numba", "llvmlite"},
    "broker/metaq_broker": {"croniter", "prometheus_client", "kazoo", "isal", "numpy", "numba"},
    "console/metaq_console": {"starlette", "uvicorn", "h11", "jinja2", "markupsafe", "lz4", "zstandard"},
}
OWN = {"metaq", "metaq_spark", "metaq_broker", "metaq_console"}

SPEAKERS = frozenset(
    {
        "metaq/protocols",
        "metaq/backends",
        "metaq_spark/backends",
        *(f"metaq/net/{module}" for module in REMOTING),  # the channel below RocketMQ's backend and frontend
        "metaq/testing",  # brokers and name servers in memory: the other end of a connection
        "broker/metaq_broker/text",
        "broker/metaq_broker/rocketmq",
    }
)
"""All that may know a protocol's commands; everything else asks them with typed calls."""


PACKAGES_OF_THE_PAGE = re.findall(
    r"^\| `((?:metaq|jobs)[\w.]*)/?` \| .* \| ([^|]*) \|$",
    (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8").partition("## Four paths")[0],
    re.MULTILINE,
)
"""The rows of the page's table of packages: name, imports."""


def names_it(name: str, forbidden_name: str) -> bool:
    return name == forbidden_name or name.startswith(forbidden_name + ".")


def below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder + "/")


def violations(rule: Forbidden, source: Source) -> list[str]:
    if any(below(source.path, door) for door in rule.doors) or not below(source.path, rule.folder):
        return []
    return [
        f"{source.path}:{line} imports {name}"
        for name, line in imports(source)
        if any(names_it(name, each) for each in rule.names)
    ]


ALL_FOLDERS = ("metaq", "metaq_spark", "broker/metaq_broker", "console/metaq_console", "jobs")


@in_one_test("rule", RULES)
def test_forbidden_imports(rule: Forbidden) -> None:
    assert (ROOT / rule.folder).exists(), "the rule is about nothing"
    assert [row for source in sources(*ALL_FOLDERS) for row in violations(rule, source)] == []


@in_one_test("package, listed", PACKAGES_OF_THE_PAGE)
def test_a_package_imports_what_the_architecture_lists(package: str, listed: str) -> None:
    imported = {name for source in sources(place_of(package)) for name, _ in imports(source) if lists(name, package)}
    allowed = {absolute(name, package) for name in re.findall(r"[\w.]+", listed)} - {"nothing"}
    assert {name for name in imported if not any(names_it(name, each) for each in allowed)} == set()
    assert {each for each in allowed if not any(names_it(name, each) for name in imported)} == set()


def test_the_architecture_lists_every_folder_of_metaq_and_of_the_broker() -> None:
    named = {package for package, _ in PACKAGES_OF_THE_PAGE} | {"metaq.backends"}
    assert {
        f"{package}.{folder.name}"
        for package in ("metaq", "metaq_broker", "metaq_console")
        for folder in (ROOT / place_of(package)).iterdir()
        if any(folder.glob("*.py")) and f"{package}.{folder.name}" not in named
    } == set()


def place_of(name: str) -> str:
    """The folder of a dotted name, as a path below the root."""
    above = {"metaq_broker": "broker/", "metaq_console": "console/"}.get(name.partition(".")[0], "")
    return above + name.replace(".", "/")


def absolute(name: str, package: str) -> str:
    """A name that the page lists for ``package``; folders of the same top package are named without it."""
    whole = f"{package.partition('.')[0]}.{name}"
    return whole if (ROOT / place_of(whole)).is_dir() else name


def lists(name: str, package: str) -> bool:
    """Whether the page lists that ``package`` imports ``name``: of another folder, or of a package from outside."""
    top, *rest = name.split(".")
    if top not in OWN:
        return top not in STANDARD and not (ROOT / place_of(package) / f"{top}.py").exists()
    return not names_it(name, package) and bool(rest) and (ROOT / place_of(f"{top}.{rest[0]}")).is_dir()


@pytest.mark.parametrize("folder", ALL_FOLDERS)
def test_only_backends_and_frontends_import_a_protocol(folder: str) -> None:
    assert all((ROOT / speaker).exists() for speaker in SPEAKERS), "the rule excepts nothing"
    assert speakers_beside(sources(folder)) == []


def test_a_protocol_in_the_wrong_place_is_found() -> None:
    text = "from metaq.protocols.text.commands import Get\n"
    paths = ("broker/metaq_broker/replication/x.py", "broker/metaq_broker/text/x.py", "metaq/net/x.py")
    found = speakers_beside(tuple(parse(path, text) for path in paths))
    assert [row.split(":")[0] for row in found] == [paths[0], paths[2]]


def speakers_beside(modules: tuple[Source, ...]) -> list[str]:
    """Return the imports of a protocol in modules that are not among ``SPEAKERS``."""
    return [
        f"{source.path}:{line} imports {name}"
        for source in modules
        if not any(below(source.path, speaker) for speaker in SPEAKERS)
        for name, line in imports(source)
        if names_it(name, "metaq.protocols")
    ]


@pytest.mark.parametrize("folder", FOREIGN_PACKAGES)
def test_foreign_packages_are_the_known_ones(folder: str) -> None:
    allowed = STANDARD | OWN | FOREIGN_PACKAGES[folder]
    rows = [
        f"{source.path}:{line} imports {name}"
        for source in sources(folder)
        for name, line in imports(source)
        if name.partition(".")[0] not in allowed
    ]
    assert rows == []


def test_no_import_climbs_out_of_its_package() -> None:
    rows = [
        f"{source.path}:{line}" for source in sources(*ALL_FOLDERS) for name, line in imports(source) if name == ".."
    ]
    assert rows == []


def test_modules_form_no_circle() -> None:
    """A module that needs itself, over whatever detour, cannot be understood or tested alone."""
    assert circular(sources(*ALL_FOLDERS[:-1])) == set()


@pytest.mark.parametrize("folder", ALL_FOLDERS[:-1])
def test_folders_form_no_circle(folder: str) -> None:
    """Folders that need each other are one folder. Imports in functions count; those for types do not."""
    assert circular_folders(sources(folder), folder.rpartition("/")[2]) == set()


def circular(modules: tuple[Source, ...]) -> set[str]:
    """Return the modules that stand on a circle of run-time imports, or need one that does."""
    return _on_circles(_needs(modules))


def circular_folders(modules: tuple[Source, ...], package: str) -> set[str]:
    """The folders that stand on a circle, or need one that does. A module beside them is a folder of its own.

    A folder in a folder is part of it: their modules may need each other.
    """
    folders: dict[str, set[str]] = {}
    for module, targets in _needs(modules).items():
        folders.setdefault(_folder(module, package), set()).update(_folder(target, package) for target in targets)
    return _on_circles({folder: targets - {folder} for folder, targets in folders.items()})


def _folder(module: str, package: str) -> str:
    """The folder below ``package``, or below its folder of several backends, protocols or operators' tools.

    The engine is a folder of its own, on top of the rest of the log.
    """
    names = module.removeprefix(package).strip(".").split(".")
    is_deeper = names[0] in ("backends", "protocols", "operate") or names[:2] == ["log", "engine"]
    return ".".join(names[:2] if is_deeper else names[:1])


def _needs(modules: tuple[Source, ...]) -> dict[str, set[str]]:
    imported = {module.module: {name for name, _ in imports(module, for_types=False)} for module in modules}
    return {module: _modules_among(names, imported.keys()) - {module} for module, names in imported.items()}


def _on_circles(needs: dict[str, set[str]]) -> set[str]:
    while free := {name for name, targets in needs.items() if not targets}:
        needs = {name: targets - free for name, targets in needs.items() if name not in free}
    return set(needs)


def _modules_among(names: set[str], modules: Collection[str]) -> set[str]:
    # `from a.b import c` needs a.b.c if that is a module, a.b otherwise
    return {name if name in modules else name.rpartition(".")[0] for name in names} & set(modules)


COMPILED_LOOPS = (
    "metaq.compiled.addresses",
    "metaq.formats.frame_loops",
    "metaq_broker.rocketmq.sends.batch_loop",
    "metaq_broker.rocketmq.messages.record_loop",
)
"""Modules that need numba: imported on first use, in a ``try``."""

BLOCKED = ("pyspark", "pyarrow", "pandas", "py4j", "numba", "numpy", "metaq_spark")

IMPORT_EVERYTHING = f"""
import importlib, pkgutil, sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {BLOCKED!r}:
            raise ModuleNotFoundError(f"{{name}} is blocked", name=name)

sys.meta_path.insert(0, Blocker())
for blocked in {BLOCKED!r}:
    assert blocked not in sys.modules, blocked
names = []
for top in ("metaq", "metaq_broker"):
    package = importlib.import_module(top)
    names.append(top)
    for info in pkgutil.walk_packages(package.__path__, top + "."):
        if not info.name.endswith("__main__") and info.name not in {COMPILED_LOOPS!r}:
            importlib.import_module(info.name)
        names.append(info.name)
print("\\n".join(names))
"""


@pytest.mark.process
def test_queue_and_broker_run_without_spark() -> None:
    """Every module, in a process of its own where nothing of Spark can be imported."""
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_EVERYTHING], capture_output=True, text=True, timeout=120, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) == {source.module for source in sources("metaq", "broker/metaq_broker")}


class TestTheRulesThemselves:
    """A rule that finds nothing anywhere is no rule: each way to import is planted once."""

    @in_one_test(
        "path, text",
        [
            ("metaq/protocols/text/x.py", "import socket"),
            ("metaq/protocols/text/x.py", "import os.path as p"),
            ("metaq/protocols/text/x.py", "from os import path"),
            ("metaq/protocols/text/x.py", "def f():\n    import time"),
            ("metaq/protocols/text/x.py", "if TYPE_CHECKING:\n    from asyncio import Task"),
            ("metaq/protocols/text/x.py", "from ...client import session"),
            ("metaq/protocols/text/x.py", "from metaq import client"),
            ("metaq/client/x.py", "import importlib\nimportlib.import_module('pyspark.sql')"),
            ("metaq/client/x.py", "__import__('metaq_broker')"),
            ("metaq/client/x.py", "from socket import create_connection"),
            ("metaq_spark/x.py", "from metaq_broker.log.partitions import x"),
            ("metaq/cli/x.py", "import metaq_console.app"),
            ("console/metaq_console/cluster/x.py", "from metaq_spark.diagnosis import diagnose"),
            ("console/metaq_console/api/x.py", "from metaq_broker.log import engine"),
            ("metaq_spark/source/x.py", "from metaq.backends.metaq.session import Session"),
            ("metaq_spark/lag/x.py", "def f():\n    from metaq_spark.backends.metaq import lag_lookup"),
            ("metaq_spark/backend.py", "import metaq.protocols.text.commands"),
            ("broker/metaq_broker/x.py", "import pyarrow as pa"),
            ("broker/metaq_broker/log/engine/engine.py", "from metaq.protocols.text import commands"),
            ("broker/metaq_broker/transactions/x.py", "from .. import text"),
            ("broker/metaq_broker/log/partitions/x.py", "from metaq.formats.rocketmq import tags"),
            ("broker/metaq_broker/operate/monitoring/x.py", "from metaq_broker.text.session import TextSession"),
            ("broker/metaq_broker/rocketmq/groups/x.py", "import metaq_broker.rocketmq.dispatcher"),
        ],
    )
    def test_a_planted_import_is_found(self, path: str, text: str) -> None:
        assert [row for rule in RULES for row in violations(rule, parse(path, text))]

    @pytest.mark.parametrize(
        ("path", "text"),
        [
            ("metaq/net/transport.py", "import socket"),
            ("metaq/protocols/text/x.py", "from metaq.model import Message\nfrom .frames import walk\nimport struct"),
            ("metaq/protocols/text/x.py", "import timeit, ossaudiodev"),
            ("metaq_spark/x.py", "import pyspark, pyarrow, metaq.model"),
            ("metaq_spark/backends/metaq/x.py", "from metaq.protocols.text import commands"),
        ],
    )
    def test_an_allowed_import_is_not(self, path: str, text: str) -> None:
        assert [row for rule in RULES for row in violations(rule, parse(path, text))] == []

    def test_climbing_out_is_seen(self) -> None:
        for path, text in (("metaq/x.py", "from .. import y"), ("metaq/protocols/text/x.py", "from .....y import z")):
            assert [name for name, _ in imports(parse(path, text))] == [".."]
        assert [name for name, _ in imports(parse("metaq/net/x.py", "from .. import model"))] == ["metaq.model"]
        assert [name for name, _ in imports(parse("metaq/protocols/__init__.py", "from . import x"))] == [
            "metaq.protocols.x"
        ]

    def test_a_circle_is_seen(self) -> None:
        one = parse("metaq/one.py", "from metaq.two import x")
        two = parse("metaq/two.py", "def f():\n    from metaq import three")
        three = parse("metaq/three.py", "import metaq.one")
        assert circular((one, two, three)) == {"metaq.one", "metaq.two", "metaq.three"}
        assert circular((one, two)) == set()
        typing_only = parse("metaq/three.py", "if TYPE_CHECKING:\n    import metaq.one")
        assert circular((one, two, typing_only)) == set()

    def test_a_circle_of_folders_is_seen(self) -> None:
        one = parse("metaq/net/one.py", "from metaq.client.two import x")
        two = parse("metaq/client/two.py", "def f():\n    from metaq.net import three")
        three = parse("metaq/net/three.py", "import struct")
        assert circular_folders((one, two, three), "metaq") == {"net", "client"}
        assert circular((one, two, three)) == set()
        assert circular_folders((one, parse("metaq/client/two.py", ""), three), "metaq") == set()
