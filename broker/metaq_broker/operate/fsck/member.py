"""Checks the files of a pair's member: who it is, its epochs, and what its leaders did not have (``lost+found``)."""

from __future__ import annotations

from pathlib import Path

from metaq_broker.log.files.files import Files
from metaq_broker.log.streams import lost_found
from metaq_broker.log.streams.epochs import FILE_NAME, EpochsDamaged, StreamEpochs, read_epochs
from metaq_broker.log.streams.member import MemberRefused, read_member
from metaq_broker.operate.fsck.findings import MemberFindings


def check_member(files: Files, path: Path, journal: Path) -> MemberFindings | None:
    """Return the findings for a data folder; ``None`` if it never belonged to a member of a pair.

    ``journal``: the folder of the transactions; what was cut from it is beside it.

    Raises:
        OSError: A file cannot be read.
    """
    folders = dict.fromkeys((path, journal.parent))
    findings = MemberFindings(
        kept=[each for folder in folders for each in lost_found.kept(files, folder)],
        unfinished_cuts=[name for folder in folders for name in lost_found.unfinished(files, folder)],
    )
    try:
        record = read_member(files, path)
    except MemberRefused as refused:
        findings.faults.append(str(refused))
        return findings
    if record is None:
        return findings if findings.kept or findings.unfinished_cuts else None
    findings.uuid, findings.broker_id, findings.promised = record.uuid, record.broker_id, record.promised
    findings.starts = int(record.boots[-1].partition("-")[0]) if record.boots else 0
    try:
        epochs = read_epochs(files, path)
    except EpochsDamaged as damaged:
        findings.faults.append(f"{FILE_NAME} cannot be read: {damaged}; the member follows until it has its leader's")
        return findings
    if epochs is None:
        findings.faults.append(f"{FILE_NAME} is missing; the member follows until it has its leader's")
        return findings
    findings.streams = {name: _latest(stream) for name, stream in epochs.items()}
    return findings


def _latest(stream: StreamEpochs) -> int:
    return stream.epochs[-1].epoch if stream.epochs else 0
