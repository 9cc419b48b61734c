"""Hostile bodies cost time that grows with their length, not with its square."""

from __future__ import annotations

import time

import pytest
from examples import FAST, in_one_test

from metaq.errors import FieldError
from metaq.protocols.remoting.bodies import json_text
from metaq.protocols.remoting.bodies.json_text import load_json

BYTES = 100_000 if FAST else 1_000_000


@in_one_test(
    "unit",
    [
        b"0",
        b"-",
        b'\\"',
        b"{",
        b'{"',
        b'{"x"',
        b"1 ",
        b"{1:",
        b'"x"',
        b'{"\\"',
        b"}",
        b"{}",
        b"{}:",
        b" ",
        b'"\\',
        b"1e",
    ],
)
@in_one_test("start", [b"", b'"', b"{"])
def test_a_megabyte_takes_no_second(unit: bytes, start: bytes) -> None:
    began = time.process_time()
    with pytest.raises(FieldError):
        load_json(start + unit * (BYTES // len(unit)) + b"!", "body")
    assert time.process_time() - began < 5e-6 * BYTES  # the square of a megabyte takes hours


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b'{0:"a",-12 :{1:2}}', {"0": "a", "-12": {"1": 2}}),
        (b'{"t 1:2":{5:"1:2"}}', {"t 1:2": {"5": "1:2"}}),
        (b'{"\\"3:":4,5:6}', {'"3:': 4, "5": 6}),
        (b'{{"queueId":0}:{1:2}}', {'{"queueId":0}': {"1": 2}}),
    ],
)
def test_bare_keys_are_read_as_before(text: bytes, value: object) -> None:
    assert load_json(text, "body") == value


@pytest.mark.parametrize("text", [b'"' * 40, b"[1" + b'"' * 40, b"x" * 40, b'{1:2,"' + b'"' * 40])
def test_a_server_looks_through_small_texts_with_bare_keys_only(text: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_text, "_UNUSUAL_KEYS", None)
    with pytest.raises(FieldError):
        load_json(text, "body", bare_keys_bytes_max=10)
    monkeypatch.undo()
    assert load_json(b"{1:2}", "body", bare_keys_bytes_max=10) == {"1": 2}
    with pytest.raises(FieldError):
        load_json(b"{1:2,3:456}", "body", bare_keys_bytes_max=10)
