"""The README is a promise: its example runs as it stands, and its tables say what the code says."""

import re
from pathlib import Path

import pytest
from examples import in_one_test
from fix_broker import StartBroker
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from metaq.model import Address
from metaq_spark.backends.metaq.options import OPTIONS
from metaq_spark.backends.metaq.sink import SINK_COLUMNS
from metaq_spark.columns.row_layout import COLUMN_TYPES
from metaq_spark.options.table import ANY, READ, UNSET, WRITE, Use

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def table_behind(words: str) -> dict[str, str]:
    """First and second column of the first table behind ``words``; a row that names several gives several entries."""
    [block] = re.findall(rf"{re.escape(words)}\n\n((?:\|.*\n)+)", README)
    rows = [[cell.strip() for cell in line.strip("|\n").split("|")] for line in block.splitlines()[2:]]
    return {name: row[1] for row in rows for name in re.findall(r"`(\w+)`", row[0])}


def shown_default(option: str, uses: frozenset[Use]) -> str:
    [found] = (known for known in OPTIONS if known.name == option)
    defaults = [found.default_for(use) for use in Use if use in uses & found.uses]
    if defaults[0] == UNSET:
        return "none"
    one, *others = dict.fromkeys(f"`{default}`" for default in defaults)
    return one + "".join(f"; stream: {other}" for other in others)


def test_table_of_the_commonest_options() -> None:
    [block] = re.findall(r"\| option \| for \| default \| \|\n\|[-|]+\n((?:\|.*\n)+)", README)
    rows = [[cell.strip() for cell in line.strip("|\n").split("|")] for line in block.splitlines()]
    words = {"any": ANY, "read": READ, "stream": frozenset({Use.STREAM_READ}), "write": WRITE}
    known = {option.name: option for option in OPTIONS}
    assert len(rows) == 8
    for name, use, default, _ in rows:
        assert known[name.strip("`")].uses == words[use]
        assert default == shown_default(name.strip("`"), words[use])


def test_table_of_the_columns_of_a_read() -> None:
    shown = table_behind("A read gives one row per message:")
    assert shown.items() <= {name: kind.simpleString() for name, kind in COLUMN_TYPES.items()}.items()
    assert len(shown) == 8


def test_table_of_the_columns_of_a_write() -> None:
    shown = table_behind("A write takes these; anything else is refused:")
    assert {name: re.split(", | or ", text) for name, text in shown.items()}.items() <= {
        name: column.spelled.split(" or ") for name, column in SINK_COLUMNS.items()
    }.items()
    assert len(shown) == 6


def documents() -> list[Path]:
    return [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("broker/*.md")]


@in_one_test("document", documents())
def test_links_lead_somewhere(document: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", document.read_text(encoding="utf-8"))
    absent = [target for target in targets if "://" not in target and not (document.parent / target).exists()]
    assert not absent


@pytest.mark.spark
@pytest.mark.process
def test_example_runs(spark: SparkSession, start_broker, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broker = start_broker("dev", tmp_path / "data", "--port", "0")
    [example] = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    example = example.replace("127.0.0.1:8123", str(broker.address))
    exec(example.replace("loud_orders_progress", str(tmp_path / "progress")), {})
    shown = capsys.readouterr().out.splitlines()
    assert shown[1] == "|     value|"
    assert sorted(shown[3:5]) == ["|   ONE TEA|", "|TWO SCONES|"]


def run_example(broker: Address, folder: Path) -> None:
    [example] = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    exec(example.replace("127.0.0.1:8123", str(broker)).replace("loud_orders_progress", str(folder / "progress")), {})


@pytest.mark.spark
@pytest.mark.process
def test_example_runs_again_with_a_restarted_broker(
    spark: SparkSession, start_broker: StartBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As the README starts the broker: with a folder."""
    assert "metaq-broker dev metaq-data\n" in README
    for rows in (2, 4):
        broker = start_broker("dev", tmp_path / "data", "--port", "0")
        run_example(broker.address, tmp_path)
        assert capsys.readouterr().out.count("|   ONE TEA|") == rows // 2
        assert broker.stop() == 0


@pytest.mark.spark
@pytest.mark.process
def test_example_with_a_broker_that_forgot_its_messages(
    spark: SparkSession, start_broker: StartBroker, tmp_path: Path
) -> None:
    """Without a folder. The remedies come before the option that gives up safety."""
    for day in (1, 2):
        broker = start_broker("dev", tmp_path / f"data-{day}", "--port", "0")
        if day == 1:
            run_example(broker.address, tmp_path)
        else:
            with pytest.raises(StreamingQueryException) as caught:
                run_example(broker.address, tmp_path)
        assert broker.stop() == 0
    said = str(caught.value)
    assigned = [said.index(words) for words in ("new checkpoint", "the data folder that it had", "failOnDataLoss")]
    assert assigned == sorted(assigned)
