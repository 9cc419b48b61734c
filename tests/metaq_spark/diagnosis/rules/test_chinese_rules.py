"""The rules in Chinese: each rule, figure and unit has a row, with the same fields as the English one."""

from __future__ import annotations

import re
from pathlib import Path
from string import Formatter

from examples import in_one_test

import metaq_spark.diagnosis.rules
from metaq_spark.diagnosis import judgement
from metaq_spark.diagnosis.evidence import Missing
from metaq_spark.diagnosis.rules.chinese import CHINESE, MISSING, NUMBERS, UNITS, chinese_word
from metaq_spark.diagnosis.rules.table import RULES

FOLDER = Path(metaq_spark.diagnosis.rules.__file__).parent
NUMBER = re.compile(r'(?:Number|_in_phases)\(\s*(?:\w+, )?"([^"]+)", ')
UNIT = re.compile(r'"(bytes|messages|ms|of the time|offsets|rows|s|s ago)", \w')
SPARKS = {"latestOffset"}
"""A name of Spark's own."""


def fields(sentence: str) -> set[str]:
    return {name for _, name, _, _ in Formatter().parse(sentence) if name}


@in_one_test("rule", RULES)
def test_each_rule_has_both_languages(rule: str) -> None:
    title, advice = CHINESE[rule]
    for chinese in (title, advice):
        assert re.search("[\u4e00-\u9fff]", chinese)
    assert fields(advice) == fields(RULES[rule].advice)


def test_there_are_no_other_rows() -> None:
    assert CHINESE.keys() == RULES.keys()


def test_each_figure_has_both_languages() -> None:
    code = "".join(path.read_text() for path in FOLDER.glob("*.py") if path.name != "chinese.py")
    names = set(NUMBER.findall(code)) - SPARKS
    assert len(names) > 40
    assert names - NUMBERS.keys() == set()
    assert NUMBERS.keys() - names <= {"lag", "time lag"}, "rows that no rule uses"
    assert set(UNIT.findall(code)) - UNITS.keys() == set()


def test_what_is_missing_has_both_languages() -> None:
    named = [one.what for one in vars(judgement).values() if isinstance(one, Missing)]
    assert sorted(named) == sorted(MISSING)


def test_words_of_an_advice() -> None:
    assert chinese_word("the servers") == "各服务器"
    assert chinese_word("batch 5 is planned anew") == "批次 5 会重新规划"
    assert chinese_word("0-1, 0-2, 0-3 and 2 more") == "0-1, 0-2, 0-3 等另外 2 个"
    assert chinese_word("127.0.0.1:8123") == "127.0.0.1:8123"
