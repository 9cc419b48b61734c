"""The part of YAML that files of accounts are written in."""

from __future__ import annotations

import random

import pytest
from metaq_broker.serve.accounts.simple_yaml import YamlRefused, parse_yaml


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", {}),
        ("# nothing\n\n---\n", {}),
        ("a: b", {"a": "b"}),
        ("a: b # c\nd: e#f\n", {"a": "b", "d": "e#f"}),
        ("---\na: 1\nb: true\nc:\nd: ~\ne: null", {"a": "1", "b": "true", "c": "", "d": "", "e": ""}),
        ("a: 'it''s # one'\nb: \"x\\\"y\\\\ # z\"", {"a": "it's # one", "b": 'x"y\\ # z'}),
        ("a: it's\nb: don't # stop", {"a": "it's", "b": "don't"}),
        ("a:\n- 1\n- 2\nb: 3", {"a": ["1", "2"], "b": "3"}),
        ("a:\n  - 1\n  -\n  - - 2\n    - 3\n", {"a": ["1", "", ["2", "3"]]}),
        ("- a: 1\n  b: 2\n-   a: 3\n    b: 4", [{"a": "1", "b": "2"}, {"a": "3", "b": "4"}]),
        ("- a:\n    - 1\n  b:\n  - 2\n- c", [{"a": ["1"], "b": ["2"]}, "c"]),
        ("a: [x, y=z, 'q, r' , \"s\"]\nb: []\nc: [1,]", {"a": ["x", "y=z", "q, r", "s"], "b": [], "c": ["1"]}),
        ("a:\n  b:\n    c: d\n  e: f", {"a": {"b": {"c": "d"}, "e": "f"}}),
        ("a: 10.10.103.*\nb: '*'\nurl: http://x/y", {"a": "10.10.103.*", "b": "*", "url": "http://x/y"}),
        ("'quoted key': 1\n\"b\": 2", {"quoted key": "1", "b": "2"}),
        ("a: b\r\nc: d\r\n", {"a": "b", "c": "d"}),
    ],
)
def test_what_is_read(text: str, value: object) -> None:
    assert parse_yaml(text) == value


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a: b\n\tc: d", "line 2: a tab in the indentation"),
        ("a: b\n  c: d", "line 2: it is indented in another way"),
        ("a:\n    b: c\n  d: e", "line 3: it is indented in another way"),
        ("a: b\na: c", "line 2: key 'a' is there twice"),
        ("a b", "line 1: 'a b'; expected KEY: VALUE or - VALUE"),
        ("a: {b: c}", "line 1: value '{b: c}'; put a text that begins so into quotation marks"),
        ("a: &b c", "begins so into quotation marks"),
        ("a: *b", "begins so into quotation marks"),
        ("a: |\n  text", "begins so into quotation marks"),
        ("a: 'b", "begins so into quotation marks"),
        ("a: [b, c", "a list in one line ends with ]"),
        ("a: [[b]]", "begins so into quotation marks"),
        ("a: b: c", "put a text with a colon into quotation marks"),
        ("\n".join(" " * depth + "a:" for depth in range(30)), "more than 20 levels"),
        ("- - - " * 30 + "a", "more than 20 levels"),
    ],
)
def test_what_is_refused(text: str, reason: str) -> None:
    with pytest.raises(YamlRefused) as caught:
        parse_yaml(text)
    assert reason in str(caught.value)


def test_whatever_stands_there_is_read_or_refused() -> None:
    """No text brings anything but a value or this error, and none takes long."""
    generator = random.Random(5)
    pieces = ["a", ":", " ", "-", "\n", "'", '"', "[", "]", ",", "#", "\\", "  ", "{", "x: y", "\n  - ", "\t", "é"]
    for _ in range(3000):
        text = "".join(generator.choices(pieces, k=generator.randrange(40)))
        try:
            assert isinstance(parse_yaml(text), str | list | dict)
        except YamlRefused:
            continue
    parse_yaml("a: " + "x" * 200_000 + "'" * 1000)
