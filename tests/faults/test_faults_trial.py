"""The faults itself on trial: after a real run the stored files are damaged in known ways, and each must be found."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from examples import rarely

from faults.broker_process import ServerSettings
from faults.checker.anomaly import Kind
from faults.console import PromiseBroken
from faults.history import Outcome
from faults.scenarios.stage import wait_for, wait_for_progress
from faults.stored import Image, PartitionKey
from faults.survey import survey_files
from faults.trial import Trial
from metaq.formats.frames import encode_frame

pytestmark = [pytest.mark.process, pytest.mark.slow]

SETTINGS = ServerSettings({"orders": 2})
PLACE = PartitionKey("orders", 0)


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trial]:
    """A trial in which everything went well: the broker is gone, prepared branches wait, nothing is damaged yet."""
    trial = Trial(tmp_path_factory.mktemp("played") / "trial", SETTINGS, "1")
    trial.broker.start()
    trial.workers.start()
    wait_for_progress(trial)
    wait_for(trial, lambda: trial.workers.unfinished.prepared_count > 0, "a prepared branch waits")
    trial.workers.stop()
    look(trial)
    trial.broker.kill()
    yield trial
    trial.broker.kill()


@pytest.fixture
def trial(played: Trial, tmp_path: Path) -> Iterator[Trial]:
    """A copy of it, to be damaged."""
    sockets = shutil.ignore_patterns("*.sock")
    shutil.copytree(played.broker.data, tmp_path / "trial" / "data", ignore=sockets)
    trial = Trial(tmp_path / "trial", SETTINGS, "1")
    trial.history = copy.deepcopy(played.history)
    trial.workers.shift.history = trial.history
    yield trial
    trial.broker.kill()


def segment_with(data: Path, offset: int) -> tuple[Path, int]:
    """Return the segment file that holds ``offset`` of ``PLACE``, and the position in it."""
    paths = sorted((data / str(PLACE)).glob("*.meta"))
    path = max((path for path in paths if int(path.stem) <= offset), key=lambda path: int(path.stem))
    return path, offset - int(path.stem)


def acknowledged_offset(trial: Trial) -> int:
    """Return the offset of a plain message in the middle of ``PLACE`` that was acknowledged."""
    offsets = sorted(
        put.offset
        for put in trial.history.puts
        if put.partition_key == PLACE and put.outcome is Outcome.OK and put.offset >= 0
    )
    return offsets[len(offsets) // 2]


def cut_the_last_message(trial: Trial, image: Image) -> None:
    path, position = segment_with(trial.broker.data, image[PLACE].frames[-1].offset)
    with path.open("r+b") as file:
        file.truncate(position)


def flip_a_bit(trial: Trial, image: Image) -> None:
    path, position = segment_with(trial.broker.data, acknowledged_offset(trial))
    content = bytearray(path.read_bytes())
    content[position + 50] ^= 1
    path.write_bytes(content)


def lose_a_partition(trial: Trial, image: Image) -> None:
    shutil.rmtree(trial.broker.data / str(PLACE))


def lose_the_first_segment(trial: Trial, image: Image) -> None:
    paths = sorted((trial.broker.data / str(PLACE)).glob("*.meta"))
    assert len(paths) > 1
    paths[0].unlink()


def store_a_message_twice(trial: Trial, image: Image) -> None:
    offset = acknowledged_offset(trial)
    frame = next(frame for frame in image[PLACE].frames if frame.offset == offset)
    path, position = segment_with(trial.broker.data, offset)
    data = path.read_bytes()[position : position + frame.end - frame.offset]
    append(trial, image, data)


def store_a_strange_message(trial: Trial, image: Image) -> None:
    append(trial, image, encode_frame(1, 0, b"nobody sent this"))


def append(trial: Trial, image: Image, data: bytes) -> None:
    path, _ = segment_with(trial.broker.data, image[PLACE].end)
    with path.open("ab") as file:
        file.write(data)


def lose_the_journal(trial: Trial, image: Image) -> None:
    for path in (trial.broker.data / "transactions").iterdir():
        path.unlink()


def look(trial: Trial) -> None:
    """Check a trial as after a round."""
    with trial.session() as session:
        trial.workers.sort_out(session)
        trial.check(session)


FAULTS = (
    (cut_the_last_message, (Kind.UNREAD,)),
    (flip_a_bit, (Kind.CORRUPT, Kind.MISSING, Kind.BAD_END)),
    (lose_a_partition, (Kind.MISSING,)),
    (lose_the_first_segment, (Kind.START,)),
    (store_a_message_twice, (Kind.TWICE,)),
    (store_a_strange_message, (Kind.ALTERED,)),
    (lose_the_journal, (Kind.VANISHED,)),
)


@pytest.mark.parametrize(
    ("fault", "kinds"), [*FAULTS[:3], *rarely(*FAULTS[3:])], ids=[fault.__name__ for fault, _ in FAULTS]
)
def test_a_planted_fault_is_found(fault: Callable[[Trial, Image], None], kinds: tuple[Kind, ...], trial: Trial) -> None:
    fault(trial, survey_files(trial.broker.data))
    trial.broker.start()
    with pytest.raises(PromiseBroken) as caught:
        look(trial)
    found = {line.split(":")[0] for line in caught.value.report}
    assert not found.isdisjoint(kind.name for kind in kinds), caught.value.report
    assert (trial.folder / "history.txt").exists()
