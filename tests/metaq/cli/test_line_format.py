"""Lines by a format, and what of them is stored where."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from metaq.cli.line_format import Line, line_parser
from metaq.model import Address
from metaq.testing.memory import MemoryBroker
from metaq.testing.rocketmq_server import ScriptedCluster

Run = Callable[..., tuple[int, str, str]]


@pytest.mark.parametrize(
    ("form", "line", "read"),
    [
        ("%v", b"a\nb", Line(b"a\nb", None, "all")),
        ("%k:%v", b"k:v:w", Line(b"v:w", b"k", "all")),
        (r"%a\t%k %v", b"paid\tone \xff", Line(b"\xff", b"one", "paid")),
        ("100%%(%k)%v", b"100%(a)b", Line(b"b", b"a", "all")),
        (r"%k\\%v", b"\\v", Line(b"v", b"", "all")),
        ("[%v]", b"[]", Line(b"", None, "all")),
    ],
)
def test_lines_are_read(form: str, line: bytes, read: Line) -> None:
    assert line_parser(form, "all")(line, 1) == read


@pytest.mark.parametrize(
    ("form", "says"),
    [
        ("%k:", "expected %v in it"),
        ("%k%v", "expected text between %k and %v"),
        ("%v %v", "'%v'; expected %k, %a and %v, each once"),
        ("%t %v", "'%t'; expected"),
        (r"%v\n", r"'\\n'; expected"),
        ("%v%", "'%'; expected"),
    ],
)
def test_wrong_formats_are_named(form: str, says: str) -> None:
    with pytest.raises(ValueError, match="--format") as refused:
        line_parser(form, None)
    assert says in str(refused.value)


def test_lines_that_do_not_fit_are_named() -> None:
    with pytest.raises(ValueError, match="line 7: it is not of the form '%k:%v'"):
        line_parser("%k:%v", None)(b"none", 7)
    with pytest.raises(ValueError, match=r"line 7: the attribute b'\\xff' is not UTF-8"):
        line_parser("%a:%v", None)(b"\xff:x", 7)


def test_attribute_and_key_reach_the_brokers(
    cluster: ScriptedCluster, rocketmq: str, memory: dict[Address, MemoryBroker], command: Run, tmp_path: Path
) -> None:
    memory[Address("127.0.0.1", 8123)] = MemoryBroker({"orders": 4})
    lines = tmp_path / "lines"
    lines.write_bytes(b"hot:a b:1\ncold::2\n")
    produce = ["produce", "orders", "--format", "%a:%k:%v", str(lines)]
    assert command("-c", "127.0.0.1:8123", *produce)[0] == 0
    assert sorted(command("-c", "127.0.0.1:8123", "consume", "orders", "--format", r"%a=%v\n")[1].split()) == [
        "cold=2",
        "hot=1",
    ]
    assert command("-c", rocketmq, *produce)[0] == 0
    rows = command("-c", rocketmq, "consume", "orders", "--format", r"%a,%k,%v\n")[1]
    assert sorted(rows.splitlines()) == ["cold,,2", "hot,a b,1"]
    assert command("-c", rocketmq, "find", "orders", "--key", "b", "--json")[0] == 0
    lines.write_bytes(b"hot:\xff:1\n")
    status, _, err = command("-c", rocketmq, *produce)
    assert (status, r"metaq: line 1: key b'\xff' is not UTF-8" in err) == (2, True)


def test_a_text_that_is_not_utf8_is_sent_as_it_is(memory: dict[Address, MemoryBroker], command: Run) -> None:
    memory[Address("127.0.0.1", 8123)] = MemoryBroker({"orders": 1})
    assert command("-c", "127.0.0.1:8123", "produce", "orders", "-m", "\udcff")[0] == 0
    assert json.loads(command("-c", "127.0.0.1:8123", "consume", "orders", "--json")[1])["value_base64"] == "/w=="
    status, _, err = command("-c", "127.0.0.1:8123", "produce", "orders", "-m", "x", "-a", "\udcff")
    said = "metaq: attribute: the text cannot be written as UTF-8, surrogates not allowed"
    assert (status, err.splitlines()[-1]) == (2, said)
