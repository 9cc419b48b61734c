"""The extensions of MetaQ 1.4 that this broker announces in its ``version`` reply."""

from __future__ import annotations

from typing import Final

import metaq
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
    EXT_PUT_BATCH,
    EXT_SEGMENTS,
    EXT_STATE,
    EXT_TIMESTAMP,
    version_text,
)

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
)


def broker_version(*, groups: bool) -> str:
    """Return the text of the ``version`` reply. ``groups``: this broker has consumer groups."""
    return version_text(metaq.__version__, [word for word in EXTENSIONS if groups or word != EXT_GROUP])
