"""Slots for blocks in memory that a broker on this machine sees, so that they need not be sent.

A block in a slot is put by its position (``sput``): nothing of it goes through the network code of the system, which
costs about as much as all that the broker does with it. The memory belongs to a connection. Whoever makes a block takes
a slot, fills it from its front and gives it to ``BatchWriter.write``, which frees it once the broker has answered.
Nobody may write to it until then.

A slot outlives its connection. What was under way when that was lost is sent over the next one as any block is, out of
the same memory; the next connection has slots of its own. So no broker ever finds something else in a slot than what it
was told of.

Nothing depends on this: where it cannot be, on another machine, for another user than the broker's, in another
container, there are no slots, and blocks are sent.
"""

from __future__ import annotations

import contextlib
import mmap
from typing import Final

from metaq.client.session import Session
from metaq.client.shared_memory import SharedMemory, Slot
from metaq.errors import BrokerError, ConnectionFailed, DeadlineExceeded
from metaq.machine import boot_id
from metaq.wire.text.extensions import EXT_SHARE

BYTES_MAX: Final = 24 << 20
"""Memory of one connection: what a ``BatchWriter`` has under way, and half as much that is being filled."""

SLOTS_MIN: Final = 4
"""With fewer, the blocks that are being filled and those under way would not all have one."""

SLOT_BYTES_MIN: Final = 256 << 10
"""Smaller blocks cost little to send."""


class Slots:
    """The slots for blocks of ``block_bytes`` that one user of a session gets, as long as the session is his.

    From ``SLOT_BYTES_MIN`` up to ``BYTES_MAX / SLOTS_MIN`` bytes each; there are none of any other size, 0 among them.
    """

    def __init__(self, session: Session, block_bytes: int) -> None:
        self._session = session
        self._bytes = -(-block_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        if session.shared is not None and not (session.shared.slot_bytes == self._bytes and session.shared.unused):
            session.share(None)  # of another size, or a user before let go of a block and of its slot with it

    def take(self) -> Slot | None:
        """A slot that is free; ``None`` if none is, or none can be: then the block is made elsewhere, and sent.

        Raises:
            ProtocolError: The broker answered nonsense; the session is closed.
        """
        session = self._session
        if not SLOT_BYTES_MIN <= self._bytes <= BYTES_MAX // SLOTS_MIN:
            return None
        if session.shared is None and session.may_share_memory:
            with contextlib.suppress(ConnectionFailed, DeadlineExceeded):  # whoever puts the block will see
                session.share(self._agree())
                session.may_share_memory = session.shared is not None
        return None if session.shared is None else session.shared.take()

    def _agree(self) -> SharedMemory | None:
        boot = boot_id()
        if boot is None or EXT_SHARE not in self._session.extensions:
            return None
        try:
            memory = SharedMemory(self._bytes, BYTES_MAX // self._bytes)
        except OSError:
            return None
        try:
            self._session.ask(memory.offer(boot))
        except BrokerError:
            return None
        finally:
            memory.close_file()
        return memory
