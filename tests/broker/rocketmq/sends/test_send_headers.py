"""Headers of sends are read as any header is, and what they have in common is kept."""

from __future__ import annotations

from dataclasses import replace

import pytest
from examples import in_one_test
from metaq_broker.rocketmq.sends.send_headers import KEPT_CHARACTERS_MAX, read_send_header
from remoting_headers import send_header

from metaq.errors import FieldError
from metaq.protocols.remoting.command import request
from metaq.protocols.remoting.headers import to_request
from metaq.protocols.remoting.headers.sends import SEND_BATCH_MESSAGE, SEND_MESSAGE, SendMessage

SENT = send_header(
    producer_group="producers",
    queue_id=3,
    born_timestamp=1_790_000_000_123,
    flag=7,
    properties="TAGS\x01a",
    batch=False,
)
CODES = (SEND_MESSAGE, SendMessage.CODE, SEND_BATCH_MESSAGE)


def read(sent: SendMessage, code: int) -> tuple[SendMessage, int, str]:
    """Read what a request for ``sent`` says."""
    return read_send_header(to_request(sent, code=code))


@in_one_test("code", CODES)
@in_one_test("group", ["producers", "g" * (KEPT_CHARACTERS_MAX + 1)])
@in_one_test("born", [0, 1_790_000_000_123, (1 << 63) - 1, -5])
def test_it_is_what_the_fields_say(code: int, group: str, born: int) -> None:
    for properties in ("TAGS\x01a", "", "TAGS\x01b", None):
        sent = replace(SENT, producer_group=group, born_timestamp=born, properties=properties)
        header, *others = read(sent, code)
        assert others == [born, properties or ""]
        assert replace(header, born_timestamp=born, properties=properties) == sent


@pytest.mark.parametrize("code", CODES)
def test_what_sends_have_in_common_is_read_once(code: int) -> None:
    first, second = (read(replace(SENT, born_timestamp=each, properties=str(each)), code)[0] for each in (1, 2))
    assert first is second
    assert read(replace(SENT, queue_id=1), code)[0].queue_id == 1


@pytest.mark.parametrize(
    ("name", "value"), [("e", None), ("e", "x"), ("g", None), ("g", ""), ("g", "1x"), ("g", "9" * 19), ("h", "")]
)
def test_what_is_wrong_is_named_each_time(name: str, value: str | None) -> None:
    ext = {**to_request(SENT, code=SendMessage.CODE).ext}
    ext.pop(name)
    if value is not None:
        ext[name] = value
    for _ in range(2):
        with pytest.raises(FieldError) as wrong:
            read_send_header(request(SendMessage.CODE, ext))
        assert wrong.value.field == name


def test_fields_that_may_be_missing_have_their_defaults() -> None:
    ext = {"b": "t", "e": "0", "f": "0", "g": "5", "h": "0"}
    header, _, properties = read_send_header(request(SendMessage.CODE, ext))
    assert (header.producer_group, header.default_topic_queue_nums, properties) == ("", 0, "")
