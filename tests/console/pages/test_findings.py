"""Findings about a query in the language of a page."""

from __future__ import annotations

from typing import Any

from metaq_console.pages.findings import Reading, readings, reason, unknowns

FINDING = {
    "rule": "B2",
    "sentence": "Batch 5 has been running for 15 min.",
    "advice": "Look at what the batch does.",
    "zh": {
        "title": "批次用时远超平常",
        "advice": "请查看该批次在做什么。",
        "numbers": [{"name": "批次", "value": 5, "unit": ""}, {"name": "已运行", "value": 900.0, "unit": "秒"}],
    },
}
LOOK: dict[str, Any] = {
    "sentence": FINDING["sentence"],
    "findings": [FINDING],
    "missing": [{"what": "what the driver waits for", "what_zh": "driver 在等什么", "give": "--progress"}],
}


def test_english_is_what_the_rule_says() -> None:
    assert readings(LOOK, "en") == [Reading("B2", str(FINDING["sentence"]), str(FINDING["advice"]))]
    assert reason(LOOK, "en") == FINDING["sentence"]
    assert unknowns(LOOK, "en") == [("what the driver waits for", "--progress")]


def test_chinese_has_the_figures_and_the_sentence_as_a_detail() -> None:
    (found,) = readings(LOOK, "zh")
    assert found.say == "批次用时远超平常（批次 5，已运行 900.0 秒）。"
    assert (found.advice, found.detail) == ("请查看该批次在做什么。", FINDING["sentence"])
    assert unknowns(LOOK, "zh") == [("driver 在等什么", "--progress")]


def test_a_look_of_an_older_version_is_shown_as_it_is() -> None:
    look = {"sentence": "It stands.", "findings": []}
    assert reason(look, "zh") == "It stands."
    assert readings(None, "zh") == []
