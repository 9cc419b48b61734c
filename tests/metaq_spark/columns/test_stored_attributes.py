"""Messages of RocketMQ clients in the columns of ``format("metaq")``: the attribute is the tag, compiled and plain."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from metaq.formats.frames import encode_frame, encode_stored, walk
from metaq.formats.message_types import select, type_of
from metaq.formats.rocketmq.hosts import host_bytes
from metaq.formats.stored_form import STORED_FORM, encode_head, shown_attribute
from metaq.model import Partition, TopicPartition
from metaq_spark.columns import kernels
from metaq_spark.columns.batches import BatchMaker
from metaq_spark.columns.decode import CompiledDecoder
from metaq_spark.columns.plain import PlainDecoder
from metaq_spark.columns.row_layout import message_layout

HOSTS = [host_bytes("10.0.0.1", 80), host_bytes("2001:db8::1", 80)]
SOURCE = TopicPartition("orders", Partition(0, 0))


def attribute_frame(attribute: bytes, body: bytes = b"value", flag: int = STORED_FORM) -> bytes:
    return encode_frame(1, flag, len(attribute).to_bytes(4) + attribute + body)


def stored_attribute(tag: bytes, host: bytes, properties: bytes = b"TAGS\x01x") -> bytes:
    return tag + encode_head(7, 0, 1_700_000_000_000, host) + properties


def shown(run: bytes, decoder: CompiledDecoder | PlainDecoder) -> list[tuple[object, object]]:
    batches = [*decoder.decode(run, 0), *decoder.flush()]
    return [(row["attribute"], row["value"]) for batch in batches for row in batch.to_pylist()]


DECODERS: list[Callable[[], CompiledDecoder | PlainDecoder]] = [
    lambda: CompiledDecoder(BatchMaker(SOURCE, message_layout()), 1000, 1 << 20, kernels),
    lambda: PlainDecoder(BatchMaker(SOURCE, message_layout()), 1000, 1 << 20),
]


@pytest.mark.parametrize("decoder", DECODERS, ids=["compiled", "plain"])
def test_the_attribute_is_the_tag(decoder: Callable[[], CompiledDecoder | PlainDecoder]) -> None:
    frames = [
        encode_stored(tag, encode_head(0, 0, 5, host), b"TAGS\x01" + tag, b"body of " + tag)
        for host in HOSTS
        for tag in (b"hot", "heiß".encode(), b"")
    ]
    plain = attribute_frame(b"type", flag=1)
    assert shown(b"".join(frames) + plain, decoder()) == [
        *[("hot", b"body of hot"), ("heiß", b"body of hei\xc3\x9f"), (None, b"body of ")] * 2,
        ("type", b"value"),
    ]
    assert [one.message.attribute for one in walk(frames[0] + frames[2], 0)] == ["hot", None]


def test_types_are_tags() -> None:
    run = encode_stored(b"hot", encode_head(0, 0, 5, HOSTS[0]), b"TAGS\x01hot", b"a") + attribute_frame(b"hot", flag=1)
    assert len(select(run, 0, frozenset([b"hot"])).kept) == 2
    assert type_of(STORED_FORM, (60).to_bytes(4) + b"\x02" + bytes(59)) is None


def test_compiled_and_plain_see_the_same_in_damaged_forms() -> None:
    chance = random.Random(11)
    attributes = []
    for _ in range(3000):
        attribute = bytearray(stored_attribute(b"t" * chance.randrange(4), chance.choice(HOSTS)))
        for _ in range(chance.randrange(3)):
            attribute[chance.randrange(len(attribute))] = chance.choice(b"\x02460=A/+ zZ")
        attributes.append(bytes(attribute[: chance.choice([len(attribute), chance.randrange(len(attribute) + 1)])]))
    compiled, plain = ([shown(attribute_frame(each), make())[0][0] for each in attributes[:400]] for make in DECODERS)
    assert compiled == plain
    run = b"".join(map(attribute_frame, attributes))
    compiled_rows, plain_rows = (shown(run, make()) for make in DECODERS)
    assert compiled_rows == plain_rows


@settings(max_examples=examples(200))
@given(st.binary(max_size=90))
def test_any_attribute_is_shown_the_same_way(attribute: bytes) -> None:
    wanted = shown_attribute(STORED_FORM, attribute)
    text = None if wanted is None else wanted.decode("utf-8", "replace")
    assert shown(attribute_frame(attribute), DECODERS[1]())[0][0] == text
