"""Requests of RocketMQ's protocol to a broker process, with as little as possible between test and broker."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from metaq.model import Address
from metaq.net.remoting_client import RemotingClient
from metaq.protocols.remoting.acl import Credentials, sign
from metaq.protocols.remoting.bodies.json_body import JsonBody
from metaq.protocols.remoting.command import RemotingCommand
from metaq.protocols.remoting.headers import to_request
from metaq.protocols.remoting.headers.administration import UpdateAndCreateTopic
from metaq.protocols.remoting.headers.fields import Request
from metaq.protocols.remoting.headers.offsets import QueryConsumerOffset, UpdateConsumerOffset

TIMEOUT_S: Final = 20.0
AS_RECORDED: Final = (
    "[zookeeper]\nzk.zkEnable=false\n[rocketmq]\nenabled=true\nport=0\nbrokerName=golden-a\nclusterName=GoldenCluster\n"
)
"""Configuration of a broker with the names of the one whose answers were recorded."""


@dataclass
class Asker:
    """One client with a connection of its own. ``ask`` fails the test if the answer is not 0."""

    address: Address
    credentials: Credentials | None = None
    client: RemotingClient = field(default_factory=RemotingClient)

    def response(self, header: Request, body: JsonBody | bytes = b"", oneway: bool = False) -> RemotingCommand:
        command = to_request(header, body if isinstance(body, bytes) else body.to_json(), oneway=oneway)
        if self.credentials is not None:
            command = sign(command, self.credentials)
        if oneway:
            self.client.oneway(self.address, command, TIMEOUT_S)
            return command
        return self.client.call(self.address, command, TIMEOUT_S)

    def ask(self, header: Request, body: JsonBody | bytes = b"") -> RemotingCommand:
        answered = self.response(header, body)
        assert answered.code == 0, answered.remark
        return answered

    def create_topic(self, topic: str, queues: int = 1) -> RemotingCommand:
        return self.response(
            UpdateAndCreateTopic(
                topic=topic,
                default_topic="TBW102",
                read_queue_nums=queues,
                write_queue_nums=queues,
                perm=6,
                topic_filter_type="SINGLE_TAG",
                order=False,
            )
        )

    def commit(self, topic: str, group: str, queue: int, offset: int, oneway: bool = False) -> None:
        header = UpdateConsumerOffset(consumer_group=group, topic=topic, queue_id=queue, commit_offset=offset)
        if self.response(header, oneway=oneway).code and not oneway:
            raise AssertionError("not committed")

    def committed(self, topic: str, group: str, queue: int) -> int:
        header = QueryConsumerOffset(consumer_group=group, topic=topic, queue_id=queue)
        return int(self.ask(header).ext["offset"])

    def close(self) -> None:
        self.client.close()

    def __enter__(self) -> Asker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
