"""Findings as text for people and as JSON for programs. The JSON document is described in docs/administration.md."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from metaq_broker.log.partitions.damage import Damage
from metaq_broker.log.partitions.losses import Loss
from metaq_broker.operate.fsck.findings import (
    Findings,
    FolderFindings,
    IndexState,
    JournalFindings,
    MemberFindings,
    PartitionFindings,
    StateFindings,
)
from metaq_broker.operate.fsck.progress import size_text

JSON_VERSION: Final = 1
EXIT_CLEAN, EXIT_PROBLEMS, EXIT_UNCHECKED = 0, 1, 2


def exit_status(findings: Findings) -> int:
    """Return 0 if there are no problems, else 1, repaired or not."""
    return EXIT_PROBLEMS if findings.problem_count else EXIT_CLEAN


# ---- for people


def as_text(findings: Findings) -> Iterator[str]:
    """Yield the lines of the report."""
    for folder in findings.folders:
        yield from _folder_lines(folder)
    if findings.journal is not None:
        yield from _journal_lines(findings.journal)
    yield _summary(findings)


def _folder_lines(folder: FolderFindings) -> Iterator[str]:
    yield f"{folder.path}"
    if folder.owner is not None:
        yield f"  process {folder.owner} is using it: what is being written may look unfinished"
    width = max((len(partition.directory.name) for partition in folder.partitions), default=0)
    word_width = max((len(_word(partition)) for partition in folder.partitions), default=0)
    for partition in folder.partitions:
        word = f"{_word(partition):<{word_width}}"
        counts = f"{_many(partition.segments, 'segment')}, {_many(partition.messages, 'message')}"
        size = size_text(partition.bytes)
        offsets = f"offsets {partition.start_offset}..{partition.end_offset}"
        yield f"  {partition.directory.name:<{width}}  {word}  {counts}, {size}, {offsets}"
        yield from (f"    {sentence}" for sentence in (*partition.problems(), *partition.notes()))
    yield from (f"  {name}  PROBLEM  the folder of this partition is gone" for name in folder.missing)
    for state in folder.states:
        word = "ok" if state.fault is None else "REPAIRED" if state.repaired else "PROBLEM"
        yield f"  {state.path.name}  {word}  {_entries(state.entries)}, {size_text(state.bytes)}"
        yield from (f"    {sentence}" for sentence in (*state.problems(), *state.notes()))
    if folder.member is not None:
        yield from _member_lines(folder.member)
    for loss in folder.losses:
        yield f"  {loss.folder}: lost earlier, bytes {loss.start} to {loss.end}, not acknowledged: {loss.reason}"
    yield from (f"  {name}: a deletion that the next start finishes" for name in folder.unfinished_deletions)
    yield from (f"  {name}: no partition, not looked at" for name in folder.left_alone)


def _member_lines(member: MemberFindings) -> Iterator[str]:
    if member.uuid is not None:
        of = f"of the pair of brokerId {member.broker_id}, {_many(member.starts, 'start')}, promised epoch"
        yield f"  pair-member  {'PROBLEM' if member.faults else 'ok'}  {member.uuid}, {of} {member.promised}"
        epochs = sorted(set(member.streams.values()))
        yield f"    epochs of {_many(len(member.streams), 'stream')}: {', '.join(map(str, epochs)) or 'none'}"
    yield from (f"    {fault}" for fault in member.faults)
    for each in member.kept:
        what = "the stream was" if each.offset is None else f"bytes from offset {each.offset} on were"
        yield f"  {each.stream}: {what} not its leader's: {size_text(each.byte_count)} in {each.path}"
    yield from (f"  {name}: a cut that the next start finishes" for name in member.unfinished_cuts)


def _word(partition: PartitionFindings) -> str:
    if not any(partition.problems()):
        return "ok"
    return "REPAIRED" if partition.repaired else "PROBLEM"


def _journal_lines(journal: JournalFindings) -> Iterator[str]:
    counts = f"{_many(journal.files, 'file')}, {_many(journal.records, 'record')}, {size_text(journal.bytes)}"
    yield f"{journal.directory}"
    yield f"  journal  {'PROBLEM' if journal.fault else 'ok'}  {counts}"
    yield from (f"    {sentence}" for sentence in (*journal.problems(), *journal.notes()))


def _summary(findings: Findings) -> str:
    partitions, problems = findings.partitions, findings.problem_count
    messages = sum(partition.messages for partition in partitions)
    size = size_text(sum(partition.bytes for partition in partitions))
    checked = f"{_many(len(partitions), 'partition')}, {_many(messages, 'message')}, {size}: {findings.seconds:.1f} s"
    if not problems:
        return f"{checked}, no problems"
    if any(each.repaired for each in partitions) or any(state.repaired for state in findings.states):
        return f"{checked}, {_many(problems, 'problem')}, {'all' if findings.all_repaired else 'not all'} repaired"
    return f"{checked}, {_many(problems, 'problem')}; --repair puts right what can be"


def _entries(number: int) -> str:
    return f"{number:,} {'entry' if number == 1 else 'entries'}"


def _many(number: int, word: str) -> str:
    return f"{number:,} {word}{'' if number == 1 else 's'}"


# ---- for programs


def as_json(findings: Findings) -> dict[str, Any]:
    partitions = findings.partitions
    return {
        "version": JSON_VERSION,
        "folders": [_folder_json(folder) for folder in findings.folders],
        "journal": _journal_json(findings.journal) if findings.journal else None,
        "summary": {
            "partitions": len(partitions),
            "segments": sum(partition.segments for partition in partitions),
            "messages": sum(partition.messages for partition in partitions),
            "bytes": sum(partition.bytes for partition in partitions),
            "problems": findings.problem_count,
            "repaired": findings.problem_count > 0 and findings.all_repaired,
            "seconds": round(findings.seconds, 3),
        },
        "exit": exit_status(findings),
    }


def _folder_json(folder: FolderFindings) -> dict[str, Any]:
    return {
        "path": str(folder.path),
        "process": folder.owner,
        "partitions": [_partition_json(partition) for partition in folder.partitions],
        "left_alone": folder.left_alone,
        "unfinished_deletions": folder.unfinished_deletions,
        "missing": folder.missing,
        "lost": [_loss_json(loss) for loss in folder.losses],
        "state": _state_json(folder.state) if folder.state else None,
        "groups": _state_json(folder.groups) if folder.groups else None,
        "pair": _member_json(folder.member) if folder.member else None,
    }


def _loss_json(loss: Loss) -> dict[str, Any]:
    return {
        "partition": loss.folder,
        "start": loss.start,
        "end": loss.end,
        "found_ms": loss.time_ms,
        "reason": loss.reason,
    }


def _partition_json(partition: PartitionFindings) -> dict[str, Any]:
    torn = partition.torn
    return {
        "topic": partition.topic,
        "index": partition.index,
        "state": _word(partition).lower(),
        "start_offset": partition.start_offset,
        "end_offset": partition.end_offset,
        "segments": partition.segments,
        "messages": partition.messages,
        "bytes": partition.bytes,
        "torn_tail": {"offset": torn.offset, "bytes": torn.bytes} if torn else None,
        "missing_bytes": partition.missing_bytes,
        "incarnation": partition.incarnation,
        "damaged": [_damage_json(entry, known=False) for entry in partition.damage]
        + [_damage_json(entry, known=True) for entry in partition.known],
        "changed_headers": [{"start": span.start, "end": span.end} for span in partition.suspect],
        "indexes": {state.value: partition.index_count(state) for state in IndexState},
        "kept": partition.kept,
        "problems": list(partition.problems()),
        "notes": list(partition.notes()),
    }


def _damage_json(entry: Damage, *, known: bool) -> dict[str, Any]:
    return {
        "start": entry.start,
        "end": entry.end,
        "messages": entry.messages,
        "reason": entry.reason,
        "quarantined": known,
    }


def _state_json(state: StateFindings) -> dict[str, Any]:
    return {
        "path": str(state.path),
        "bytes": state.bytes,
        "entries": state.entries,
        "torn_bytes": state.torn_bytes,
        "problem": state.fault,
        "repaired": state.repaired,
    }


def _journal_json(journal: JournalFindings) -> dict[str, Any]:
    return {
        "path": str(journal.directory),
        "files": journal.files,
        "records": journal.records,
        "bytes": journal.bytes,
        "torn_bytes": journal.torn_bytes,
        "problem": journal.fault,
    }


def _member_json(member: MemberFindings) -> dict[str, Any]:
    return {
        "uuid": member.uuid,
        "broker_id": member.broker_id,
        "starts": member.starts,
        "promised": member.promised,
        "streams": member.streams,
        "lost_found": [
            {
                "stream": each.stream,
                "path": str(each.path),
                "offset": each.offset,
                "bytes": each.byte_count,
                "time_ms": each.time_ms,
            }
            for each in member.kept
        ],
        "unfinished_cuts": list(member.unfinished_cuts),
        "faults": member.faults,
    }
