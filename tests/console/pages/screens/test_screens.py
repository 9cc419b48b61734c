"""The screens as HTML, over a broker in memory: what they say, and that what others wrote stays text."""

from __future__ import annotations

import base64
import re
import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from fix_broker import wait_until

from metaq.protocols.text.commands import Stats
from metaq.testing.memory_server import MemoryServer

if TYPE_CHECKING:
    from fix_console import StartConsole
    from starlette.testclient import TestClient

HTML = {"Accept": "text/html"}
SCREENS = ("/", "/queries", "/topics", "/groups", "/dead-letters", "/transactions", "/replication", "/clients")
HOSTILE = "<script>alert(1)</script>\u202e\0"


Open = Callable[[], "TestClient"]


@pytest.fixture
def opened(metaq_memory: MemoryServer, start_console: StartConsole) -> Open:
    """Start the console when a test has stored its messages: answers serve for seconds."""
    return lambda: start_console(metaq_memory.cluster, write=True)


def page(console: TestClient, path: str, status: int = 200, **parameters: str) -> str:
    found = console.get(path, params=parameters or None, headers=HTML)
    assert found.status_code == status, found.text
    return found.text


@pytest.mark.parametrize("path", SCREENS)
@pytest.mark.parametrize(("language", "tag"), [("en", "en"), ("zh", "zh-CN")])
def test_each_screen_opens_in_each_language(console: TestClient, path: str, language: str, tag: str) -> None:
    console.cookies.set("metaq_language", language)
    text = page(console, path)
    assert f'<html lang="{tag}"' in text
    assert text.count('aria-current="page"') == 1


def test_topics_are_paged_and_sorted(metaq_memory: MemoryServer, opened: Open) -> None:
    producer = metaq_memory.client().producer()
    for number in range(120):
        producer.send(f"topic-{number:03}", b"x" * number)
    console = opened()
    first = page(console, "/topics")
    assert "120 topics" in first
    assert "topic-000" in first
    assert "topic-050" not in first
    assert "topic-119" in page(console, "/topics", page="3")
    assert "topic-119" in page(console, "/topics", sort="-topic")
    found = page(console, "/topics", q="topic-11")
    assert "10 topics" in found
    assert "topic-000" not in found


@pytest.mark.parametrize(
    "parameters", [{"page": "x"}, {"page": "-1"}, {"page": "9" * 5000}, {"page": "0" * 9}, {"sort": "nothing"}]
)
def test_wrong_pages_and_orders_are_the_first_ones(console: TestClient, parameters: dict[str, str]) -> None:
    page(console, "/topics", **parameters)


def test_a_topic_has_its_partitions(metaq_memory: MemoryServer, opened: Open) -> None:
    metaq_memory.client().producer().send("orders", b"one tea")
    console = opened()
    assert "0-0" in page(console, "/topic", topic="orders")


def test_the_newest_messages_are_shown_first(metaq_memory: MemoryServer, opened: Open) -> None:
    metaq_memory.client().producer().send_many("orders", [f"order {number}" for number in range(80)])
    console = opened()
    text = page(console, "/topic/messages", topic="orders")
    assert text.index("order 79<") < text.index("order 31<")
    assert "order 10<" not in text


@pytest.mark.parametrize(
    ("limit", "value", "says"),
    [
        ("metaq_console.cluster.scans.KEPT_BYTES_MAX", 100, "Only the newest 12 are shown: they are long."),
        ("metaq_console.pages.screens.messages.STEP_S", 1e-9, "Not all was read in time"),
    ],
)
def test_a_page_without_the_newest_messages_says_so(
    metaq_memory: MemoryServer, opened: Open, monkeypatch: pytest.MonkeyPatch, limit: str, value: float, says: str
) -> None:
    metaq_memory.client().producer().send_many("orders", [f"order {number}" for number in range(80)])
    console = opened()
    assert says not in page(console, "/topic/messages", topic="orders")
    monkeypatch.setattr(limit, value)
    assert says in page(console, "/topic/messages", topic="orders", partition="0-0")


def test_a_search_says_how_far_it_got(metaq_memory: MemoryServer, opened: Open) -> None:
    metaq_memory.client().producer().send_many("orders", [f"order {number}" for number in range(300)])
    console = opened()
    text = page(console, "/topic/messages", topic="orders", text="order 27")
    assert "300 messages read, 11 found" in text
    assert "order 279<" in text
    assert "order 28<" not in text


def test_a_search_goes_on_step_by_step(metaq_memory: MemoryServer, opened: Open) -> None:
    metaq_memory.client().producer().send_many("orders", [f"order {number}" for number in range(130)])
    console = opened()
    text = page(console, "/topic/messages", topic="orders", text="order")
    found = 0
    for shown in ("50 messages read, 50 found", "100 messages read, 100 found", "130 messages read, 130 found"):
        assert shown in text
        found += text.count('class="value"')
        step = re.search(r'hx-get="([^"]+next[^"]+)"', text)
        if step is not None:
            text = page(console, step[1].replace("&amp;", "&"))
    assert found == 130
    assert "hx-get" not in text


@pytest.mark.parametrize(
    ("parameters", "sentence"),
    [
        ({"start": "7"}, "an offset needs one partition"),
        ({"start": "noon"}, "from noon: expected"),
        ({"until": "noon"}, "until noon: expected"),
        ({"start": "2026-01-31T12:00:00"}, "from 2026-01-31T12:00:00: a time without a zone; expected one such as"),
        ({"until": "2026-01-31"}, "until 2026-01-31: a time without a zone"),
        ({"partition": "0-9"}, "0-9"),
        ({"id": "x"}, "a MetaQ id is a whole number"),
    ],
)
def test_what_cannot_be_looked_for_is_said(
    metaq_memory: MemoryServer, opened: Open, parameters: dict[str, str], sentence: str
) -> None:
    metaq_memory.client().producer().send("orders", b"one tea")
    console = opened()
    assert sentence in page(console, "/topic/messages", topic="orders", **parameters)


def test_a_group_is_not_reset_to_a_time_of_the_servers_zone(console: TestClient) -> None:
    text = page(console, "/group/reset", group="g", topic="orders", to="2026-01-31T12:00:00")
    assert "to 2026-01-31T12:00:00: a time without a zone" in text


ENDLESS = base64.urlsafe_b64encode(zlib.compress(b'[{"0-0": Infinity}, 0, 0, 0]')).decode()


@pytest.mark.parametrize("after", ["x", "eJyrrgUAAXUA-Q==", "%00", ENDLESS])
def test_a_made_up_next_step_is_refused(console: TestClient, after: str) -> None:
    assert "next step" in page(console, "/topic/messages/next", 400, topic="orders", after=after)


def test_one_message(metaq_memory: MemoryServer, opened: Open) -> None:
    sent = metaq_memory.client().producer().send("orders", '{"tea": 1}', attribute="hot")
    where = {"topic": "orders", "partition": str(sent.partition), "offset": str(sent.offset)}
    console = opened()
    text = page(console, "/message", **where)
    assert "&#34;tea&#34;: 1" in text
    assert str(sent.message_id) in text
    assert "7b 22 74 65 61" in page(console, "/message", **where, **{"as": "hex"})
    page(console, "/message", 404, **{**where, "offset": "3"})
    page(console, "/message", 400, **{**where, "offset": "x"})
    page(console, "/message", 400, topic="orders")


def test_what_others_wrote_stays_text(metaq_memory: MemoryServer, opened: Open) -> None:
    topic = 'a"><b>\u202e'
    sent = metaq_memory.client().producer().send(topic, HOSTILE, attribute="<i>'\"")
    console = opened()
    where = {"topic": topic, "partition": str(sent.partition), "offset": str(sent.offset)}
    for text in (
        page(console, "/topics"),
        page(console, "/topic", topic=topic),
        page(console, "/topic/messages", topic=topic),
        page(console, "/topic/messages", topic=topic, text="<script>"),
        page(console, "/topic/live", topic=topic),
        page(console, "/message", **where),
        page(console, "/dead-letters", group='"><b>'),
    ):
        assert "<b>" not in text
        assert "<i>" not in text
        assert "<script>alert" not in text
        assert "\0" not in text
        shown = re.sub(r'(?:value|title|content)="[^"]*"', "", text)  # what is sent back has to be as it is
        assert "\u202e" not in shown


def test_a_broker_that_is_away_is_said_with_the_last_answer(metaq_memory: MemoryServer, opened: Open) -> None:
    metaq_memory.client().producer().send("orders", b"one tea")
    console = opened()
    assert 'class="notice bad" role="alert"><span' not in page(console, "/topic", topic="orders")
    metaq_memory.kill()
    wait_until(lambda: "What is shown is of" in page(console, "/topic", topic="orders"), "the page says it")
    text = page(console, "/topic", topic="orders")
    assert "no answer" in text
    assert "0-0" in text
    metaq_memory.start()
    wait_until(lambda: "What is shown is of" not in page(console, "/topic", topic="orders"), "the page recovers")


def test_each_answer_forbids_scripts_and_frames_of_others(console: TestClient) -> None:
    for path in SCREENS:
        policy = console.get(path, headers=HTML).headers["content-security-policy"]
        assert "script-src 'self'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy


def test_pages_have_no_scripts_or_styles_of_their_own(console: TestClient) -> None:
    for path in SCREENS:
        text = page(console, path)
        assert re.findall(r"<script(?![^>]* src=)", text) == []
        assert re.findall(r"\s(?:style|on\w+)=", text) == []


def test_what_is_not_there_is_a_page_too(console: TestClient) -> None:
    assert "there is nothing here" in page(console, "/nothing", 404)
    assert "there is no query" in page(console, "/query", 404, key="x")
    assert console.get("/v1/nothing", headers=HTML).json()["error"]["code"] == "not_found"


def test_a_query_that_was_not_looked_at_yet_is_no_warning(
    monkeypatch: pytest.MonkeyPatch, metaq_memory: MemoryServer, start_console: StartConsole
) -> None:
    pytest.importorskip("pyspark", reason="the verdicts need the extra spark")
    monkeypatch.setattr("metaq_console.queries.board.PAUSE_S", 3600.0)  # the first looks are over when it is posted
    console = start_console(metaq_memory.cluster)
    event = {"v": 1, "event": "started", "at_ms": 1_800_000_000_000, "id": "q1", "runId": "r1", "name": "to-lake"}
    assert console.post("/v1/queries/events", json=[event]).status_code == 200
    for path in ("/queries", "/query?key=q1"):
        shown = console.get(path).text
        assert "to-lake" in shown
        assert "The first look is still to come." in shown
        assert '<span class="pill ">looking</span>' in shown
        assert "pill warn" not in shown
        assert shown.count("notice bad") == 1, "the hidden one, for a dashboard that is away"


def test_the_head_of_a_stream_has_an_end(metaq_memory: MemoryServer, opened: Open) -> None:
    metaq_memory.client().producer().send("orders", b"one tea")
    found = opened().head("/topic/live/stream", params={"topic": "orders"})
    assert (found.status_code, found.headers["content-type"], found.content) == (
        200,
        "text/event-stream; charset=utf-8",
        b"",
    )


@pytest.mark.parametrize("path", ["/topic?topic=orders", "/topic/messages?topic=orders"])
def test_the_first_page_of_a_topic_asks_for_no_other_topic(
    monkeypatch: pytest.MonkeyPatch, metaq_memory: MemoryServer, opened: Open, path: str
) -> None:
    """In a cluster of ten thousand topics, an answer about all partitions takes long, and each broker a walk."""
    monkeypatch.setattr("metaq.discovery.kept.PLACES_S", 3600.0)  # a busy machine may be slow
    metaq_memory.client().producer().send("orders", b"one tea")
    console = opened()

    def walks() -> int:
        asked = [one.item for one in metaq_memory.broker.commands if isinstance(one, Stats)]
        return asked.count("incarnations") + asked.count("offsets")

    before = walks()
    assert "0-0" in page(console, path)
    assert walks() == before
