"""What RocketMQ's clients leave at a broker process: it is killed, its file damaged; accounts; MetaQ beside it."""

from __future__ import annotations

import resource
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from fix_broker import DEADLINE_S, RunningBroker, StartBroker, run_broker_command, wait_until, write_ini
from remoting_headers import send_header
from request_replay import Asker
from text_protocol import placed, put

from metaq.client.rocketmq.client import RocketMQ
from metaq.errors import MetaqError
from metaq.protocols.remoting.acl import Credentials
from metaq.protocols.remoting.bodies.registration import TopicConfigs
from metaq.protocols.remoting.headers.administration import GetAllTopicConfig
from metaq.protocols.remoting.headers.offsets import GetMaxOffset, UpdateConsumerOffset

pytestmark = pytest.mark.process

WORKERS = 3
ROUNDS = 4
MESSAGES = 20_000


@pytest.fixture
def asked() -> Iterator[ExitStack]:
    """Closes what the test entered."""
    with ExitStack() as stack:
        yield stack


def started(start_broker: StartBroker, data: Path) -> RunningBroker:
    return start_broker("dev", data, "--port", "0", "--rocketmq-port", "0")


def fill(broker: RunningBroker, queues: int, count: int) -> None:
    """Store so many messages in each queue of T: offsets of groups behind the end of a queue are corrected."""
    with Asker(broker.rocketmq_address) as asker:
        asker.create_topic("T", queues)
    with RocketMQ(str(broker.rocketmq_address)) as mq:
        for queue in mq.cluster.topics()["T"]:
            mq.producer().send_many("T", [b"x"] * count, partition=queue)


# ---- kills


@dataclass
class Worker:
    """Commits growing offsets of one queue and makes topics, until the broker is gone or there are no more messages."""

    number: int
    asked_for: int = 0
    answered: int = 0
    topics: list[str] = field(default_factory=list)

    def run(self, asker: Asker) -> None:
        try:
            while self.asked_for < MESSAGES:
                self.asked_for += 1
                asker.commit("T", "g", self.number, self.asked_for)
                self.answered = self.asked_for
                if self.answered % 20 == 0:
                    name = f"made-{self.number}-{self.answered}"
                    assert asker.create_topic(name).code == 0
                    self.topics.append(name)
        except MetaqError:
            return


@pytest.mark.slow
def test_what_was_answered_survives_kills(start_broker: StartBroker, tmp_path: Path) -> None:
    workers = [Worker(number) for number in range(WORKERS)]
    for number in range(ROUNDS):
        broker = started(start_broker, tmp_path)
        if number == 0:
            fill(broker, WORKERS, MESSAGES)
        address = broker.rocketmq_address
        askers = [Asker(address) for _ in workers]
        check_kept(askers[0], workers)
        before = [worker.answered for worker in workers]
        threads = [
            threading.Thread(target=worker.run, args=(asker,)) for worker, asker in zip(workers, askers, strict=True)
        ]
        for thread in threads:
            thread.start()
        wait_until(
            lambda before=before: all(now.answered > was + 60 for now, was in zip(workers, before, strict=True)),  # type: ignore[misc]
            "60 commits of each worker",
        )
        broker.kill()
        for thread in threads:
            thread.join(DEADLINE_S)
        for asker in askers:
            asker.close()
        assert min(worker.answered for worker in workers) > 60
    broker = started(start_broker, tmp_path)
    with Asker(broker.rocketmq_address) as asker:
        check_kept(asker, workers)


def check_kept(asker: Asker, workers: list[Worker]) -> None:
    for worker in workers:
        assert worker.answered <= asker.committed("T", "g", worker.number) <= worker.asked_for
        worker.asked_for = worker.answered = asker.committed("T", "g", worker.number)
    table = TopicConfigs.from_json(asker.ask(GetAllTopicConfig()).body).topic_config_table
    assert {topic for worker in workers for topic in worker.topics} <= table.keys()


def test_a_oneway_commit_survives_a_kill_when_it_is_in_the_file(
    start_broker: StartBroker, tmp_path: Path, asked: ExitStack
) -> None:
    broker = started(start_broker, tmp_path)
    asker = asked.enter_context(Asker(broker.rocketmq_address))
    fill(broker, 1, 7)
    state = tmp_path / "rocketmq-state"
    size = state.stat().st_size
    asker.commit("T", "g", 0, 7, oneway=True)
    wait_until(lambda: state.stat().st_size > size, "a record in the file")
    broker.kill()
    again = asked.enter_context(Asker(started(start_broker, tmp_path).rocketmq_address))
    assert again.committed("T", "g", 0) == 7


# ---- a disk that takes nothing


def limit_file_size(broker: RunningBroker, byte_count: int) -> None:
    """Let the broker write no file behind so many bytes: for it, the disk is full."""
    _, hard = resource.prlimit(broker.process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(broker.process.pid, resource.RLIMIT_FSIZE, (byte_count, hard))


def test_while_the_disk_takes_nothing_nothing_is_said_to_be_kept(
    start_broker: StartBroker, tmp_path: Path, asked: ExitStack
) -> None:
    broker = started(start_broker, tmp_path)
    asker = asked.enter_context(Asker(broker.rocketmq_address))
    fill(broker, 1, 2)
    asker.commit("T", "g", 0, 1)
    limit_file_size(broker, 10)
    header = UpdateConsumerOffset(consumer_group="g", topic="T", queue_id=0, commit_offset=2)
    refused = asker.response(header)
    assert refused.code == 14  # the consumer tries again, and goes on
    assert "rocketmq-state cannot be written: [Errno 27] File too large" in str(refused.remark)
    assert "cannot be written" in str(asker.create_topic("new").remark)
    sent = asker.response(send_header(topic="made-by-a-send", default_topic="TBW102"), b"x")
    assert "the message is not stored, because its topic is not on the disk yet: state file" in str(sent.remark)
    assert str(sent.remark).endswith("; changes apply, and are written as soon as the disk takes them")
    limit_file_size(broker, resource.RLIM_INFINITY)
    wait_until(lambda: asker.response(header).code == 0, "a commit that is kept")
    broker.kill()
    again = asked.enter_context(Asker(started(start_broker, tmp_path).rocketmq_address))
    assert again.committed("T", "g", 0) == 2


# ---- a damaged file


def test_a_damaged_file_is_refused_and_what_can_be_read_is_saved(
    start_broker: StartBroker, tmp_path: Path, asked: ExitStack
) -> None:
    broker = started(start_broker, tmp_path)
    asker = asked.enter_context(Asker(broker.rocketmq_address))
    fill(broker, 3, 42)
    for queue in range(3):
        asker.commit("T", "g", queue, 40 + queue)
    assert broker.stop() == 0
    state = tmp_path / "rocketmq-state"
    content = state.read_bytes()
    at = content.index(b"offset/T/g/1")
    state.write_bytes(content[:at] + b"O" + content[at + 1 :])
    refused = run_broker_command("dev", tmp_path, "--port", "0", "--rocketmq-port", "0")
    assert refused.returncode == 1
    assert f"state file {state} is damaged at byte " in refused.stderr
    assert "let `metaq-broker fsck --repair` save what can be read" in refused.stderr
    assert run_broker_command("fsck", "--data", tmp_path, "--repair").returncode == 1
    again = asked.enter_context(Asker(started(start_broker, tmp_path).rocketmq_address))
    assert [again.committed("T", "g", queue) for queue in range(3)] == [40, 0, 42]


# ---- accounts

ACCOUNTS = "accounts:\n- accessKey: boss\n  secretKey: 12345678\n  admin: true\n"
LATER = ACCOUNTS + "- accessKey: late\n  secretKey: 12345678\n  defaultTopicPerm: PUB\n"


def with_accounts(folder: Path, text: str) -> tuple[Path, Path]:
    """A file of accounts, and a server.ini that names it."""
    accounts = folder / "accounts.yml"
    accounts.write_text(text)
    rocketmq = f"[rocketmq]\nenabled=true\nport=0\naclEnable=true\naclFile={accounts}\n[topic=orders]\n"
    return accounts, write_ini(folder, rocketmq, brokerId=1)


def test_accounts_are_asked_for_and_read_again(start_broker: StartBroker, tmp_path: Path, asked: ExitStack) -> None:
    accounts, ini = with_accounts(tmp_path, ACCOUNTS)
    broker = start_broker("start", "-f", ini)
    address = broker.rocketmq_address
    boss, late, nobody = (
        asked.enter_context(Asker(address, credentials))
        for credentials in (Credentials("boss", "12345678"), Credentials("late", "12345678"), None)
    )
    assert boss.create_topic("T").code == 0
    assert "No accessKey is configured" in str(nobody.create_topic("T").remark)
    ends = GetMaxOffset(topic="orders", queue_id=0)
    assert "No acl config for late" in str(late.response(ends).remark)
    accounts.write_text(LATER)
    wait_until(lambda: late.response(ends).code == 0, "the account that was added")
    accounts.write_text("accounts: wrong\n")
    wait_until(lambda: "the accounts stay as they were" in broker.log_text(), "a line in the log")
    assert late.response(ends).code == 0
    assert "12345678" not in broker.log_text()


def test_a_wrong_file_of_accounts_is_refused(tmp_path: Path) -> None:
    accounts, ini = with_accounts(tmp_path, "accounts:\n- accessKey: boss\n")
    done = run_broker_command("start", "-f", ini)
    assert done.returncode == 1
    reason = "account 'boss': its secretKey has fewer than 7 characters"
    assert f"file of accounts {accounts}: {reason}" in done.stderr


# ---- beside MetaQ's clients


def test_topics_that_were_made_are_metaqs_too_and_system_topics_are_hidden(
    start_broker: StartBroker, tmp_path: Path, asked: ExitStack
) -> None:
    broker = started(start_broker, tmp_path)
    asker = asked.enter_context(Asker(broker.rocketmq_address))
    assert asker.create_topic("orders", 3).code == 0
    client = broker.client()
    assert placed(client.ask(put("orders", b"one tea", 1, partition=2)))[2] == 0
    header = GetMaxOffset(topic="orders", queue_id=2)
    assert asker.ask(header).ext["offset"] == "1"
    code, text = client.result(b"stats topics 1\r\n")
    listed = [line.split()[0] for line in text.splitlines()[1:-1]]
    assert code == 200
    assert "orders" in listed
    assert not {"TBW102", "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC"}.intersection(listed)
