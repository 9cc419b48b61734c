"""Answers check-backs (39): the broker's question whether the transaction of a half message was committed.

A question goes to any member of the producer group, possibly long after the half message was sent and more than once.
The answer is the end of the transaction (37), which has no response: if it is lost, the broker asks again.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Final

from metaq.backends.rocketmq.half_messages import OUTCOMES, CheckQuestion, Outcome, answer_question, receive_questions
from metaq.backends.rocketmq.names import without_namespace
from metaq.client.rocketmq.records import RocketReceived
from metaq.errors import MetaqError
from metaq.model import Address, Partition
from metaq.net.remoting_client import RemotingClient

Check = Callable[[RocketReceived], Outcome]
"""Returns the outcome of a message's transaction. May be called more than once for a message."""

WAITING_MAX: Final = 1000
"""Limit on questions that wait for a thread; others are dropped, and the broker asks again."""

_LOG: Final = logging.getLogger(__name__)

_JOIN_S: Final = 2.0


class CheckBacks:
    """Calls ``check`` in up to ``workers`` threads, which start with the first question.

    Questions about transactions that are open in this process (``is_open``, by message id) are answered with
    ``unknown`` without a call. ``broker_name`` returns the name of the broker at an address.
    """

    def __init__(
        self,
        client: RemotingClient,
        group: str,
        check: Check,
        *,
        workers: int,
        is_open: Callable[[str], bool],
        broker_name: Callable[[Address], str],
        namespace: str | None = None,
    ) -> None:
        if not 1 <= workers <= 1000:
            raise ValueError(f"check_workers {workers}: expected 1..1000")
        self._client, self._group, self._check, self._workers = client, group, check, workers
        self._is_open, self._broker_name, self._namespace = is_open, broker_name, namespace
        self._changed = threading.Condition()
        self._waiting: deque[CheckQuestion] = deque()
        self._asked: set[str] = set()  # message ids whose question is queued or being answered
        self._idle = 0
        self._threads: list[threading.Thread] = []
        self._closed = False
        receive_questions(client, self._received)

    def close(self) -> None:
        """Stop taking questions, and wait briefly for the answers in progress."""
        with self._changed:
            self._closed = True
            self._waiting.clear()
            self._changed.notify_all()
            threads, self._threads = self._threads, []
        for thread in threads:
            thread.join(_JOIN_S)

    def _received(self, question: CheckQuestion) -> None:
        """Queue a question. Called in a thread of the client."""
        with self._changed:
            if self._closed or question.message_id in self._asked:
                return
            if len(self._waiting) >= WAITING_MAX:
                _LOG.warning(
                    "group %s: too many check-backs are queued; one is dropped, and the broker will ask again",
                    self._group,
                )
                return
            self._asked.add(question.message_id)
            self._waiting.append(question)
            if not self._idle and len(self._threads) < self._workers:
                number = len(self._threads)
                self._threads.append(threading.Thread(target=self._run, name=f"metaq-check-{number}", daemon=True))
                self._threads[-1].start()
            self._changed.notify()

    def _run(self) -> None:
        while (question := self._take()) is not None:
            try:
                self._answer(question, self._outcome(question))
            finally:
                with self._changed:
                    self._asked.discard(question.message_id)

    def _take(self) -> CheckQuestion | None:
        with self._changed:
            self._idle += 1
            try:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                return None if self._closed else self._waiting.popleft()
            finally:
                self._idle -= 1

    def _outcome(self, question: CheckQuestion) -> Outcome:
        record, message_id = question.record, question.message_id
        if self._is_open(message_id):
            return "unknown"
        topic = without_namespace(record.topic, self._namespace) or record.topic
        name = question.broker_name or self._broker_name(question.address)
        try:
            message = RocketReceived.of(topic, Partition(name, record.queue_id), record)
            outcome = self._check(message)
        except Exception as error:  # an error of ``check`` or an unreadable body: the broker asks again
            fields = {"group": self._group, "message": message_id}
            _LOG.warning("check-back: %s: %s", type(error).__name__, error, exc_info=True, extra={"fields": fields})
            return "unknown"
        if outcome not in OUTCOMES:
            text = "group %s: check returned %r for message %s, expected 'commit', 'rollback' or 'unknown'"
            _LOG.error(text, self._group, outcome, message_id)
            return "unknown"
        return outcome

    def _answer(self, question: CheckQuestion, outcome: Outcome) -> None:
        try:
            answer_question(self._client, question, self._group, outcome)
        except MetaqError as error:
            _LOG.warning("group %s: a check-back was not answered: %s", self._group, error)
        else:
            _LOG.info("group %s: check-back of message %s: %s", self._group, question.message_id, outcome)
