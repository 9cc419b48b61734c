"""One group of Java push consumers and Python consumers, which join, leave and are killed while others send.

Against the bundled broker and RocketMQ's own. Every acknowledged message is consumed, queues are divided as the Java
client computes it, and a message is consumed twice only where a member was killed, or where its queue was given away
before the next owner could see the last owner's offset. ``METAQ_GROUP_ROUNDS`` is how many times the members change
(docs/testing.md).
"""

from __future__ import annotations

import os
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fix_broker import wait_until
from mixed_group import DEADLINE_S, GROUP, PARTITIONS, PYTHON_MEMBER, TOPIC, Member, MixedGroup

from metaq import RocketMQ
from metaq.client.groups.ownership.assignment import range_of
from metaq.client.rocketmq.groups.assignment import consistent
from metaq.model import Partition
from peers.rocketmq.bundled import BundledServer
from peers.rocketmq.jars import MODULES, Unavailable, release
from peers.rocketmq.programs import QUICK, Programs
from peers.rocketmq.servers import Cluster

pytestmark = [pytest.mark.process, pytest.mark.slow]

OURS = "ours"
HANDOVER_MS = 10_000
"""Java's client saves offsets every 5 s, and when it gives a queue up; the other side may look before it does."""
OWNERS_MAX = 6
"""Owners of a queue in turn while three members join, one leaves, and in the end two leave one after the other."""
ROUNDS = int(os.environ.get("METAQ_GROUP_ROUNDS", "4"))


class Group(MixedGroup):
    """Members that find each other at the broker; each writes its client id and the queues that it reads to a file."""

    def __init__(self, name_servers: str, programs: Programs, folder: Path, options: dict[str, int]) -> None:
        super().__init__(folder)
        self.name_servers, self._programs, self._options = name_servers, programs, options

    def command(self, language: str, name: str) -> list[str]:
        given = {"topic": TOPIC, "group": GROUP, "log": self.log_of(name), "state": self._state_of(name)}
        if language == "java":
            return self._programs.command("PushMember", QUICK, **given, **self._options)
        arguments = {"nameServers": self.name_servers, **given, **self._options}
        return [*PYTHON_MEMBER, *(f"{key}={value}" for key, value in arguments.items())]

    def settle(self) -> None:
        try:
            wait_until(lambda: self._shown() == self._expected(), "the queues are divided", DEADLINE_S)
        except AssertionError:
            pytest.fail(f"they have {self._shown()}, expected {self._expected()}; {self.folder}")

    def _state_of(self, name: str) -> Path:
        return self.folder / f"{name}.state"

    def _shown(self) -> dict[str, list[str]]:
        """Client id -> queues of each member."""
        states = [self._state_of(one.name) for one in self.alive]
        lines = [state.read_text().splitlines() if state.exists() else [] for state in states]
        # The Java member writes an empty line if it has no queue, as the ring may leave it.
        return {client_id: sorted(filter(None, queues)) for client_id, *queues in (each or [""] for each in lines)}

    def _expected(self) -> dict[str, list[str]]:
        ids = sorted(self._shown())
        queues = [Partition("broker-a", index) for index in range(PARTITIONS)]
        strategy = consistent if self._options.get("consistent") else range_of
        return {each: sorted(map(str, strategy(TOPIC, each, ids, queues))) for each in ids if each}


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
            bundled.create_topic(TOPIC, PARTITIONS)
            yield bundled.address, Programs(made, bundled.address)
        return
    with Cluster(made, tmp_path / "server") as cluster:
        cluster.start_name_server()
        cluster.start_broker("broker-a")
        cluster.create_topic(TOPIC, PARTITIONS)
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
        group.end()


def test_java_and_python_consumers_share_a_group(join_group: Callable[..., Group]) -> None:
    group = join_group()
    with RocketMQ(group.name_servers) as mq:
        group.change_while_sending(mq, random.randrange(1 << 32), ROUNDS)
        _check_repeats(group)
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

    def change() -> None:
        group.settle()
        third = group.join("python")
        group.settle()
        third.leave()
        group.settle()

    with RocketMQ(group.name_servers) as mq:
        group.consume_while_sending(mq, change)
        stored = Counter(message.data.decode() for message in mq.browse(TOPIC))
    for queue, owners in _owners(group).items():
        _check_handovers(queue, owners, {text for text, count in stored.items() if count > 1})


def _owners(group: Group) -> dict[str, list[tuple[Member, list[str]]]]:
    """By queue: who read it, one after the other, and what."""
    rows = sorted((ms, queue, text, one.name) for one in group.members for ms, queue, text in one.rows())
    members = {one.name: one for one in group.members}
    found: dict[str, list[tuple[Member, list[str]]]] = defaultdict(list)
    for _, queue, text, name in rows:
        owners = found[queue]
        if not owners or owners[-1][0].name != name:
            owners.append((members[name], []))
        owners[-1][1].append(text)
    return found


def _check_handovers(queue: str, owners: list[tuple[Member, list[str]]], sent_twice: set[str]) -> None:
    """One member at a time had the queue and read it in order; who followed one of ours began where that had ended.

    Who follows a Java member may begin earlier: that saves its offset before it waits for the message in hand, which it
    does not save any more, and without waiting for the broker; and if it leaves the group, it unlocks before it saves.
    """
    described = [(one.name, texts[0], texts[-1]) for one, texts in owners]
    assert len(owners) <= OWNERS_MAX, f"{queue} changed its owner too often: {described}"
    ended, by_java = "", False
    for one, texts in owners:
        once = [text for text in texts if text not in sent_twice]
        assert once == sorted(set(once)), f"{one.name} did not read {queue} in order: {once}"
        assert by_java or not once or once[0] > ended, f"{queue} was not handed over at its end: {described}"
        ended, by_java = once[-1] if once else ended, one.is_java


def _is_ours_twice(rows: list[tuple[int, Member]]) -> bool:
    """Whether one member of ours has a message twice. A Java one may: another may have set its offset back."""
    ours = [one.name for _, one in rows if one.name.startswith("python")]
    return len(set(ours)) < len(ours)


def _check_repeats(group: Group) -> None:
    """A message was consumed again only after a kill, or when its queue had just been given to another member."""
    repeated = group.repeated()
    strange = {
        text: [(ms, one.name) for ms, one in rows]
        for text, rows in repeated.items()
        if not any(one.killed for _, one in rows) and (rows[-1][0] - rows[0][0] > HANDOVER_MS or _is_ours_twice(rows))
    }
    print(f"{len(repeated)} of {len(group.consumed())} repeated, members {[one.name for one in group.members]}")
    assert not strange, f"repeated without a reason: {dict(list(strange.items())[:20])}"
