"""A figure, its ratio, its aim, its row; the report that prints and keeps figures; runs in turn."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from figures import Figure, Report, arguments, medians, number, row

MORE = Figure("read", "MB/s", 90.0, 100.0, "ceiling")
LESS = Figure("wait", "ms", 12.0, 10.0, "trivial", "less")


def test_ratio_is_ours_by_the_peers() -> None:
    assert MORE.ratio == 0.9
    assert LESS.ratio == 1.2
    assert Figure("alone", "MB/s", 90.0).ratio is None


@pytest.mark.parametrize(
    ("better", "aim", "met"),
    [("more", 0.9, True), ("more", 0.91, False), ("less", 0.9, True), ("less", 0.89, False), ("more", None, None)],
)
def test_an_aim_is_met_at_least_or_at_most(better: str, aim: float | None, met: bool | None) -> None:
    assert Figure("read", "MB/s", 90.0, 100.0, "ceiling", better, aim).met is met  # type: ignore[arg-type]


def test_an_aim_without_a_peer_is_neither_met_nor_missed() -> None:
    assert Figure("read", "MB/s", 90.0, aim=0.5).met is None


@pytest.mark.parametrize(
    ("figure", "expected"),
    [
        (MORE, "| read | MB/s | 90.0 | 100 (ceiling) | 0.90 |  |"),
        (Figure("a", "s", 1.0, 2.0, "b", "more", 0.4), "| a | s | 1.00 | 2.00 (b) | 0.50 | ≥ 0.40 ✓ |"),
        (Figure("a", "s", 1.0, 2.0, "b", "less", 0.4), "| a | s | 1.00 | 2.00 (b) | 0.50 | ≤ 0.40 ✗ |"),
        (Figure("a", "s", 1.0), "| a | s | 1.00 |  |  |  |"),
    ],
)
def test_row(figure: Figure, expected: str) -> None:
    assert row(figure) == expected


@pytest.mark.parametrize(
    ("value", "text"),
    [(1234567.0, "1,234,567"), (123.4, "123"), (12.34, "12.3"), (1.234, "1.23"), (0.0123, "0.0123"), (-5.0, "-5.00")],
)
def test_number(value: float, text: str) -> None:
    assert number(value) == text


def test_a_report_prints_rows_and_writes_them_at_the_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "figures.json"
    with Report("Speed", file) as report:
        report.add(MORE)
        report.add(LESS)
        assert not file.exists()
    printed = capsys.readouterr().out
    assert printed.count("### Speed") == printed.count("| figure |") == 1
    assert row(MORE) in printed
    content = json.loads(file.read_text())
    assert content["title"] == "Speed"
    assert [Figure(**each) for each in content["figures"]] == [MORE, LESS]


def test_a_report_that_was_broken_off_writes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    report = Report("Speed", file)
    report.add(MORE)
    report.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)  # type: ignore[arg-type]
    assert not file.exists()


def test_two_figures_of_one_name_are_refused() -> None:
    report = Report("Speed")
    report.add(MORE)
    with pytest.raises(AssertionError, match="read"):
        report.add(MORE)


def test_runs_take_turns_and_the_first_turn_is_not_measured() -> None:
    calls: list[str] = []
    times = medians([lambda: calls.append("ours"), lambda: calls.append("peer")], 2)
    assert calls == ["ours", "peer"] * 3
    assert len(times) == 2


def test_all_programs_have_the_same_options(tmp_path: Path) -> None:
    given = arguments("What it does.", runs=7).parse_args(["--scale", "0.5", "--json", str(tmp_path)])
    assert (given.runs, given.scale, given.json) == (7, 0.5, tmp_path)
