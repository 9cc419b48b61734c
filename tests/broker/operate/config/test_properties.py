"""Java's properties files: as java.util.Properties reads them, and changed line by line."""

from __future__ import annotations

import pytest
from metaq_broker.operate.config.properties import changed_properties, read_properties, write_property


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=1\nb = 2\nc:3\nd 4\n", {"a": "1", "b": "2", "c": "3", "d": "4"}),
        ("# a=1\n! b=2\n\n  c=3\n", {"c": "3"}),
        ("a=x\\\n   y\\\n z\nb=1", {"a": "xyz", "b": "1"}),
        ("a=\\u00e4\\t\\\\\n", {"a": "ä\t\\"}),
        ("a\\ b=1\nc\\=d=2\n", {"a b": "1", "c=d": "2"}),
        ("a=1\na=2\n", {"a": "2"}),
        ("a\nb=\n", {"a": "", "b": ""}),
        ("a=1\r\nb=C:\\\\x\r\n", {"a": "1", "b": "C:\\x"}),
        ("a=x=y\n", {"a": "x=y"}),
        ("slave=localhost\\:8124\n", {"slave": "localhost:8124"}),
        ("slave : localhost:8124 \n", {"slave": "localhost:8124 "}),
        ("a\\\\=1\nb\\\\\\=c=2\nd\\:\\ e f=3\n", {"a\\": "1", "b\\=c": "2", "d: e": "f=3"}),
        ("\t a \f=\f1\n\x85b=2\x0bc\n", {"a": "1", "\x85b": "2\x0bc"}),
        ("a=1\\\n  # no comment\n# b=2\\\nc=3\r!d\r\ne", {"a": "1# no comment", "c": "3", "e": ""}),
        ("a=x\\\n\nb=1\\", {"a": "x", "b": "1"}),
        ("=1\n", {"": "1"}),
        ("a=\\uD83D\\uDE00 \\ud83dx\\uDE00\nb\\uD83D\\uDE00=1\n", {"a": "😀 \ud83dx\ude00", "b😀": "1"}),
        ("a=\\q\\\"\\u4E2D\\r\\f\n", {"a": "q\"中\r\f"}),
    ],
)
def test_properties_are_read_as_java_does(text: str, expected: dict[str, str]) -> None:
    assert read_properties(text) == expected


@pytest.mark.parametrize("value", ["", "x", " x", "a\\b", "a\nb\tc\r\f", "ä值", "x = y # z"])
def test_a_written_property_reads_back(value: str) -> None:
    assert read_properties(write_property("key", value) + "\n") == {"key": value}


def test_changes_keep_every_other_line() -> None:
    text = "# mine\n\nlistenPort=1\norderMessageEnable = \\\n  false\n# end\n"
    changed = changed_properties(text, {"orderMessageEnable": "true", "productEnvName": "x"})
    assert changed == "# mine\n\nlistenPort=1\norderMessageEnable=true\n# end\nproductEnvName=x\n"


@pytest.mark.parametrize("text", ["a=\\u12", "a=\\u12g4", "\\u=1"])
def test_an_escape_that_java_refuses(text: str) -> None:
    with pytest.raises(ValueError, match="must be followed by four hex digits"):
        read_properties(text)
