"""Request 31001: where this broker serves MetaQ's protocol over the same log. A request of this project, not of
RocketMQ.

With the answer a client can use MetaQ's transactions over many messages.
"""

from __future__ import annotations

from metaq.protocols.remoting.announcement import MetaQBroker
from metaq.protocols.remoting.codes import ResponseCode
from metaq.protocols.remoting.command import RemotingCommand
from metaq.protocols.remoting.headers.administration import GetMetaQBroker, GetMetaQBrokerResponse
from metaq_broker.rocketmq.dispatcher import Dispatcher
from metaq_broker.rocketmq.session import Call


class BundledBroker:
    """Reports the broker's MetaQ identity."""

    def __init__(self, this: MetaQBroker) -> None:
        self._answer = GetMetaQBrokerResponse(broker_id=this.broker_id, address=str(this.address)).ext()

    def mount(self, dispatcher: Dispatcher) -> None:
        dispatcher.add([GetMetaQBroker.CODE], self._where)

    def _where(self, call: Call) -> RemotingCommand:
        return call.request.reply(ResponseCode.SUCCESS, self._answer)
