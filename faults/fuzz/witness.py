"""The honest client: one connection that puts and reads back, and must be served at all times."""

from __future__ import annotations

import threading
import time
from typing import Final

from faults.payload import MessageKey, make_payload
from metaq.backends.metaq.fetch import Run, fetch
from metaq.backends.metaq.puts import Receipt, put
from metaq.backends.metaq.session import Session
from metaq.errors import MetaqError
from metaq.formats.frames import HEADER_BYTES, walk
from metaq.model import Address, Message
from metaq.net.transport import Timeouts

TOPIC: Final = "witness"
DEADLINES: Final = Timeouts(5.0, 15.0)
PAYLOAD_BYTES: Final = 200


class Witness:
    """Puts one message after the other and reads each back. ``complaint`` is the first error, if any."""

    def __init__(self, address: Address) -> None:
        self._session = Session.connect(address, DEADLINES)
        self.receipts: list[Receipt] = []
        self.slowest_s = 0.0
        self.complaint: str | None = None

    def run(self, stop: threading.Event) -> None:
        """Work until ``stop``; a complaint stops the whole run."""
        while not stop.is_set():
            began = time.monotonic()
            try:
                self._once(MessageKey("witness", len(self.receipts)))
            except (MetaqError, AssertionError) as error:
                self.complaint = f"the honest client was not served: {error}"
                stop.set()
            self.slowest_s = max(self.slowest_s, time.monotonic() - began)

    def check_all(self, address: Address) -> str | None:
        """Read every message again, from a restarted broker; return the first error, if any."""
        self._session.close()
        self._session = Session.connect(address, DEADLINES)
        try:
            for number, receipt in enumerate(self.receipts):
                self._read_back(MessageKey("witness", number), receipt)
        except (MetaqError, AssertionError) as error:
            return f"after the restart: {error}"
        finally:
            self._session.close()
        return None

    def _once(self, key: MessageKey) -> None:
        receipt = put(self._session, TOPIC, 0, Message(make_payload(key, PAYLOAD_BYTES)))
        self.receipts.append(receipt)
        self._read_back(key, receipt)

    def _read_back(self, key: MessageKey, receipt: Receipt) -> None:
        got = fetch(self._session, TOPIC, 0, receipt.offset, HEADER_BYTES + PAYLOAD_BYTES)
        assert isinstance(got, Run), f"{key} at {receipt}: {got}"
        frames = list(walk(got.data, got.offset))
        assert [frame.body for frame in frames] == [make_payload(key, PAYLOAD_BYTES)], f"{key} at {receipt}: {frames}"
        assert frames[0].message_id == receipt.message_id, f"{key} at {receipt}: {frames}"
