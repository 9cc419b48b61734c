"""Frames for the fuzz: proper requests to a name server, daring ones, and frames with altered bytes."""

from __future__ import annotations

import struct
from random import Random
from typing import Final, NamedTuple

from faults.fuzz.mutations import mutate
from metaq.protocols.remoting.bodies.registration import (
    DataVersion,
    RegisterBrokerBody,
    TopicConfigBody,
    TopicConfigs,
    write_registration,
)
from metaq.protocols.remoting.command import Codec, RemotingCommand
from metaq.protocols.remoting.frames import encode
from metaq.protocols.remoting.headers import REQUESTS
from metaq.protocols.remoting.headers.routes import (
    AddWritePermOfBroker,
    DeleteTopicInNamesrv,
    GetAllTopicListFromNameserver,
    GetBrokerClusterInfo,
    GetKVConfig,
    GetKVListByNamespace,
    GetNamesrvConfig,
    GetRouteInfoByTopic,
    GetSystemTopicListFromNs,
    GetTopicsByCluster,
    GetUnitTopicList,
    PutKVConfig,
    RegisterBroker,
    WipeWritePermOfBroker,
)

NAMES: Final = ("alpha", "beta", "gamma")
QUESTIONS: Final = (
    (GetRouteInfoByTopic.CODE, ("topic",)),
    (GetBrokerClusterInfo.CODE, ()),
    (GetAllTopicListFromNameserver.CODE, ()),
    (GetTopicsByCluster.CODE, ("cluster",)),
    (GetSystemTopicListFromNs.CODE, ()),
    (GetUnitTopicList.CODE, ()),
    (GetKVConfig.CODE, ("namespace", "key")),
    (GetKVListByNamespace.CODE, ("namespace",)),
    (WipeWritePermOfBroker.CODE, ("brokerName",)),
    (AddWritePermOfBroker.CODE, ("brokerName",)),
    (DeleteTopicInNamesrv.CODE, ("topic",)),
    (GetNamesrvConfig.CODE, ()),
)
EDGES: Final = (
    *("", "0", "-1", "2147483647", "2147483648", "-9223372036854775808", "9" * 5000, "true", "null", "NaN", "1e9"),
    *("../../escape", "\x00", "\u2028", "\ud800", "{", '"', "值" * 300, " ", "a:b;c:d", "%RETRY%x"),
)
BODIES: Final = (
    *(b"{", b"[]", b"null", b"\xff" * 50, b"[" * 3000, b'{"a":' * 500, b"{1:2}", b"0" * 10_000, b"1e999", b'"\\ud800"'),
    *(b'{"topicConfigSerializeWrapper":null}', b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"T":{}}}}'),
    *(b"orderMessageEnable=true\n", b"listenPort=1\n", b"\\u00", b"x\\\n" * 100),
)
WORDS: Final = (0, 1, 3, 4, 5, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 1 << 24, (1 << 24) - 3, 0x01000000, 0x02000010)
_WORD: Final = struct.Struct(">I")


class Phrase(NamedTuple):
    """One frame, and the number of its request."""

    data: bytes
    opaque: int


class Frames:
    """Makes frames; everything follows from ``random``."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._opaque = 0

    def proper(self) -> Phrase:
        """Return a request that a name server must answer."""
        dice = self._random.random()
        if dice < 0.08:
            return self._register()
        if dice < 0.083:  # few, because each waits for the disk
            ext = {"namespace": self._name(), "key": f"k{self._random.randrange(20)}", "value": "x" * 50}
            return self._phrase(RemotingCommand(PutKVConfig.CODE, ext))
        code, fields = self._random.choice(QUESTIONS)
        return self._phrase(RemotingCommand(code, {field: self._name() for field in fields}))

    def daring(self, edge_chance: float) -> Phrase:
        """Return a request of any kind; with the chance ``edge_chance``, each of its parts is an edge value."""
        command = self._proper_command()
        if self._random.random() < edge_chance * 3:
            command = self._spoiled(command)
        return self._phrase(command)

    def altered(self, data: bytes) -> bytes:
        """Return a frame with altered lengths or bytes; it may be empty."""
        dice = self._random.random()
        if dice < 0.3:
            at = self._random.choice((0, 4))
            return data[:at] + _WORD.pack(self._random.choice(WORDS)) + data[at + 4 :]
        if dice < 0.4:
            return self._random.randbytes(self._random.randrange(1, 200))
        return mutate(self._random, data)

    def _proper_command(self) -> RemotingCommand:
        code, fields = self._random.choice(QUESTIONS)
        return RemotingCommand(code, {field: self._name() for field in fields})

    def _spoiled(self, command: RemotingCommand) -> RemotingCommand:
        code = command.code if self._random.random() < 0.5 else self._random.choice([*REQUESTS, 0, -1, 32767])
        ext = {name: self._random.choice((value, *EDGES)) for name, value in command.ext.items()}
        for name in ("brokerName", "brokerAddr", "clusterName", "brokerId", "bodyCrc32", "compressed", "key"):
            if self._random.random() < 0.3:
                ext[name] = self._random.choice(EDGES)
        flag = self._random.choice((0, 0, 0, 1, 2, 3, 255))
        remark = self._random.choice((None, *EDGES))
        return RemotingCommand(int(code), ext, self._random.choice((b"", *BODIES)), flag=flag, remark=remark)

    def _register(self) -> Phrase:
        name, compressed = self._name(), self._random.random() < 0.5
        table = {f"{name}-{n}": TopicConfigBody(topic_name=f"{name}-{n}") for n in range(self._random.randrange(5))}
        version = DataVersion(timestamp=1, counter=self._random.randrange(5))
        topics = TopicConfigs(topic_config_table=table, data_version=version)
        body = write_registration(RegisterBrokerBody(topic_config_serialize_wrapper=topics), compressed, 407)
        ext = {"brokerName": name, "brokerAddr": f"h:{self._random.randrange(50)}", "clusterName": "fuzz"}
        ext |= {"haServerAddr": "", "brokerId": str(self._random.randrange(3)), "compressed": str(compressed).lower()}
        return self._phrase(RemotingCommand(RegisterBroker.CODE, ext, body))

    def _phrase(self, command: RemotingCommand) -> Phrase:
        self._opaque += 1
        codec = Codec.JSON if command.code > 32767 or command.code < 0 else self._random.choice(list(Codec))
        sent = RemotingCommand(
            command.code, command.ext, command.body, self._opaque, command.flag, command.remark, codec=codec
        )
        return Phrase(encode(sent), self._opaque)

    def _name(self) -> str:
        return self._random.choice(NAMES)
