"""The extensions to MetaQ 1.4, and their announcement in the ``version`` reply.

The version text is ``1.4.6-metaq-spark-<version>;ext=boundary,timestamp,...``: no spaces, fields after semicolons,
words separated by commas. A Java broker replies with a plain version and announces nothing; a client uses an extension
only if its word was announced.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

PROTOCOL_VERSION: Final = "1.4.6"
"""The MetaQ release whose protocol this is; Java clients read only this part."""

EXT_BOUNDARY: Final = "boundary"
"""``offset ... boundary``: the frame boundary at or below a byte offset."""

EXT_TIMESTAMP: Final = "timestamp"
"""``offset ... timestamp``: the first message at or after a time."""

EXT_PUT_BATCH: Final = "mput"
"""``mput``: many messages of one partition in one command."""

EXT_DECIDE: Final = "decide"
"""``decide``: record durably which branches of a batch will be committed."""

EXT_DECISIONS: Final = "decisions"
"""``transaction null ... DECIDED`` and ``FORGET`` of a query: the last decision, and the end of a query."""

EXT_CONTENTS: Final = "contents"
"""``decide ... contents``: a decision has a description of the batch and the list of this broker's branches."""

EXT_DECIDED_CONTENTS: Final = "decided-contents"
"""``transaction null ... DECIDED_CONTENTS``: the last decision of a query, with its contents."""

EXT_FILTER: Final = "fget"
"""``fget``: read only messages of certain types."""

EXT_ORDINAL: Final = "ordinal"
"""``offset ... ordinal`` and ``offset ... message``: byte offsets to message counts and back."""

EXT_INCARNATION: Final = "incarnation"
"""``offset ... incarnation`` and ``stats incarnations``: the incarnation of a partition."""

EXT_SEGMENTS: Final = "segments"
"""``stats segments``: where the last segment of each partition begins, for slaves."""

EXT_COPY: Final = "copy"
"""``copy``: a run of a partition's frames, from a master to its synchronous slave."""

EXT_STATE: Final = "state"
"""``stats state:FILE:POSITION``: new records in the state of RocketMQ's clients, for the broker's slave."""

EXT_GROUP: Final = "group"
"""``group``: the members of a consumer group, the partitions that they own, and its offsets."""

EXT_PAIR: Final = "pair"
"""``pair``: messages between the members of a pair that elects its master."""

_FIELD: Final = "ext="
_WORD: Final = re.compile(r"[a-z0-9_-]+")
_VERSION: Final = re.compile(r"[^\s;,]+")


def version_text(project_version: str, extensions: Iterable[str]) -> str:
    """Return the text of a ``version`` reply, words in the order given.

    Raises:
        ValueError: The version holds a blank, semicolon or comma, or a word is not of ``[a-z0-9_-]``.
    """
    words = list(extensions)
    if not _VERSION.fullmatch(project_version):
        raise ValueError(f"version {project_version!r}: expected text without blanks, semicolons and commas")
    for word in words:
        if not _WORD.fullmatch(word):
            raise ValueError(f"extension {word!r}: expected lower-case letters, digits, underscores and dashes")
    text = f"{PROTOCOL_VERSION}-metaq-spark-{project_version}"
    return f"{text};{_FIELD}{','.join(words)}" if words else text


def extensions_of(version_text: str) -> frozenset[str]:
    """Return the extensions that a ``version`` reply announces; empty for a Java broker. Never fails."""
    for field in version_text.split(";")[1:]:
        if field.startswith(_FIELD):
            return frozenset(word for word in field.removeprefix(_FIELD).split(",") if _WORD.fullmatch(word))
    return frozenset()
