"""Checks whether the transaction journal can be read, and whether it belongs to the data folder; changes nothing.

Only a backup repairs a damaged journal.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from metaq_broker.log.files.files import Files
from metaq_broker.log.files.run_marks import FILE_NAME as LAST_RUN
from metaq_broker.log.files.run_marks import DifferentRuns, require_same_run
from metaq_broker.operate.fsck.findings import JournalFindings
from metaq_broker.operate.fsck.untouched import UntouchedDisk
from metaq_broker.transactions.folder import FILE_NAME
from metaq_broker.transactions.journal import Journal, JournalDamaged, Location
from metaq_broker.transactions.journal_bytes import start_of
from metaq_broker.transactions.records import Record

_NO_NEW_FILE_BYTES: Final = 1 << 62


def check_journal(files: Files, directory: Path, data: Path | None = None) -> JournalFindings | None:
    """Read every record of the journal in ``directory``; ``None`` if there is none. ``data``: the folder beside it."""
    names = files.listdir(directory) if files.is_dir(directory) else []
    sizes = [files.stat(directory / name).size for name in names if start_of(name) is not None]
    if not sizes and not {FILE_NAME, LAST_RUN} & set(names):
        return None
    findings = JournalFindings(directory, len(sizes), sum(sizes))

    def count(location: Location, record: Record) -> None:
        findings.records += 1

    journal = Journal(UntouchedDisk(), directory, _NO_NEW_FILE_BYTES)
    try:
        journal.load(count)
    except JournalDamaged as damaged:
        findings.fault = f"damaged at offset {damaged.offset} of {damaged.path.name}: {damaged.reason}"
    except OSError as error:
        findings.fault = f"cannot be read: {error.strerror or error}"
    else:
        findings.torn_bytes = max(0, findings.bytes - journal.byte_count)
        journal.close()
    if data is not None and findings.fault is None:
        _compare_runs(files, data, findings)
    return findings


def _compare_runs(files: Files, data: Path, findings: JournalFindings) -> None:
    try:
        require_same_run(files, data, findings.directory)
    except DifferentRuns as different:
        findings.fault = f"cannot be used with this data folder: {different}"
    except ValueError as error:
        findings.run_unknown = f"a file {LAST_RUN} is damaged, so an older copy is not noticed: {error}"
    except OSError as error:
        findings.run_unknown = f"a file {LAST_RUN} cannot be read: {error.strerror or error}"
