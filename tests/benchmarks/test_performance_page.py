"""What is written between the marks of docs/figures.md; the plot; which figures become lines."""

from __future__ import annotations

from pathlib import Path

import pytest
import report
from check import MARGINS
from fake_programs import outcome, read, results_of, wait
from figures import Figure, row
from plot import bound, draw, panels, times_as_good
from report import BEGIN, END, PAGE, WrongPage, replaced
from suite import BESIDE, SUITE

MET, MISSED = read(80, "read", aim=0.7), wait(20, "wait", aim=1.5)
RESULTS = results_of(outcome("one", MET, MISSED), outcome("two", failed="exit status 1"))


@pytest.fixture
def page(tmp_path: Path) -> Path:
    file = tmp_path / "performance.md"
    file.write_text(f"# Speed\n\nWritten.\n\n{BEGIN}\nof last month\n{END}\n\n## After\n")
    return file


class TestPage:
    def test_only_what_is_between_the_marks_changes(self, page: Path) -> None:
        report.write(RESULTS, page)
        text = page.read_text()
        assert text.startswith(f"# Speed\n\nWritten.\n\n{BEGIN}\n")
        assert text.endswith(f"{END}\n\n## After\n")
        assert "of last month" not in text

    def test_the_same_results_give_the_same_files(self, page: Path) -> None:
        report.write(RESULTS, page)
        once = page.read_bytes()
        report.write(RESULTS, page)
        assert page.read_bytes() == once

    def test_it_has_figures_machine_programs_and_margins(self, page: Path) -> None:
        report.write(RESULTS, page)
        text = page.read_text()
        for expected in (row(MET), row(MISSED), "| processor | a fast one |", "`0123456789ab`"):
            assert expected in text
        assert all(f"(../benchmarks/{program.file})" in text for program in (*SUITE, *BESIDE))
        assert all(f"| {margin.kind} | {margin.part:.0%} |" in text for margin in MARGINS)

    def test_a_page_about_a_few_programs_lists_no_others(self, page: Path) -> None:
        RESULTS.write(page.parent / "results.json")
        assert report.main([str(page.parent / "results.json"), "--page", str(page), "--ran"]) == 0
        assert row(MET) in page.read_text()
        assert "not in this run" not in page.read_text()
        assert "Margins" not in page.read_text()

    def test_it_says_which_aims_are_missed_and_what_failed(self, page: Path) -> None:
        report.write(RESULTS, page)
        text = page.read_text()
        assert "1 of 2 aims are met. These are not:" in text
        assert "| wait | 2.00 | ≤ 1.50 |" in text
        assert "| read | 0.80 | ≥ 0.70 |" not in text
        assert "`two` failed (exit status 1)" in text

    def test_a_run_without_aims_says_so(self, page: Path) -> None:
        report.write(results_of(outcome("one", read(80))), page)
        assert "No figure of this run has an aim." in page.read_text()

    def test_a_smoke_run_says_so(self, page: Path) -> None:
        report.write(results_of(outcome("one", MET), quick=True), page)
        assert "A smoke run" in page.read_text()

    @pytest.mark.parametrize("text", ["", BEGIN, END, f"{END}\n{BEGIN}", f"{BEGIN}\n{BEGIN}\n{END}"])
    def test_a_page_without_its_marks_is_refused_and_kept(self, tmp_path: Path, text: str) -> None:
        file = tmp_path / "performance.md"
        file.write_text(text)
        RESULTS.write(tmp_path / "results.json")
        assert report.main([str(tmp_path / "results.json"), "--page", str(file)]) == 2
        assert file.read_text() == text
        with pytest.raises(WrongPage):
            replaced(text, "figures")

    @pytest.mark.parametrize("name", [PAGE.name, "figures-peers.md"])
    def test_the_projects_own_pages_have_their_marks(self, name: str) -> None:
        text = (PAGE.parent / name).read_text(encoding="utf-8")
        assert replaced(replaced(text, "figures"), "figures") == replaced(text, "figures")


class TestPlot:
    def test_right_of_one_is_better(self) -> None:
        assert times_as_good(MET, 0.8) == 0.8
        assert times_as_good(MISSED, 2.0) == 0.5

    def test_bars_end_where_the_picture_does(self) -> None:
        assert bound(read(1), 1000.0) == 16
        assert bound(MISSED, 1000.0) == 1 / 16

    def test_without_a_figure_there_is_still_a_picture(self, tmp_path: Path) -> None:
        draw(results_of(outcome("one", failed="exit status 1")), tmp_path / "plot.png")
        assert (tmp_path / "plot.png").exists()

    def test_all_names_are_in_it(self, tmp_path: Path) -> None:
        draw(RESULTS, tmp_path / "plot.svg")
        text = (tmp_path / "plot.svg").read_text()
        assert all(f"<!-- {name} -->" in text for name in ("One", "read", "wait", "≥ 0.70"))


class TestLines:
    def test_a_count_makes_a_line(self) -> None:
        figures = [read(n, f"read, {n} partition{'s' * (n > 1)}") for n in (1, 64, 4)]
        (line,) = panels(results_of(outcome("scaling", *figures)))
        assert (line.title, line.counted, line.unit, line.peer_name) == ("read", "partitions", "MB/s", "ceiling")
        assert line.counts == (1, 4, 64)
        assert [figure.ours for figure in line.figures] == [1, 4, 64]

    def test_a_size_makes_a_line(self) -> None:
        figures = [read(1, f"write, {size}, two tasks") for size in ("100 B", "1,000 B", "10 KB", "1 MiB")]
        (line,) = panels(results_of(outcome("scaling", *figures)))
        assert (line.title, line.counted) == ("write, two tasks", "bytes")
        assert line.counts == (100, 1000, 10_000, 1 << 20)

    @pytest.mark.parametrize(
        "names",
        [
            ["read, 100 B", "read, 1000 B"],
            ["read, 1 partition", "write, 4 partitions", "get, 16 partitions"],
            ["read, local[1]", "read, local[2]", "read, local[4]"],
        ],
        ids=["two points", "different subjects", "no count"],
    )
    def test_others_do_not(self, names: list[str]) -> None:
        figures = [Figure(name, "MB/s", 1.0, 2.0, "ceiling") for name in names]
        assert panels(results_of(outcome("scaling", *figures))) == []
