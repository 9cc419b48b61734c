"""Folder names of partitions: ``TOPIC-INDEX``, split at the last dash."""

from __future__ import annotations

TOPIC_BYTES_MAX = 200
"""Longest topic name in UTF-8. File systems allow 255 bytes for a folder's name; the index and a margin go off."""


def topic_fault(topic: str) -> str | None:
    """Return why ``topic`` cannot be stored, ``None`` if it can. What can be stored cannot leave the data folder."""
    if topic in ("", ".", ".."):
        return "it is not a folder name"
    if "/" in topic or "\0" in topic:
        return "it contains a slash or a zero byte"
    try:
        size = len(topic.encode())
    except UnicodeEncodeError:
        return "it is not valid Unicode"
    return f"it takes {size} bytes in UTF-8, {TOPIC_BYTES_MAX} are possible" if size > TOPIC_BYTES_MAX else None


def folder_name(topic: str, index: int) -> str:
    """Return the name of a partition's folder."""
    return f"{topic}-{index}"


def parse_folder_name(name: str) -> tuple[str, int]:
    """Return topic and index of a partition's folder.

    Raises:
        ValueError: The name is not TOPIC-INDEX with a plain decimal index.
    """
    topic, dash, digits = name.rpartition("-")
    if not topic or not dash or not (digits.isascii() and digits.isdigit()) or str(int(digits)) != digits:
        raise ValueError(f"folder name {name!r}: expected TOPIC-INDEX, for example orders-0")
    return topic, int(digits)
