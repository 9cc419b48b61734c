"""JSON bodies against those that real servers and clients sent, lenient reading, and wrong ones."""

from __future__ import annotations

import json
import struct
import zlib
from typing import Any

import pytest
from recordings import content, lines

from metaq.errors import FieldError
from metaq.protocols.remoting.bodies.groups import (
    CheckClientRequestBody,
    ConsumeFromWhere,
    ConsumerConnection,
    ConsumerList,
    ConsumeType,
    HeartbeatData,
    LockBatchRequestBody,
    LockBatchResponseBody,
    MessageModel,
    MessageQueue,
    SubscriptionGroups,
)
from metaq.protocols.remoting.bodies.json_body import JsonBody
from metaq.protocols.remoting.bodies.json_text import VALUES_MAX, load_json
from metaq.protocols.remoting.bodies.offsets import (
    ConsumeOffset,
    ConsumerOffsets,
    ConsumeStats,
    DelayOffsets,
    TopicOffset,
    TopicStats,
)
from metaq.protocols.remoting.bodies.registration import (
    DataVersion,
    RegisterBrokerBody,
    TopicConfigBody,
    TopicConfigs,
    read_registration,
    write_registration,
)
from metaq.protocols.remoting.bodies.routes import BrokerData, ClusterInfo, KVTable, TopicList, TopicRouteData
from metaq.protocols.remoting.command import RemotingCommand
from metaq.protocols.remoting.frames import FrameDecoder
from metaq.protocols.remoting.headers import parse_request
from metaq.protocols.remoting.headers.clients import (
    CheckClientConfig,
    GetConsumerListByGroup,
    HeartBeat,
    LockBatchMq,
    UnlockBatchMq,
)
from metaq.protocols.remoting.headers.routes import (
    GetAllTopicListFromNameserver,
    GetBrokerClusterInfo,
    GetHasUnitSubTopicList,
    GetHasUnitSubUnunitTopicList,
    GetKVListByNamespace,
    GetRouteInfoByTopic,
    GetSystemTopicListFromNs,
    GetTopicsByCluster,
    GetUnitTopicList,
    QueryDataVersion,
    RegisterBroker,
)

ANSWERS: dict[int, type[JsonBody]] = {
    GetRouteInfoByTopic.CODE: TopicRouteData,
    GetBrokerClusterInfo.CODE: ClusterInfo,
    GetAllTopicListFromNameserver.CODE: TopicList,
    GetSystemTopicListFromNs.CODE: TopicList,
    GetTopicsByCluster.CODE: TopicList,
    GetUnitTopicList.CODE: TopicList,
    GetHasUnitSubTopicList.CODE: TopicList,
    GetHasUnitSubUnunitTopicList.CODE: TopicList,
    QueryDataVersion.CODE: DataVersion,
    GetKVListByNamespace.CODE: KVTable,
    RegisterBroker.CODE: KVTable,
    GetConsumerListByGroup.CODE: ConsumerList,
    LockBatchMq.CODE: LockBatchResponseBody,
}
REQUESTS: dict[int, type[JsonBody]] = {
    HeartBeat.CODE: HeartbeatData,
    LockBatchMq.CODE: LockBatchRequestBody,
    UnlockBatchMq.CODE: LockBatchRequestBody,
    CheckClientConfig.CODE: CheckClientRequestBody,
}


def ns_steps() -> list[tuple[dict[str, Any], RemotingCommand]]:
    return [
        (row, command)
        for row in lines("ns_routes.jsonl")
        if "request" in row
        for command in FrameDecoder().receive(content(row["request"]["frame"]))
    ]


class TestRecordings:
    def test_every_answer_of_the_name_server_is_written_again(self) -> None:
        count = 0
        for row, command in ns_steps():
            for reply in row["replies"]:
                body, kind = content(reply["body"]), ANSWERS.get(command.code)
                if not body or kind is None:
                    continue
                parsed = kind.from_json(body)
                bare = b'{0:"' in body or command.code == GetBrokerClusterInfo.CODE
                assert parsed.to_json(bare_number_keys=bare) == body, row["step"]["label"]
                assert kind.from_json(parsed.to_json()) == parsed
                count += 1
        assert count == 64

    def test_every_body_of_a_java_client_is_written_again(self) -> None:
        count = 0
        for row in lines("clients_java497.jsonl"):
            if "header" not in row or "text" not in row or row["header"]["flag"] & 1:
                continue
            if (kind := REQUESTS.get(row["header"]["code"])) is not None:
                assert kind.from_json(row["text"].encode()).to_json().decode() == row["text"]
                count += 1
        assert count > 25

    def test_every_registration_is_read_and_written_again(self) -> None:
        count = 0
        for row, command in ns_steps():
            if command.code != RegisterBroker.CODE:
                continue
            try:
                header = parse_request(command)
            except FieldError:
                continue
            assert isinstance(header, RegisterBroker)
            compressed = bool(header.compressed)
            if row["replies"] and row["replies"][0]["header"]["code"] == 0 and command.body:
                parsed = read_registration(command.body, compressed, command.version)
                again = write_registration(parsed, compressed, command.version)
                assert read_registration(again, compressed, command.version) == parsed
                asked = row["step"]["body"]["register"]["topics"] if "register" in row["step"]["body"] else []
                table = parsed.topic_config_serialize_wrapper.topic_config_table
                assert {name: (t.read_queue_nums, t.write_queue_nums, t.perm) for name, t in table.items()} == {
                    each["name"]: (each["r"], each["w"], each["perm"]) for each in asked
                }
                count += 1
        assert count == 14


class TestLenientJson:
    def test_bare_numbers_as_keys(self) -> None:
        text = (
            '{"brokerDatas":[{"brokerAddrs":{0:"a:1", -1 : "b{2:3}"},"brokerName":"x","cluster":"c"}],"queueDatas":[]}'
        )
        (broker,) = TopicRouteData.from_json(text.encode()).broker_datas
        assert broker.broker_addrs == {0: "a:1", -1: "b{2:3}"}

    def test_objects_as_keys(self) -> None:
        text = (
            '{"offsetTable":{{"brokerName":"b}","queueId":0,"topic":"T"}:{"lastUpdateTimestamp":5,"maxOffset":9,"minOffset":1},'
            '{"brokerName":"\\"","queueId":1,"topic":"T"}:{"lastUpdateTimestamp":0,"maxOffset":0,"minOffset":0}}}'
        )
        stats = TopicStats.from_json(text.encode())
        assert stats.offset_table == {
            MessageQueue(topic="T", broker_name="b}", queue_id=0): TopicOffset(
                min_offset=1, max_offset=9, last_update_timestamp=5
            ),
            MessageQueue(topic="T", broker_name='"', queue_id=1): TopicOffset(),
        }
        assert stats.to_json().decode() == text

    def test_offsets_of_groups(self) -> None:
        text = '{"offsetTable":{"T@g":{0:2,1:3},"U@g":{}}}'
        offsets = ConsumerOffsets.from_json(text.encode())
        assert offsets.offset_table == {"T@g": {0: 2, 1: 3}, "U@g": {}}
        assert offsets.to_json(bare_number_keys=True).decode() == text
        assert json.loads(offsets.to_json())["offsetTable"]["T@g"] == {"0": 2, "1": 3}
        assert DelayOffsets.from_json(b'{"offsetTable":{1:3,2:1}}').offset_table == {1: 3, 2: 1}

    def test_consume_stats(self) -> None:
        stats = ConsumeStats(
            offset_table={MessageQueue(topic="T", broker_name="b", queue_id=0): ConsumeOffset(broker_offset=3)},
            consume_tps=1.5,
        )
        assert ConsumeStats.from_json(stats.to_json()) == stats

    def test_what_a_cpp_client_sends(self) -> None:
        heartbeat = HeartbeatData.from_json(
            b'{"clientID":"c","consumerDataSet":[{"consumeFromWhere":0,"consumeType":1,"groupName":"g","messageModel":1,'
            b'"subscriptionDataSet":[{"subString":"*","subVersion":"1795","topic":"T"}]}],"producerDataSet":null}'
        )
        (group,) = heartbeat.consumer_data_set
        assert group.consume_type is ConsumeType.CONSUME_PASSIVELY
        assert group.message_model is MessageModel.CLUSTERING
        assert group.consume_from_where is ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
        assert group.subscription_data_set[0].sub_version == 1795
        assert heartbeat.producer_data_set == ()

    def test_what_5_x_adds(self) -> None:
        route = TopicRouteData.from_json(
            b'{"brokerDatas":[{"brokerAddrs":{"0":"a:1"},"brokerName":"x","cluster":"c","enableActingMaster":false}],'
            b'"queueDatas":[],"topicQueueMappingByBroker":{"x":{"bname":"x"}},"new":{"a":[]}}'
        )
        assert route.broker_datas[0].enable_acting_master is False
        assert route.topic_queue_mapping_by_broker == {"x": {"bname": "x"}}

    def test_a_data_version_of_null(self) -> None:
        assert TopicConfigs.from_json(b'{"dataVersion":null,"topicConfigTable":{}}').data_version == DataVersion()

    def test_connections_and_groups(self) -> None:
        connection = ConsumerConnection.from_json(
            b'{"connectionSet":[{"clientAddr":"1.2.3.4:5","clientId":"c","language":"GO","version":317}],'
            b'"consumeType":"CONSUME_ACTIVELY","subscriptionTable":{"T":{"topic":"T"}}}'
        )
        assert connection.connection_set[0].language == "GO"
        assert connection.consume_from_where is None
        groups = SubscriptionGroups.from_json(b'{"subscriptionGroupTable":{"g":{"groupName":"g","retryQueueNums":2}}}')
        assert groups.subscription_group_table["g"].retry_queue_nums == 2

    def test_texts_are_left_alone(self) -> None:
        assert load_json(b'{1:"{2:3}\\"4:","x":"{\\"a\\":1}:"}', "x") == {"1": '{2:3}"4:', "x": '{"a":1}:'}


TOPICS = TopicConfigs(
    topic_config_table={
        "T": TopicConfigBody(topic_name="T", read_queue_nums=4, write_queue_nums=3, perm=7),
        "A": TopicConfigBody(topic_name="A", attributes={"+message.type": "NORMAL"}),
    },
    data_version=DataVersion(timestamp=1700000000000, counter=3, state_version=0),
)
REGISTRATION = RegisterBrokerBody(topic_config_serialize_wrapper=TOPICS, filter_server_list=("f:1",))


class TestRegistration:
    @pytest.mark.parametrize("compressed", [False, True])
    @pytest.mark.parametrize("version", [37, 407, 413])
    def test_comes_back(self, compressed: bool, version: int) -> None:
        body = write_registration(REGISTRATION, compressed, version)
        assert read_registration(body, compressed, version) == REGISTRATION

    def test_a_very_old_broker_sends_its_topics_alone(self) -> None:
        assert read_registration(TOPICS.to_json(), False, 36).topic_config_serialize_wrapper == TOPICS

    def test_mappings_of_static_topics(self) -> None:
        topics = TopicConfigs(topic_queue_mapping_info_map={"S": {"topic": "S", "bname": "b"}})
        registration = RegisterBrokerBody(topic_config_serialize_wrapper=topics)
        assert read_registration(write_registration(registration, True, 479), True, 479) == registration

    def test_no_body_means_no_topics(self) -> None:
        assert read_registration(b"", True, 407) == RegisterBrokerBody()

    @pytest.mark.parametrize(
        ("inflated", "message"),
        [
            (b"", "must be a whole registration"),
            (
                struct.pack(">i", 5) + b"{}",
                "field 'length' of RegisterBrokerBody is '5'; it must be at most the 2 bytes",
            ),
            (struct.pack(">i", -1), "field 'length' of RegisterBrokerBody is '-1'"),
            (struct.pack(">i2si", 2, b"{}", 1 << 30), "field 'count' of RegisterBrokerBody is '1073741824'"),
            (struct.pack(">i2sii3s", 2, b"{}", 1, 3, b"a b"), "it must be 'name reads writes perm filter-type'"),
            (struct.pack(">i2sii9s", 2, b"{}", 1, 9, b"T x 1 1 S"), "'readQueueNums' of TopicConfigBody is 'x'"),
            (struct.pack(">i2sii1s", 2, b"{}", 0, 1, b"3"), "'filterServerList' of RegisterBrokerBody is '3'"),
        ],
    )
    def test_wrong_ones(self, inflated: bytes, message: str) -> None:
        with pytest.raises(FieldError, match=message.replace("(", r"\(")):
            read_registration(zlib.compress(inflated), True, 407)

    def test_no_zlib_and_too_much(self) -> None:
        with pytest.raises(FieldError, match="must be a zlib stream"):
            read_registration(b"x" * 30, True, 407)
        with pytest.raises(FieldError, match="a whole zlib stream of at most 67108864 bytes"):
            read_registration(zlib.compress(bytes((64 << 20) + 1)), True, 407)
        with pytest.raises(FieldError, match="a whole zlib stream"):
            read_registration(write_registration(REGISTRATION, True, 407)[:-3], True, 407)
        topic = struct.pack(">i9s", 9, b"T 1 1 6 S")
        many = struct.pack(">i2si", 2, b"{}", VALUES_MAX + 1) + topic * (VALUES_MAX + 1) + struct.pack(">i2s", 2, b"[]")
        with pytest.raises(FieldError, match=f"field 'count' of .* it must be at most {VALUES_MAX}"):
            read_registration(zlib.compress(many), True, 407)
        half = b"[" + b"1," * (VALUES_MAX // 2) + b"1]"
        mappings = struct.pack(">i2sii2si", 2, b"{}", 0, 2, b"[]", 2)
        mappings += 2 * (struct.pack(">i", len(half)) + half)
        with pytest.raises(FieldError, match=f"JSON of at most {VALUES_MAX} values"):
            read_registration(zlib.compress(mappings), True, 413)


class TestErrors:
    @pytest.mark.parametrize(
        ("kind", "text", "message"),
        [
            (TopicRouteData, "x", "field 'body' of TopicRouteData is 'x'; it must be JSON"),
            (TopicRouteData, "[]", "field 'body' of TopicRouteData is '[]'; it must be an object"),
            (TopicRouteData, '{"queueDatas":{}}', "field 'queueDatas' of TopicRouteData is '{}'; it must be a list"),
            (
                TopicRouteData,
                '{"queueDatas":[{"brokerName":"b","readQueueNums":"x","writeQueueNums":1,"perm":6}]}',
                "field 'queueDatas[0].readQueueNums' of TopicRouteData is 'x'; it must be a number of 32 bits",
            ),
            (
                TopicRouteData,
                '{"brokerDatas":[{"cluster":"c"}]}',
                "field 'brokerDatas[0].brokerName' of TopicRouteData is missing; it must be there",
            ),
            (
                BrokerData,
                '{"brokerName":"b","brokerAddrs":{"m":"a:1"}}',
                "field 'brokerAddrs[m]' of BrokerData is 'm'; it must be a number of 64 bits",
            ),
            (KVTable, '{"table":{"k":[]}}', "field 'table[k]' of KVTable is '[]'; it must be a text"),
            (
                ConsumerConnection,
                '{"consumeType":7}',
                "field 'consumeType' of ConsumerConnection is '7'; it must be one of CONSUME_ACTIVELY, "
                "CONSUME_PASSIVELY, CONSUME_POP",
            ),
            (
                TopicStats,
                '{"offsetTable":{"x":{}}}',
                "field 'offsetTable[x]' of TopicStatsTable is 'x'; it must be an object as the key",
            ),
            (ConsumeStats, '{"consumeTps":[]}', "field 'consumeTps' of ConsumeStats is '[]'; it must be a number"),
            (HeartbeatData, '{"clientID":"c","withoutSub":[]}', "it must be true or false"),
        ],
    )
    def test_one_sentence(self, kind: type[JsonBody], text: str, message: str) -> None:
        with pytest.raises(FieldError) as caught:
            kind.from_json(text.encode())
        assert message in str(caught.value)

    def test_deep_and_long_ones(self) -> None:
        """Each is read in one pass; a second look at the rest from every place would take minutes."""
        unended = b'"\\' * 100_000
        for text in (b"[" * 100_000, b"{1:" * 100_000, b'{"a":' + b"1" * 5000 + b"}", unended, b"{" + unended):
            with pytest.raises(FieldError, match="must be JSON"):
                KVTable.from_json(text)
        with pytest.raises(FieldError, match=f"JSON of at most {VALUES_MAX} values"):
            KVTable.from_json(b"[" + b"1," * VALUES_MAX + b"1]")
