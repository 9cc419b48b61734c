"""Bits of a message's ``sys_flag``, which the system sets (``flag`` is the application's).

Source: docs/remoting-protocol.md, "Stored records".
"""

from __future__ import annotations

from typing import Final

COMPRESSED: Final = 0x01
"""The body is compressed; ``COMPRESSION`` says how."""
MULTI_TAGS: Final = 0x02
"""The message has several tags; never set."""
TRANSACTION: Final = 0x0C
"""The bits of the three below; none of them: not part of a transaction."""
PREPARED: Final = 0x04
"""A half message."""
COMMITTED: Final = 0x08
"""The message of a committed transaction."""
ROLLED_BACK: Final = 0x0C
"""The message of a transaction that was rolled back."""
BORN_HOST_IPV6: Final = 0x10
"""The producer's address has 16 bytes."""
STORE_HOST_IPV6: Final = 0x20
"""The broker's address has 16 bytes."""
NEED_UNWRAP: Final = 0x40
"""An inner batch must be split."""
INNER_BATCH: Final = 0x80
"""The body is a batch; its elements have the queue offsets from the record's on (5.x)."""
COMPRESSION: Final = 0x700
"""The bits of the codec: see ``metaq.formats.rocketmq.compression.Compression``."""
