"""What the peers' suites did is compared with what is expected."""

from __future__ import annotations

from pathlib import Path

from peers.suites.__main__ import EXCEPTIONS
from peers.suites.results import (
    Exceptions,
    Outcome,
    Result,
    failed,
    merged,
    parse_report,
    read_exceptions,
    surprises,
    table,
)
from peers.suites.servers import SUITES

REPORT = """<?xml version="1.0" encoding="UTF-8"?>
<testsuite name="JUnit Jupiter" tests="4">
<testcase name="sends()" classname="org.example.SendTest" time="0.2"><system-out>said</system-out></testcase>
<testcase name="waits" classname="org.example.SendTest"><failure message="expected:
  10" type="AssertionError">at org.example</failure></testcase>
<testcase name="breaks" classname="SendTest"><error type="java.lang.RuntimeException"/></testcase>
<testcase name="never" classname="SendTest"><skipped/></testcase>
</testsuite>
"""
PASSED, FAILED = Result(Outcome.PASSED), Result(Outcome.FAILED, "expected: 10")
SKIPPED = Result(Outcome.SKIPPED)


def test_a_report_is_read() -> None:
    assert parse_report(REPORT) == {
        "SendTest.sends": PASSED,
        "SendTest.waits": FAILED,
        "SendTest.breaks": Result(Outcome.FAILED, "java.lang.RuntimeException"),
        "SendTest.never": SKIPPED,
    }


def test_a_test_that_ran_again_counts_with_its_last_outcome() -> None:
    both = merged([{"A.a": FAILED, "A.b": FAILED}, {"A.a": PASSED}])
    assert failed(both) == ["A.b"]


def test_whatever_was_not_expected_is_said() -> None:
    results = {"A.known": FAILED, "A.new": FAILED, "A.mended": PASSED, "A.off": SKIPPED, "A.good": PASSED}
    expected = dict.fromkeys(("A.known", "A.mended", "A.off", "A.gone"), "a reason")
    assert surprises("s", "ours", results, expected) == [
        "s, ours: A.new failed and is no named exception: expected: 10",
        "s, ours: A.mended is a named exception and passed",
        "s, ours: A.off is a named exception and skipped",
        "s, ours: A.gone is a named exception and did not run",
    ]


def test_a_table_names_what_passed_on_both_and_the_exceptions() -> None:
    sides = {"the real one": {"A.a": PASSED, "A.b": PASSED, "A.c": SKIPPED}, "ours": {"A.a": PASSED, "A.b": FAILED}}
    assert table("s", sides, Exceptions({"ours": {"A.b": "no Java"}})) == [
        "s: 2 tests",
        "  the real one                 2 passed, 0 failed, 1 skipped",
        "  ours                         1 passed, 1 failed, 0 skipped",
        "  passed on the real one: 2, and on ours: 1",
        "  ours: A.b: no Java",
    ]


def test_the_exceptions_name_known_suites_and_sides_with_reasons(tmp_path: Path) -> None:
    sides = {suite.name: suite.sides for suite in SUITES}
    for suite, exceptions in read_exceptions(EXCEPTIONS).items():
        for side, tests in exceptions.failing.items():
            assert side in sides[suite]
            assert all(tests.values())
    file = tmp_path / "exceptions.toml"
    file.write_text('[s."the real one"]\n"A.b" = "no clock"\n')
    assert read_exceptions(file)["s"].of("the real one") == {"A.b": "no clock"}
    assert read_exceptions(file)["s"].of("ours") == {}
