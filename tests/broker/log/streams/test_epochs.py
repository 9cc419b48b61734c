"""The file of epochs, and what remains of a stream's epochs when it grows, is trimmed, or gets another leader."""

from __future__ import annotations

from pathlib import Path

import pytest
from metaq_broker.log.streams.epochs import (
    FILE_NAME,
    EpochsDamaged,
    StreamEpochs,
    begun,
    check_epochs,
    kept,
    read_epochs,
    write_epochs,
)
from metaq_broker.log.streams.facts import EpochStart
from metaq_broker.testing import FaultyFiles
from stored import QuickFiles, cut_at_every_call

A, B = "a" * 32, "b" * 32


def starts(*pairs: tuple[int, int]) -> tuple[EpochStart, ...]:
    return tuple(EpochStart(*pair) for pair in pairs)


def test_what_was_written_is_read(tmp_path: Path) -> None:
    streams = {
        "orders with-a blank-0": StreamEpochs(A, starts((1, 0), (3, 500))),
        "transactions": StreamEpochs(B, ()),
    }
    assert read_epochs(QuickFiles(), tmp_path) is None
    write_epochs(QuickFiles(), tmp_path, streams)
    assert read_epochs(QuickFiles(), tmp_path) == streams


@pytest.mark.parametrize(
    ("epochs", "epoch", "end", "expected"),
    [
        ((), 1, 0, ((1, 0),)),
        (((1, 0),), 2, 0, ((2, 0),)),  # nothing was written in epoch 1
        (((1, 0),), 2, 9, ((1, 0), (2, 9))),
        (((1, 0), (2, 9)), 3, 9, ((1, 0), (3, 9))),
        (((1, 0), (5, 20)), 6, 9, ((1, 0), (6, 9))),  # an entry that was ahead of the copy's end
        (((1, 0),), 1, 9, ((1, 0),)),  # it has begun already
    ],
)
def test_a_new_epoch_begins_at_the_end(epochs, epoch, end, expected) -> None:  # type: ignore[no-untyped-def]
    assert begun(starts(*epochs), epoch, end) == starts(*expected)


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        (0, ((1, 0), (2, 9), (4, 50))),
        (5, ((1, 0), (2, 9), (4, 50))),
        (9, ((1, 0), (2, 9), (4, 50))),  # a copy may end exactly there
        (10, ((2, 9), (4, 50))),
        (50, ((2, 9), (4, 50))),
        (51, ((4, 50),)),
    ],
)
def test_epochs_that_ended_before_the_start_are_left_out(start, expected) -> None:  # type: ignore[no-untyped-def]
    assert kept(starts((1, 0), (2, 9), (4, 50)), start) == starts(*expected)


@pytest.mark.parametrize("wrong", [((2, 0), (2, 5)), ((3, 0), (2, 5)), ((1, 5), (2, 4))])
def test_epochs_that_do_not_ascend_are_wrong(wrong) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match="of stream orders-0 at"):
        check_epochs("orders-0", starts(*wrong))


@pytest.mark.parametrize("content", [b"", b"metaq-stream-epochs 1\n1 0\n", b"\xff"])
def test_a_damaged_file_is_noticed(content: bytes, tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(content)
    with pytest.raises(EpochsDamaged):
        read_epochs(QuickFiles(), tmp_path)


class Life:
    """Epochs that begin one after the other; those that were durable are there after a power cut."""

    def __init__(self, root: Path) -> None:
        self.root, self.durable = root, 0

    def run(self, files: FaultyFiles) -> None:
        for epoch in range(1, 5):
            write_epochs(files, self.root, {"orders-0": StreamEpochs(A, starts((epoch, epoch * 10)))})
            self.durable = epoch

    def check(self, files: FaultyFiles) -> None:
        found = read_epochs(files, self.root)
        assert (found["orders-0"].epochs[0].epoch if found else 0) in (self.durable, self.durable + 1)


@pytest.mark.parametrize("survives", [0.0, 1.0])
def test_power_cut_at_every_call(survives: float, tmp_path: Path) -> None:
    assert cut_at_every_call(tmp_path, Life, survives) > 15
