"""What the connector itself refuses: options, columns, checkpoints, rows, and data that is no longer there.

::

    MetaqError                (metaq.errors)
    └── ConnectorError
        ├── OptionError       an option is unknown, missing, misplaced or cannot be read
        ├── ColumnError       a DataFrame's columns are not what the sink takes, or a schema was asked of the source
        ├── CheckpointError   an offset in a checkpoint is not one this version can read
        ├── DataLoss          bytes the query still had to read are gone
        ├── BrokerNotNamed    a partition's broker is none of those that the option brokers names
        └── RowError          one row cannot become a message

Spark shows the text of these errors to the user, so each sentence says what is wrong, where, and what is allowed.
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
    """``offset`` is what the checkpoint holds, shortened; ``reason`` says why it cannot be used."""

    def __init__(self, offset: object, reason: str) -> None:
        self.offset, self.reason = repr(offset)[:300], reason
        super().__init__(self.offset, reason)

    def __str__(self) -> str:
        return f"checkpoint offset {self.offset}: {self.reason}"


class DataLoss(ConnectorError):
    """Bytes that the query had to read are gone; ``what`` says which and why."""

    def __init__(self, what: str) -> None:
        self.what = what
        super().__init__(what)

    def __str__(self) -> str:
        return (
            f"{self.what}. Some messages may have been missed. To accept that and read on from what is there, "
            "set the option failOnDataLoss to false"
        )


class BrokerNotNamed(ConnectorError):
    """``partition`` is on broker ``broker_id``; ``present`` are the brokers that are known, as text."""

    def __init__(self, partition: str, broker_id: int, present: list[str]) -> None:
        self.partition, self.broker_id, self.present = partition, broker_id, present
        super().__init__(partition, broker_id, present)

    def __str__(self) -> str:
        return (
            f"{self.partition} is on broker {self.broker_id}, but the option brokers names only "
            f"{', '.join(self.present)}; add the missing broker"
        )


class RowError(ConnectorError):
    """The row at ``place`` of a task's input cannot become a message."""

    def __init__(self, place: str, reason: str) -> None:
        self.place, self.reason = place, reason
        super().__init__(place, reason)

    def __str__(self) -> str:
        return f"{self.place}: {self.reason}"
