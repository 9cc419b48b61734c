"""The recording of a real 4.9.7 broker, replayed against the answers of the scripted one: sends, offsets, pulls."""

from __future__ import annotations

from typing import Final

import pytest
from recordings import content
from request_replay import SendPullReplay, steps

from metaq.protocols.remoting.command import RemotingCommand
from metaq.testing.rocketmq_answers import BrokerAnswers, Endpoints
from metaq.testing.rocketmq_store import Store, Topic

DIFFERENCES: Final = {
    "32 of TT[0]": "a store time",
}


class Scripted:
    """The answers of a broker with what the recorded one had."""

    def __init__(self) -> None:
        self.now_ms = 1_795_426_376_217
        self.store = Store("127.0.0.1", lambda: self.now_ms)
        self.store.topics |= {name: Topic(1, 1) for name in ("golden-a", "GoldenCluster")}
        self.broker = BrokerAnswers(self.store, "GoldenCluster")

    def ask(self, command: RemotingCommand) -> RemotingCommand:
        self.now_ms += 1
        return self.broker.answer(command, Endpoints(("127.0.0.1", 54064), 35911))

    def sleep(self, seconds: float) -> None:
        self.now_ms += int(seconds * 1000)


def replay_of_scripted() -> SendPullReplay:
    scripted = Scripted()
    return SendPullReplay(scripted.ask, scripted.sleep)


def test_every_step_is_answered_as_recorded_but_for_a_list() -> None:
    replay = replay_of_scripted()
    differing = {}
    for step in steps():
        if found := replay.play(step):
            differing[step["step"]["label"]] = found
    unexpected = {label: found for label, found in differing.items() if label not in DIFFERENCES}
    assert unexpected == {}
    assert set(differing) == set(DIFFERENCES)


def test_the_recording_is_whole() -> None:
    assert len(steps()) == 191


@pytest.mark.parametrize("field", ["code", "nextBeginOffset", "body"])
def test_a_difference_would_be_seen(field: str) -> None:
    replay = replay_of_scripted()
    for step in steps():
        if step["step"]["label"] == "all of T1[0]":
            (reply,) = step["replies"]
            if field == "code":
                reply["header"]["code"] = 19
            elif field == "body":
                reply["body"] = {"hex": content(reply["body"]).replace(b"TagA", b"TagB").hex()}
            else:
                reply["header"]["extFields"][field] = "18"
            assert replay.play(step)
            return
        replay.play(step)
    raise AssertionError("no such step")
