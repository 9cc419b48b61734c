"""Every kind of client against every server; what passes goes to a file, shown in docs/rocketmq-broker.md.

``make test-rocketmq`` runs them against this project's broker. ``METAQ_ROCKETMQ_PROVE=1`` runs them against RocketMQ
4.9.7, too, and some against 5.5.0, which shows that the client programs and the tests are right.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from servers import CHECKS, OurServer, RealServer, Server

from peers.rocketmq.clients import NAMES, Client, client
from peers.rocketmq.conversation import Conversation
from peers.rocketmq.jars import Unavailable, release
from peers.rocketmq.servers import Cluster

OURS, REFERENCE = "ours", "4.9.7"
RESULTS = Path(__file__).with_name("results.json")
_numbers = itertools.count()
_outcomes: dict[tuple[str, str], str] = {}

Converse = Callable[..., Conversation]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """``server_name`` and ``client_name`` are parameters of tests that use them.

    A module may name ``CLIENTS``, and the ``REFERENCES`` to which it is compared.
    """
    if "server_name" in metafunc.fixturenames:
        proving = os.environ.get("METAQ_ROCKETMQ_PROVE") == "1"
        references = getattr(metafunc.module, "REFERENCES", (REFERENCE,))
        metafunc.parametrize("server_name", [OURS, *references] if proving else [OURS], scope="session")
    if "client_name" in metafunc.fixturenames:
        metafunc.parametrize("client_name", getattr(metafunc.module, "CLIENTS", NAMES), scope="session")


@pytest.fixture(scope="session", autouse=True)
def _asked_for() -> None:
    if not os.environ.get("METAQ_ROCKETMQ"):
        pytest.skip("METAQ_ROCKETMQ is not set (make test-rocketmq; docs/testing.md, RocketMQ)")


@pytest.fixture(scope="session")
def server_name() -> str:
    """Parametrized by ``pytest_generate_tests``."""
    raise AssertionError("not parametrized")


@pytest.fixture(scope="session")
def client_name() -> str:
    """Parametrized by ``pytest_generate_tests``."""
    raise AssertionError("not parametrized")


@pytest.fixture(scope="session")
def server(server_name: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that all tests share; each makes topics and groups of its own."""
    folder = tmp_path_factory.mktemp(f"server-{server_name}")
    if server_name == OURS:
        with OurServer(folder, CHECKS) as ours:
            yield ours
        return
    try:
        there = release(server_name)
    except Unavailable as reason:
        pytest.skip(str(reason))
    with Cluster(there, folder) as cluster:
        yield RealServer(cluster)


@pytest.fixture(scope="session")
def kind(client_name: str) -> Client:
    """The client of the test; skipped where it cannot be had."""
    try:
        return client(client_name)
    except Unavailable as reason:
        pytest.skip(str(reason))


@pytest.fixture(autouse=True)
def _can_read_routes(request: pytest.FixtureRequest) -> None:
    """Skip tests of the Rust client at a release whose routes have no ``enableActingMaster``: it fails on these."""
    if not {"server_name", "kind"} <= set(request.fixturenames):
        return
    if request.getfixturevalue("server_name") == REFERENCE and request.getfixturevalue("kind").name == "rust":
        pytest.skip(f"the Rust client cannot read routes of RocketMQ {REFERENCE}")


@pytest.fixture
def converse(server: Server, kind: Client, tmp_path: Path) -> Iterator[Converse]:
    """Starts programs of the client on the server and waits until they are ready; they end with the test."""
    with ExitStack() as stack:

        def start(role: str, group: str, **arguments: object) -> Conversation:
            made = Conversation(kind, server.name_servers, tmp_path, role=role, group=group, **arguments)
            return stack.enter_context(made).ready()

        yield start


@pytest.fixture
def topic(server: Server) -> Callable[[int], str]:
    def make(queues: int) -> str:
        name = f"clients-{os.getpid()}-{next(_numbers)}"
        server.create_topic(name, queues)
        return name

    return make


@pytest.fixture
def group() -> str:
    return f"group-{os.getpid()}-{next(_numbers)}"


@pytest.fixture(autouse=True)
def _has_feature(request: pytest.FixtureRequest) -> None:
    """Skip a test of a feature that the client does not have."""
    marker = request.node.get_closest_marker("feature")
    if marker is not None and "kind" in request.fixturenames:
        kind: Client = request.getfixturevalue("kind")
        if marker.args[0] not in kind.features:
            pytest.skip(f"{kind.name} has no {marker.args[0]}")
        at_reference = request.getfixturevalue("server_name") == REFERENCE
        if marker.args[0] == "lite" and kind.name == "java-5.5.0" and at_reference:
            pytest.skip(f"a lite pull consumer of 5.x pulls with code 361, which RocketMQ {REFERENCE} does not know")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Note what the broker did for the client in ``RESULTS``."""
    report: pytest.TestReport = yield
    marker, call = item.get_closest_marker("feature"), getattr(item, "callspec", None)
    counts = report.when == "call" or report.failed
    if counts and marker is not None and call is not None and call.params.get("server_name") == OURS:
        _note(call.params["client_name"], marker.args[0], report)
    return report


def _note(client_name: str, feature: str, report: pytest.TestReport) -> None:
    """A feature with several tests passes if all of them do."""
    if report.skipped and not hasattr(report, "wasxfail"):
        return
    outcome = "yes" if report.passed else f"no: {getattr(report, 'wasxfail', '') or 'its test fails'}"
    if _outcomes.setdefault((client_name, feature), outcome) == "yes":
        _outcomes[client_name, feature] = outcome
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    results.setdefault(client_name, {})[feature] = _outcomes[client_name, feature]
    RESULTS.write_text(json.dumps(results, indent=2, sort_keys=True) + "\n")
