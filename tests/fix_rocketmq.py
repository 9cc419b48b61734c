"""Fixtures that run real RocketMQ servers and Java clients (peers/rocketmq), for ``tests/rocketmq``.

They run if ``METAQ_ROCKETMQ`` says so: ``1`` for both releases, or the releases with commas between them. Without it,
and where a release cannot be fetched, the tests are skipped and say why. ``make test-rocketmq`` sets it.

``rocketmq`` is a cluster for the whole session, once for each release: one name server, one master ``broker-a``. Tests
share it, so each makes topics of its own (``topic``), and none stops its servers. ``rocketmq_release`` with ``Cluster``
is for those that want servers of their own.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from peers.rocketmq.jars import MODULES, Release, Unavailable, release
from peers.rocketmq.programs import DEADLINE_S, Programs
from peers.rocketmq.servers import Cluster

FULL_DEADLINE_S = 900.0
"""For a Java program that writes or dumps a million messages on a busy machine."""

_numbers = itertools.count()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that uses ``rocketmq_version`` in any way runs once for each release."""
    if "rocketmq_version" in metafunc.fixturenames:
        only = metafunc.definition.get_closest_marker("rocketmq_only")
        versions = [each for each in MODULES if only is None or each in only.args]
        metafunc.parametrize("rocketmq_version", versions, scope="session")


@pytest.fixture(scope="session")
def rocketmq_version() -> str:
    """The release, e.g. ``5.5.0``: parametrized by ``pytest_generate_tests``."""
    raise AssertionError("not parametrized")


@pytest.fixture(scope="session")
def rocketmq_release(rocketmq_version: str) -> Release:
    """The release's jars and compiled programs; the test is skipped if it is not asked for, or cannot be had."""
    asked = os.environ.get("METAQ_ROCKETMQ")
    if not asked:
        pytest.skip("METAQ_ROCKETMQ is not set (make test-rocketmq; docs/testing.md, RocketMQ)")
    if asked != "1" and rocketmq_version not in asked.split(","):
        pytest.skip(f"METAQ_ROCKETMQ asks for {asked} only")
    try:
        return release(rocketmq_version)
    except Unavailable as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="session")
def rocketmq(rocketmq_release: Release, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A name server and a master with defaults, shared by all tests of the session."""
    folder = tmp_path_factory.mktemp(f"rocketmq-{rocketmq_release.version}")
    with Cluster(rocketmq_release, folder) as cluster:
        cluster.start_name_server()
        cluster.start_broker("broker-a")
        yield cluster


@pytest.fixture
def rocketmq_programs(rocketmq: Cluster) -> Programs:
    """The Java clients, on the shared cluster."""
    deadline_s = FULL_DEADLINE_S if os.environ.get("METAQ_ROCKETMQ_FULL") == "1" else DEADLINE_S
    return Programs(rocketmq.release, rocketmq.name_servers, deadline_s=deadline_s)


@pytest.fixture
def rocketmq_topic(rocketmq: Cluster) -> Callable[..., str]:
    """Makes a topic that no other test uses on the shared cluster; takes ``create_topic``'s arguments but the name."""

    def make(queues: int = 8, **more: Any) -> str:
        name = f"topic-{os.getpid()}-{next(_numbers)}"
        rocketmq.create_topic(name, queues, **more)
        return name

    return make


@pytest.fixture
def rocketmq_cluster(rocketmq_release: Release, tmp_path: Path) -> Iterator[Cluster]:
    """An empty cluster of the test's own: start servers in it, stop and kill them."""
    with Cluster(rocketmq_release, tmp_path / "rocketmq") as cluster:
        yield cluster


@pytest.fixture
def dumped(rocketmq_programs: Programs, tmp_path: Path) -> Callable[..., list[Mapping[str, Any]]]:
    """All messages of a topic as the Java client sees them, in the order of broker, queue and queue offset."""

    def dump(topic: str, **more: object) -> list[Mapping[str, Any]]:
        file = tmp_path / f"{topic}.jsonl"
        rocketmq_programs.dump(topic, file, **more)
        return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]

    return dump
