"""Answers to ``stats`` that are longer than what is made at once: complete, and in the order of the requests."""

from __future__ import annotations

from pathlib import Path

import pytest
from fix_broker import StartBroker, write_ini
from metaq_broker.text.stats_report import PART_LINES
from text_protocol import placed, put

from metaq.protocols.text.commands import Result

pytestmark = pytest.mark.process

TOPICS = [f"t{number:05}" for number in range(3 * PART_LINES)]


def test_an_answer_in_parts_is_whole_and_keeps_its_place(start_broker: StartBroker, tmp_path: Path) -> None:
    sections = "".join(f"[topic={topic}]\n" for topic in TOPICS)
    client = start_broker("start", "-f", write_ini(tmp_path, sections)).client()
    client.send(put(TOPICS[0], b"x", 1) + b"stats topics 2\r\nversion 3\r\nstats topics 4\r\nstats config 5\r\n")
    assert placed(client.reply())[2] == 0
    replies = client.replies(4)
    assert [reply.opaque for reply in replies] == [2, 3, 4, 5]
    first, _, second, config = replies
    assert isinstance(first, Result)
    assert isinstance(second, Result)
    assert isinstance(config, Result)
    lines = first.text.splitlines()
    assert (lines[0], lines[-1]) == ("STATS", "END")
    assert lines[1].startswith(f"{TOPICS[0]} partitions 1 message_count 1 ")
    assert lines[2:-1] == [f"{topic} *Empty*" for topic in TOPICS[1:]]
    assert second.text == first.text
    assert config.text.endswith(sections)


def test_a_broker_that_stops_completes_an_answer_in_parts(start_broker: StartBroker, tmp_path: Path) -> None:
    sections = "".join(f"[topic={topic}]\n" for topic in TOPICS)
    broker = start_broker("start", "-f", write_ini(tmp_path, sections))
    client = broker.client()
    client.send(b"stats topics 1\r\n" * 200)
    assert client.reply().opaque == 1
    assert broker.stop() == 0
    found = client.replies(1)
    assert isinstance(found[0], Result)
    assert len(found[0].text.splitlines()) == len(TOPICS) + 2
