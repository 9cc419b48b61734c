"""Writes the tables of jobs and mistakes in docs/coming-from-kafka.md and its translation, from a run of each.

    scripts/with-java .venv .venv/bin/python tests/support/moved_page.py

A test runs them, too, and fails where a page shows something else.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from moved_jobs import JOBS
from moved_mistakes import MISTAKES, plain
from moved_place import Place
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from metaq.testing.broker_process import BrokerProcess

DOCS: Final = Path(__file__).resolve().parents[2] / "docs"
PAGES: Final = {"en": DOCS / "coming-from-kafka.md", "zh": DOCS / "zh" / "coming-from-kafka.md"}
END: Final = "<!-- end of run -->\n"
MARKED: Final = re.compile(r"<!-- run: (\w+) -->\n.*?<!-- end of run -->\n", re.DOTALL)

CODE: Final = re.compile(r"`[^`]+`")
WORDS: Final[dict[str, str]] = json.loads(Path(__file__).with_name("moved_words.json").read_text(encoding="utf-8"))
"""What the tables say, in Chinese; what a program says is not translated."""


@dataclass(frozen=True)
class Text:
    """A cell: words of ours with numbers in them."""

    words: str
    numbers: Mapping[str, int] = field(default_factory=dict)

    def shown(self, language: str) -> str:
        translated = language == "zh" and not CODE.fullmatch(self.words)
        words = WORDS[self.words] if translated else self.words
        return words.format(**self.numbers) if self.numbers else words


Cell = str | Text
Table = list[tuple[Cell, ...]]


@contextmanager
def places(spark: SparkSession, folder: Path) -> Iterator[Iterator[Place]]:
    """Places on one new broker, which has the orders."""
    folder.mkdir()
    with BrokerProcess(folder, partitions=2) as broker:
        broker.start()
        Place(spark, str(broker.address), folder).fill()
        yield (Place(spark, str(broker.address), folder / str(n)) for n in range(1, 1_000_000))


def tables(spark: SparkSession, folder: Path) -> dict[str, Table]:
    """Run every job and every mistake: the rows of both tables, behind their heads."""
    with places(spark, folder / "mistakes") as of_mistakes:
        mistakes: Table = [
            (Text("mistake"), Text("noticed by"), Text("what it says")),
            *(
                (Text(each.title), *failure(each.make, place))
                for each, place in zip(MISTAKES, of_mistakes, strict=False)
            ),
        ]
    with places(spark, folder / "jobs") as of_jobs:
        jobs: Table = [(Text("job"), Text("options here"), Text("outcome"))]
        for job, place in zip(JOBS, of_jobs, strict=False):
            numbers = job.run(place, job.here)
            options = "<br>".join(f"`{name}` = `{value}`" for name, value in job.here.items())
            jobs.append((Text(job.title), options, Text(job.outcome, numbers)))
    return {"jobs": jobs, "mistakes": mistakes}


def failure(make: Callable[[Place], object], place: Place) -> tuple[Cell, Cell]:
    """The call that fails, and what it says."""
    try:
        make(place)
    except (PySparkException, Py4JJavaError) as error:
        return Text(place.stage), f"`{place.plain(plain(error))}`"
    finally:
        place.stop()
    raise AssertionError(f"{make.__name__} is no mistake")


def page(text: str, found: dict[str, Table], language: str) -> str:
    """``text`` with the tables in ``language`` between their marks."""

    def written(match: re.Match[str]) -> str:
        rows = [[_cell(cell, language) for cell in row] for row in found[match[1]]]
        lines = [f"| {' | '.join(row)} |" for row in rows]
        return "\n".join([match[0].splitlines()[0], "", lines[0], "|" + "---|" * len(rows[0]), *lines[1:], "", END])

    return MARKED.sub(written, text)


def _cell(cell: Cell, language: str) -> str:
    text = cell if isinstance(cell, str) else cell.shown(language)
    return text.replace("|", "\\|")


def _session() -> SparkSession:
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    for name, value in (("spark.python.unix.domain.socket.enabled", "true"), ("spark.sql.shuffle.partitions", "2")):
        builder = builder.config(name, value)
    return builder.getOrCreate()


def main() -> int:
    environment = {"PYSPARK_PYTHON": sys.executable, "SPARK_CONF_DIR": str(DOCS.parent / "spark-conf")}
    os.environ.update(environment)
    spark = _session()
    with tempfile.TemporaryDirectory() as folder:
        found = tables(spark, Path(folder))
    for language, path in PAGES.items():
        path.write_text(page(path.read_text(encoding="utf-8"), found, language), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
