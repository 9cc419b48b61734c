"""The recorded conversations with a Java broker, replayed against this one: same requests, same answers.

``DELIBERATE`` lists every answer that is meant to be different, with the reason. Nothing else is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from fix_broker import RunningBroker, StartBroker, WireClient, wait_until
from golden_transcripts import Comparison, Step, steps

from metaq.formats.frames import encode_frame
from metaq.protocols.text.commands import Reply, Result, Value

pytestmark = pytest.mark.process

CORE, SAMPLE, TRANSACTIONS = "01_core.jsonl", "10_sample_segment.jsonl", "04_local_transactions.jsonl"

HELP_LINES = (
    "incarnations Returns per partition its incarnation and what can be read.\r\n"
    "segments Returns per partition its incarnation, its start, the start of its last segment and what can be read.\r\n"
    "state:FILE:POSITION:BYTES Returns bytes of the file with the state of RocketMQ's clients, for a slave.\r\n"
    "replication Returns the broker's part in keeping copies, and how far it is.\r\n"
    "durability Returns what an acknowledgement means, per topic.\r\n"
    "failures Returns partitions that take no more messages, damaged ranges, lost data and disks that take no puts.\r\n"
    "retention Returns per topic what becomes of old segments, when, and what was done.\r\n"
    "machine Returns the broker's clock, and the free space of the folders that it writes to.\r\n"
    "rates Returns what was stored and sent in the last minute.\r\n"
    "rates:TOPIC Returns what was stored and sent in the last minute in a topic, or per topic for *.\r\n"
)
WRONG_CHECKSUM = "Checksum failure,message may be corrupted when transfering on networking."


class Difference(NamedTuple):
    """One answer that is not Java's: which step (counted from 0), why, and what this broker answers."""

    label: str
    reason: str
    ours: Reply


DELIBERATE: dict[tuple[str, int], Difference] = {
    (CORE, 6): Difference(
        "stats help 8",
        "the help names this broker's own items as well",
        Result(200, "", 8),  # filled in from the recorded text, see expected()
    ),
    (CORE, 50): Difference(
        "sync on non-gregor",
        "the same code; Java's text is Chinese and names a Java class",
        Result(503, "sync and copy are for synchronous slaves; this broker is none", 53),
    ),
    (SAMPLE, 7): Difference(
        "get with maxSize 2 MiB: still capped at maxTransferSize",
        "bugs not copied: a big message is readable once acknowledged, and sent whole to who asks for so much",
        Value(encode_frame(0, 0, b"B" * 1572864), 8),
    ),
    (TRANSACTIONS, 46): Difference(
        "put wrong checksum in tx",
        "bug not copied: a wrong checksum inside a transaction is refused",
        Result(500, WRONG_CHECKSUM, 1047),
    ),
    (TRANSACTIONS, 48): Difference(
        "get from mark 66",
        "follows from the refused put: the transaction was empty",
        Result(404, "Could not find message at position 66", 1049),
    ),
    (TRANSACTIONS, 53): Difference(
        "tx BEGIN null ",
        "the same code; Java's text is that of a ClassCastException",
        Result(500, "<own text>", 1054),
    ),
}


def recorded_ini(data: Path) -> str:
    """What the recorded broker showed in ``stats config``, with folder and port of this run and without ZooKeeper."""
    recorded = next(step.reply for step in steps(CORE) if step.label == "stats config")
    assert isinstance(recorded, Result)
    text = re.sub(r"(?m)^dataPath=.*", f"dataPath={data}", recorded.text)
    text = re.sub(r"(?m)^zk\.zkConnect=.*", "zk.zkEnable=false", text)
    return re.sub(r"(?m)^serverPort=.*", "serverPort=0", text)


def sample_ini(data: Path) -> str:
    """The configuration of the broker that wrote the sample segment: broker id 0 (told by its ids), two topics."""
    topics = "[topic=meta-test]\nnumPartitions=1\n[topic=big]\nnumPartitions=1\n"
    return re.sub(r"(?s)\[topic=test\].*", topics, recorded_ini(data)).replace("brokerId=3", "brokerId=0")


class Replay:
    """Plays one transcript: connections by name, opened when first used and again after the broker closed them."""

    def __init__(self, broker: RunningBroker, name: str) -> None:
        self.broker, self.name = broker, name
        self.steps = steps(name)
        self.clients: dict[str, WireClient] = {}

    def play(self) -> Iterator[tuple[int, Step, Reply | None]]:
        for number, step in enumerate(self.steps):
            self._wait_for_timeout(number, step)
            client = self.clients.get(step.connection) or self.broker.client()
            self.clients[step.connection] = client
            client.send(step.request)
            yield number, step, self._answer(step, client)
            if step.closes or not any(pending.connection == step.connection for pending in self.steps[number + 1 :]):
                client.close()
                del self.clients[step.connection]
                self._wait_until_gone()

    def _answer(self, step: Step, client: WireClient) -> Reply | None:
        if step.closes:
            assert client.rest() == b"", step.label
            return None
        return None if step.reply is None else client.reply()

    def _wait_until_gone(self) -> None:
        """The recorded broker had noticed a closed connection before the next step; so must this one."""
        wanted = f"curr_connections {len(self.clients) + 1}\r"
        wait_until(lambda: wanted in self._stats(), "the broker notices the closed connection")

    def _wait_for_timeout(self, number: int, step: Step) -> None:
        """The recorder let the one-second transaction expire before it tried to commit it."""
        if self.name == TRANSACTIONS and step.request.startswith(b"transaction TX:sess1:7 sess1 COMMIT"):
            # One rollback by command, one by the lost connection C, one by the timeout.
            wait_until(lambda: "tx_rollback 3\r" in self._stats(), "the transaction expires")

    def _stats(self) -> str:
        client = self.broker.client()
        try:
            return client.result(b"stats  1\r\n")[1]
        finally:
            client.close()


def expected(name: str, number: int, step: Step) -> Reply | None:
    difference = DELIBERATE.get((name, number))
    if difference is None:
        return step.reply
    assert difference.label == step.label
    if difference.label.startswith("stats help"):
        assert isinstance(step.reply, Result)
        return step.reply._replace(text=step.reply.text.replace("END\r\n", HELP_LINES + "END\r\n"))
    return difference.ours


@pytest.mark.parametrize(("name", "ini"), [(CORE, recorded_ini), (SAMPLE, sample_ini), (TRANSACTIONS, recorded_ini)])
def test_every_recorded_answer_is_given_again(
    name: str, ini: object, start_broker: StartBroker, tmp_path: Path
) -> None:
    file = tmp_path / "server.ini"
    file.write_text(ini(tmp_path / "data"))
    replay = Replay(start_broker("start", "-f", file), name)
    comparison, differing = Comparison(), []
    for number, step, reply in replay.play():
        comparison.learn(step, reply)
        ours, java = comparison.normal(step, reply), comparison.normal(step, expected(name, number, step))
        if (name, number) == (TRANSACTIONS, 53):
            assert isinstance(reply, Result)
            ours = comparison.normal(step, reply._replace(text="<own text>"))
        if ours != java:
            request = f"{number} {step.label}: {step.request[:80]!r}"
            differing.append(f"{request}\n  ours {ours!r:.300}\n  java {java!r:.300}")
    assert not differing, "\n".join(differing)


def test_the_deliberate_differences_are_really_different() -> None:
    for (name, number), difference in DELIBERATE.items():
        step = steps(name)[number]
        assert step.label == difference.label
        assert expected(name, number, step) != step.reply, difference.reason
