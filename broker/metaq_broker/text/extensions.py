"""The extensions of MetaQ 1.4 that this broker announces in its ``version`` reply."""

from __future__ import annotations

from typing import Final

import metaq
from metaq.model import Address
from metaq.protocols.text.extensions import (
    EXT_BOUNDARY,
    EXT_CONTENTS,
    EXT_COPY,
    EXT_DECIDE,
    EXT_DECIDED_CONTENTS,
    EXT_DECISIONS,
    EXT_FILTER,
    EXT_GROUP,
    EXT_INCARNATION,
    EXT_ORDINAL,
    EXT_PAIR,
    EXT_PUT_BATCH,
    EXT_SEGMENTS,
    EXT_STATE,
    EXT_TIMESTAMP,
    version_text,
)
from metaq.protocols.text.pair import with_pair

EXTENSIONS: Final = (
    EXT_BOUNDARY,
    EXT_TIMESTAMP,
    EXT_PUT_BATCH,
    EXT_DECIDE,
    EXT_DECISIONS,
    EXT_CONTENTS,
    EXT_DECIDED_CONTENTS,
    EXT_FILTER,
    EXT_ORDINAL,
    EXT_INCARNATION,
    EXT_SEGMENTS,
    EXT_COPY,
    EXT_STATE,
    EXT_GROUP,
    EXT_PAIR,
)


def broker_version(*, groups: bool, other: Address | None = None) -> str:
    """Return the text of the ``version`` reply. ``groups``: this broker has consumer groups; ``other``: it is a member
    of a pair, and this is the address of the other one.
    """
    absent = {word for word, has in ((EXT_GROUP, groups), (EXT_PAIR, other is not None)) if not has}
    text = version_text(metaq.__version__, [word for word in EXTENSIONS if word not in absent])
    return text if other is None else with_pair(text, other)
