"""The epochs of all streams of a broker, in one file, so that the start of an epoch costs one sync however many
streams there are.

File ``stream-epochs`` in the data folder, UTF-8 text, replaced atomically::

    metaq-stream-epochs 1
    EPOCH START INCARNATION NAME     from byte START on, the stream's bytes are of EPOCH; NAME is the rest of the line
    crc32 XXXXXXXX                   of all lines before, 8 hex digits

A leader writes an entry for every stream that exists when its epoch begins, before it appends a byte of that epoch. So
a stream that was created since has no entry: all its bytes are of the epoch of its creation, which counts as 0. A
follower takes over its leader's entries before it appends the leader's bytes; entries may then be ahead of its end.
The line ``0 0 INCARNATION NAME`` stands for a stream without entries.

The lines also list the streams that must be there. If the file is damaged, or missing although the broker is a member
of a pair, the member cannot show which of its bytes another one may have replaced: it must not lead, and follows until
it has taken over a leader's epochs.

Source: docs/log-format.md, "A member of a pair".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

from metaq_broker.log.files.files import Files
from metaq_broker.log.files.sealed_files import seal, unseal
from metaq_broker.log.streams.facts import Epochs, EpochStart

FILE_NAME: Final = "stream-epochs"
_TITLE: Final = "metaq-stream-epochs 1"
_NO_ENTRY: Final = EpochStart(0, 0)


class EpochsDamaged(ValueError):
    """The file exists and cannot be read; the text says why."""


class StreamEpochs(NamedTuple):
    """The recorded epochs of one incarnation of a stream."""

    incarnation: str
    epochs: Epochs


def read_epochs(files: Files, data_path: Path) -> dict[str, StreamEpochs] | None:
    """Return the recorded epochs by the names of the streams; ``None`` without a file (blocking).

    Raises:
        EpochsDamaged: The file cannot be read.
        OSError: The disk fails.
    """
    path = data_path / FILE_NAME
    if not files.exists(path):
        return None
    found: dict[str, tuple[str, list[EpochStart]]] = {}
    try:
        for line in unseal(_TITLE, files.read_bytes(path)):
            epoch, start, incarnation, name = line.split(" ", 3)
            known, epochs = found.setdefault(name, (incarnation, []))
            if known != incarnation:
                raise ValueError(f"it has two incarnations of stream {name}")
            if int(epoch):
                epochs.append(EpochStart(int(epoch), int(start)))
        for name, (_, epochs) in found.items():
            check_epochs(name, epochs)
    except ValueError as error:
        raise EpochsDamaged(str(error)) from None
    return {name: StreamEpochs(incarnation, tuple(epochs)) for name, (incarnation, epochs) in found.items()}


def check_epochs(name: str, epochs: Sequence[EpochStart]) -> None:
    """Check that epochs and starts ascend.

    Raises:
        ValueError: They do not.
    """
    for before, after in pairwise(epochs):
        if after.epoch <= before.epoch or after.start < before.start:
            raise ValueError(f"epoch {after.epoch} of stream {name} at {after.start} follows {before}")


def write_epochs(files: Files, data_path: Path, streams: Mapping[str, StreamEpochs]) -> None:
    """Replace the file; durable on return (blocking; any thread).

    Raises:
        OSError: The disk refuses; the old contents stay.
    """
    lines = (
        f"{each.epoch} {each.start} {stream.incarnation} {name}"
        for name, stream in sorted(streams.items())
        for each in stream.epochs or (_NO_ENTRY,)
    )
    files.write_atomic(data_path / FILE_NAME, seal(_TITLE, lines))


def begun(epochs: Epochs, epoch: int, end: int) -> Epochs:
    """Return the epochs of a stream that ends at ``end`` when ``epoch`` begins; epochs without bytes are left out."""
    begun_before = tuple(each for each in epochs if each.start < end and each.epoch <= epoch)
    if begun_before and begun_before[-1].epoch == epoch:
        return begun_before
    return (*begun_before, EpochStart(epoch, end))


def kept(epochs: Epochs, start: int) -> Epochs:
    """Return the epochs of a stream that now begins at ``start``, without the epochs that ended before it.

    An epoch that ended exactly there stays: a copy may end there, too.
    """
    first = max((number for number, each in enumerate(epochs) if each.start < start), default=0)
    return tuple(epochs[first:])
