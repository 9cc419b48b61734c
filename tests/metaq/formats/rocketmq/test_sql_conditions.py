"""Conditions over properties, beside what RocketMQ's own evaluator makes of the same ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest
from examples import examples, in_one_test
from hypothesis import given, settings
from hypothesis import strategies as st

from metaq.formats.rocketmq.sql_conditions import CHARACTERS_MAX, ConditionInvalid, compile_condition

RECORDED: Final[dict[str, Any]] = json.loads(
    (Path(__file__).parents[3] / "golden/rocketmq/sql_conditions.json").read_text("utf-8")
)
PROPERTIES: Final[list[dict[str, str]]] = RECORDED["properties"]

TEXT_BEHIND: Final = frozenset(
    {
        *("a LIKE 'a%'", "a like 'abc'", "a + 1 = 2", "a - 1 = 0", "a-b = 1", "a = 1 b", "a b c", "a = 1)"),
        *("isnull(a)", "a = 'a' 'b'", "a = 1.5f", "a = 1d", "a = 0f", "a = 1e", "a = 1e+", "a = 1.0L"),
        *("a = 00", "a = 007", "a = 0x1", "a = 010", "a = 0xFF", "a = 0x", "a = 08", "a = 018", "a = 017"),
    }
)
"""RocketMQ evaluates the front of these and ignores the rest; here they are refused."""

ZEROS: Final = frozenset({"a = 0.0", "a = -0.0"})
"""RocketMQ takes the number for one that is out of range."""


@in_one_test("row", RECORDED["conditions"])
def test_results_are_those_of_rocketmq(row: dict[str, Any]) -> None:
    text, recorded = row["text"], row["5.5.0"]
    if recorded is None or text in TEXT_BEHIND:
        if text not in ZEROS:
            with pytest.raises(ConditionInvalid):
                compile_condition(text)
        return
    matches = compile_condition(text)
    assert [matches(each) for each in PROPERTIES] == [result == "T" for result in recorded]
    if row["4.9.7"] != recorded:
        assert any(word in text.upper() for word in ("CONTAINS", "STARTSWITH", "ENDSWITH")), "4.9.7 ignores these"


def test_the_recording_has_what_it_is_to_have() -> None:
    texts = {row["text"] for row in RECORDED["conditions"]}
    assert texts >= TEXT_BEHIND | ZEROS
    assert len(texts) > 300
    assert {result for row in RECORDED["conditions"] for result in row["5.5.0"] or ""} == {"T", "F", "N", "X"}


def test_zero_is_a_number() -> None:
    assert [compile_condition("a = 0.0")({"a": text}) for text in ("0", "0.0", "-0.0", "1")] == [
        True,
        True,
        False,
        False,
    ]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a = ", "character 5: expected a property, a text or a number, found the end"),
        ("a = 1 b", "character 7: expected the end, AND or OR, found 'b'"),
        ("a ! 1", "character 3: '! 1' cannot be read"),
        ("a > 'x'", "character 5: only properties and numbers are greater or less than another"),
        ("a = NULL", "character 5: NULL is compared with IS NULL or IS NOT NULL"),
        ("a = 9223372036854775808", "character 5: 9223372036854775808 is out of range"),
        ("a BETWEEN 2 AND 1", "character 11: BETWEEN has a lower bound above its upper bound"),
        ("a IN (1)", "character 7: expected a text in single quotation marks, found '1'"),
        ("'x' IN ('x')", "character 1: expected a property"),
        ("1", "character 1: expected a condition"),
        ("(" * 60 + "a = 1" + ")" * 60, "more than 50 parts inside each other"),
        ("NOT " * 60 + "a", "more than 50 parts inside each other"),
        ("a" + " IS NULL" * 300, "character 1: more than 200 parts are chained"),
        ("a" + " = a" * 300, "more than 200 parts are chained"),
        ("a = '" + "x" * CHARACTERS_MAX + "'", f"a condition has at most {CHARACTERS_MAX} characters"),
    ],
)
def test_errors_say_where(text: str, sentence: str) -> None:
    with pytest.raises(ConditionInvalid) as found:
        compile_condition(text)
    assert sentence in str(found.value)


def test_long_conditions() -> None:
    """As long as one may be, and evaluated without recursion for each part."""
    matches = compile_condition(" OR ".join(f"a = {number}" for number in range(600)) + " AND b IS NULL" * 100)
    assert (matches({"a": "598"}), matches({"a": "600"}), matches({"a": "599", "b": ""})) == (True, False, False)
    deep = "(" * 45 + "a = 1" + " OR a = 2)" * 45 + " AND b IS NOT NULL" * 300
    assert [compile_condition(deep)({"a": text, "b": "x"}) for text in "123"] == [True, True, False]


@pytest.mark.parametrize("start", ["1", "0x1", ".1", "1e1", "0x1p1"])
def test_a_long_property_that_is_no_number_is_scanned_once(start: str) -> None:
    """Producers choose properties: with a scan for each digit, one of 32 KB takes more than a minute."""
    matches = compile_condition("a > 1.5")
    assert (matches({"a": start + "1" * 32_000 + "x"}), matches({"a": start}), matches({"a": "2.5"})) == (
        False,
        start == "1e1" or start == "0x1p1",
        True,
    )


words = st.sampled_from(
    ["a", "b", "TAGS", "1", "2.5", "-3", "'x'", "'1'", "TRUE", "NULL", "AND", "OR", "NOT", "(", ")"]
)
signs = st.sampled_from(["=", "<>", ">", ">=", "<", "<=", "BETWEEN", "IN", ",", "IS", "CONTAINS", "STARTSWITH"])


@settings(max_examples=examples(300))
@given(
    st.lists(words | signs | st.text(max_size=3), max_size=15),
    st.dictionaries(st.sampled_from("ab"), st.text(max_size=4)),
)
def test_any_text_is_a_condition_or_an_error_of_its_own(parts: list[str], properties: dict[str, str]) -> None:
    try:
        matches = compile_condition(" ".join(parts))
    except ConditionInvalid:
        return
    assert matches(properties) in (True, False)
