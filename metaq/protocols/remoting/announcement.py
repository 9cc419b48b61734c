"""How the bundled broker identifies itself in its registration: a text among its filter servers.

Name servers of every version store these texts and return them in routes. ``metaq:BROKERID@HOST:PORT`` means that the
broker serves MetaQ's protocol there over the same log, including transactions over many messages, and that it knows the
requests added by this project.

Source: docs/remoting-protocol.md, "Frames instead of records".
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from metaq.model import BROKER_ID_MAX, Address

_TEXT: Final = re.compile(r"metaq:(\d{1,10})@(.+)", re.ASCII | re.DOTALL)


@dataclass(frozen=True, slots=True)
class MetaQBroker:
    """A broker as MetaQ's clients know it: queue ``i`` of its RocketMQ name is partition ``i`` of ``broker_id``."""

    broker_id: int
    address: Address

    def announcement(self) -> str:
        return f"metaq:{self.broker_id}@{self.address}"


def announced(texts: Iterable[str]) -> MetaQBroker | None:
    """Return the MetaQ identity of a broker with these filter servers; ``None`` if it is not the bundled one."""
    for text in texts:
        found = _TEXT.fullmatch(text)
        if found is None or int(found[1]) > BROKER_ID_MAX:
            continue
        try:
            return MetaQBroker(int(found[1]), Address.parse(found[2]))
        except ValueError:
            continue
    return None
