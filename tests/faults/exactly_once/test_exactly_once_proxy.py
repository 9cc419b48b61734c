"""The inspecting proxy: passes every byte on, tells of every step, holds, cuts and kills exactly where it should."""

from __future__ import annotations

import contextlib
import queue
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fix_broker import RunningBroker, WireClient, wait_until

from faults.exactly_once.hold import DelayedRequest, Hold
from faults.exactly_once.injector import FaultInjector, KillDone, Record
from faults.exactly_once.planned_kills import PlannedKill, Victim
from faults.exactly_once.processes import members, port_owner, signal_all, task_workers
from faults.exactly_once.proxy import Cut, InspectingProxy, ObservedStep, Units
from faults.exactly_once.steps import Moment, Step
from metaq.model import Xid
from metaq.protocols.text.commands import Put, Quit, Reply, Result, TransactionCommand, Version
from metaq.protocols.text.decode import CommandDecoder, ReplyDecoder
from metaq.protocols.text.encode import encode

XID = Xid(1, b"batch", b"branch", "query")
BEGIN, PREPARE, COMMIT = (
    encode(TransactionCommand(XID, "s", type_, number))
    for number, type_ in enumerate(("BEGIN", "PREPARE", "COMMIT_TWO_PHASE"), 1)
)
PUT = encode(Put("out", 0, b"\r\nput trap 0 4 0 1\r\n", 0, 4, -1, XID))
LONG_PUT = encode(Put("out", 1, b"x" * 100_000, 0, 5))
QUESTION = encode(Version(6))


@pytest.mark.parametrize("size", [1, 7, 64, 1 << 20])
def test_units_are_the_exact_bytes_in_chunks_of_any_size(size: int) -> None:
    commands = [BEGIN, PUT, QUESTION, LONG_PUT, PREPARE, encode(Quit())]
    stream = b"".join(commands)
    units = Units(CommandDecoder())
    pieces = [stream[start : start + size] for start in range(0, len(stream), size)]
    assert [raw for piece in pieces for _, raw in units.feed(piece)] == commands


def test_units_of_replies() -> None:
    stream = [b"result 200 0 1\r\n", b"value 5 2\r\nabcde", b"result 500 3 3\r\nbad"]
    units = Units(ReplyDecoder())
    assert [raw for _, raw in units.feed(b"".join(stream))] == stream


class Script:
    """An observer that writes down what it is told, and cuts where it is told to."""

    def __init__(self) -> None:
        self.described: list[tuple[str, Step]] = []
        self.cut_at: tuple[str, Step] | None = None

    def asked(self, sighting: ObservedStep) -> None:
        self._note("asked", sighting)

    def done(self, sighting: ObservedStep, reply: Reply) -> None:
        self._note("done", sighting)

    def answered(self, sighting: ObservedStep) -> None:
        self._note("answered", sighting)

    def _note(self, moment: str, sighting: ObservedStep) -> None:
        self.described.append((moment, sighting.step))
        if self.cut_at == (moment, sighting.step):
            raise Cut


@pytest.fixture
def script(dev_broker: RunningBroker) -> Iterator[tuple[Script, InspectingProxy]]:
    observer = Script()
    tap = InspectingProxy(0, dev_broker.address, observer)
    yield observer, tap
    tap.close()


@pytest.mark.process
def test_it_is_as_if_it_were_not_there_but_for_the_observer(script: tuple[Script, InspectingProxy]) -> None:
    observer, tap = script
    with contextlib.closing(WireClient(tap.address)) as client:
        assert client.result(BEGIN)[0] == 200
        client.send(PUT + QUESTION + LONG_PUT)
        assert [reply.opaque for reply in client.replies(3)] == [4, 6, 5]
        assert client.result(PREPARE) == (200, "0")
        client.send(encode(Quit()))
        assert client.rest() == b""
    steps = [Step.BEGIN, Step.PUT, Step.PUT, Step.PREPARE]
    assert [step for moment, step in observer.described if moment == "asked"] == steps
    assert [step for moment, step in observer.described if moment == "answered"] == steps


@pytest.mark.process
@pytest.mark.parametrize(("moment", "reached"), [("asked", False), ("done", True)])
def test_a_cut_drops_the_request_or_its_answer(
    script: tuple[Script, InspectingProxy], dev_broker: RunningBroker, moment: str, reached: bool
) -> None:
    observer, tap = script
    observer.cut_at = (moment, Step.PREPARE)
    with contextlib.closing(WireClient(tap.address)) as client:
        client.ask(BEGIN)
        client.ask(PUT)
        client.send(PREPARE)
        assert client.rest() == b""
    with contextlib.closing(dev_broker.client()) as direct:
        recover = encode(TransactionCommand(None, "s", "RECOVER", 9, unique="query"))
        assert direct.result(recover) == (200, str(XID) if reached else "")


class Range:
    """An injector between a client and a broker whose kills are only written down."""

    def __init__(self, broker: RunningBroker, folder: Path) -> None:
        self.done: queue.Queue[KillDone] = queue.Queue()
        self.hits: list[ObservedStep] = []
        self.present = True
        self.record = Record(folder / "steps.log")
        self.injector = FaultInjector(self.record, self._kill, self.done.put)
        self.tap = InspectingProxy(0, broker.address, self.injector)

    def _kill(self, planned: PlannedKill, sighting: ObservedStep) -> bool:
        if self.present:
            self.hits.append(sighting)
        return self.present


@pytest.fixture
def rig(dev_broker: RunningBroker, tmp_path: Path) -> Iterator[Range]:
    made = Range(dev_broker, tmp_path)
    yield made
    made.tap.close()
    made.record.close()


@pytest.mark.process
@pytest.mark.parametrize(("moment", "answers"), [(Moment.BEFORE, 1), (Moment.UNANSWERED, 1), (Moment.AFTER, 2)])
def test_a_shot_hits_the_nth_request_of_its_step(rig: Range, moment: Moment, answers: int) -> None:
    planned = PlannedKill(Victim.BROKER, Step.PUT, moment, nth=2)
    rig.injector.arm(planned)
    with contextlib.closing(WireClient(rig.tap.address)) as client:
        client.ask(BEGIN)
        received = [reply for _ in range(2) for reply in _ask_unless_cut(client, PUT)]
        assert len(received) == answers
        assert rig.done.get(timeout=10) == KillDone(planned)
    assert len(rig.hits) == 1
    assert not rig.injector.disarm()


@pytest.mark.process
def test_a_shot_that_finds_no_victim_waits_for_the_next(rig: Range) -> None:
    rig.present = False
    rig.injector.arm(PlannedKill(Victim.WORKER, Step.PUT, Moment.AFTER))
    with contextlib.closing(WireClient(rig.tap.address)) as client:
        client.ask(BEGIN)
        client.ask(PUT)
        with rig.injector.ceasefire() as armed:
            assert armed
        rig.present = True
        client.ask(PUT)
        rig.done.get(timeout=10)


def _ask_unless_cut(client: WireClient, request: bytes) -> list[Reply]:
    client.send(request)
    try:
        return [client.reply()]
    except AssertionError:
        return []


@pytest.mark.process
def test_a_request_that_is_held_arrives_late(rig: Range, dev_broker: RunningBroker) -> None:
    caught: queue.Queue[DelayedRequest] = queue.Queue()
    hold = Hold(Step.COMMIT, 1, caught.put)
    rig.injector.hold = hold
    with contextlib.closing(WireClient(rig.tap.address)) as client:
        for request in (BEGIN, PUT, PREPARE):
            client.ask(request)
        client.send(COMMIT)
        assert caught.get(timeout=10).sighting.step is Step.COMMIT
        with contextlib.closing(dev_broker.client()) as other:
            assert other.result(encode(TransactionCommand(XID, "t", "ROLLBACK", 9)))[0] == 200
        assert hold.heard == []
        assert hold.release(10)
        reply = client.reply()
        assert isinstance(reply, Result)
        assert reply.code == 500
        assert [(sighting.step, answer) for sighting, answer in hold.heard] == [(Step.COMMIT, reply)]


CHILD = """
import os, socket, sys
link = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
print(link.getsockname()[1], flush=True)
sys.stdin.read()
"""


def test_processes_of_a_session_and_whose_port_it_is() -> None:
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        child = stack.enter_context(
            subprocess.Popen(
                [sys.executable, "-c", CHILD, str(listener.getsockname()[1])],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,
            )
        )
        assert child.stdout is not None
        port = int(child.stdout.readline())
        assert members(child.pid) == [child.pid]
        assert task_workers(child.pid) == []
        assert port_owner(port, members(child.pid)) == child.pid
        assert port_owner(port, []) is None
        assert port_owner(listener.getsockname()[1] ^ 1, members(child.pid)) is None
        signal_all([child.pid], signal.SIGKILL)
        wait_until(lambda: members(child.pid) == [], "the end of the child")
