"""``metaq-broker dev --dashboard``: pages for a browser beside the broker."""

from __future__ import annotations

import re
import socket
import urllib.request

import pytest
from fix_broker import StartBroker
from metaq_broker import dev

from metaq import ports


@pytest.mark.process
def test_the_dashboard_is_served_beside_the_broker(start_broker: StartBroker) -> None:
    pytest.importorskip("jinja2")
    broker = start_broker("dev", "--port", "0", "--rocketmq-port", "0", "--dashboard-port", "0")
    assert broker.process.stdout is not None
    lines = [broker.process.stdout.readline() for _ in range(2)]
    url = re.fullmatch(r"HTTP and dashboard: (http://127\.0\.0\.1:\d+/)\n", lines[1])
    assert url is not None, lines
    with urllib.request.urlopen(url[1], timeout=60) as answer:
        assert b"<title>Overview" in answer.read()


def test_a_port_that_is_taken_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        monkeypatch.setattr(ports, "METAQ_DASHBOARD", other.getsockname()[1])
        port, note = dev.dashboard_port(None)
        assert port == 0
        assert note is not None
        assert "is taken by another program" in note
        assert dev.dashboard_port(7)[0] == 7
