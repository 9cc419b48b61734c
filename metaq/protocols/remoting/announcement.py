"""How the bundled broker says in its registration what it is: one text among the filter servers that it names.

Name servers of every version keep those and hand them out with a route. ``metaq:BROKERID@HOST:PORT`` says that the
broker serves MetaQ's protocol there over the same log, transactions over many messages included, and that it knows the
requests that this project has added.

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
        """Return the text for name servers."""
        return f"metaq:{self.broker_id}@{self.address}"


def announced(texts: Iterable[str]) -> MetaQBroker | None:
    """Return what a broker that named these filter servers says about itself; ``None``: it is not the bundled one."""
    for text in texts:
        found = _TEXT.fullmatch(text)
        if found is None or int(found[1]) > BROKER_ID_MAX:
            continue
        try:
            return MetaQBroker(int(found[1]), Address.parse(found[2]))
        except ValueError:
            continue
    return None
