"""The broker's answer to ``stats config``: server.ini without the keys that MetaQ does not know.

A Java slave with ``autoSyncMasterConfig=true`` reads its master's answer with MetaQ's own parser, which stops at the
first key of ``[system]``, ``[zookeeper]`` or a topic that it does not know. Slaves and clients need MetaQ's keys only.
A size with a unit becomes a number, because MetaQ knows no units. Every other line stays as it is, in the file's own
encoding.

Source: docs/protocol.md (stats).
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from metaq.sizes import parse_size
from metaq_broker.operate.config.keys import FILTER_PREFIX, OUR_OWN
from metaq_broker.operate.config.sections import SYSTEM_KEYS, TOPIC_KEYS, ZOOKEEPER_KEYS

_SYSTEM: Final = frozenset(key.name.encode() for key in SYSTEM_KEYS if key.kind != OUR_OWN)
_ZOOKEEPER: Final = frozenset(key.name.encode() for key in ZOOKEEPER_KEYS)
_TOPIC: Final = frozenset(key.name.encode() for key in TOPIC_KEYS if key.kind != OUR_OWN)
_KEY_END: Final = re.compile(rb"[=:]")
_SIZE_LINE: Final = re.compile(rb"(\s*(?:maxSegmentSize|maxTransferSize)\s*[=:]\s*)([0-9]+ *[A-Za-z]+)(\s*)")
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


@lru_cache(maxsize=4)
def shared_text(text: bytes) -> bytes:
    """Return the bytes of a server.ini, UTF-8 or GBK, without the lines of keys that MetaQ does not know."""
    section, lines = b"", []
    for line in text.splitlines(keepends=True):
        words = line.removeprefix(_BYTE_ORDER_MARK).strip()
        if words.startswith(b"["):
            section = words[1:-1].strip()
        elif words and words[:1] not in (b";", b"#") and not _is_metaqs(section, words):
            continue
        lines.append(_without_unit(line) if section == b"system" else line)
    return b"".join(lines)


def _without_unit(line: bytes) -> bytes:
    match = _SIZE_LINE.fullmatch(line)
    return line if match is None else match[1] + str(parse_size(match[2].decode())).encode() + match[3]


def _is_metaqs(section: bytes, line: bytes) -> bool:
    key = _KEY_END.split(line, maxsplit=1)[0].strip()
    if section == b"system":
        return key in _SYSTEM
    if section == b"zookeeper":
        return key in _ZOOKEEPER
    if section.startswith(b"topic"):
        return key in _TOPIC or key.startswith(FILTER_PREFIX.encode())
    return True  # MetaQ ignores other sections
