"""The event loop of a broker: asyncio's, with a selector that also serves the sockets of clients.

asyncio makes a handle for each file that is ready, and calls it in the round that follows. With tens of thousands of
requests a second that is a good part of what each costs. The sockets of clients are in the same epoll here, and they
are notified where the loop looks what is ready, all in one step (``LoopStep``). What they give the loop to do
is done in this same round.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import select
from collections.abc import Mapping
from selectors import EVENT_READ, EVENT_WRITE, BaseSelector, SelectorKey
from typing import Any, Final, Protocol

from metaq_broker.clock import MONOTONIC
from metaq_broker.log.sync.loop_steps import LoopStep

IN: Final[int] = getattr(select, "EPOLLIN", 1)
OUT: Final[int] = getattr(select, "EPOLLOUT", 4)

EVENTS_MAX: Final = 256
"""Files that are served before the loop looks what else there is to do."""


class HasDescriptor(Protocol):
    """Something with an open file."""

    def fileno(self) -> int:
        """Return its descriptor."""


FileDescriptorLike = int | HasDescriptor


class Watched(Protocol):
    """A socket of a client, or who has it."""

    def ready(self, events: int, /) -> None:
        """Take note of these events, as epoll reports them."""


class SocketSelector(BaseSelector):
    """A selector like asyncio's own; what is in ``watch`` is called, and not reported."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._keys: dict[int, SelectorKey] = {}
        self._watched: dict[int, Watched] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._step: LoopStep | None = None

    @staticmethod
    def is_supported() -> bool:
        """Say whether this system has what is needed."""
        return hasattr(select, "epoll")

    def fileno(self) -> int:
        """Return the descriptor of its epoll: ready when something in it is."""
        return self._epoll.fileno()

    # ---- sockets of clients

    def serve(self, loop: asyncio.AbstractEventLoop) -> None:
        """Be of this loop, whose steps the callbacks run in, and which hears of their errors."""
        self._loop, self._step = loop, LoopStep.of(loop)

    def watch(self, descriptor: int, before: int, events: int, watched: Watched) -> None:
        """Tell ``watched`` of ``events`` of a socket, 0 for no more; ``before`` is what it is watched for now."""
        if not events:  # an error of a socket that is in there is reported whatever is asked for
            del self._watched[descriptor]
            self._epoll.unregister(descriptor)
        elif before:
            self._epoll.modify(descriptor, events)
        else:
            self._watched[descriptor] = watched
            self._epoll.register(descriptor, events)

    # ---- what asyncio uses

    def register(self, fileobj: FileDescriptorLike, events: int, data: Any = None) -> SelectorKey:
        descriptor = self._descriptor(fileobj)
        if descriptor in self._keys:
            raise KeyError(f"{fileobj!r} (descriptor {descriptor}) is registered already")
        self._epoll.register(descriptor, _epoll_events(events))
        key = self._keys[descriptor] = SelectorKey(fileobj, descriptor, events, data)
        return key

    def unregister(self, fileobj: FileDescriptorLike) -> SelectorKey:
        key = self.get_key(fileobj)
        del self._keys[key.fd]
        with contextlib.suppress(OSError):  # it was closed before
            self._epoll.unregister(key.fd)
        return key

    def modify(self, fileobj: FileDescriptorLike, events: int, data: Any = None) -> SelectorKey:
        key = self.get_key(fileobj)
        if events != key.events:
            self._epoll.modify(key.fd, _epoll_events(events))
        changed = self._keys[key.fd] = SelectorKey(key.fileobj, key.fd, events, data)
        return changed

    def get_key(self, fileobj: FileDescriptorLike) -> SelectorKey:
        try:
            return self._keys[self._descriptor(fileobj)]
        except KeyError:
            raise KeyError(f"{fileobj!r} is not registered") from None

    def get_map(self) -> Mapping[FileDescriptorLike, SelectorKey]:
        """See ``BaseSelector``: those of asyncio, by descriptor."""
        return {key.fd: key for key in self._keys.values()}

    def close(self) -> None:
        self._epoll.close()
        self._keys.clear()
        self._watched.clear()

    def select(self, timeout: float | None = None) -> list[tuple[SelectorKey, int]]:
        """The callbacks of sockets that are ready have been called when it returns."""
        if timeout is None:
            seconds = -1.0
        elif timeout <= 0:
            seconds = 0.0
        else:
            seconds = math.ceil(timeout * 1e3) * 1e-3  # never less: the loop would look again and again
        events = self._epoll.poll(seconds, EVENTS_MAX)
        return self._served(events) if events else []

    def _served(self, events: list[tuple[int, int]]) -> list[tuple[SelectorKey, int]]:
        """Tell the sockets among what is ready; return the others."""
        others = events
        if self._step is not None:
            others, watched = [], self._watched
            with self._step:
                for descriptor, happened in events:
                    if (socket := watched.get(descriptor)) is None:
                        others.append((descriptor, happened))
                        continue
                    try:
                        socket.ready(happened)
                    except Exception as failure:
                        self._report(socket, failure)
        # Not before: what was called may have ended some of them.
        found = []
        for descriptor, happened in others:
            if (key := self._keys.get(descriptor)) is not None:
                # An error makes a file ready for everything.
                ready = (EVENT_READ if happened & ~OUT else 0) | (EVENT_WRITE if happened & ~IN else 0)
                found.append((key, ready & key.events))
        return found

    def _report(self, socket: Watched, failure: Exception) -> None:
        assert self._loop is not None
        context = {"message": "a connection failed", "exception": failure, "transport": socket}
        self._loop.call_exception_handler(context)

    def _descriptor(self, fileobj: FileDescriptorLike) -> int:
        descriptor = fileobj if isinstance(fileobj, int) else fileobj.fileno()
        if descriptor >= 0:
            return descriptor
        for key in self._keys.values():  # it was closed before it was unregistered
            if key.fileobj is fileobj:
                return key.fd
        raise ValueError(f"{fileobj!r} is closed")


def _epoll_events(events: int) -> int:
    return (IN if events & EVENT_READ else 0) | (OUT if events & EVENT_WRITE else 0)


class BrokerLoop(asyncio.SelectorEventLoop):
    """Its ``sockets`` are those of clients."""

    time = staticmethod(MONOTONIC)

    def __init__(self) -> None:
        self.sockets = SocketSelector()
        super().__init__(self.sockets)
        self.sockets.serve(self)


def new_loop() -> asyncio.AbstractEventLoop:
    """Return a new loop for a broker: asyncio's own where this system has no epoll."""
    return BrokerLoop() if SocketSelector.is_supported() else asyncio.new_event_loop()
