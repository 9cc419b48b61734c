"""What a member of a producer group does with questions, and with brokers that refuse, misbehave or go away."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from fix_broker import wait_until
from listeners import Answer, RemotingServer, Served

from metaq.backends.rocketmq.errors import NameServersAway
from metaq.backends.rocketmq.groups import heartbeats
from metaq.backends.rocketmq.groups.heartbeats import Heartbeats, ProducerGroups
from metaq.backends.rocketmq.half_messages import Outcome
from metaq.backends.rocketmq.remoting import member_client
from metaq.client.rocketmq import check_backs
from metaq.client.rocketmq.check_backs import CheckBacks
from metaq.client.rocketmq.records import RocketReceived
from metaq.formats.rocketmq.records import Record, encode_record
from metaq.model import Address
from metaq.net.remoting_client import RemotingClient
from metaq.net.transport import Timeouts
from metaq.protocols.remoting.acl import Credentials, is_signed_by
from metaq.protocols.remoting.bodies.groups import HeartbeatData
from metaq.protocols.remoting.command import RemotingCommand
from metaq.protocols.remoting.headers import to_request
from metaq.protocols.remoting.headers.clients import HeartBeat
from metaq.protocols.remoting.headers.transactions import (
    COMMIT,
    ROLLBACK,
    UNKNOWN,
    CheckTransactionState,
    EndTransaction,
)

KEYS = Credentials("me", "secret")


def broker(served: Served, command: RemotingCommand) -> Iterable[Answer]:
    """Takes heartbeats, and ends of transactions."""
    return [] if command.is_oneway else [command.reply()]


class Member:
    """A client that has told the server that it is there, with a ``check``."""

    def __init__(self, server: RemotingServer, check: Callable[[RocketReceived], Any], **options: Any) -> None:
        self.server = server
        self.client: RemotingClient = member_client(Timeouts(2.0, 2.0), credentials=KEYS)
        self.open: set[str] = set()
        self.checks = CheckBacks(
            *(self.client, "g", check),
            **{"workers": 1, "is_open": self.open.__contains__, "broker_name": lambda address: "broker-a", **options},
        )
        self.heartbeats = Heartbeats(self.client, lambda: {"broker-a": server.address}, ProducerGroups("g").said, 30.0)
        self.heartbeats.start()
        wait_until(lambda: self.heartbeats.reached == {"broker-a"}, "the broker knows it")

    def ask(self, message_id: str, *, topic: str = "orders", **changes: Any) -> None:
        """Have the server ask about a message."""
        record = Record(topic, 3, 7, b"body", f"UNIQ_KEY\x01{message_id}\x02PGROUP\x01g".encode(), physical_offset=99)
        header = CheckTransactionState(tran_state_table_offset=7, commit_log_offset=99, msg_id=message_id)
        command = to_request(header, encode_record(record._replace(**changes)), oneway=True)
        self.server.connections[0].send(command)

    def answers(self) -> list[EndTransaction]:
        found = [one for one in self.server.received if one.code == EndTransaction.CODE]
        assert all(one.is_oneway and is_signed_by(one, KEYS) for one in found)
        return [EndTransaction.from_ext(one.ext) for one in found]

    def close(self) -> None:
        self.heartbeats.close()
        self.checks.close()
        self.client.close()


@pytest.fixture
def member() -> Iterator[Callable[..., Member]]:
    made: list[Member] = []
    with RemotingServer(broker) as server:

        def make(check: Callable[[RocketReceived], Any], **options: Any) -> Member:
            made.append(Member(server, check, **options))
            return made[-1]

        yield make
        for each in made:
            each.close()


def test_a_heartbeat_names_the_group_and_nothing_of_the_machine(member: Callable[..., Member]) -> None:
    server = member(lambda message: "unknown").server
    (beat,) = [one for one in server.received if one.code == HeartBeat.CODE]
    said = HeartbeatData.from_json(beat.body)
    assert [each.group_name for each in said.producer_data_set] == ["g"]
    assert said.client_id
    assert "127.0.0.1" not in said.client_id
    assert (is_signed_by(beat, KEYS), beat.ext["bname"]) == (True, "broker-a")


@pytest.mark.parametrize(
    ("says", "code"), [("commit", COMMIT), ("rollback", ROLLBACK), ("unknown", UNKNOWN), (None, UNKNOWN)]
)
def test_the_answer_names_the_half_message(member: Callable[..., Member], says: Any, code: int) -> None:
    asked: list[RocketReceived] = []

    def check(message: RocketReceived) -> Any:
        asked.append(message)
        return says

    one = member(check, namespace="ns")
    one.ask("U1", topic="ns%orders")
    wait_until(lambda: len(one.answers()) == 1, "it is answered")
    (answer,) = one.answers()
    assert (answer.tran_state_table_offset, answer.commit_log_offset, answer.msg_id) == (7, 99, "U1")
    assert (answer.producer_group, answer.commit_or_rollback, answer.from_transaction_check) == ("g", code, True)
    assert (asked[0].topic, asked[0].partition.index, asked[0].message_id) == ("orders", 3, "U1")


def test_what_is_open_here_is_not_asked_about(member: Callable[..., Member]) -> None:
    one = member(lambda message: "commit")
    one.open.add("U1")
    one.ask("U1")
    one.ask("U2")
    wait_until(lambda: len(one.answers()) == 2, "both are answered")
    assert {each.msg_id: each.commit_or_rollback for each in one.answers()} == {"U1": UNKNOWN, "U2": COMMIT}


def test_questions_that_make_no_sense_harm_nobody(
    member: Callable[..., Member], caplog: pytest.LogCaptureFixture
) -> None:
    one = member(lambda message: "commit")
    connection = one.server.connections[0]
    whole = to_request(CheckTransactionState(tran_state_table_offset=7, commit_log_offset=9), b"", oneway=True)
    connection.send(whole)  # without a record
    connection.send(replace(whole, ext={"tranStateTableOffset": "x"}))
    one.ask("packed", sys_flag=0x101)  # a body that is said to be LZ4
    one.ask("U2")
    wait_until(lambda: len(one.answers()) == 2, "the last ones are answered")
    assert {each.msg_id: each.commit_or_rollback for each in one.answers()} == {"packed": UNKNOWN, "U2": COMMIT}
    assert "request of the server failed" in caplog.text


def test_too_many_questions_are_left_to_the_broker(
    member: Callable[..., Member], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(check_backs, "WAITING_MAX", 3)
    release, calls = threading.Event(), list[str]()

    def check(message: RocketReceived) -> Outcome:
        calls.append(message.message_id)
        release.wait(60)
        return "commit"

    one = member(check)
    one.ask("U0")
    wait_until(lambda: calls == ["U0"], "the thread is busy")
    for number in range(8):
        one.ask(f"U{number}")
    wait_until(lambda: caplog.text.count("too many check-backs are queued") == 4, "the rest is left out")
    release.set()
    wait_until(lambda: len(one.answers()) == 4, "what was taken is answered")
    assert len(calls) == 4


def test_a_check_that_never_returns_does_not_keep_the_program(
    member: Callable[..., Member], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check_backs, "_JOIN_S", 0.1)
    begun = threading.Event()

    def check(message: RocketReceived) -> Outcome:
        begun.set()
        threading.Event().wait(600)
        return "commit"

    one = member(check)
    one.ask("U1")
    assert begun.wait(60)
    before = time.monotonic()
    one.close()
    assert time.monotonic() - before < 60
    assert all(thread.daemon for thread in threading.enumerate() if thread.name.startswith("metaq-"))


def test_brokers_that_refuse_or_go_away_are_tried_again_and_named_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(heartbeats, "RETRY_S", 0.02)
    caplog.set_level(logging.INFO)
    refuses = [True]

    def answer(served: Served, command: RemotingCommand) -> Iterable[Answer]:
        return [command.reply(2, remark="[OVERLOAD]busy") if refuses else command.reply()]

    away = [NameServersAway(["ns:9876"], ["no route to host"])] * 3
    with RemotingServer(answer) as server, member_client(Timeouts(1.0, 1.0)) as client:

        def masters() -> dict[str, Address]:
            if away:
                raise away.pop()
            return {"broker-a": server.address, "broker-b": Address("127.0.0.1", 1)}

        beats = Heartbeats(client, masters, ProducerGroups("g").said, 30.0)
        beats.start()
        wait_until(lambda: len(server.received) > 5, "it is told again and again")
        assert beats.reached == frozenset()
        refuses.clear()
        wait_until(lambda: beats.reached == {"broker-a"}, "it takes them")
        beats.close()
    assert caplog.text.count("[OVERLOAD]busy; trying again") == 1
    assert caplog.text.count("no route to host; check the addresses") == 1
    assert caplog.text.count("not accepted by broker broker-b") == 1
    assert caplog.text.count("answers again") == 2


def test_the_next_master_is_told_when_a_connection_ends() -> None:
    """It does not know the producer, and would ask nobody until the next regular heartbeat."""
    with (
        RemotingServer(lambda served, command: [command.reply()]) as old,
        RemotingServer(lambda served, command: [command.reply()]) as new,
        member_client(Timeouts(1.0, 1.0)) as client,
    ):
        masters = {"broker-a": old.address}
        beats = Heartbeats(client, lambda: masters, ProducerGroups("g").said, 30.0)
        beats.start()
        wait_until(lambda: beats.reached == {"broker-a"}, "the broker knows it")
        masters["broker-a"] = new.address
        client.disconnect(old.address)
        wait_until(lambda: len(new.received) == 1, "the next master is told")
        wait_until(lambda: beats.reached == {"broker-a"}, "it knows it")
        beats.close()


def test_a_connection_that_ends_before_its_answer_is_noted_is_not_forgotten() -> None:
    """The answers are looked at one after the other; that of the first broker comes when the second one has left."""
    has_ended = threading.Event()

    def answer_late(served: Served, command: RemotingCommand) -> Iterable[Answer]:
        has_ended.wait(10)
        return [command.reply()]

    with (
        RemotingServer(answer_late) as first,
        RemotingServer(lambda served, command: [command.reply(), None]) as second,
        member_client(Timeouts(20.0, 20.0)) as client,
    ):
        beats = Heartbeats(
            client, lambda: {"broker-a": first.address, "broker-b": second.address}, ProducerGroups("g").said, 3600.0
        )
        client.when_ended(lambda address: has_ended.set())
        beats.start()
        wait_until(lambda: len(second.connections) > 1, "the second broker is told again")
        second.behaviour = lambda served, command: [command.reply()]
        wait_until(lambda: beats.reached == {"broker-a", "broker-b"}, "both know it")
        beats.close()


@pytest.mark.parametrize("garbage", [b"\xff" * 64, b"\0" * 8, b"HTTP/1.1 400 Bad Request\r\n\r\n"])
def test_a_server_that_is_no_broker_is_named_and_left_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, garbage: bytes
) -> None:
    monkeypatch.setattr(heartbeats, "RETRY_S", 0.02)
    with (
        RemotingServer(lambda served, command: [garbage, None]) as server,
        member_client(Timeouts(1.0, 1.0)) as client,
    ):
        beats = Heartbeats(client, lambda: {"broker-a": server.address}, ProducerGroups("g").said, 30.0)
        beats.start()
        wait_until(lambda: [one.code for one in server.received].count(HeartBeat.CODE) > 2, "it is tried again")
        beats.close()
    assert beats.reached == frozenset()
    assert "not accepted by broker broker-a" in caplog.text
