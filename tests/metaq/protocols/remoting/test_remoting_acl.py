"""Signatures, against those that Java made."""

from __future__ import annotations

import pytest

from metaq.protocols.remoting.acl import Credentials, is_signed_by, sign, signature
from metaq.protocols.remoting.command import Codec, request
from metaq.protocols.remoting.frames import FrameDecoder, encode

CREDENTIALS = Credentials("myAK", "mySK12345", "tok")
COMMAND = request(
    10, {"b": "TopicX", "a": "PG", "i": "KEYS\x01k1\x02TAGS\x01标签\x02", "Z": "zz"}, "hello 世界".encode()
)


def test_javas_signature() -> None:
    assert sign(COMMAND, CREDENTIALS).ext["Signature"] == "wGRM9xOzAP5uUWH/evDaM5mx540="


def test_javas_signature_of_nothing() -> None:
    assert sign(request(106), Credentials("myAK", "mySK12345")).ext == {
        "AccessKey": "myAK",
        "Signature": "MEfpE614DZeqSB7SMMNPaLUiCRc=",
    }


@pytest.mark.parametrize("codec", Codec)
def test_it_is_checked(codec: Codec) -> None:
    (received,) = FrameDecoder().receive(encode(sign(COMMAND, CREDENTIALS), codec))
    assert is_signed_by(received, CREDENTIALS)
    assert not is_signed_by(received, Credentials("myAK", "other"))
    assert not is_signed_by(received, Credentials("other", "mySK12345"))
    assert not is_signed_by(COMMAND, CREDENTIALS)
    assert not is_signed_by(request(10, {**received.ext, "Z": "zy"}, received.body), CREDENTIALS)
    assert not is_signed_by(request(10, received.ext, received.body + b"."), CREDENTIALS)


def test_what_java_adds_afterwards_is_not_signed() -> None:
    ext = {"key": "k"}
    assert signature(ext | {"_UNIQUE_KEY_QUERY": "true", "Signature": "old"}, b"", "s") == signature(ext, b"", "s")


def test_secrets_are_not_shown() -> None:
    assert "mySK" not in repr(CREDENTIALS)
    assert "tok" not in repr(CREDENTIALS)
