"""A real broker and its operator: runs ``metaq-broker ctl`` against it and says what came back."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cli_commands import run_command
from fix_broker import RunningBroker, WireClient, system_section
from metaq_broker.cli import main

from metaq.formats.frames import walk

SYSTEM = system_section(1, 4)


@dataclass(frozen=True)
class Answer:
    """How a ``ctl`` command ended."""

    status: int
    out: str
    error: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    @property
    def document(self) -> dict[str, Any]:
        document = json.loads(self.out)
        assert isinstance(document, dict)
        return document


def ctl(*arguments: str | Path) -> Answer:
    return Answer(*run_command(main, "ctl", *arguments))


def ask(broker: RunningBroker, *arguments: str | Path) -> dict[str, Any]:
    """Return the JSON result of a command that must succeed."""
    answer = ctl("--data", broker.data, "--json", *arguments)
    assert answer.status == 0, answer
    return answer.document


def report(broker: RunningBroker, *arguments: str | Path) -> list[str]:
    """Return the lines of a command that must succeed."""
    answer = ctl("--data", broker.data, *arguments)
    assert (answer.status, answer.error) == (0, ""), answer
    return answer.lines


def refusal(broker: RunningBroker, *arguments: str | Path) -> str:
    """Return the sentence of a command that must be refused; ``--json`` says the same."""
    answer = ctl("--data", broker.data, "--json", *arguments)
    assert answer.status == 1, answer
    error = answer.document["error"]
    assert error["kind"] == "refused"
    assert answer.error == f"metaq-broker: {error['text']}\n"
    return str(error["text"])


def put(topic: str, index: int, body: bytes, opaque: int = 1) -> bytes:
    return b"put %s %d %d 0 %d\r\n%b" % (topic.encode(), index, len(body), opaque, body)


def stored(client: WireClient, topic: str, index: int, body: bytes) -> int:
    code, text = client.result(put(topic, index, body))
    assert code == 200, text
    return int(text.split()[2])


def get(topic: str, index: int, offset: int = 0) -> bytes:
    return b"get %s g %d %d 1048576 1\r\n" % (topic.encode(), index, offset)


def read(client: WireClient, topic: str, index: int) -> list[bytes]:
    """Return the bodies of a partition that fits into one reply."""
    return [bytes(frame.body) for frame in walk(client.value(get(topic, index)))]
