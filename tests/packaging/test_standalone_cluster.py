"""On a real cluster, in the ways that docs/deploy.md names: the package reaches the executors and a pipeline runs."""

from __future__ import annotations

import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest
from environments import Environment, make_environment
from fix_broker import StartBroker
from standalone import Cluster, standalone_cluster

from metaq.backends.metaq.pool import shared_pool
from metaq.backends.metaq.puts import put
from metaq.model import Address, Message

pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.slow, pytest.mark.long]

JOB = Path(__file__).with_name("cluster_job.py")
MESSAGES = 500


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with standalone_cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture(scope="module")
def environment_without_us(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """Spark, Arrow and the rest, as on a node where this project was never installed."""
    environment = make_environment(tmp_path_factory.mktemp("without-us"))
    [packages] = (environment.folder / "lib").glob("python*/site-packages")
    (packages / "packages_of_the_tests.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return environment


def filled_topic(start_broker: StartBroker) -> Address:
    """A broker with ``MESSAGES`` messages in the four partitions of the topic ``in``."""
    address = start_broker("dev", "--port", "0", "--partitions", "4").address
    with shared_pool().lease(address) as session:
        for number in range(MESSAGES):
            put(session, "in", number % 4, Message(b"message %d" % number))
    return address


def pipeline(
    cluster: Cluster, environment: Environment, brokers: Address, folder: Path, variables: dict[str, str], *conf: str
) -> str:
    settings = [part for setting in conf for part in ("--conf", setting)]
    arguments = [*settings, JOB, str(brokers), "in", "out", folder / "checkpoint", "delivery=exactly_once"]
    return cluster.submit(environment.python, arguments, variables, environment.folder)


def test_installed_on_every_node(
    cluster: Cluster, spark_environment: Environment, start_broker: StartBroker, tmp_path: Path
) -> None:
    said = pipeline(cluster, spark_environment, filled_topic(start_broker), tmp_path, {})
    assert f"rows: {MESSAGES} different: {MESSAGES}" in said
    assert "executors: 2" in said


def test_the_wheel_on_the_python_path_of_driver_and_executors(
    cluster: Cluster, environment_without_us: Environment, wheel: Path, start_broker: StartBroker, tmp_path: Path
) -> None:
    path = {"PYTHONPATH": str(wheel)}
    executors = f"spark.executorEnv.PYTHONPATH={wheel}"
    said = pipeline(cluster, environment_without_us, filled_topic(start_broker), tmp_path, path, executors)
    assert f"rows: {MESSAGES} different: {MESSAGES}" in said
