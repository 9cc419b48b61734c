"""Half messages: the producer sends their end to the broker (37), and the broker asks about those without one (39)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from metaq.backends.rocketmq.pool import SessionPool
from metaq.errors import TransactionError
from metaq.formats.rocketmq.properties import PRODUCER_GROUP, UNIQ_KEY
from metaq.formats.rocketmq.records import Record, read_record
from metaq.model import Address
from metaq.net.remoting_client import RemotingClient
from metaq.protocols.remoting.codes import ResponseCode
from metaq.protocols.remoting.command import RemotingCommand
from metaq.protocols.remoting.headers import to_request
from metaq.protocols.remoting.headers.transactions import (
    COMMIT,
    ROLLBACK,
    UNKNOWN,
    CheckTransactionState,
    EndTransaction,
)

Outcome = Literal["commit", "rollback", "unknown"]
"""The outcome of a transaction; ``unknown``: ask again."""

OUTCOMES: Final[dict[Outcome, int]] = {"commit": COMMIT, "rollback": ROLLBACK, "unknown": UNKNOWN}

ANSWER_S: Final = 10.0
"""Longest time that sending an answer to a question may take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HalfMessage:
    """A half message as its broker knows it. ``topic`` and ``group`` are full names."""

    topic: str
    group: str
    broker_name: str
    message_id: str
    queue_offset: int
    physical_offset: int


def end_half_message(
    pool: SessionPool, address: Address, half: HalfMessage, outcome: Literal["commit", "rollback"]
) -> None:
    """Send the outcome of a half message to its broker, once: some brokers deliver one again that is committed twice.

    Raises:
        TransactionError: The broker refuses.
        RequestRefused: It refuses for a temporary reason, or carries the outcome out later, such as on a full disk.
        ConnectionFailed, DeadlineExceeded, ProtocolError: It is unknown whether the broker received it.
    """
    header = _end(half, outcome, transaction_id=half.message_id)
    command = to_request(header, broker_name=half.broker_name)
    action = f"the {outcome} of message {half.message_id}"
    with pool.lease(address) as session:
        response = session.call(command, action)
        if response.code == ResponseCode.SUCCESS:
            return
        refusal = session.refusal(response, command, action)
    if refusal.retryable:
        raise refusal
    raise TransactionError(address, action, refusal.code, refusal.text) from refusal


@dataclass(frozen=True, slots=True)
class CheckQuestion:
    """A broker's question about the half message ``record``, which has its original topic and queue.

    ``broker_name`` is ``None`` if the broker at ``address`` does not name itself.
    """

    address: Address
    broker_name: str | None
    message_id: str
    record: Record
    _header: CheckTransactionState


def receive_questions(client: RemotingClient, receive: Callable[[CheckQuestion], None]) -> None:
    """Call ``receive``, which must return at once, with each question received on a connection of ``client``."""

    def processor(address: Address, command: RemotingCommand) -> None:
        header = CheckTransactionState.from_ext(command.ext)
        record = read_record(command.body, check_crc=False)
        message_id = record.property_map().get(UNIQ_KEY) or header.msg_id or record.offset_message_id
        receive(CheckQuestion(address, command.ext.get("bname"), message_id, record, header))

    client.register(CheckTransactionState.CODE, processor)


def answer_question(client: RemotingClient, question: CheckQuestion, group: str, outcome: Outcome) -> None:
    """Send the outcome of a transaction; ``group`` is for a half message that does not name its own.

    Raises:
        ConnectionFailed, DeadlineExceeded: The answer could not be sent; the broker asks again.
    """
    header = question._header
    half = HalfMessage(
        topic=question.record.topic,
        group=question.record.property_map().get(PRODUCER_GROUP) or group,
        broker_name=question.broker_name or "",
        message_id=question.message_id,
        queue_offset=header.tran_state_table_offset,
        physical_offset=header.commit_log_offset,
    )
    end = _end(half, outcome, transaction_id=header.transaction_id, is_answer=True)
    client.oneway(question.address, to_request(end, oneway=True, broker_name=question.broker_name), ANSWER_S)


def _end(half: HalfMessage, outcome: Outcome, transaction_id: str | None, *, is_answer: bool = False) -> EndTransaction:
    return EndTransaction(
        producer_group=half.group,
        tran_state_table_offset=half.queue_offset,
        commit_log_offset=half.physical_offset,
        commit_or_rollback=OUTCOMES[outcome],
        from_transaction_check=is_answer,
        msg_id=half.message_id,
        transaction_id=transaction_id,
        topic=half.topic,
    )
