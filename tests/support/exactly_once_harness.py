"""Two broker processes, and the steps of tasks and drivers one by one, so that a test can stop between any two."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from fix_broker import RunningBroker, StartBroker, run_broker_command, write_ini

from metaq.backends.metaq.pool import SessionPool
from metaq.backends.metaq.puts import encode_block
from metaq.backends.metaq.session import Session
from metaq.backends.metaq.transactions import DecidedBatch, TransactionSteps
from metaq.client.consumer import Run, fetch
from metaq.errors import TransactionError
from metaq.formats.frames import walk
from metaq.model import Address, Message, Partition, TopicPartition, Xid
from metaq.net.transport import Timeouts
from metaq.testing.ports import free_port
from metaq_spark.backends.metaq.cluster import RetryingSessions
from metaq_spark.backends.metaq.exactly_once.branches import BranchLimits
from metaq_spark.backends.metaq.exactly_once.contents import Contents
from metaq_spark.backends.metaq.exactly_once.coordinator import Conversation, Coordinator
from metaq_spark.backends.metaq.exactly_once.identity import BatchName
from metaq_spark.backends.metaq.exactly_once.task import TaskAttempt, TransactionalPuts
from metaq_spark.backends.metaq.options import SinkOptions, parse_sink_options
from metaq_spark.columns.blocks import EncodedBlock, of_block
from metaq_spark.options.table import Use

TOPIC = "t"
QUERY = "c0ffee00-0000-4000-8000-000000000001"
LIMITS = BranchLimits(timeout_s=60, age_s_max=15.0)


def decide(
    driver: Conversation, batch: BatchName, branches: Sequence[Xid], contents: Contents | None = None
) -> DecidedBatch:
    """Look back and decide, as ``Coordinator.finish`` does."""
    return driver.decide(batch, branches, contents, driver.known(batch, branches))


class Harness:
    """Brokers 4 and 7 with two partitions of ``t`` each, and what a query does to them."""

    def __init__(self, start: StartBroker, folder: Path, broker_ids: tuple[int, ...] = (4, 7)) -> None:
        self._start, self._folder = start, folder
        self.brokers: dict[int, RunningBroker] = {}
        self.addresses: dict[int, Address] = {}
        for broker_id in broker_ids:
            self.add(broker_id)
        self.pool = SessionPool(Timeouts(5.0, 10.0))
        self._attempts = 0

    def close(self) -> None:
        self.pool.close()

    def add(self, broker_id: int) -> None:
        keys = {"brokerId": broker_id, "numPartitions": 2, "serverPort": free_port()}
        write_ini(self._folder / f"broker-{broker_id}", f"[topic={TOPIC}]\n", **keys)
        self._run(broker_id)

    def _run(self, broker_id: int) -> None:
        running = self._start("start", "-f", self._folder / f"broker-{broker_id}" / "server.ini")
        self.brokers[broker_id], self.addresses[broker_id] = running, running.address

    def restart(self, *broker_ids: int) -> None:
        """Kill brokers (all, if none is named) and start them again."""
        for broker_id in broker_ids or tuple(self.brokers):
            self.brokers[broker_id].kill()
            self._run(broker_id)

    def options_of_write(self, **more: str) -> SinkOptions:
        """The options of a batch write to all brokers."""
        brokers = ",".join(str(address) for address in self.addresses.values())
        raw = {"brokers": brokers, "topic": TOPIC, "delivery": "exactly_once", "retryIntervalMs": "10"}
        return parse_sink_options(raw | more, Use.BATCH_WRITE)

    @property
    def sessions(self) -> RetryingSessions:
        return RetryingSessions(self.options_of_write(), self.pool)

    def copy(self, name: str) -> None:
        """Stop all brokers, copy their data folders and start them again."""
        for broker_id, broker in self.brokers.items():
            broker.kill()
            no_sockets = shutil.ignore_patterns("*.sock")
            shutil.copytree(self._data(broker_id), self._folder / name / str(broker_id), ignore=no_sockets)
            self._run(broker_id)

    def put_back(self, name: str, *broker_ids: int) -> None:
        """Kill brokers (all, if none is named), replace their data by a copy and start them again."""
        for broker_id in broker_ids or tuple(self.brokers):
            self.brokers[broker_id].kill()
            shutil.rmtree(self._data(broker_id))
            shutil.copytree(self._folder / name / str(broker_id), self._data(broker_id))
            self._run(broker_id)

    def _data(self, broker_id: int) -> Path:
        return self._folder / f"broker-{broker_id}" / "data"

    def lose_journal(self, broker_id: int) -> None:
        """Kill a broker, move its transaction journal away and start it again."""
        self.brokers[broker_id].kill()
        data = self._data(broker_id)
        (data / "transactions").rename(data / "transactions.lost")
        self._run(broker_id)

    @contextmanager
    def session(self, broker_id: int) -> Iterator[Session]:
        """Another client's."""
        with closing(Session.connect(self.addresses[broker_id], Timeouts(5.0, 10.0))) as session:
            yield session

    def roll_back_all(self, broker_id: int) -> int:
        """Roll the prepared branches of a broker back, as another client; return how many there were."""
        with self.session(broker_id) as session:
            transactions = TransactionSteps(session)
            keys = transactions.recover()
            for key in keys:
                transactions.rollback(key)
        return len(keys)

    # ---- tasks

    def task(self, batch: BatchName, number: int = 0, limits: BranchLimits = LIMITS) -> TransactionalPuts:
        """A new attempt of a task. Attempt numbers repeat, as in a driver that was started again."""
        self._attempts += 1
        return TransactionalPuts(TaskAttempt(batch, number, self._attempts % 2), limits, self.sessions)

    def put(self, task: TransactionalPuts, partition: str, *payloads: str) -> None:
        """One block into a partition such as ``4-0``."""
        where = Partition.parse(partition)
        block, count = encode_block([Message(payload.encode()) for payload in payloads])
        task.put(
            TopicPartition(TOPIC, where), self.addresses[where.broker_id], EncodedBlock(block, count, of_block(block))
        )

    def write(self, batch: BatchName, number: int = 0) -> list[Xid]:
        """All of a task that puts a message into the first partition of every broker; its branches."""
        task = self.task(batch, number)
        for broker_id in (4, 7):
            self.put(task, f"{broker_id}-0", f"{batch.batch_id}/{number}")
        return list(task.finish())

    # ---- an operator

    def end_by_hand(self, key: Xid, step: str, broker_id: int = 4) -> None:
        """Let an operator of a broker commit, roll back, complete, accept or forget a branch."""
        run_broker_command("ctl", "--data", self._data(broker_id), "transaction", step, str(key)).check_returncode()

    # ---- the driver

    @property
    def coordinator(self) -> Coordinator:
        return Coordinator(self.addresses, self.sessions)

    @contextmanager
    def driver(self) -> Iterator[Conversation]:
        """The single steps of a driver."""
        with ExitStack() as leases:
            yield Conversation(self.addresses, self.sessions, leases)

    # ---- what is there

    def readable(self, partition: str) -> list[str]:
        where = Partition.parse(partition)
        with self.session(where.broker_id) as session:
            run = fetch(session, TOPIC, where.index, 0, 1 << 20)
        return [frame.body.decode() for frame in walk(run.data)] if isinstance(run, Run) else []

    def everything(self) -> list[list[str]]:
        """The messages of the first partition of brokers 4 and 7."""
        return [self.readable("4-0"), self.readable("7-0")]

    def prepared(self) -> dict[int, int]:
        """How many branches lie prepared on each broker."""
        found = {}
        for broker_id in self.addresses:
            with self.session(broker_id) as session:
                found[broker_id] = len(TransactionSteps(session).recover())
        return found

    def refusal_of_commit(self, broker_id: int, key: Xid) -> int | None:
        """The XA code with which a broker refuses to commit a branch that is not prepared."""
        with self.session(broker_id) as session:
            try:
                TransactionSteps(session).commit(key)
            except TransactionError as refused:
                return refused.xa_code
        return None

    def decided(self, query: str = QUERY) -> dict[int, int | None]:
        """The newest batch of a query that each broker has decided."""
        with self.driver() as driver:
            known = driver.last_decided(query)
        return {number: None if one is None else one.batch_id for number, one in known.items()}
