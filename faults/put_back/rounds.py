"""Rounds of one query: it writes batches, brokers are restored to before one of them, it is refused, it is repaired.

At the end of each round, every message of the source topic must be in the target topic once.
"""

from __future__ import annotations

import contextlib
import io
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from random import Random
from typing import Final

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from faults.broker_process import BrokerProcess, ServerSettings
from faults.console import PromiseBroken
from faults.put_back.sink_brokers import TARGET, SinkBrokers
from metaq.backends.metaq.puts import encode_block, put_batch
from metaq.backends.metaq.session import Session
from metaq.model import Message
from metaq.net.transport import Timeouts
from metaq_spark.cli import main as metaq_spark

SOURCE: Final = "source"
ROWS: Final = 10
"""Messages that are put into the source for each batch."""

BROKERS: Final[Mapping[str, int]] = {"metaq": 2, "rocketmq": 1}
"""How many brokers a query of each format writes to."""

BATCHES: Final = 3
"""Batches of a round, with a copy of the brokers before each."""

PATIENCE_S: Final = 600
STARTS_MAX: Final = 10
SLOW_MACHINE: Final = "Python worker failed to connect back"
"""The error of a query if a Python process of Spark takes longer than ten seconds to start."""

_REFUSED: Final = re.compile(r"nothing of it was written: the last batch of it that .* knows is ([^.]*)\.")
_TIMEOUTS: Final = Timeouts(10.0, 60.0)


class Harm(Enum):
    """The ways to restore brokers."""

    ALL = "all brokers put back"
    COMMIT_LOST = "all brokers put back, and Spark's last commit lost"
    ONE = "one of two brokers put back"
    JOURNAL = "the journal lost"


@dataclass(slots=True)
class Figures:
    """Rounds by kind of harm, the refusals among them, and the final counts."""

    rounds: Counter[Harm] = field(default_factory=Counter)
    refused: int = 0
    batches: int = 0
    messages: int = 0

    def lines(self) -> list[str]:
        by_harm = ", ".join(f"{harm.value} {count}" for harm, count in self.rounds.items())
        return [
            f"{self.rounds.total()} rounds ({by_harm}), {self.refused} refusals, {self.batches} batches, "
            f"{self.messages} messages: 0 lost, 0 duplicated"
        ]


def schedule(format_name: str, rounds: int) -> list[Harm]:
    """Return the kinds of harm for so many rounds: all that are possible with this format, in turn."""
    harms = [harm for harm in Harm if harm is not Harm.ONE or BROKERS[format_name] > 1]
    return [harms[number % len(harms)] for number in range(rounds)]


class PutBackRun:
    """A query of ``format_name`` and its brokers. ``report`` gets a line for every round, of ``batches`` each."""

    def __init__(
        self,
        spark: SparkSession,
        folder: Path,
        seed: int,
        format_name: str,
        report: Callable[[str], None],
        batches: int = BATCHES,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._spark, self._format, self._report = spark, format_name, report
        self._random = Random(f"{format_name} {seed}")
        self._source = BrokerProcess(folder / "source", ServerSettings({SOURCE: 2}))
        self._sink = SinkBrokers(folder, BROKERS[format_name], rocketmq=format_name == "rocketmq")
        self._folder, self._checkpoint = folder, folder / "checkpoint"
        self._batches, self._sent = batches, 0
        self.figures = Figures()

    def run(self, harms: Sequence[Harm]) -> None:
        """Carry out a round with each kind of harm.

        Raises:
            PromiseBroken: A row is lost or duplicated, or the query was not refused with the expected text.
            BrokerTrouble, MetaqError: It could not be carried out.
        """
        try:
            self._source.start()
            self._sink.start()
            self._sink.copy("none")
            for number, harm in enumerate(harms, 1):
                self._report(f"round {number}/{len(harms)}: {harm.value}, {self._round(harm)}")
                self.figures.rounds[harm] += 1
            if left := self._sink.prepared() + self._sink.complaints():
                raise PromiseBroken(self._folder, [f"left behind: {left[:5]}"])
            self.figures.batches, self.figures.messages = self._committed + 1, self._sent
        finally:
            self._source.kill()
            self._sink.close()

    def _round(self, harm: Harm) -> str:
        copies: dict[str, int | None] = {"none": None}
        for _ in range(self._batches):
            copies[str(self._committed)] = None if self._committed < 0 else self._committed
            self._sink.copy(str(self._committed))
            self._feed()
            self._go_on()
        self._check()
        name = self._random.choice([*[each for each in copies if each != "none"] * 3, "none"])
        self._feed()
        if harm is Harm.JOURNAL:
            outcome = self._without_journal()
        elif harm is Harm.ONE:
            outcome = self._one_put_back(name, copies[name])
        else:
            outcome = self._all_put_back(name, copies[name], commit_lost=harm is Harm.COMMIT_LOST)
        self._check()
        self._sink.drop_copies(each for each in copies if each != "none")
        return outcome

    def _all_put_back(self, name: str, last: int | None, *, commit_lost: bool) -> str:
        if commit_lost:
            self._lose_commit()
        self._sink.put_back(name)
        if self._committed == (-1 if last is None else last):  # the batch that is repeated is the missing one
            self._go_on()
            return f"to batch {name}: nothing but the repeated batch was missing"
        refused = self._refused(last, name)
        self._move_back(last)
        return refused

    def _one_put_back(self, name: str, last: int | None) -> str:
        number = self._random.choice(sorted(self._sink.brokers))
        self._sink.put_back(name, [number])
        self._refused(last, name, alone=True)
        self._sink.put_back(name, self._sink.brokers.keys() - {number})
        return f"broker {number} " + self._all_put_back_already(name, last)

    def _all_put_back_already(self, name: str, last: int | None) -> str:
        refused = self._refused(last, name)
        self._move_back(last)
        return refused

    def _without_journal(self) -> str:
        self._sink.lose_journal()
        refused = self._refused(None, "none")
        self._go_on(missingBatches=f"0-{self._committed}")
        return refused

    # ---- the query

    @property
    def _committed(self) -> int:
        """The last batch that Spark has recorded as committed; -1 before the first."""
        commits = self._checkpoint / "commits"
        names = [int(file.name) for file in commits.iterdir() if file.name.isdigit()] if commits.is_dir() else []
        return max(names, default=-1)

    def _lose_commit(self) -> None:
        commits = self._checkpoint / "commits"
        name = str(self._committed)
        (commits / name).unlink()
        (commits / f".{name}.crc").unlink(missing_ok=True)

    def _servers(self) -> Mapping[str, str]:
        brokers = self._sink.brokers.values()
        if self._format == "rocketmq":
            return {"nameServers": ";".join(str(broker.rocketmq) for broker in brokers)}
        return {"brokers": ",".join(str(broker.address) for broker in brokers)}

    def _go_on(self, **options: str) -> None:
        """Run the query to the end of the input; again if Spark timed out waiting for its own processes."""
        for _ in range(STARTS_MAX - 1):
            try:
                return self._run_query(options)
            except StreamingQueryException as error:
                if SLOW_MACHINE not in str(error):
                    raise
        return self._run_query(options)

    def _run_query(self, options: Mapping[str, str]) -> None:
        reader = self._spark.readStream.format("metaq").options(brokers=str(self._source.address), subscribe=SOURCE)
        rows = reader.option("startingOffsets", "earliest").load().select("value")
        writer = rows.writeStream.format(self._format).options(**self._servers(), topic=TARGET, **options)
        writer = writer.option("delivery", "exactly_once").option("checkpointLocation", str(self._checkpoint))
        query = writer.trigger(availableNow=True).start()
        if not query.awaitTermination(PATIENCE_S):
            query.stop()
            raise PromiseBroken(self._folder, [f"the query did not end within {PATIENCE_S} s"])

    def _refused(self, last: int | None, name: str, *, alone: bool = False) -> str:
        """Run the query, which must be refused because the brokers know ``last`` as the newest batch."""
        before = self._values()
        try:
            self._go_on()
        except StreamingQueryException as refusal:
            text = str(refusal)
        else:
            raise PromiseBroken(self._folder, [f"brokers were put back to batch {name}, and the query went on"])
        found = _REFUSED.search(text)
        known = "none" if last is None else f"batch {last}"
        if found is None or found[1].partition(", but other brokers know")[0] != known:
            raise PromiseBroken(self._folder, [f"brokers were put back to batch {name}; the query said: {text[:2000]}"])
        if alone is not (", but other brokers know" in found[1]):
            raise PromiseBroken(self._folder, [f"whether other brokers know more was not said: {text[:2000]}"])
        if self._values() != before:
            raise PromiseBroken(self._folder, ["a batch that was refused has written something"])
        self.figures.refused += 1
        return f"to {known}: refused"

    def _move_back(self, last: int | None) -> None:
        """Do what the refusal recommends, so that the query can continue."""
        to = ["--to", "earliest"] if last is None else ["--to-batch", str(last)]
        command = ["checkpoint", "move", str(self._checkpoint), "--brokers", str(self._source.address), *to]
        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            status = metaq_spark([*command, "--abandon-planned", "--yes"])
        if status != 0:
            raise PromiseBroken(self._folder, [f"checkpoint move ended with {status}: {said.getvalue()}"])
        self._go_on()

    # ---- what goes in, and what has come out

    def _feed(self) -> None:
        session = Session.connect(self._source.address, _TIMEOUTS)
        try:
            for index in range(2):
                numbers = range(self._sent, self._sent + ROWS)
                put_batch(session, SOURCE, index, *encode_block([Message(b"%08d" % n) for n in numbers]))
                self._sent += ROWS
        finally:
            session.close()

    def _values(self) -> Counter[int]:
        rows = self._spark.read.format(self._format).options(**self._servers(), subscribe=TARGET).load()
        return Counter(int(bytes(row.value)) for row in rows.select("value").collect())

    def _check(self) -> None:
        found = self._values()
        lost = sorted(set(range(self._sent)) - found.keys())
        doubled = sorted(number for number, count in found.items() if count > 1)
        if lost or doubled:
            sentence = f"{len(lost)} messages are lost ({lost[:5]}), {len(doubled)} duplicated ({doubled[:5]})"
            raise PromiseBroken(self._folder, [sentence])
