"""Sizes as people write them."""

from __future__ import annotations

import pytest

from metaq.sizes import parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("65536", 65536),
        (" 1 ", 1),
        ("0", 0),
        ("512k", 512 << 10),
        ("10 MB", 10 << 20),
        ("10mb", 10 << 20),
        ("10m", 10 << 20),
        ("10 MiB", 10 << 20),
        ("10M", 10 << 20),
        ("1g", 1 << 30),
        ("2 TB", 2 << 40),
        ("5 b", 5),
        ("5 bytes", 5),
        ("1 byte", 1),
    ],
)
def test_a_size(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text", ["", "m", "-1", "1.5 MB", "1 0", "10 mbit", "1e6", "10 mm", "10 pb", "\uff11\uff10", "9" * 20]
)
def test_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="expected a number of bytes such as 65536, 512k, 64m or 10 MB"):
        parse_size(text)
