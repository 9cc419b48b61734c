"""The table of rules: each row is whole, and can be filled in."""

from __future__ import annotations

import ast
import re
import string
from pathlib import Path

from examples import in_one_test

from metaq_spark.diagnosis.evidence import QueryEvidence
from metaq_spark.diagnosis.rules.table import RULES
from metaq_spark.diagnosis.situation import Situation
from metaq_spark.diagnosis.verdict import QueryVerdict

USUAL = {"folder", "reach", "cluster", "ui", "progress", "watch"}


@in_one_test("name", RULES)
def test_a_row_is_whole(name: str) -> None:
    rule = RULES[name]
    assert rule.id == name
    assert re.fullmatch(r"[A-GU]\d+", name)
    assert rule.title[0].islower()
    assert not rule.title.endswith(".")
    assert rule.advice.rstrip().endswith((".", "?"))
    assert {field for _, field, _, _ in string.Formatter().parse(rule.command) if field} <= USUAL | {"topic"}
    assert rule.find is None or rule.explains or rule.is_remark


@in_one_test("name", [name for name, rule in RULES.items() if rule.find is not None])
def test_a_rule_finds_nothing_in_no_evidence(name: str) -> None:
    find = RULES[name].find
    assert find is not None
    assert find(Situation(QueryEvidence(1_800_000_000_000))) is None


def test_each_rule_is_made_true_with_a_real_query() -> None:
    files = Path(__file__).parents[3].glob("spark/test_spark_diagnosis*.py")
    tests = [one for file in files for one in ast.parse(file.read_text()).body if isinstance(one, ast.FunctionDef)]
    said = " ".join(ast.get_docstring(one) or "" for one in tests if one.name.startswith("test_"))
    assert set(re.findall(r"\b[A-GU]\d+\b", said)) == set(RULES)


def test_no_rule_explains_a_checkpoint_of_others() -> None:
    assert not [name for name, rule in RULES.items() if QueryVerdict.NOT_OURS in rule.explains]
