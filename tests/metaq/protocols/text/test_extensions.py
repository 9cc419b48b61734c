"""How a broker says what it speaks beyond MetaQ, and how a client hears it."""

from __future__ import annotations

import pytest

from metaq.protocols.text.commands import Result
from metaq.protocols.text.encode import encode
from metaq.protocols.text.extensions import (
    EXT_BOUNDARY,
    EXT_DECIDE,
    EXT_PUT_BATCH,
    EXT_TIMESTAMP,
    extensions_of,
    version_text,
)

ALL = (EXT_BOUNDARY, EXT_TIMESTAMP, EXT_PUT_BATCH, EXT_DECIDE)


@pytest.mark.parametrize(
    ("text", "extensions"),
    [
        ("1.4.6.3-SNAPSHOT", set()),  # a Java broker
        ("0.1", set()),  # one whose build file is missing
        ("", set()),
        ("1.4.6-metaq-spark-0.1.0;ext=boundary,timestamp,mput,decide", set(ALL)),
        ("1.4.6-metaq-spark-0.1.0;ext=boundary", {"boundary"}),
        ("1.4.6-metaq-spark-9;since=5;ext=boundary,new-one;more=x", {"boundary", "new-one"}),
        ("1.4.6-metaq-spark-9;ext=", set()),
        ("1.4.6-metaq-spark-9;ext=,mput,,M P", {"mput"}),
        ("ext=boundary", set()),
    ],
)
def test_what_a_version_text_announces(text: str, extensions: set[str]) -> None:
    assert extensions_of(text) == extensions


def test_the_text_that_we_send() -> None:
    assert version_text("0.1.0", ALL) == "1.4.6-metaq-spark-0.1.0;ext=boundary,timestamp,mput,decide"
    assert version_text("0.1.0", []) == "1.4.6-metaq-spark-0.1.0"
    assert extensions_of(version_text("0.1.0.dev3+local", ALL)) == set(ALL)
    assert encode(Result(200, version_text("0.1.0", ["mput"]), 7)) == (
        b"result 200 32 7\r\n1.4.6-metaq-spark-0.1.0;ext=mput"
    )


@pytest.mark.parametrize(
    ("version", "words", "culprit"),
    [
        ("0 1", [], "version"),
        ("0;1", [], "version"),
        ("", [], "version"),
        ("0.1", ["a b"], "extension"),
        ("0.1", ["a,b"], "extension"),
        ("0.1", ["Mput"], "extension"),
        ("0.1", [""], "extension"),
    ],
)
def test_words_that_would_be_read_as_others_are_refused(version: str, words: list[str], culprit: str) -> None:
    with pytest.raises(ValueError, match=culprit):
        version_text(version, words)
