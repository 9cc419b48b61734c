"""What is in the distribution, and that what is installed from it works: the broker alone, the source with Spark."""

import pkgutil
import re
import signal
import subprocess
import sys
import tarfile
import textwrap
import zipfile
from contextlib import closing
from pathlib import Path

import metaq_broker
import metaq_console
import pytest
from environments import ROOT, Environment
from fix_broker import RunningBroker

import metaq
import metaq_spark
from metaq_spark.finished_jobs import JOBS

pytestmark = [pytest.mark.slow, pytest.mark.long]


def modules_in_wheel(wheel: Path) -> set[str]:
    names = (Path(name) for name in zipfile.ZipFile(wheel).namelist() if not name.startswith("metaq_spark/jobs/"))
    paths = (name.with_suffix("") for name in names if name.suffix == ".py")
    return {".".join(path.parent.parts if path.name == "__init__" else path.parts) for path in paths}


def files_in_sdist(sdist: Path) -> set[str]:
    with tarfile.open(sdist) as archive:
        return {name.partition("/")[2] for name in archive.getnames()}


def modules_imported_here() -> set[str]:
    """The modules of the installation that runs the tests, which is an editable one."""
    found = {"pyspark_metaq", "pyspark_rocketmq"}
    for package in (metaq, metaq_spark, metaq_broker, metaq_console):
        found.add(package.__name__)
        found.update(module.name for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."))
    return found


def test_wheel_has_its_import_names_and_no_others(wheel: Path) -> None:
    top = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {name for name in top if not name.endswith(".dist-info")} == {
        "metaq",
        "metaq_broker",
        "metaq_console",
        "metaq_spark",
        "pyspark_metaq.py",
        "pyspark_rocketmq.py",
    }


def test_wheel_and_editable_installation_have_the_same_modules(wheel: Path) -> None:
    assert modules_in_wheel(wheel) == modules_imported_here()


def test_the_jobs_and_all_that_they_import_are_in_the_wheel(wheel: Path) -> None:
    """As files for spark-submit, with Spark's settings for them; the demonstrations need a clone."""
    with zipfile.ZipFile(wheel) as archive:
        inside = {name.rpartition("/")[2]: archive.read(name) for name in archive.namelist() if "/jobs/" in name}
    assert {f"{name}.py" for name in JOBS} <= inside.keys()
    here = {path.stem for path in (ROOT / "jobs").glob("*.py")}
    for name, content in inside.items():
        source = ROOT / ("jobs" if name.endswith(".py") else "spark-conf") / name
        assert content == source.read_bytes()
        imported = set(re.findall(r"^ *(?:from|import) (\w+)", content.decode(), re.MULTILINE)) & here
        assert {f"{module}.py" for module in imported} <= inside.keys(), name


def test_two_builds_have_the_same_bytes(wheel: Path, tmp_path: Path) -> None:
    """The second one is made of the source distribution, at another time, in a folder with files of its owner."""
    [sdist] = wheel.parent.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    [source] = tmp_path.iterdir()
    for name in ("env/lib/module.py", "metaq-data/orders-0/0.meta", "my-checkpoint/offsets/0", "first.py"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text("# my own\n")
    again = tmp_path / "again"
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(again), str(source)]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    assert (again / wheel.name).read_bytes() == wheel.read_bytes()
    assert files_in_sdist(again / sdist.name) == files_in_sdist(sdist)


def test_the_description_has_no_links_that_work_in_the_repository_alone(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        text = archive.read(name).decode()
    targets = re.findall(r"(?<!!)\]\(([^)\s]+)\)", text)
    assert "MetaQ for Spark" in text
    assert [target for target in targets if not target.startswith("http")] == []


def test_sdist_has_what_is_needed_to_build_and_to_read(distributions: Path) -> None:
    """Among it every file and folder that the table of CONTRIBUTING.md names."""
    [sdist] = distributions.glob("*.tar.gz")
    names = files_in_sdist(sdist)
    assert {"LICENSE", "README.md", "pyproject.toml", "pyspark_metaq.py", "broker/metaq_broker/cli.py"} <= names
    table = (ROOT / "CONTRIBUTING.md").read_text().partition("## Layout")[2].partition("\n## ")[0]
    layout = re.findall(r"\[`([^`]+?)/?`\]", table)
    assert {name.partition("/")[0] for name in names} >= {"docs", *layout}
    assert not any(name.startswith((".venv/", "dist/", ".git/")) for name in names)


def test_extra_for_spark_takes_a_pandas_that_pyspark_does_not_warn_of(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        [metadata] = (name for name in archive.namelist() if name.endswith("dist-info/METADATA"))
        lines = archive.read(metadata).decode().splitlines()
    [pandas] = (line for line in lines if line.startswith("Requires-Dist: pandas") and "extra == 'spark'" in line)
    assert "<3" in pandas


def test_licence_is_in_the_wheel(wheel: Path) -> None:
    [licence] = (name for name in zipfile.ZipFile(wheel).namelist() if name.endswith("licenses/LICENSE"))
    assert zipfile.ZipFile(wheel).read(licence) == (ROOT / "LICENSE").read_bytes()


ROUND_TRIP = """
    import importlib.util, sys
    from metaq.client.consumer import Consumer
    from metaq.backends.metaq.pool import SessionPool
    from metaq.backends.metaq.puts import put
    from metaq.discovery.fixed import FixedDirectory
    from metaq.model import Address, Message, Partition
    import metaq_broker

    assert importlib.util.find_spec("pyspark") is None and importlib.util.find_spec("numpy") is None
    address, pool = Address.parse(sys.argv[1]), SessionPool()
    with pool.lease(address) as session:
        put(session, "orders", 0, Message(b"first"))
    [frame] = Consumer(FixedDirectory([address], pool), pool).messages("orders", Partition(0, 0))
    print(frame.message.payload.decode())
"""


@pytest.mark.process
def test_broker_and_client_work_without_spark(bare_environment: Environment, tmp_path: Path) -> None:
    command = [bare_environment.folder / "bin" / "metaq-broker", "dev", tmp_path / "data", "--port", "0"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as broker:
        try:
            assert broker.stdout is not None
            ready = re.search(r"ready on (\S+),", broker.stdout.readline())
            assert ready is not None
            said = bare_environment.run(bare_environment.python, "-c", textwrap.dedent(ROUND_TRIP), ready[1])
            assert said == "first\n"
            broker.send_signal(signal.SIGTERM)
            assert broker.wait(60) == 0
        finally:
            broker.kill()


def test_broker_reports_its_version(bare_environment: Environment) -> None:
    said = bare_environment.run(bare_environment.folder / "bin" / "metaq-broker", "--version")
    assert said == f"metaq-broker {metaq.__version__}\n"


@pytest.mark.spark
def test_the_command_for_queries_is_installed(spark_environment: Environment, tmp_path: Path) -> None:
    said = spark_environment.run(spark_environment.folder / "bin" / "metaq-spark", "--version")
    assert said == f"metaq-spark {metaq.__version__}\n"


@pytest.mark.spark
def test_a_job_of_the_wheel_runs(spark_environment: Environment, dev_broker: RunningBroker, tmp_path: Path) -> None:
    command = spark_environment.folder / "bin" / "metaq-spark"
    listed = spark_environment.run(command, "jobs").splitlines()
    assert [line.split()[0] for line in listed] == list(JOBS)
    job = Path(spark_environment.run(command, "jobs", "lines_to_topic").strip())
    assert job.is_relative_to(spark_environment.folder)
    (tmp_path / "lines.txt").write_bytes(b"one\ntwo\n")
    spark_environment.run(
        *("env", f"PYSPARK_PYTHON={spark_environment.python}", spark_environment.python, job),
        *("--brokers", str(dev_broker.address), "--topic", "lines", tmp_path / "lines.txt"),
    )
    with closing(dev_broker.client()) as client:
        _, text = client.result(b"stats lines\r\n")
    assert "message_count 2" in text


FIND_FORMAT = """
    import metaq_spark, os, sys
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    found = spark.read.format("metaq").option("brokers", "127.0.0.1:1").option("subscribe", "orders").load()
    print(metaq_spark.__file__, *found.columns)
    spark.stop()
"""


@pytest.mark.spark
def test_spark_finds_the_format_with_nothing_registered(spark_environment: Environment) -> None:
    said = spark_environment.run(spark_environment.python, "-c", textwrap.dedent(FIND_FORMAT)).split()
    assert Path(said[0]).is_relative_to(spark_environment.folder)
    assert {"topic", "partition", "offset", "value"} <= set(said[1:])
