"""Errors of the connector: options, columns, checkpoints, rows, and lost data.

::

    MetaqError                (metaq.errors)
    └── ConnectorError
        ├── OptionError            an option is unknown, missing, misplaced or cannot be read
        ├── ColumnError            a DataFrame's columns do not fit the sink, or a schema was given to the source
        ├── CheckpointError        an offset in a checkpoint cannot be read by this version
        ├── NotSelected            a checkpoint has partitions that the options do not select
        ├── DataLoss               bytes that the query had to read are deleted
        ├── ReadFailed             a task could not get its bytes from the broker
        ├── MalformedValue         a payload is not JSON of its type
        ├── BrokerNotNamed         a partition's broker is not named in the options
        ├── PartitionAway          a partition of the option orderedPartitions is offered by no broker now
        ├── TablesUnsupported      a table of Spark's catalog was used
        ├── RowError               one row cannot become a message
        ├── BranchLost             a broker has lost a branch of an exactly-once task
        ├── BatchSuperseded        a later batch of the same query was decided
        ├── BatchConflict          a batch that was written before is repeated with other rows
        ├── BatchesMissing         a broker does not know batches that a query has written
        ├── ExactlyOnceError       an exactly-once write cannot be done, or cannot be finished
        │   ├── ParticipantMissing     ... because a broker that has a part of it is not found
        │   └── FullRefreshRefused     ... twice, after a full refresh of a pipeline
        └── WriteFailed            a broker of a write could not be reached

Spark shows the text of these errors to the user, so each sentence contains what is wrong, where, and what is allowed.
"""

from __future__ import annotations

from metaq.errors import MetaqError


class ConnectorError(MetaqError):
    """Base of the connector's own errors."""


class OptionError(ConnectorError):
    """``option`` (as the user should spell it) is wrong; ``reason`` says why and what is allowed."""

    def __init__(self, option: str, reason: str) -> None:
        self.option, self.reason = option, reason
        super().__init__(option, reason)

    def __str__(self) -> str:
        return f"option {self.option}: {self.reason}"


class ColumnError(ConnectorError):
    """``column`` does not fit; ``reason`` names its type and the types that are allowed."""

    def __init__(self, column: str, reason: str) -> None:
        self.column, self.reason = column, reason
        super().__init__(column, reason)

    def __str__(self) -> str:
        return f"column {self.column}: {self.reason}"


class CheckpointError(ConnectorError):
    """``offset`` is the checkpoint's text, shortened; ``reason`` says why it cannot be used."""

    def __init__(self, offset: object, reason: str) -> None:
        self.offset, self.reason = repr(offset)[:300], reason
        super().__init__(self.offset, reason)

    def __str__(self) -> str:
        return f"checkpoint offset {self.offset}: {self.reason}"


class NotSelected(ConnectorError):
    """A checkpoint has ``partitions`` (as text) that ``option`` does not select; ``alone``: it has no others."""

    def __init__(self, partitions: str, option: str, alone: bool) -> None:
        self.partitions, self.option, self.alone = partitions, option, alone
        super().__init__(partitions, option, alone)

    def __str__(self) -> str:
        other = "; for another query, give it a checkpointLocation of its own" if self.alone else ""
        return (
            f"the checkpoint has {self.partitions}, which the option {self.option} does not select (any more); to read "
            "on there, select it again; to go on without it for good, stop the query and run metaq-spark checkpoint "
            "drop DIR --topic TOPIC; to go on without it in this run and keep its position, set failOnDataLoss to "
            f"false{other}"
        )


class DataLoss(ConnectorError):
    """Bytes that the query had to read are deleted; ``what`` says which and why."""

    def __init__(self, what: str) -> None:
        self.what = what
        super().__init__(what)

    def __str__(self) -> str:
        return (
            f"{self.what}. Some messages may have been missed. Set the option failOnDataLoss to false only if you "
            "accept that: the query then continues with the messages that are left"
        )


class ReadFailed(ConnectorError):
    """A task reached ``offset`` of ``source`` (``topic/partition``) and failed with ``cause``; ``advice`` may help."""

    def __init__(self, source: str, offset: int, cause: str, advice: str) -> None:
        self.source, self.offset, self.cause, self.advice = source, offset, cause, advice
        super().__init__(source, offset, cause, advice)

    def __str__(self) -> str:
        return f"{self.source} could not be read from offset {self.offset} on: {self.cause}. {self.advice}"


class MalformedValue(ConnectorError):
    """The message at ``offset`` of ``source`` does not fit ``valueSchema``, for ``reason``, and the read is strict."""

    def __init__(self, source: str, offset: int, reason: str) -> None:
        self.source, self.offset, self.reason = source, offset, reason
        super().__init__(source, offset, reason)

    def __str__(self) -> str:
        return (
            f"{self.source}: the payload at offset {self.offset} does not fit valueSchema: {self.reason}. With the "
            "option mode = permissive, what does not fit is null; with dropmalformed, such messages are left out"
        )


class BrokerNotNamed(ConnectorError):
    """``partition`` is on broker ``broker_id``; ``present`` are the brokers that are known, as text."""

    def __init__(self, partition: str, broker_id: int, present: list[str]) -> None:
        self.partition, self.broker_id, self.present = partition, broker_id, present
        super().__init__(partition, broker_id, present)

    def __str__(self) -> str:
        return (
            f"{self.partition} is on broker {self.broker_id}, but the options name only {', '.join(self.present)}; "
            "add the missing broker"
        )


class PartitionAway(ConnectorError):
    """No named broker offers ``target`` (``topic/partition``); ``present`` are the topic's partitions."""

    def __init__(self, target: str, present: list[str]) -> None:
        self.target, self.present = target, present
        super().__init__(target, present)

    def __str__(self) -> str:
        return (
            f"{self.target} is in the option orderedPartitions, but no broker takes messages for it now (the topic's "
            f"partitions are {', '.join(self.present)}); its messages go nowhere else, so the write fails"
        )


class RowError(ConnectorError):
    """The row at ``place`` of a task's input cannot become a message."""

    def __init__(self, place: str, reason: str) -> None:
        self.place, self.reason = place, reason
        super().__init__(place, reason)

    def __str__(self) -> str:
        return f"{self.place}: {self.reason}"


class BranchLost(ConnectorError):
    """The broker at ``address`` has dropped the open branch of a task; ``reason`` is its text."""

    retryable = True

    def __init__(self, address: str, reason: str) -> None:
        self.address, self.reason = address, reason
        super().__init__(address, reason)

    def __str__(self) -> str:
        return (
            f"broker {self.address} rolled back what a task had written so far, because the task was silent for too "
            f"long or another client asked for it ({self.reason}). Nothing was written; the task can be run again. If "
            "this happens again, raise maxTxTimeoutInSeconds in the broker's server.ini, and the option "
            "transactionTimeoutMs if it is below that"
        )


class BatchSuperseded(ConnectorError):
    """``batch`` (as text) was to be committed after a later one of the same query; ``reason`` is the broker's."""

    def __init__(self, batch: str, reason: str) -> None:
        self.batch, self.reason = batch, reason
        super().__init__(batch, reason)

    def __str__(self) -> str:
        return (
            f"{self.batch} is refused: {self.reason}. Another run went on without this one, or this one started from "
            "an older copy of the checkpoint. Nothing of this copy can be read. Stop all but one run, and let that one "
            "go on from the newest checkpoint or begin with a new one"
        )


class BatchConflict(ConnectorError):
    """``batch`` was written with ``before`` by the run ``run`` ("" if unknown); now it has ``now`` (both as text).

    ``same_topics``: its new contents are for topics that it was written to, or it was written without rows.
    """

    def __init__(self, batch: str, before: str, run: str, now: str, same_topics: bool) -> None:
        self.batch, self.before, self.run, self.now, self.same_topics = batch, before, run, now, same_topics
        super().__init__(batch, before, run, now, same_topics)

    def __str__(self) -> str:
        by = f" by run {self.run}" if self.run else ""
        return (
            f"{self.batch} was written before{by}, with {self.before}; now it has {self.now}, and they are not the "
            f"same messages. The rows of this run were not written. {self._remedy}"
        )

    @property
    def _remedy(self) -> str:
        if self.batch.startswith("txnVersion"):
            return "Write new rows under a new txnVersion, and give each target a txnAppId of its own"
        if not self.same_topics:
            return (
                "The checkpoint was copied from a query that writes elsewhere, or the query's topic was changed in the "
                "middle of a batch: give this query a checkpoint of its own"
            )
        return (
            "The checkpoint is older than what was written (a restored backup, or a power loss): restore the newest "
            "one, or begin with a new checkpoint that starts after the rows that were written. If the query was "
            "changed in the middle of a batch, run it once as it was. If its rows differ whenever it repeats a batch "
            "(rand(), a lookup elsewhere), set the option repeatedBatch to accept: the rows that were written first "
            "count"
        )


class BatchesMissing(ConnectorError):
    """``batch`` (as text) was to follow batch ``last`` (``None``: none), the newest that ``brokers`` (text) know.

    ``missing`` are the first and the last batch between. ``number_name``: the user's name for a batch's number.
    ``alone``: other brokers of the write know later batches. ``checkpoint``: the query's, "" if it is not known or
    cannot be read.
    """

    def __init__(
        self,
        batch: str,
        brokers: str,
        last: int | None,
        missing: tuple[int, int],
        number_name: str = "batch",
        alone: bool = False,
        checkpoint: str = "",
    ) -> None:
        self.batch, self.brokers, self.last, self.missing = batch, brokers, last, missing
        self.number_name, self.alone, self.checkpoint = number_name, alone, checkpoint
        super().__init__(batch, brokers, last, missing, number_name, alone, checkpoint)

    def __str__(self) -> str:
        known = "none" if self.last is None else f"{self.number_name} {self.last}"
        others = f", but other brokers know {self.number_name} {self.missing[1]}" if self.alone else ""
        return (
            f"{self.batch} is refused, and nothing of it was written: the last {self.number_name} of it that "
            f"{self.brokers} knows is {known}{others}. {self._cause}. {self._remedy}"
        )

    @property
    def _span(self) -> str:
        return f"{self.missing[0]}-{self.missing[1]}"

    @property
    def _cause(self) -> str:
        cause = "The broker was put back to an older copy, or its transaction journal is not the one that it had"
        if self.last is None and not self.alone:
            cause += ", or the query did not write to it with delivery = exactly_once before"
        return cause

    @property
    def _remedy(self) -> str:
        option = f"set the option missingBatches to {self._span} and run it again"
        if self.alone or self.number_name != "batch":
            return (
                "Restore all brokers of the write from copies of the same moment. If the rows of "
                f"{self.number_name} {self._span} are in this broker's partitions, or stay missing there, {option}"
            )
        to = "--to earliest" if self.last is None else f"--to-batch {self.last}"
        folder = self.checkpoint or "CHECKPOINT"
        move = f"metaq-spark checkpoint move {folder} {to} --abandon-planned, with the servers of its source"
        if not self.checkpoint:  # the batch that moves the query has the next number
            span = f"{self.missing[0]}-{self.missing[1] + 1}"
            move += f", then the option missingBatches = {span}, because the driver cannot read the checkpoint"
        return (
            f"If the rows of batches {self._span} are missing in the topics, let the query write them again: {move}. "
            f"If they are there, or stay missing, {option}"
        )


class TablesUnsupported(ConnectorError):
    """A table ``USING format`` of Spark's catalog, which does not pass its options to the reader."""

    def __init__(self, format_name: str = "metaq") -> None:
        self.format_name = format_name
        super().__init__(format_name)

    def __str__(self) -> str:
        name = self.format_name
        return (
            f"a table USING {name} does not work, because Spark does not give the options of a table to a Python data "
            f"source when the table is used; for SQL use CREATE TEMPORARY VIEW ... USING {name} OPTIONS (...), to "
            "write one with its columns, such as (value STRING), and the option topic, or "
            f'df.write.format("{name}").option("topic", ...).mode("append").save()'
        )


class ExactlyOnceError(ConnectorError):
    """``reason`` says why an exactly-once write is not possible, and what to do."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)

    def __str__(self) -> str:
        return f"delivery = exactly_once: {self.reason}"


class ParticipantMissing(ExactlyOnceError):
    """A batch has messages on ``broker_id``, which is not found by ``found_by`` (as text).

    Not ``decided``: it may have, because that broker took part in the batch before it.
    """

    def __init__(self, broker_id: int, found_by: str, decided: bool = True) -> None:
        self.broker_id, self.found_by, self.decided = broker_id, found_by, decided
        there = f"broker {broker_id}, which is none of the brokers found by {found_by}"
        super().__init__(
            f"the batch has messages on {there}; it has to be among them until the batch is finished"
            if decided
            else f"an earlier run of the query may have written the batch on {there}; start it, or if it is gone for "
            f"good, set the option goneBrokers to {broker_id}"
        )
        self.args = broker_id, found_by, decided


class FullRefreshRefused(ExactlyOnceError):
    """A full refresh of a pipeline would write again what its flow with ``checkpoint`` has written before."""

    def __init__(self, checkpoint: str) -> None:
        self.checkpoint = checkpoint
        super().__init__(
            f"a full refresh began this flow anew ({checkpoint}), so it would write again what it has written before; "
            "nothing was written. To go on where it was, delete this folder, which holds no finished batch; the next "
            "run of the pipeline uses the one before it. To write everything again, after the rows already there, set "
            "the sink's option fullRefresh to write. To refresh tables only, name them: --full-refresh TABLE"
        )
        self.args = (checkpoint,)


class WriteFailed(ConnectorError):
    """A broker of a write could not be reached: ``cause`` says which and why; ``advice`` may help."""

    def __init__(self, cause: str, advice: str) -> None:
        self.cause, self.advice = cause, advice
        super().__init__(cause, advice)

    def __str__(self) -> str:
        return f"{self.cause}. {self.advice}"
