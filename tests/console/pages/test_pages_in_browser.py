"""Every screen in a real Chromium: opened, read and used, wide and narrow, in both languages and colours."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest
from fix_broker import wait_until
from fix_browser import PHONE, WIDE, Dashboard, picture

from metaq.testing.broker_process import BrokerProcess

if TYPE_CHECKING:
    from fix_browser import OpenPage

pytestmark = [pytest.mark.process, pytest.mark.browser]

SCREENS = {
    "overview": "/",
    "queries": "/queries",
    "topics": "/topics",
    "topic": "/topic?topic=orders",
    "messages": "/topic/messages?topic=orders",
    "live": "/topic/live?topic=orders",
    "message": "/message?topic=payments&partition=0-0&offset=0",
    "groups": "/groups",
    "group": "/group?group=billing",
    "reset": "/group/reset?group=billing&topic=orders&to=earliest",
    "dead letters": "/dead-letters?group=mailer",
    "transactions": "/transactions",
    "replication": "/replication",
    "clients": "/clients",
    "not there": "/nothing",
}
HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>\u202egnp.exe\0"
HOSTILE_TOPIC = '"><img/src=x'.replace("/", "-") + "\u202e"


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(scope="module")
def broker(metaq_broker_process: BrokerProcess, state: None) -> BrokerProcess:
    """The bundled broker with topics, groups and dead letters."""
    metaq_broker_process.clear()
    with metaq_broker_process.client() as mq:
        producer = mq.producer()
        orders = [
            {"order": n, "customer": ("alice", "bob", "李雷")[n % 3], "item": ("tea", "scones")[n % 2]}
            for n in range(400)
        ]
        producer.send_many("orders", [json.dumps(one, ensure_ascii=False) for one in orders])
        producer.send("payments", "订单已付款，请发货。".encode("gb18030"), attribute="gbk")
        producer.send("payments", gzip.compress(b'{"packed": [1, 2, 3]}'), attribute="gzip")
        producer.send("payments", bytes(range(256)), attribute="binary")
        producer.send("payments", HOSTILE, attribute="<b>hostile")
        producer.send("payments", b"four MiB " * ((4 << 20) // 10), attribute="large")
        producer.send(HOSTILE_TOPIC, "in a hostile topic")
        with mq.consumer("billing", ["orders"], auto_ack=False) as consumer:
            consumer.fetch(max_messages=150, timeout=60)
            consumer.commit()
        with mq.consumer("mailer", ["payments"], max_attempts=1) as consumer:

            def refuse(message: object) -> None:
                if len(consumer.parked) >= 2:
                    consumer.stop()
                raise ValueError("mailbox unavailable")

            consumer.run(refuse)
    return metaq_broker_process


@pytest.fixture(scope="module")
def dashboard(broker: BrokerProcess) -> Iterator[Dashboard]:
    """A dashboard that may write."""
    served = Dashboard(broker.cluster, "--write")
    served.start()
    yield served
    served.stop()


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("name", SCREENS)
def test_each_screen_fits_and_is_quiet(open_page: OpenPage, dashboard: Dashboard, name: str, language: str) -> None:
    """No screen is wider than its window, throws an error, or breaks the content security policy."""
    locale, theme = {"en": ("en-GB", "light"), "zh": ("zh-CN", "dark")}[language]
    page = open_page(dashboard.url + SCREENS[name], viewport=WIDE, locale=locale, color_scheme=theme)
    assert page.locator("html").get_attribute("lang") == {"en": "en", "zh": "zh-CN"}[language]
    assert page.locator("h1").count() == 1
    for viewport in (WIDE, PHONE):
        page.set_viewport_size(viewport)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        picture(page, f"{name} {language} {viewport['width']}")


def test_the_look_is_chosen_and_kept(open_page: OpenPage, dashboard: Dashboard) -> None:
    page = open_page(f"{dashboard.url}/topics?q=ord")
    page.get_by_role("link", name="中文").click()
    page.wait_for_url("**/topics?q=ord")
    assert page.locator("h1").inner_text() == "主题"
    page.locator(".looks a[href*=theme]").click()
    page.locator(".looks a[href*='theme=dark']").click()
    assert page.locator("html").get_attribute("data-theme") == "dark"
    assert page.evaluate("getComputedStyle(document.documentElement).colorScheme") == "dark"
    page.goto(f"{dashboard.url}/groups")
    assert page.locator("h1").inner_text() == "消费组"


def test_the_keyboard_is_enough(open_page: OpenPage, dashboard: Dashboard) -> None:
    page = open_page(f"{dashboard.url}/topics")
    page.keyboard.press("/")
    page.keyboard.type("order")
    page.keyboard.press("Enter")
    page.wait_for_url("**/topics?q=order*")
    assert page.locator("tbody tr").count() == 1
    page.locator("tbody a").first.focus()
    page.keyboard.press("Enter")
    page.wait_for_url("**/topic?topic=orders")
    page.keyboard.press("p")
    assert page.locator("#pause").get_attribute("aria-pressed") == "true"
    page.keyboard.press("Tab")
    page.keyboard.press("p")
    assert page.locator("#pause").get_attribute("aria-pressed") == "false"


def test_a_phone_is_enough(open_page: OpenPage, dashboard: Dashboard) -> None:
    """With touches only: from the overview to the text of a message. What is touched is large enough to be hit."""
    page = open_page(f"{dashboard.url}/", viewport=PHONE, has_touch=True, is_mobile=True)
    page.locator("nav.side").get_by_role("link", name="Topics").tap()
    page.get_by_role("link", name="payments", exact=True).tap()
    page.get_by_role("link", name="Messages", exact=True).tap()
    page.locator("#rows a.line").first.tap()
    page.locator("#payload").wait_for()
    page.get_by_role("link", name="中文").tap()
    assert page.locator("html").get_attribute("lang") == "zh-CN"
    for link in page.locator("nav.side a, .looks a").all():
        box = link.bounding_box()
        assert box is not None
        assert min(box["width"], box["height"]) >= 24, box
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_page_refreshes_itself(open_page: OpenPage, dashboard: Dashboard, broker: BrokerProcess) -> None:
    page = open_page(f"{dashboard.url}/topics?q=fresh")
    assert page.locator("tbody tr").count() == 0
    with broker.client() as mq:
        mq.producer().send("fresh-topic", b"x")
    page.locator("tbody tr", has_text="fresh-topic").wait_for()


def test_a_search_is_stopped_and_goes_on(open_page: OpenPage, dashboard: Dashboard) -> None:
    page = open_page(f"{dashboard.url}/topic/messages?topic=orders")
    page.get_by_label("Value contains").fill("alice")
    page.get_by_role("button", name="Show", exact=True).click()
    page.get_by_text("100 found").wait_for()
    assert page.locator("#rows tr").count() == 100
    page.get_by_role("button", name="Go on").click()
    page.get_by_text("400 messages read, 134 found").wait_for()
    assert page.locator("#rows tr").count() == 134
    assert page.locator("#step .pill").first.inner_text() == "done"
    picture(page, "search")


def test_messages_are_found_by_tag_time_and_position(open_page: OpenPage, dashboard: Dashboard) -> None:
    page = open_page(f"{dashboard.url}/topic/messages?topic=payments&tag=gzip")
    page.get_by_text("1 found").wait_for()
    assert '"packed"' in page.locator("#rows").inner_text()
    page.goto(f"{dashboard.url}/topic/messages?topic=orders&until=@1000")
    page.get_by_text("0 found").wait_for()
    page.goto(f"{dashboard.url}/topic/messages?topic=orders&start=15m")
    page.get_by_text("100 found").wait_for()
    assert page.locator("#rows tr").count() == 100


def test_a_message_is_shown_in_several_ways(open_page: OpenPage, dashboard: Dashboard) -> None:
    page = open_page(f"{dashboard.url}/topic/messages?topic=payments&tag=gbk")
    page.locator("#rows a.line").click()
    assert page.locator("#payload").inner_text() == "订单已付款，请发货。"
    page.get_by_label("Shown as").select_option("hex")
    page.get_by_role("button", name="Show", exact=True).click()
    page.wait_for_url("**as=hex*")
    assert page.locator("#payload").inner_text().startswith("000000  b6 a9 b5 a5")
    with page.expect_download() as download:
        page.get_by_role("link", name="Download").click()
    assert download.value.path().read_bytes().decode("gb18030") == "订单已付款，请发货。"


def test_hostile_names_and_values_stay_text(open_page: OpenPage, dashboard: Dashboard) -> None:
    """A dialog, an error, or a request to another server would fail in ``open_page``, or here."""
    page = open_page(f"{dashboard.url}/topics")
    page.get_by_role("link", name="img-src").click()
    assert page.locator("h1").inner_text() == HOSTILE_TOPIC.replace("\u202e", "[U+202E]")
    page.get_by_role("link", name="Messages", exact=True).click()
    assert "in a hostile topic" in page.locator("#rows").inner_text()
    page.goto(f"{dashboard.url}/topic/messages?topic=payments&text=alert")
    page.locator("#rows a.line").click()
    shown = page.locator("#payload").inner_text()
    assert shown == HOSTILE.replace("\u202e", "[U+202E]").replace("\0", "[U+0000]")
    assert page.locator("main img, main script, main b").count() == 0


def test_a_message_of_four_mib_opens(open_page: OpenPage, dashboard: Dashboard) -> None:
    page = open_page(f"{dashboard.url}/topic/messages?topic=payments&tag=large")
    page.locator("#rows a.line").click()
    assert page.get_by_text("The beginning is shown.").count() == 1
    assert len(page.locator("#payload").inner_text()) <= 16 << 10


def test_new_messages_appear_while_somebody_looks(
    open_page: OpenPage, dashboard: Dashboard, broker: BrokerProcess
) -> None:
    page = open_page(f"{dashboard.url}/topic/live?topic=ticks&text=tick")
    with broker.client() as mq:
        mq.producer().send_many("ticks", ["tick 1", "tock", "tick 2"])
        page.locator("tbody tr", has_text="tick 2").wait_for()
        assert page.locator("tbody tr").count() == 2
        page.get_by_role("button", name="Stop").click()
        page.get_by_text("stopped").wait_for()
        page.get_by_role("button", name="Go on").click()
        page.locator("[data-state].live").wait_for()

        def seen() -> bool:
            mq.producer().send("ticks", "tick 3")
            page.wait_for_timeout(300)
            return page.locator("tbody tr", has_text="tick 3").count() > 0

        wait_until(seen, "a message that was sent after going on")


def test_a_group_is_plotted_and_reset_after_a_preview(
    open_page: OpenPage, dashboard: Dashboard, broker: BrokerProcess
) -> None:
    page = open_page(f"{dashboard.url}/groups")
    page.get_by_role("link", name="billing").click()
    page.locator(".plot canvas").wait_for()
    page.get_by_label("To", exact=True).fill("latest")
    page.get_by_role("button", name="Show what would change").click()
    assert page.get_by_text("Nothing is changed yet.").count() == 1
    with broker.client() as mq:
        assert mq.cluster.lag("billing")[0].bytes_behind > 0
        page.get_by_role("button", name="Set these offsets").click()
        page.get_by_text("The offsets are set.").wait_for()
        assert mq.cluster.lag("billing")[0].bytes_behind == 0


def test_dead_letters_are_sent_again_with_a_result_each(
    open_page: OpenPage, dashboard: Dashboard, broker: BrokerProcess
) -> None:
    page = open_page(f"{dashboard.url}/dead-letters?group=mailer")
    boxes = page.get_by_role("checkbox")
    count = boxes.count()
    assert count >= 2
    page.get_by_role("button", name="Send the selected ones again").click()
    page.get_by_text("No message is selected.").wait_for()
    page.get_by_role("checkbox").first.check()
    page.get_by_label("To topic").fill("again")
    page.get_by_role("button", name="Send the selected ones again").click()
    page.locator("#results .pill.good").wait_for()
    assert page.locator("#results tbody tr").count() == 1
    assert page.get_by_role("checkbox").count() == count - 1
    with broker.client() as mq:
        assert len(list(mq.browse("again"))) == 1


def test_without_write_nothing_can_be_changed(
    open_page: OpenPage, broker: BrokerProcess, start_dashboard: Callable[..., Dashboard]
) -> None:
    dashboard = start_dashboard(broker.cluster)
    page = open_page(f"{dashboard.url}/group/reset?group=billing&topic=orders&to=earliest")
    assert page.get_by_text("Start it with --write").count() == 1
    assert page.locator("form[method=post]").count() == 0
    answer = page.request.post(
        f"{dashboard.url}/group/reset", form={"group": "billing", "topic": "orders", "to": "earliest"}
    )
    assert answer.status == 403


def test_a_form_of_another_page_is_refused(open_page: OpenPage, dashboard: Dashboard) -> None:
    page = open_page(f"{dashboard.url}/group/reset?group=billing&topic=orders&to=earliest")
    page.evaluate("document.querySelector('[name=csrf]').value = 'x'")
    page.get_by_role("button", name="Set these offsets").click()
    page.get_by_text("This form is too old.").wait_for()
    answer = page.request.post(f"{dashboard.url}/group/reset", headers={"Origin": "http://evil.example"})
    assert answer.status == 403


def test_a_token_is_asked_for(
    open_page: OpenPage, broker: BrokerProcess, start_dashboard: Callable[..., Dashboard], tmp_path: object
) -> None:
    file = f"{tmp_path}/token"
    with open(file, "w", encoding="utf-8") as opened:
        opened.write("a-token-of-some-length")
    dashboard = start_dashboard(broker.cluster, "--token-file", file)
    page = open_page(f"{dashboard.url}/topics?q=ord")
    assert page.locator("h1").inner_text() == "Token"
    page.get_by_label("Token").fill("wrong")
    page.get_by_role("button", name="Open").click()
    page.get_by_text("This is not the token").wait_for()
    page.get_by_label("Token").fill("a-token-of-some-length")
    page.get_by_role("button", name="Open").click()
    page.wait_for_url("**/topics?q=ord")
    assert page.locator("tbody tr").count() == 1


def test_a_broker_that_dies_is_said_and_the_page_recovers(
    open_page: OpenPage, dashboard: Dashboard, broker: BrokerProcess
) -> None:
    page = open_page(f"{dashboard.url}/topic?topic=orders")
    broker.kill()
    page.locator(".notice.bad", has_text="What is shown is of").wait_for()
    assert page.locator("tbody tr", has_text="0-0").count() == 1
    picture(page, "broker-away")
    broker.start()
    page.locator("#live .notice.bad").wait_for(state="detached")


def test_a_dashboard_that_dies_is_said_and_the_page_recovers(
    open_page: OpenPage, broker: BrokerProcess, start_dashboard: Callable[..., Dashboard]
) -> None:
    dashboard = start_dashboard(broker.cluster)
    page = open_page(f"{dashboard.url}/topics")
    dashboard.stop()
    page.locator("#away").wait_for(state="visible")
    assert page.locator("tbody tr", has_text="orders").count() == 1
    dashboard.start()
    page.locator("#away").wait_for(state="hidden")
