"""Typed headers: what real clients sent, what they may leave out, and what is wrong with a field."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest
from examples import in_one_test
from recordings import content, lines

from metaq.errors import FieldError
from metaq.protocols.remoting.codes import name_of
from metaq.protocols.remoting.command import Codec, RemotingCommand
from metaq.protocols.remoting.frames import FrameDecoder, encode
from metaq.protocols.remoting.headers import REQUESTS, RESPONSES, parse_request, to_request
from metaq.protocols.remoting.headers.clients import UnregisterClient
from metaq.protocols.remoting.headers.fields import fields_of
from metaq.protocols.remoting.headers.offsets import GetMaxOffset, GetMaxOffsetResponse, QueryConsumerOffset
from metaq.protocols.remoting.headers.pulls import PullMessage, PullMessageResponse
from metaq.protocols.remoting.headers.routes import GetRouteInfoByTopic, RegisterBroker
from metaq.protocols.remoting.headers.sends import SEND_BATCH_MESSAGE, SEND_MESSAGE, SendMessage, SendMessageResponse

NOT_OURS = {"bname", "ReqT"}
"""Fields that Java 4.9.7 adds to any request."""

SESSIONS = [row for row in lines("clients_java497.jsonl") if "header" in row]
STEPS = [row for name in ("ns_routes.jsonl", "b_send_pull.jsonl") for row in lines(name) if "request" in row]


def as_frame(row: dict[str, Any]) -> bytes:
    header = json.dumps(row["header"], ensure_ascii=False, separators=(",", ":")).encode()
    return struct.pack(">ii", 4 + len(header), len(header)) + header


def one(data: bytes) -> RemotingCommand:
    (command,) = FrameDecoder().receive(data)
    return command


SEND = SendMessage(
    producer_group="g",
    topic="T",
    default_topic="TBW102",
    default_topic_queue_nums=4,
    queue_id=-1,
    sys_flag=0,
    born_timestamp=1700000000000,
    flag=0,
    batch=False,
)
PULL = PullMessage(
    consumer_group="g",
    topic="T",
    queue_id=3,
    queue_offset=1 << 40,
    max_msg_nums=32,
    sys_flag=4,
    commit_offset=0,
    suspend_timeout_millis=0,
    subscription="*",
    sub_version=0,
)


class TestRecordings:
    def test_every_request_of_a_java_client_has_a_type_and_is_written_again(self) -> None:
        seen = set()
        for row in SESSIONS:
            command = one(as_frame(row))
            if command.is_response:
                continue
            header = parse_request(command)
            assert header is not None, name_of(command.code)
            ours = {name: text for name, text in command.ext.items() if name not in NOT_OURS}
            assert header.ext(command.code) == {name: text for name, text in ours.items() if text is not None}
            again = to_request(header, command.body, code=command.code, opaque=command.opaque)
            assert parse_request(one(encode(again))) == header
            seen.add(command.code)
        assert seen == {11, 12, 14, 15, 17, *range(29, 33), *range(34, 43), 46, 105, 310, 320}

    def test_every_answer_to_a_java_client_has_a_type(self) -> None:
        asked: dict[tuple[int, str, int], int] = {}
        typed = 0
        for row in SESSIONS:
            command = one(as_frame(row))
            if not command.is_response:
                asked[row["conn"], row["from"], command.opaque] = command.code
                continue
            code = asked[row["conn"], "client" if row["from"] == "server" else "server", command.opaque]
            if command.code == 0 and code in RESPONSES:
                header = RESPONSES[code].from_ext(command.ext)
                assert header.ext() == command.ext
                typed += 1
        assert typed > 50

    def test_every_recorded_step_is_parsed(self) -> None:
        """Some steps are wrong on purpose, and only those are refused."""
        on_purpose = ("missing", "not a number", "no extFields", "nothing in ext", "no haServerAddr")
        refused = []
        for row in STEPS:
            for command in FrameDecoder().receive(content(row["request"]["frame"])):
                try:
                    assert parse_request(command) is not None or command.code not in REQUESTS
                except FieldError:
                    refused.append(row["step"]["label"])
        assert [label for label in refused if not any(part in label for part in on_purpose)] == []
        assert len(refused) == 39


class TestNames:
    def test_short_names_go_with_their_codes(self) -> None:
        long, short = SEND.ext(SEND_MESSAGE), SEND.ext(SEND_BATCH_MESSAGE)
        assert (long["producerGroup"], short["a"], long["batch"], short["m"]) == ("g", "g", "false", "false")
        assert SendMessage.from_ext(long, 10) == SendMessage.from_ext(short, 320) == SEND
        assert SEND.ext() == SEND.ext(SendMessage.CODE) == short

    def test_the_broker_name_goes_with_every_request(self) -> None:
        assert to_request(PULL, broker_name="b").ext["bname"] == "b"
        assert to_request(SEND, broker_name="b").ext["n"] == "b"
        assert parse_request(to_request(SEND, code=SEND_MESSAGE, broker_name="b")) == parse_request(
            to_request(SEND, broker_name="b")
        )

    def test_a_code_without_a_class(self) -> None:
        assert parse_request(RemotingCommand(9999)) is None
        assert name_of(9999) == "9999"

    def test_names_of_codes(self) -> None:
        assert (name_of(11), name_of(11, response=True)) == ("PULL_MESSAGE (11)", "SLAVE_NOT_AVAILABLE (11)")

    @in_one_test("code", sorted(REQUESTS))
    def test_names_on_the_wire_differ(self, code: int) -> None:
        for header in (REQUESTS[code], *([RESPONSES[code]] if code in RESPONSES else [])):
            names = [field.name for field in fields_of(header)]
            assert len(set(names)) == len(names)


class TestQuirks:
    def test_what_a_cpp_client_sends(self) -> None:
        ext = SEND.ext(10) | {"batch": "0", "OnsChannel": "ALIYUN", "AccessKey": "", "Signature": "x="}
        assert SendMessage.from_ext(ext, 10) == SEND
        goodbye = UnregisterClient.from_ext({"clientID": "c", "producerGroup": "", "consumerGroup": "g"})
        assert (goodbye.producer_group, goodbye.consumer_group) == ("", "g")

    def test_bare_numbers_in_json(self) -> None:
        header = b'{"code":30,"opaque":1,"extFields":{"topic":"T","queueId":3,"committed":true}}'
        command = one(struct.pack(">ii", 4 + len(header), len(header)) + header)
        assert parse_request(command) == GetMaxOffset(topic="T", queue_id=3, committed=True)

    @pytest.mark.parametrize(("text", "meant"), [("true", True), ("TRUE", True), ("false", False), ("1", False)])
    def test_booleans_as_java_reads_them(self, text: str, meant: bool) -> None:
        found = GetRouteInfoByTopic.from_ext({"topic": "T", "acceptStandardJsonOnly": text})
        assert found.accept_standard_json_only is meant

    def test_a_null_of_the_binary_header_is_missing(self) -> None:
        ext = {"consumerGroup": "", "topic": "T", "queueId": "0", "setZeroIfNotFound": ""}
        command = one(encode(RemotingCommand(14, ext, codec=Codec.BINARY)))
        assert parse_request(command) == QueryConsumerOffset(consumer_group="", topic="T", queue_id=0)

    def test_a_number_with_a_sign(self) -> None:
        assert GetMaxOffsetResponse.from_ext({"offset": "+7"}).offset == 7


class TestErrors:
    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"queueId": None}, "field 'queueId' of PULL_MESSAGE (11) is missing; it must be a number of 32 bits"),
            ({"queueId": ""}, "field 'queueId' of PULL_MESSAGE (11) is ''; it must be a number of 32 bits"),
            ({"queueId": "x"}, "field 'queueId' of PULL_MESSAGE (11) is 'x'; it must be a number of 32 bits"),
            ({"queueId": "1_0"}, "field 'queueId' of PULL_MESSAGE (11) is '1_0'; it must be a number of 32 bits"),
            ({"queueId": " 1"}, "field 'queueId' of PULL_MESSAGE (11) is ' 1'; it must be a number of 32 bits"),
            (
                {"sysFlag": "2147483648"},
                "field 'sysFlag' of PULL_MESSAGE (11) is '2147483648'; it must be a number of 32 bits",
            ),
            (
                {"queueOffset": "9" * 19},
                f"field 'queueOffset' of PULL_MESSAGE (11) is '{'9' * 19}'; it must be a number of 64 bits",
            ),
            ({"topic": None}, "field 'topic' of PULL_MESSAGE (11) is missing; it must be a text"),
            ({"maxMsgBytes": "z"}, "field 'maxMsgBytes' of PULL_MESSAGE (11) is 'z'; it must be a number of 32 bits"),
        ],
    )
    def test_one_sentence(self, change: dict[str, str | None], message: str) -> None:
        ext = {name: text for name, text in (PULL.ext() | change).items() if text is not None}
        with pytest.raises(FieldError) as caught:
            PullMessage.from_ext(ext)
        assert str(caught.value) == message
        assert caught.value.field in change

    def test_the_code_and_the_name_are_those_of_the_command(self) -> None:
        ext = SEND.ext(320)
        del ext["e"]
        with pytest.raises(FieldError, match=r"field 'e' of SEND_BATCH_MESSAGE \(320\) is missing"):
            parse_request(RemotingCommand(320, ext))

    def test_an_answer(self) -> None:
        with pytest.raises(FieldError, match=r"field 'offset' of the answer to GET_MAX_OFFSET \(30\) is missing"):
            GetMaxOffsetResponse.from_ext({})
        with pytest.raises(FieldError, match=r"'minOffset' of the answer to PULL_MESSAGE \(11\) is 'x'"):
            PullMessageResponse.from_ext({"suggestWhichBrokerId": "0", "nextBeginOffset": "1", "minOffset": "x"})

    def test_the_value_is_shortened(self) -> None:
        with pytest.raises(FieldError) as caught:
            SendMessageResponse.from_ext({"msgId": "m", "queueId": "9" * 1000, "queueOffset": "0"})
        assert len(str(caught.value)) < 320

    def test_required_fields_are_distinguished(self) -> None:
        required = {field.name for field in fields_of(RegisterBroker) if field.required}
        assert required == {"brokerName", "brokerAddr", "clusterName", "haServerAddr", "brokerId"}
