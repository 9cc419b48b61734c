"""The command ``group``: codes, rights, and answers that wait for the disk."""

from __future__ import annotations

from pathlib import Path

import pytest
from manual_loop import Steps
from metaq_broker.clock import ManualClock
from metaq_broker.log.state.state_table import StateTable
from metaq_broker.text.groups.group_commands import EVERYTHING, GroupCommands
from metaq_broker.text.groups.group_state import KeptGroups
from metaq_broker.text.refusals import Refused
from stored import QuickFiles

from metaq.protocols.text.commands import GroupRequest
from metaq.protocols.text.group_bodies import decode_body, encode_body


class Setting:
    def __init__(self, root: Path) -> None:
        self.steps = Steps()
        table = StateTable.open(QuickFiles(), root / "groups", self.steps)
        self.commands = GroupCommands(KeptGroups(table, ManualClock().monotonic))
        self.answers: list[tuple[int, str]] = []

    def ask(self, action: str, **fields: object) -> tuple[int, str]:
        self.send(action, encode_body(**fields))
        self.steps.run_all(1.0)
        return self.answers.pop()

    def send(self, action: str, body: bytes) -> None:
        request = GroupRequest(action, "g", body, 1)
        self.commands.carry_out(request, EVERYTHING, lambda code, text: self.answers.append((code, text)))

    def join(self, token: str = "a", consumer: str = "c") -> tuple[int, str]:
        return self.ask("join", token=token, consumer=consumer, session_ms=1000, topics=["t"])


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    return Setting(tmp_path)


def test_a_consumer_from_join_to_leave(setting: Setting) -> None:
    code, text = setting.join()
    assert (code, decode_body(text).members()) == (200, {"c": ["t"]})
    assert setting.ask("claim", token="a", partitions=[["t", 0]]) == (200, '{"owned":[["t",0]]}')
    assert setting.ask("save", token="a", offsets=[["t", 0, "1-9", None]], expected=[]) == (200, '{"changed":[]}')
    assert setting.ask("load", token="a", partitions=[["t", 0]]) == (200, '{"offsets":[["t",0,"1-9",null]]}')
    assert setting.ask("names") == (200, '{"names":["g"]}')
    assert setting.ask("release", token="a", partitions=[["t", 0]]) == (200, "{}")
    assert setting.ask("leave", token="a") == (200, "{}")
    assert setting.ask("list") == (200, '{"members":{},"offsets":[["t",0,"1-9",null]]}')


def test_claims_and_saves_wait_for_the_disk(setting: Setting) -> None:
    setting.join()
    setting.send("claim", encode_body(token="a", partitions=[["t", 0]]))
    assert setting.answers == []
    setting.steps.run_all()
    assert [code for code, _ in setting.answers] == [200]


def test_refusals(setting: Setting) -> None:
    setting.join()
    assert setting.join("b")[0] == 409
    assert setting.ask("claim", token="b", partitions=[])[0] == 404


@pytest.mark.parametrize(
    ("action", "body", "named"),
    [
        ("join", b"", "no JSON object"),
        ("join", b"[]", "no JSON object"),
        ("join", b"[" * 100_000, "no JSON object"),
        ("join", b'{"token":"a","consumer":"c","session_ms":1,"topics":[]}', "session_ms is '1'"),
        ("join", b'{"token":"a","consumer":"","session_ms":1000,"topics":[]}', "consumer"),
        ("join", b'{"token":"a","consumer":"c","session_ms":1000,"topics":[1]}', "topics"),
        ("claim", b'{"token":"a","partitions":[["t",-1]]}', "partitions"),
        ("claim", b'{"token":"a","partitions":[["t",true]]}', "partitions"),
        ("load", b'{"partitions":["t"]}', "partitions"),
        ("save", b'{"token":"a","offsets":[["t",0,"x",null]]}', "not an offset"),
        ("save", b'{"token":"a","offsets":[["t",0,1,null]]}', "offsets"),
        ("leave", b"{}", "token"),
        ("dance", b"{}", "unknown action 'dance'"),
        ("leave", encode_body(token="a" * 2000), "the limit is 1024"),
    ],
)
def test_a_wrong_body_is_named(setting: Setting, action: str, body: bytes, named: str) -> None:
    setting.send(action, body)
    ((code, text),) = setting.answers
    assert code == 400
    assert named in text


def test_a_topic_that_the_client_may_not_read(setting: Setting) -> None:
    body = encode_body(token="a", consumer="c", session_ms=1000, topics=["secret"])
    setting.commands.carry_out(
        GroupRequest("join", "g", body, 1),
        EVERYTHING._replace(subscribe=lambda topic: Refused(403, f"not {topic}")),
        lambda code, text: setting.answers.append((code, text)),
    )
    assert setting.answers == [(403, "not secret")]


@pytest.mark.parametrize("action", ["join", "leave", "claim", "release", "load", "save", "forget", "list", "names"])
def test_a_group_that_the_client_may_not_use(setting: Setting, action: str) -> None:
    fields = {"token": "a", "consumer": "c", "session_ms": 1000, "topics": [], "partitions": [], "offsets": []}
    setting.commands.carry_out(
        GroupRequest(action, "g", encode_body(**fields), 1),
        EVERYTHING._replace(use_group=lambda group: Refused(403, f"not {group}")),
        lambda code, text: setting.answers.append((code, text)),
    )
    assert setting.answers == [(200, '{"names":[]}') if action == "names" else (403, "not g")]


def test_a_broker_without_groups_says_so() -> None:
    answers: list[tuple[int, str]] = []
    request = GroupRequest("names", "-", b"{}", 1)
    GroupCommands(None).carry_out(request, EVERYTHING, lambda code, text: answers.append((code, text)))
    assert answers == [(503, "this broker keeps no consumer groups: it has a role in replication")]
