"""``metaq-broker fsck`` as a command: arguments, exit status, output, locks, the journal, the progress bar."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from metaq_broker.cli import main
from metaq_broker.clock import ManualClock
from metaq_broker.log.files.files import Files
from metaq_broker.log.files.run_marks import FILE_NAME as LAST_RUN
from metaq_broker.log.files.run_marks import begin_run
from metaq_broker.operate.fsck.journal import check_journal
from metaq_broker.operate.fsck.progress import ProgressBar, size_text
from metaq_broker.transactions.journal import Journal
from metaq_broker.transactions.records import Undecided
from stored import QuickFiles
from stored_folder import COUNT, fill, flip, open_store, segments

INI = """[system]
brokerId=0
numPartitions=1
dataPath={data}
unflushThreshold=0
unflushInterval=10000
maxSegmentSize=1000
maxTransferSize=1024
[topic=orders]
[topic=elsewhere]
dataPath={other}
"""


def test_a_clean_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(tmp_path)
    (tmp_path / "lost+found").mkdir()
    assert main(["fsck", "--data", str(tmp_path)]) == 0
    out, err = capsys.readouterr()
    first, second = out.splitlines()[1:3]
    assert first.startswith("  orders-0    ok  ")
    assert f"{COUNT} messages" in first
    assert second.startswith("  payments-3  ok  1 segment, 5 messages, ")
    assert out.splitlines()[-1].endswith("no problems")
    assert err == ""


def test_problems_and_repair(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(tmp_path)
    flip(segments(tmp_path)[0], 25)
    assert main(["fsck", "--data", str(tmp_path)]) == 1
    assert "  orders-0    PROBLEM  " in capsys.readouterr().out
    assert main(["fsck", "--data", str(tmp_path), "--topic", "payments"]) == 0
    assert main(["fsck", "--data", str(tmp_path), "--repair", "--json"]) == 1
    document = json.loads(capsys.readouterr().out.partition("\n{")[2].join(["{", ""]))
    assert document["summary"]["repaired"] is True
    assert document["folders"][0]["partitions"][0]["state"] == "repaired"
    assert main(["fsck", "--data", str(tmp_path)]) == 0


def test_all_folders_of_a_configuration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, other, ini = tmp_path / "data", tmp_path / "other", tmp_path / "server.ini"
    fill(data)
    ini.write_text(INI.format(data=data, other=other))
    assert main(["fsck", "-f", str(ini), "--json"]) == 0
    assert [folder["path"] for folder in json.loads(capsys.readouterr().out)["folders"]] == [str(data)]
    fill(other)
    assert main(["fsck", "-f", str(ini), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [folder["path"] for folder in document["folders"]] == [str(data), str(other)]
    assert document["summary"]["messages"] == 2 * (COUNT + 5)


def test_a_folder_in_use_is_checked_but_not_repaired(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(tmp_path)
    store = open_store(tmp_path)
    assert main(["fsck", "--data", str(tmp_path)]) == 0
    assert "is using it" in capsys.readouterr().out
    assert main(["fsck", "--data", str(tmp_path), "--repair"]) == 2
    assert "cannot be repaired: process" in capsys.readouterr().err
    store.close()
    assert main(["fsck", "--data", str(tmp_path), "--repair"]) == 0


@pytest.mark.parametrize("arguments", [[], ["--data", "x", "-f", "y"], ["--data"]])
def test_wrong_arguments(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["fsck", *arguments])
    assert stop.value.code == 2
    assert "usage: metaq-broker fsck" in capsys.readouterr().err


def test_what_cannot_be_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fsck", "--data", str(tmp_path / "none")]) == 2
    assert "No such file or directory" in capsys.readouterr().err
    assert main(["fsck", "-f", str(tmp_path / "none.ini")]) == 2
    assert "cannot be read" in capsys.readouterr().err


# ---- the journal


def fill_journal(directory: Path) -> Path:
    directory.mkdir(parents=True)
    journal = Journal(QuickFiles(), directory, 10_000)
    journal.load(lambda location, record: None)
    for number in range(5):
        journal.append([Undecided(f"query {number}")])
    journal.sync_now()
    journal.append([Undecided("after a sync")])
    journal.close()
    return next(directory.glob("*.journal"))


def test_a_journal_is_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(tmp_path)
    path = fill_journal(tmp_path / "transactions")
    before = path.read_bytes()
    assert main(["fsck", "--data", str(tmp_path)]) == 0
    assert "journal  ok  1 file, 6 records" in capsys.readouterr().out
    path.write_bytes(before + b"torn")
    found = check_journal(Files(), path.parent)
    assert found is not None
    assert (found.records, found.torn_bytes, found.fault) == (6, 4, None)
    assert path.read_bytes() == before + b"torn"


@pytest.mark.parametrize("records", [True, False])
def test_a_journal_and_a_data_folder_of_different_moments(
    records: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(tmp_path / "data")
    journal = tmp_path / "data" / "transactions"
    if records:
        fill_journal(journal)
    begin_run(Files(), tmp_path / "data", journal)
    older = (tmp_path / "data" / LAST_RUN).read_bytes()
    begin_run(Files(), tmp_path / "data", journal)
    assert main(["fsck", "--data", str(tmp_path / "data")]) == 0
    (tmp_path / "data" / LAST_RUN).write_bytes(older)
    capsys.readouterr()
    assert main(["fsck", "--data", str(tmp_path / "data")]) == 1
    out = capsys.readouterr().out
    assert "journal  PROBLEM" in out
    assert "are copies of different moments; restore both from the same backup" in out
    (tmp_path / "data" / LAST_RUN).write_bytes(b"damaged")
    assert main(["fsck", "--data", str(tmp_path / "data")]) == 0
    assert "a file last-run is damaged, so an older copy is not noticed" in capsys.readouterr().out


def test_a_damaged_journal_is_a_problem(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(tmp_path)
    path = fill_journal(tmp_path / "transactions")
    flip(path, 60)
    before = path.read_bytes()
    assert main(["fsck", "--data", str(tmp_path), "--repair"]) == 1
    out = capsys.readouterr().out
    assert "journal  PROBLEM" in out
    assert "damaged at offset" in out
    assert path.read_bytes() == before


# ---- progress


def test_the_bar_grows_and_goes() -> None:
    terminal, clock = io.StringIO(), ManualClock()
    progress = ProgressBar(2048, terminal, clock)
    progress.begin("orders-0", 1024)
    clock.advance(50)
    progress.advance(10)
    clock.advance(200)
    progress.advance(5000)
    clock.advance(200)
    progress.begin("orders-1", 1024)
    clock.advance(200)
    progress.advance(512)
    progress.end()
    drawn = [line.rstrip() for line in terminal.getvalue().split("\r") if line.strip()]
    assert drawn == [
        "checking [                        ]   0%  0 bytes of 2.0 KiB  orders-0",
        "checking [############            ]  50%  1.0 KiB of 2.0 KiB  orders-0",
        "checking [############            ]  50%  1.0 KiB of 2.0 KiB  orders-1",
        "checking [##################      ]  75%  1.5 KiB of 2.0 KiB  orders-1",
    ]
    assert terminal.getvalue().endswith("\r")


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 bytes"), (1023, "1023 bytes"), (1536, "1.5 KiB"), (5 << 30, "5.0 GiB")]
)
def test_sizes(size: int, text: str) -> None:
    assert size_text(size) == text
