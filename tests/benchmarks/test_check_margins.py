"""What the check calls worse, better, gone and new; the second try; what may become a baseline."""

from __future__ import annotations

from pathlib import Path

import check
import pytest
from check import BASELINE, MARGINS, changes, margin_of, verdict
from fake_programs import fake, outcome, read, results_of, turns_of, wait
from figures import Figure, Outcome, Results
from suite import FOLDER, Program


def verdicts(before: list[Figure], now: list[Figure]) -> dict[str, str]:
    old, new = results_of(outcome("one", *before)), results_of(outcome("one", *now))
    return {change.name: change.verdict for change in changes(new, old)}


class TestMargins:
    @pytest.mark.parametrize(
        ("before", "now", "better", "expected"),
        [
            (0.80, 0.69, "more", "as before"),
            (0.80, 0.67, "more", "worse"),
            (0.80, 0.91, "more", "as before"),
            (0.80, 0.93, "more", "better"),
            (1.00, 1.14, "less", "as before"),
            (1.00, 1.16, "less", "worse"),
            (1.00, 0.84, "less", "better"),
            (2.00, 2.00, "less", "as before"),
        ],
    )
    def test_both_directions(self, before: float, now: float, better: str, expected: str) -> None:
        assert verdict(before, now, better, 0.15) == expected

    @pytest.mark.parametrize(
        ("figure", "part"),
        [
            (Figure("read, 100 B", "M rows/s", 1, 1, "ceiling"), 0.15),
            (Figure("latency, put to row, p99", "ms", 1, 1, "trivial", "less"), 0.30),
            (Figure("latency, put to row, p99, 10 messages", "ms", 1, 1, "trivial", "less"), 0.30),
            (Figure("latency, put to row, p50", "ms", 1, 1, "trivial", "less"), 0.25),
            (Figure("micro-batch, empty", "ms", 1, 1, "trivial", "less"), 0.25),
            (Figure("read, peak memory of a worker", "MiB", 1, 1, "ceiling", "less"), 0.15),
            (Figure("read, CPU", "CPU s/GB", 1, 1, "ceiling", "less"), 0.15),
            (Figure("plan, 1,000 partitions", "s", 1, 1, "limit", "less"), 0.50),
        ],
    )
    def test_each_kind_has_its_own(self, figure: Figure, part: float) -> None:
        assert margin_of(figure).part == part

    def test_every_figure_has_one(self) -> None:
        assert all(margin_of(Figure("x", "anything", 1, 1, "y", better)) for better in ("more", "less"))

    def test_a_tail_may_be_worse_than_a_median(self) -> None:
        before = [wait(10, "wait, p50"), wait(10, "wait, p99")]
        assert verdicts(before, [wait(12.8, "wait, p50"), wait(12.8, "wait, p99")]) == {
            "wait, p50": "worse",
            "wait, p99": "as before",
        }

    def test_they_are_printed(self, capsys: pytest.CaptureFixture[str]) -> None:
        check.print_margins()
        printed = capsys.readouterr().out
        assert all(f"| {margin.kind} | {margin.part:.0%} |" in printed for margin in MARGINS)


class TestChanges:
    def test_only_the_ratio_counts(self) -> None:
        slower_machine = Figure("read, 100 B", "MB/s", 8.0, 10.0, "ceiling")
        assert verdicts([read(80)], [slower_machine]) == {"read, 100 B": "as before"}

    def test_gone_and_new(self) -> None:
        assert verdicts([read(80, "a"), read(80, "b")], [read(80, "b"), read(80, "c")]) == {
            "a": "gone",
            "b": "as before",
            "c": "new",
        }

    def test_figures_without_a_peer_are_only_looked_for(self) -> None:
        alone = Figure("alone", "MB/s", 10.0)
        assert verdicts([alone], [Figure("alone", "MB/s", 1.0)]) == {"alone": "no ratio"}
        assert verdicts([alone], []) == {"alone": "gone"}
        assert verdicts([read(80, "alone")], [alone]) == {"alone": "gone"}

    def test_what_was_left_out_by_name_is_not_gone(self) -> None:
        old = results_of(outcome("one", read(80, "a")), outcome("two", read(80, "b"), read(80, "c")))
        part = results_of(outcome("two", read(80, "b")), whole=False)
        assert {change.name: change.verdict for change in changes(part, old)} == {"b": "as before", "c": "gone"}

    def test_a_peer_that_is_not_there_takes_its_figures_along(self) -> None:
        against = Figure("read beside Kafka, 100 B", "MB/s", 80, 100, "Kafka")
        java = Figure("get, 100 B", "MB/s", 80, 100, "a Java broker")
        old = results_of(outcome("peers", against, java, read(80)), peers=["kafka", "java-broker"])
        new = results_of(outcome("peers", java), peers=["java-broker"])
        assert {change.name: change.verdict for change in changes(new, old)} == {
            java.name: "as before",
            "read, 100 B": "gone",
        }


class TestCommand:
    def files(self, tmp_path: Path, before: Results, now: Results) -> list[str]:
        before.write(tmp_path / "baseline.json")
        now.write(tmp_path / "now.json")
        return [str(tmp_path / "now.json"), "--baseline", str(tmp_path / "baseline.json")]

    def test_all_is_well(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        same = results_of(outcome("one", read(80)))
        assert check.main(self.files(tmp_path, same, same), [], tmp_path) == 0
        assert "no regression" in capsys.readouterr().out

    @pytest.mark.parametrize("now", [[read(60)], []], ids=["worse", "gone"])
    def test_it_fails(self, tmp_path: Path, capsys: pytest.CaptureFixture[str], now: list[Figure]) -> None:
        arguments = self.files(tmp_path, results_of(outcome("one", read(80))), results_of(outcome("one", *now)))
        assert check.main([*arguments, "--no-second-try"], [], tmp_path) == 1
        printed = capsys.readouterr().out
        assert "1 of 1 figures FAIL" in printed
        assert "| read, 100 B | one | 0.80 |" in printed

    def test_the_table_has_what_got_worse_first(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        before = results_of(outcome("one", read(80, "a"), read(80, "b"), read(80, "c")))
        now = results_of(outcome("one", read(99, "a"), read(60, "b"), read(81, "c"), read(50, "d")))
        assert check.main([*self.files(tmp_path, before, now), "--no-second-try"], [], tmp_path) == 1
        rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")][-3:]
        assert rows == [
            "| b | one | 0.80 | 0.60 | -25% | 15% | WORSE |",
            "| a | one | 0.80 | 0.99 | +24% | 15% | better |",
            "| d | one |  | 0.50 |  |  | new |",
        ]

    def test_another_machine_and_other_arguments_are_reported(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        before = results_of(outcome("one", read(80), arguments=("--runs", "5")), machine={"cores": "8 of 8"})
        now = results_of(outcome("one", read(80), arguments=("--runs", "1")), **{"load before": [3.0, 1.0, 1.0]})
        assert check.main(self.files(tmp_path, before, now), [], tmp_path) == 0
        printed = capsys.readouterr().out
        assert "cores is 2 of 2, was 8 of 8" in printed
        assert "one was given --runs 1, for the baseline --runs 5" in printed
        assert "the load was 3.0" in printed

    def test_files_that_are_not_there(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert check.main([str(tmp_path / "now.json"), "--baseline", str(tmp_path / "no.json")], [], tmp_path) == 2
        assert "no.json" in capsys.readouterr().err


class TestSecondTry:
    def check(self, tmp_path: Path, program: Program, first: Outcome) -> int:
        results_of(outcome(program.name, read(80))).write(tmp_path / "baseline.json")
        results_of(first).write(tmp_path / "now.json")
        arguments = [str(tmp_path / "now.json"), "--baseline", str(tmp_path / "baseline.json")]
        return check.main(arguments, [program], tmp_path)

    def test_what_was_noise_passes(self, tmp_path: Path) -> None:
        program = fake(tmp_path, "one", [read(79)])
        assert self.check(tmp_path, program, outcome("one", read(60))) == 0
        assert turns_of(tmp_path, program) == 1

    def test_what_is_worse_twice_fails(self, tmp_path: Path) -> None:
        program = fake(tmp_path, "one", [read(61)])
        assert self.check(tmp_path, program, outcome("one", read(60))) == 1
        assert turns_of(tmp_path, program) == 1

    def test_a_program_that_failed_gets_one_too(self, tmp_path: Path) -> None:
        program = fake(tmp_path, "one", [read(80)])
        assert self.check(tmp_path, program, outcome("one", failed="exit status 1")) == 0

    def test_programs_that_did_well_do_not_run_again(self, tmp_path: Path) -> None:
        program = fake(tmp_path, "one", [read(80)])
        assert self.check(tmp_path, program, outcome("one", read(80))) == 0
        assert turns_of(tmp_path, program) == 0

    def test_the_better_of_the_two_counts_for_each_figure(self) -> None:
        first = outcome("one", read(60, "a"), wait(10, "b"), read(5, "c"))
        second = outcome("one", read(70, "a"), wait(12, "b"), read(5, "d"))
        found = check.better_of(first, second).figures
        assert found == (read(70, "a"), wait(10, "b"), read(5, "c"), read(5, "d"))


class TestRecord:
    def record(self, tmp_path: Path, results: Results) -> int:
        results.write(tmp_path / "now.json")
        return check.main([str(tmp_path / "now.json"), "--baseline", str(tmp_path / "new.json"), "--record"])

    def test_a_whole_run_becomes_the_baseline(self, tmp_path: Path) -> None:
        results = results_of(outcome("one", read(80)))
        assert self.record(tmp_path, results) == 0
        assert Results.read(tmp_path / "new.json") == results

    @pytest.mark.parametrize(
        "results",
        [
            results_of(outcome("one", read(80)), quick=True),
            results_of(outcome("one", read(80)), whole=False),
            results_of(outcome("one", read(80)), outcome("two", failed="exit status 1")),
        ],
        ids=["quick", "a part", "a failure"],
    )
    def test_others_do_not(self, tmp_path: Path, results: Results) -> None:
        assert self.record(tmp_path, results) == 2
        assert not (tmp_path / "new.json").exists()

    def test_the_one_in_the_project_is_whole(self) -> None:
        assert BASELINE.parent == FOLDER
        if BASELINE.exists():
            kept = Results.read(BASELINE)
            assert not kept.failed
            assert kept.about["whole"]


def test_without_results_the_suite_runs_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    program = fake(tmp_path, "one", [read(80)])
    results_of(outcome("one", read(80))).write(tmp_path / "baseline.json")
    assert check.main(["--baseline", str(tmp_path / "baseline.json")], [program], tmp_path) == 0
    assert turns_of(tmp_path, program) == 1
    assert (tmp_path / "bench" / "results.json").exists()
