"""One group of Java push consumers and Python consumers, which join, leave and are killed while others send.

Against the bundled broker and RocketMQ's own. Every acknowledged message is consumed, queues are divided as the Java
client computes it, and a message is consumed twice only where a member was killed, or where its queue was given away
before the next owner could see the last owner's offset. ``METAQ_GROUP_ROUNDS`` is how many times the members change
(docs/testing.md).
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from fix_broker import wait_until

from metaq import RocketMQ
from metaq.client.groups.assignment import range_of
from metaq.client.rocketmq.groups.assignment import consistent
from metaq.model import Partition
from peers.rocketmq.bundled import BundledServer
from peers.rocketmq.jars import MODULES, Unavailable, release
from peers.rocketmq.programs import QUICK, Programs
from peers.rocketmq.servers import Cluster

pytestmark = [pytest.mark.process, pytest.mark.slow]

OURS = "ours"
TOPIC, GROUP, QUEUES = "mixed", "both", 12
DEADLINE_S = 90.0
HANDOVER_MS = 10_000
"""Java's client saves offsets every 5 s, and when it gives a queue up; the other side may look before it does."""
ROUNDS = int(os.environ.get("METAQ_GROUP_ROUNDS", "4"))

Row = tuple[int, str, str]


@dataclass
class Member:
    """A consumer in a process of its own, what it consumed, and the queues that it reads now."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    state: Path
    killed: bool = False

    def rows(self) -> list[Row]:
        """(ms since 1970, queue, text) of each message; a last line may be cut by a kill."""
        if not self.log.exists():
            return []
        lines = self.log.read_text().split("\n")[:-1]
        return [(int(ms), queue, text) for ms, queue, text in (line.split("\t") for line in lines)]

    def shown(self) -> tuple[str, list[str]]:
        """Its client id and its queues."""
        if not self.state.exists():
            return "", []
        client_id, *queues = self.state.read_text().splitlines()
        return client_id, sorted(queues)

    def leave(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(DEADLINE_S) == 0, f"{self.name} did not leave well"

    def kill(self) -> None:
        self.killed = True
        self.process.kill()
        self.process.wait(DEADLINE_S)


@dataclass
class Group:
    """All members that ever were, and how more are started."""

    name_servers: str
    programs: Programs
    folder: Path
    options: dict[str, int]
    members: list[Member] = field(default_factory=list)

    @property
    def alive(self) -> list[Member]:
        return [one for one in self.members if one.process.poll() is None]

    def join(self, language: str) -> Member:
        name = f"{language}{len(self.members)}"
        log, state = self.folder / f"{name}.log", self.folder / f"{name}.state"
        given = {"topic": TOPIC, "group": GROUP, "log": log, "state": state, **self.options}
        command = self.programs.command("PushMember", QUICK, **given)
        if language == "python":
            arguments = {"nameServers": self.name_servers, **given}
            program = str(Path(__file__).with_name("group_member.py"))
            command = [sys.executable, program, *(f"{key}={value}" for key, value in arguments.items())]
        with open(self.folder / f"{name}.err", "wb") as errors:
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=errors, stderr=errors)
        self.members.append(Member(name, process, log, state))
        return self.members[-1]

    def settle(self) -> None:
        """Wait until every member reads what the Java client's arithmetic gives it."""
        try:
            wait_until(lambda: self._shown() == self._expected(), "the queues are divided", DEADLINE_S)
        except AssertionError:
            pytest.fail(f"they have {self._shown()}, expected {self._expected()}; {self.folder}")

    def _shown(self) -> dict[str, list[str]]:
        return dict(one.shown() for one in self.alive)

    def _expected(self) -> dict[str, list[str]]:
        ids = sorted(one.shown()[0] for one in self.alive)
        queues = [Partition("broker-a", index) for index in range(QUEUES)]
        strategy = consistent if self.options.get("consistent") else range_of
        return {each: sorted(map(str, strategy(TOPIC, each, ids, queues))) for each in ids if each}

    def consumed(self) -> dict[str, list[tuple[int, Member]]]:
        """Text -> when it was consumed, and by whom."""
        found = defaultdict(list)
        for one in self.members:
            for ms, _, text in one.rows():
                found[text].append((ms, one))
        return found


class Sender:
    """Sends numbered messages in a thread until it is stopped; notes those that were acknowledged."""

    def __init__(self, mq: RocketMQ) -> None:
        self._producer, self.sent, self._stop = mq.producer(), list[str](), threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(0.02):
            texts = [f"{len(self.sent) + number:08}" for number in range(10)]
            self._producer.send_many(TOPIC, texts)
            self.sent += texts

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


@pytest.fixture(params=[OURS, *MODULES])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, Programs]]:
    """Name servers with the topic, and the Java client: of the same release, and 4.9.7 beside the bundled broker."""
    if not (asked := os.environ.get("METAQ_ROCKETMQ")):
        pytest.skip("METAQ_ROCKETMQ is not set (make test-rocketmq; docs/testing.md, RocketMQ)")
    version = MODULES_FIRST if request.param == OURS else request.param
    if asked != "1" and version not in asked.split(","):
        pytest.skip(f"METAQ_ROCKETMQ asks for {asked} only")
    try:
        made = release(version)
    except Unavailable as reason:
        pytest.skip(str(reason))
    if request.param == OURS:
        with BundledServer(tmp_path / "server", {}) as bundled:
            bundled.create_topic(TOPIC, QUEUES)
            yield bundled.address, Programs(made, bundled.address)
        return
    with Cluster(made, tmp_path / "server") as cluster:
        cluster.start_name_server()
        cluster.start_broker("broker-a")
        cluster.create_topic(TOPIC, QUEUES)
        yield cluster.name_servers, Programs(made, cluster.name_servers)


MODULES_FIRST = next(iter(MODULES))


@pytest.fixture
def join_group(server: tuple[str, Programs], tmp_path: Path) -> Iterator[Callable[..., Group]]:
    made: list[Group] = []

    def join_group(**options: int) -> Group:
        made.append(Group(*server, tmp_path, options))
        return made[-1]

    yield join_group
    for group in made:
        for one in group.alive:
            one.kill()
        for one in group.members:
            if one.process.stdin is not None and not one.process.stdin.closed:
                one.process.stdin.close()


def test_java_and_python_consumers_share_a_group(join_group: Callable[..., Group]) -> None:
    group = join_group()
    _change_members(group, random.randrange(1 << 32), ROUNDS)
    _check_repeats(group)
    with RocketMQ(group.name_servers) as mq:
        assert {one.messages_behind for one in mq.cluster.lag(GROUP)} == {0}


def test_they_divide_queues_by_consistent_hashing(join_group: Callable[..., Group]) -> None:
    group = join_group(consistent=1)
    for language in ("java", "python", "java"):
        group.join(language)
    group.settle()


def test_ordered_members_lock_their_queues(join_group: Callable[..., Group]) -> None:
    group = join_group(ordered=1)
    for language in ("java", "python"):
        group.join(language)
    with RocketMQ(group.name_servers) as mq:
        group.settle()
        sender = Sender(mq)
        try:
            third = group.join("python")
            group.settle()
            third.leave()
            group.settle()
        finally:
            sender.stop()
        wait_until(lambda: len(group.consumed()) == len(sender.sent), "all is consumed", DEADLINE_S)
    for one in group.alive:
        one.leave()
    assert set(group.consumed()) == set(sender.sent)
    assert [text for text, rows in group.consumed().items() if len(rows) > 1] == []


def _change_members(group: Group, seed: int, rounds: int) -> None:
    print(f"seed {seed}")
    choose = random.Random(seed)
    with RocketMQ(group.name_servers) as mq:
        sender = Sender(mq)
        try:
            for language in ("java", "python"):
                group.join(language)
            group.settle()
            for _ in range(rounds):
                _change(group, choose)
                group.settle()
        finally:
            sender.stop()
        wait_until(lambda: len(group.consumed()) == len(sender.sent), "all is consumed", DEADLINE_S)
    for one in group.alive:
        one.leave()
    assert set(group.consumed()) == set(sender.sent)


def _change(group: Group, choose: random.Random) -> None:
    """Let a member join, leave or die; there are two to five of them."""
    alive = group.alive
    action = choose.choice(["join", "leave", "kill"])
    if len(alive) <= 2 or (action == "join" and len(alive) < 5):
        group.join(choose.choice(["java", "python"]))
    elif action == "kill":
        choose.choice(alive).kill()
    else:
        choose.choice(alive).leave()


def _is_ours_twice(rows: list[tuple[int, Member]]) -> bool:
    """Whether one member of ours has a message twice. A Java one may: another may have set its offset back."""
    ours = [one.name for _, one in rows if one.name.startswith("python")]
    return len(set(ours)) < len(ours)


def _check_repeats(group: Group) -> None:
    """A message was consumed again only after a kill, or when its queue had just been given to another member."""
    repeated = {text: sorted(rows, key=lambda row: row[0]) for text, rows in group.consumed().items() if len(rows) > 1}
    strange = {
        text: [(ms, one.name) for ms, one in rows]
        for text, rows in repeated.items()
        if not any(one.killed for _, one in rows) and (rows[-1][0] - rows[0][0] > HANDOVER_MS or _is_ours_twice(rows))
    }
    print(f"{len(repeated)} of {len(group.consumed())} repeated, members {[one.name for one in group.members]}")
    assert not strange, f"repeated without a reason: {dict(list(strange.items())[:20])}"
