"""The member's side of a connection to its master: prepares its copies, writes runs, acknowledges what is durable.

Runs are accepted in order, from the link of the last ``PairHello`` only. Before another master is followed, or this
member is elected, everything that was given to the disk has ended (``is_idle``), and what ends after ``stop`` is not
acknowledged: so no acknowledgement leaves that the next master does not know of.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from metaq_broker.replication.pair.actions import AdoptStreams, CloseLink, CutStreams, TrimStream, WriteRun
from metaq_broker.replication.pair.messages import (
    BeginStreams,
    PairWelcome,
    RemoveStreams,
    RunStored,
    StreamRun,
    StreamsBegun,
)
from metaq_broker.replication.pair.outbox import Outbox
from metaq_broker.replication.pair.streams import StreamState


class Following:
    """``link`` is the connection to the master of ``epoch``; ``None`` while no master is followed."""

    def __init__(self, logs: dict[str, StreamState], outbox: Outbox) -> None:
        self._logs, self._outbox = logs, outbox
        self.link: int | None = None
        self.epoch = 0
        self.master = ""
        self.trouble: str | None = None
        self._under_way: dict[int, Callable[[], None]] = {}

    @property
    def is_idle(self) -> bool:
        """Whether the disk has finished everything that it was given."""
        return not self._under_way

    def follow(self, link: int, epoch: int, master: str, welcome: PairWelcome) -> None:
        """Follow a master, whose epoch was promised durably, from an idle disk."""
        self.link, self.epoch, self.master = link, epoch, master
        self._outbox.send(link, welcome)

    def stop(self) -> None:
        """Follow no leader. What the disk still has to finish is not acknowledged."""
        self.link = None

    def disk_done(self, number: int) -> None:
        ended = self._under_way.pop(number, None)
        if ended is not None:
            ended()

    # ---- messages of the master

    def begin(self, message: BeginStreams) -> None:
        """Cut what is not the master's, create what is missing, adopt the epochs; then answer."""
        cuts: dict[str, int | None] = {}
        for name, start in message.streams.items():
            log = self._logs.get(name)
            if log is not None and (start.keep_to is None or start.keep_to < log.written):
                cuts[name] = start.keep_to
        if message.complete:
            cuts |= dict.fromkeys(self._logs.keys() - message.streams.keys())
        if self._cut(cuts):
            self._adopt(message)

    def remove(self, message: RemoveStreams) -> None:
        self._cut({name: None for name in message.names if name in self._logs})

    def write(self, message: StreamRun) -> None:
        """Write a run that continues the copy; any other one ends the connection, and the copies are compared again."""
        log = self._logs.get(message.stream)
        if log is None or message.offset != log.written or message.end < message.offset:
            expected = "no such stream" if log is None else f"expected {log.written}"
            self.close(f"a run of {message.stream} at offset {message.offset}: {expected}")
            return
        log.written = message.end
        self._start_write(message, log)

    def ends_moved(self, streams: Mapping[str, tuple[int, int]]) -> None:
        """Take note of what the master has confirmed, and of what it has removed."""
        for name, (start, confirmed) in streams.items():
            log = self._logs.get(name)
            if log is not None:
                log.confirmed = max(log.confirmed, min(confirmed, log.written))
                if start > log.origin.start:
                    self._outbox.add(TrimStream(name, start))

    # ---- the disk

    def _start_write(self, message: StreamRun, log: StreamState) -> None:
        def ended() -> None:
            log.durable = max(log.durable, message.end)
            if self.link is not None:
                self._outbox.send(self.link, RunStored(self.epoch, message.stream, message.end))

        number = self._number(ended)
        self._outbox.add(WriteRun(number, message.stream, message.offset, message.end, message.run))

    def _cut(self, cuts: Mapping[str, int | None]) -> bool:
        """Return whether it was begun: what was confirmed is never cut."""
        for name, keep_to in cuts.items():
            log = self._logs[name]
            if keep_to is not None and keep_to < log.confirmed:
                self.trouble = f"{name} is confirmed up to {log.confirmed}, and its master has it up to {keep_to} only"
                self.close(self.trouble)
                return False
        for name, keep_to in cuts.items():
            if keep_to is None:
                del self._logs[name]
            else:
                self._logs[name].written = self._logs[name].durable = keep_to
        if cuts:
            self._outbox.add(CutStreams(self._number(_nothing), dict(cuts), self.epoch, self.master))
        return True

    def _adopt(self, message: BeginStreams) -> None:
        for name, start in message.streams.items():
            log = self._logs.get(name)
            if log is None:
                first = start.origin.start
                self._logs[name] = StreamState(start.origin, start.epochs, first, first, first)
            else:
                log.epochs = start.epochs

        def ended() -> None:
            if self.link is not None:
                ends = {name: self._logs[name].durable for name in message.streams if name in self._logs}
                self._outbox.send(self.link, StreamsBegun(self.epoch, ends))

        self._outbox.add(AdoptStreams(self._number(ended), dict(message.streams)))

    def _number(self, ended: Callable[[], None]) -> int:
        number = self._outbox.next_number()
        self._under_way[number] = ended
        return number

    def close(self, reason: str) -> None:
        """End the connection to the master, which opens another one."""
        if self.link is not None:
            self._outbox.add(CloseLink(self.link, reason))
            self.stop()


def _nothing() -> None:
    """A step after which the next one is under way already."""
