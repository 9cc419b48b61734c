"""Takes over the transactions of a Java broker when this broker starts in its folder for the first time.

Branches that are prepared in Java's journal become prepared branches of this broker: RECOVER lists them, and COMMIT
stores their messages with the ids that they have. Then Java's files are moved into a folder of their own: a Java broker
that is started here again must not replay them, since the partitions have changed. After a kill in between, the next
start finds the branches here and Java's files still there, and leaves those branches unchanged.

Source: docs/migration.md.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from itertools import count, islice
from pathlib import Path
from typing import Final

from metaq.errors import MetaqError
from metaq.formats.frame_block import FrameBlock
from metaq.model import Xid
from metaq_broker.log.engine.outcomes import PartitionUnknown, TopicUnknown
from metaq_broker.log.files.files import Files
from metaq_broker.transactions.interfaces import MIB, TransactionStore
from metaq_broker.transactions.java_journal import JavaJournal, JavaMessage, StoredUnit, read_java_journal
from metaq_broker.transactions.journal import Journal
from metaq_broker.transactions.journal_writer import JournalWriter
from metaq_broker.transactions.outcomes import TransactionRefused
from metaq_broker.transactions.state import State
from metaq_broker.transactions.transaction import OpenTransactions, Transaction

_log = logging.getLogger(__name__)

FOLDER_NAME: Final = "java-journal"
"""The folder to which Java's files are moved; ``-2`` and so on is appended if it exists already."""


NAMED_MAX: Final = 10
"""Limit on the branches that an error names."""


class BranchesNotTakenOver(MetaqError):
    """Of ``prepared`` branches that a Java broker has prepared, these have messages for partitions that do not exist
    here; one missing partition of each is given.
    """

    def __init__(self, missing: Mapping[Xid, tuple[str, int]], prepared: int) -> None:
        self.missing, self.prepared = missing, prepared
        super().__init__(missing, prepared)

    def __str__(self) -> str:
        named = [
            f"{key} (partition {partition} of topic {topic})"
            for key, (topic, partition) in islice(self.missing.items(), NAMED_MAX)
        ]
        if (more := len(self.missing) - len(named)) > 0:
            named.append(f"{more} more")
        return (
            f"{len(self.missing)} of {self.prepared} branches that a Java broker has prepared have messages for "
            f"partitions that server.ini does not have; add them: {', '.join(named)}"
        )


def take_over(
    files: Files,
    directory: Path,
    store: TransactionStore,
    transactions: OpenTransactions,
    writer: JournalWriter,
    journal: Journal,
    begin: Callable[[Xid], Transaction],
) -> None:
    """Take over the transactions of a Java broker in ``directory``, if any (blocking). ``begin`` creates a transaction.

    Raises:
        JavaJournalDamaged, BranchesNotTakenOver: The broker must not start.
        TransactionRefused, JournalFailed: The journal does not accept the branches.
        OSError: A file cannot be read or written.
    """
    found = read_java_journal(files, directory)
    if found is None:
        return
    _check(found, store)
    taken = [
        _prepared(begin(key), messages, writer)
        for key, messages in found.prepared.items()
        if transactions.find(key, None) is None
    ]
    journal.sync_now()
    for transaction in taken:
        transaction.state = State.PREPARED
        transactions.add(transaction)
    moved = _set_aside(files, directory, found.names)
    _tell(found, taken, moved, store)


def _check(found: JavaJournal, store: TransactionStore) -> None:
    missing: dict[Xid, tuple[str, int]] = {}
    for key, messages in found.prepared.items():
        for message in messages:
            try:
                store.check(*message.partition_key)
            except TransactionRefused as refused:
                if not isinstance(refused.refusal, TopicUnknown | PartitionUnknown):
                    raise
                missing.setdefault(key, message.partition_key)
    if missing:
        raise BranchesNotTakenOver(missing, len(found.prepared))


def _prepared(transaction: Transaction, messages: list[JavaMessage], writer: JournalWriter) -> Transaction:
    for message in messages:
        transaction.add(message.partition_key, FrameBlock.of((message.frame,)))
        if transaction.buffered_bytes > MIB:
            writer.spill(transaction)
    writer.prepare(transaction, transaction.begun_ms)
    return transaction


def _set_aside(files: Files, directory: Path, names: list[str]) -> Path:
    """Move the files to a new folder; return it."""
    target = next(
        path
        for number in count(1)
        if not files.exists(path := directory / (FOLDER_NAME if number == 1 else f"{FOLDER_NAME}-{number}"))
    )
    files.makedir(target)
    for name in names:
        files.rename(directory / name, target / name)
    files.fsync_dir(target)
    files.fsync_dir(directory)
    return target


def _tell(found: JavaJournal, taken: list[Transaction], moved: Path, store: TransactionStore) -> None:
    fields = {"prepared": len(taken), "unfinished": found.unfinished, "files": ", ".join(found.names), "moved": moved}
    _log.info("the transactions of a Java broker were taken over", extra={"fields": fields})
    for transaction in taken:
        known = {"key": transaction.key, "messages": transaction.messages, "bytes": transaction.byte_count}
        _log.warning("a prepared branch of a Java broker waits for its coordinator", extra={"fields": known})
    if found.torn_bytes:
        _log.warning("the end of a Java broker's journal was cut", extra={"fields": {"bytes": found.torn_bytes}})
    if found.has_outcomes:
        _log.warning("branches that were completed manually at the Java broker are not remembered here: heuristic.log")
    lost = [unit for unit in found.stored_units if _is_lost(unit, store)]
    if lost:
        topic, partition = lost[0].partition_key
        first = {"units": len(lost), "partition": f"{topic}-{partition}", "offset": lost[0].offset}
        _log.warning("messages that a Java broker has committed are not in their partitions", extra={"fields": first})


def _is_lost(unit: StoredUnit, store: TransactionStore) -> bool:
    """Whether a commit has stored messages beyond the partition's current end."""
    return 0 < store.log_end(*unit.partition_key) < unit.end
