"""The suite runs programs, collects their figures, goes on when one fails, and writes results and a plot."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import suite
from examples import rarely
from fake_programs import fake, given_to, outcome, read, results_of, turns_of, wait
from figures import Results, WrongResults
from machine import command_line, file_system
from suite import BESIDE, FOLDER, SUITE, Program, Settings, UnknownProgram, chosen


def run_suite(tmp_path: Path, *programs: Program, more: tuple[str, ...] = ()) -> tuple[int, Results]:
    out = tmp_path / "out"
    status = suite.main(["--out", str(out), *more], programs, tmp_path)
    return status, Results.read(out / "results.json")


@pytest.mark.process
class TestRun:
    def test_figures_of_all_programs_are_collected(self, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
        one, two = fake(tmp_path, "one", [read(80)]), fake(tmp_path, "two", [read(90, "two"), wait(20, "two, wait")])
        status, results = run_suite(tmp_path, one, two)
        assert status == 0
        assert [(each.name, each.title, each.failed) for each in results.outcomes] == [
            ("one", "One", None),
            ("two", "Two", None),
        ]
        assert [figure for _, figure in results.figures()] == [read(80), read(90, "two"), wait(20, "two, wait")]
        printed = capfd.readouterr().out
        assert printed.index("table of one") < printed.index("== two: two.py") < printed.index("table of two")

    def test_the_file_says_what_it_was_measured_on(self, tmp_path: Path) -> None:
        _, results = run_suite(tmp_path, fake(tmp_path, "one", [read(80)]))
        for name in ("processor", "cores", "memory", "system", "file system", "Python", "Java", "pyspark", "isal"):
            assert results.about["machine"][name]
        assert len(results.about["load before"]) == len(results.about["load after"]) == 3
        assert {"command", "date", "commit", "seconds"} <= results.about.keys()
        assert str(tmp_path.parent) not in json.dumps(results.about["machine"])

    @pytest.mark.parametrize("kind", ["status", *rarely("no figures", "no file", "empty")])
    def test_a_program_that_fails_does_not_stop_the_others(
        self, tmp_path: Path, capfd: pytest.CaptureFixture[str], kind: str
    ) -> None:
        bad = {
            "status": lambda: fake(tmp_path, "bad", [read(80)], status=3),
            "no figures": lambda: fake(tmp_path, "bad"),
            "no file": lambda: fake(tmp_path, "bad", status=1),
            "empty": lambda: fake(tmp_path, "bad", []),
        }[kind]()
        status, results = run_suite(tmp_path, bad, fake(tmp_path, "good", [read(80)]))
        assert status == 1
        assert [each.name for each in results.failed] == ["bad"]
        assert [each.name for each, _ in results.figures()] == ["good"]
        assert "FAILED: bad: " in capfd.readouterr().out
        assert (tmp_path / "out" / "results.png").stat().st_size > 1000

    def test_a_program_that_does_not_end_has_failed(self, tmp_path: Path) -> None:
        (tmp_path / "long.py").write_text("import signal\nsignal.pause()\n")
        found = suite.run(Program("long", "long.py", "patience"), [], tmp_path, seconds_max=0.5)
        assert found.failed == "did not end within 0.5 s"

    @pytest.mark.parametrize("name", ["results.svg", *rarely("results.png")])
    def test_there_is_a_plot(self, tmp_path: Path, name: str) -> None:
        run_suite(tmp_path, fake(tmp_path, "one", [read(80, aim=0.9), wait(200), read(5000, "read, fast")]))
        plot = (tmp_path / "out" / name).read_bytes()
        assert plot.startswith(b"\x89PNG") or b"</svg>" in plot

    def test_the_file_system_is_that_of_the_longest_mount_point(self, tmp_path: Path) -> None:
        mounts = tmp_path / "mounts"
        mounts.write_text(f"/dev/a / ext4 rw 0 0\nnone {tmp_path} tmpfs rw 0 0\nnone {tmp_path}/other xfs rw 0 0\n")
        assert file_system(tmp_path / "folder", mounts) == "tmpfs"
        assert file_system(Path("/"), mounts) == "ext4"

    def test_the_command_names_no_folder_of_this_machine(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(
            sys, "argv", [f"{tmp_path}/benchmarks/suite.py", "--only", "read", "--out", f"{tmp_path}/out"]
        )
        assert command_line() == "python benchmarks/suite.py --only read --out out"


@pytest.mark.process
class TestSettings:
    def test_each_program_has_arguments_of_its_own(self, tmp_path: Path) -> None:
        program = fake(tmp_path, "one", [read(80)], runs=3, scale=0.5, more=("--rows", "7"), quick=("--rows", "1"))
        run_suite(tmp_path, program)
        assert given_to(tmp_path, program) == ["--runs", "3", "--scale", "0.5", "--rows", "7"]

    def test_runs_are_replaced_and_scales_multiplied(self, tmp_path: Path) -> None:
        program = fake(tmp_path, "one", [read(80)], runs=3, scale=0.5)
        run_suite(tmp_path, program, more=("--runs", "9", "--scale", "0.1"))
        assert given_to(tmp_path, program) == ["--runs", "9", "--scale", "0.05"]

    def test_quick(self, tmp_path: Path) -> None:
        program = fake(tmp_path, "one", [read(80)], runs=3, more=("--rows", "7"), quick=("--rows", "1"))
        _, results = run_suite(tmp_path, program, more=("--quick",))
        assert given_to(tmp_path, program) == ["--runs", "1", "--scale", "0.02", "--rows", "1"]
        assert results.about["quick"] is True

    def test_addresses_of_peers_go_to_those_that_take_them(self, tmp_path: Path) -> None:
        plain, both = (
            fake(tmp_path, "plain", [read(80)]),
            fake(tmp_path, "both", [wait(9)], takes=("kafka", "java-broker")),
        )
        _, results = run_suite(tmp_path, plain, both, more=("--kafka", "k:1", "--java-broker", "j:2"))
        assert given_to(tmp_path, both)[4:] == ["--kafka", "k:1", "--java-broker", "j:2"]
        assert "--kafka" not in given_to(tmp_path, plain)
        assert results.about["peers"] == ["kafka", "java-broker"]

    def test_a_program_that_needs_a_peer_is_left_out_without(self, tmp_path: Path) -> None:
        program = fake(tmp_path, "kafka", [read(80)], takes=("kafka",), needs_peer=True)
        other = fake(tmp_path, "other", [wait(9)])
        _, results = run_suite(tmp_path, program, other)
        assert [each.name for each in results.outcomes] == ["other"]
        run_suite(tmp_path, program, more=("--kafka", "k:1"))
        assert turns_of(tmp_path, program) == 1

    def test_a_peer_that_no_program_takes_is_an_error(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        one = fake(tmp_path, "one", [read(80)], takes=("kafka",))
        assert suite.main(["--java-broker", "j:2", "--out", str(tmp_path)], [one], tmp_path) == 2
        assert "--java-broker" in capsys.readouterr().err
        assert turns_of(tmp_path, one) == 0

    def test_only(self, tmp_path: Path) -> None:
        programs = [fake(tmp_path, name, [read(80, name)]) for name in ("one", "two", "three")]
        _, results = run_suite(tmp_path, *programs, more=("--only", "three,one"))
        assert [each.name for each in results.outcomes] == ["one", "three"]
        assert results.about["whole"] is False

    def test_extra_programs_run_with_all_or_by_name(self, tmp_path: Path) -> None:
        programs = fake(tmp_path, "one", [read(80)]), fake(tmp_path, "more", [read(80, "b")], extra=True)
        for more, names, whole in (
            ((), ["one"], False),
            (("--all",), ["one", "more"], True),
            (("--only", "more"), ["more"], False),
        ):
            _, results = run_suite(tmp_path, *programs, more=more)
            assert [each.name for each in results.outcomes] == names
            assert results.about["whole"] is whole

    @pytest.mark.parametrize("only", ["nobody", "gone"])
    def test_a_program_that_does_not_exist_is_an_error(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], only: str
    ) -> None:
        one, gone = fake(tmp_path, "one", [read(80)]), Program("gone", "gone.py", "nothing")
        assert suite.main(["--only", only, "--out", str(tmp_path)], [one, gone], tmp_path) == 2
        assert only in capsys.readouterr().err
        assert turns_of(tmp_path, one) == 0


class TestTheList:
    def test_every_program_of_the_list_is_there(self) -> None:
        assert len(chosen((*SUITE, *BESIDE), [])) == len(SUITE) + len(BESIDE)

    def test_every_program_is_in_the_list(self) -> None:
        """A new program belongs into the suite, or beside it, in benchmarks/suite.py."""
        with_main = {path.name for path in FOLDER.glob("*.py") if "__main__" in path.read_text()}
        tools = {"suite.py", "check.py", "report.py", "hops.py", "branches.py"}
        tools |= {"sizing.py", "open_pages.py", "page_times.py"}  # print tables of their own
        own_processes = {"client_work.py", "branch_figures.py"}
        assert with_main - tools - own_processes == {program.file for program in (*SUITE, *BESIDE)}

    def test_names_are_unique(self) -> None:
        names = [program.name for program in (*SUITE, *BESIDE)]
        assert len(set(names)) == len(names)

    def test_a_missing_program_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(UnknownProgram, match=r"there is no gone\.py"):
            chosen([Program("gone", "gone.py", "nothing")], [], tmp_path)

    def test_peers_come_from_the_command_line_only(self) -> None:
        settings = Settings()
        assert [each for each in SUITE if each.needs_peer and settings.has_peer_for(each)] == []


class TestFile:
    def test_what_was_written_is_read_again(self, tmp_path: Path) -> None:
        results = results_of(outcome("one", read(80, aim=0.9)), outcome("two", failed="exit status 1"))
        results.write(tmp_path / "new" / "results.json")
        assert Results.read(tmp_path / "new" / "results.json") == results

    @pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 2, "programs": []}', '{"format": 1}'])
    def test_other_files_are_refused_by_name(self, tmp_path: Path, text: str) -> None:
        file = tmp_path / "other.json"
        file.write_text(text)
        with pytest.raises(WrongResults, match=r"other\.json"):
            Results.read(file)

    def test_a_missing_file_is_refused_by_name(self, tmp_path: Path) -> None:
        with pytest.raises(WrongResults, match=r"none\.json"):
            Results.read(tmp_path / "none.json")


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.process
def test_a_real_program_through_the_suite(tmp_path: Path) -> None:
    """From the command line to the plot, with programs that need no Java."""
    assert suite.main(["--quick", "--only", "codec,log-append", "--out", str(tmp_path)]) == 0
    results = Results.read(tmp_path / "results.json")
    assert [each.name for each in results.outcomes] == ["codec", "log-append"]
    assert all(figure.ratio for _, figure in results.figures())
    assert b"</svg>" in (tmp_path / "results.svg").read_bytes()
    assert results.about["machine"]["Python"] == sys.version.split()[0]
