"""The HTTP side of metrics, without a broker: what is written, and clients that do not behave."""

from __future__ import annotations

import socket
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import pytest
from metaq_broker.operate.control import exposition
from metaq_broker.operate.control.exposition import THREADS_MAX, MetricsServer
from metaq_broker.operate.control.measures import OTHER_TOPICS, Distribution, Measure, TopicLabels
from metaq_broker.serve.server import bind

FIGURES = [
    Measure("counter", "metaq_things", "Things.", ("topic",), [(('o"r\nd',), 3), (("ü",), 4)]),
    Measure("gauge", "metaq_level", "Level.", (), [((), 0.5)]),
    Measure("gauge", "metaq_empty", "Nothing.", ("topic",), []),
    Distribution("metaq_wait_seconds", "Waits.", [(0.1, 1), (1.0, 3), (float("inf"), 4)], 7.5),
]
EXPECTED = [
    "# HELP metaq_things_total Things.",
    "# TYPE metaq_things_total counter",
    'metaq_things_total{topic="o\\"r\\nd"} 3.0',
    'metaq_things_total{topic="ü"} 4.0',
    "# HELP metaq_level Level.",
    "# TYPE metaq_level gauge",
    "metaq_level 0.5",
    "# HELP metaq_empty Nothing.",
    "# TYPE metaq_empty gauge",
    "# HELP metaq_wait_seconds Waits.",
    "# TYPE metaq_wait_seconds histogram",
    'metaq_wait_seconds_bucket{le="0.1"} 1.0',
    'metaq_wait_seconds_bucket{le="1.0"} 3.0',
    'metaq_wait_seconds_bucket{le="+Inf"} 4.0',
    "metaq_wait_seconds_count 4.0",
    "metaq_wait_seconds_sum 7.5",
]

Serve = Callable[[Callable[[], list[Measure | Distribution]]], str]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Serve what a function returns; return the URL."""
    with ExitStack() as servers:

        def start(figures: Callable[[], list[Measure | Distribution]]) -> str:
            listener = bind("127.0.0.1", 0)
            server = MetricsServer(listener, figures)
            servers.callback(server.close)
            server.start()
            return f"http://127.0.0.1:{listener.getsockname()[1]}/metrics"

        yield start


def fetch(url: str) -> str:
    with closing(urllib.request.urlopen(url, timeout=10)) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain")
        text: str = answer.read().decode()
        return text


def test_figures_as_text(serve: Serve) -> None:
    lines = fetch(serve(lambda: FIGURES)).splitlines()
    assert lines[: len(EXPECTED)] == EXPECTED
    assert all(line.split()[2 if line[0] == "#" else 0].startswith("process_") for line in lines[len(EXPECTED) :])


def test_a_broker_that_is_too_busy_is_503_and_a_defect_500(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    def busy() -> list[Measure | Distribution]:
        raise TimeoutError

    def broken() -> list[Measure | Distribution]:
        raise RuntimeError("a defect")

    for figures, code in ((busy, 503), (broken, 500)):
        with pytest.raises(urllib.error.HTTPError) as refused:
            fetch(serve(figures))
        refused.value.close()
        assert refused.value.code == code
    assert "a defect" in capsys.readouterr().err


def test_silent_clients_take_all_places_only_for_a_while(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exposition._Handler, "timeout", 0.3)
    url = serve(lambda: FIGURES)
    port = int(url.split(":")[2].split("/")[0])
    silent = [socket.create_connection(("127.0.0.1", port), 5) for _ in range(THREADS_MAX)]
    with socket.create_connection(("127.0.0.1", port), 5) as one_too_many:
        assert _rest(one_too_many) == b""
    for connection in silent:
        assert _rest(connection) == b""  # its time is over
        connection.close()
    assert "metaq_level 0.5" in fetch(url)


def _rest(connection: socket.socket) -> bytes:
    try:
        return connection.recv(100)
    except ConnectionResetError:
        return b""


def test_what_is_not_http_is_answered_or_closed(serve: Serve) -> None:
    url = serve(lambda: FIGURES)
    port = int(url.split(":")[2].split("/")[0])
    for garbage in (b"\0" * 100 + b"\r\n\r\n", b"GET\r\n\r\n", b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\n\r\n"):
        with socket.create_connection(("127.0.0.1", port), 5) as client:
            client.sendall(garbage)
            assert b"metaq_level" not in _rest(client)
    assert "metaq_level 0.5" in fetch(url)


def test_topics_share_a_label_beyond_the_limit_and_keep_theirs_for_ever() -> None:
    labels = TopicLabels(2)
    assert [labels.label(topic) for topic in ("a", "b", "c", "a", "d", "b")] == [
        "a",
        "b",
        OTHER_TOPICS,
        "a",
        OTHER_TOPICS,
        "b",
    ]
    assert labels.label("\udc80") == OTHER_TOPICS
    assert TopicLabels().label("\udc80") == "\\udc80"
