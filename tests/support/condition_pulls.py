"""A broker that carries out pulls with a condition in SQL92, and heartbeats."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from metaq_broker.operate.config.rocketmq import RocketmqConfig
from metaq_broker.rocketmq.groups.group_offsets import GroupOffsets
from metaq_broker.rocketmq.groups.member_requests import MemberRequests
from metaq_broker.rocketmq.groups.queue_locks import QueueLocks
from metaq_broker.rocketmq.pulls.filters import filter_checker
from metaq_broker.rocketmq.pulls.pulls import GroupState, Pulls
from metaq_broker.rocketmq.pulls.waiting_pulls import WaitingPulls
from metaq_broker.rocketmq.session import Call
from remoting_brokers import FakeSession, WaitingBroker
from remoting_headers import pull_header
from waiting import until

from metaq.protocols.remoting.bodies.groups import ConsumerData, HeartbeatData, SubscriptionData
from metaq.protocols.remoting.command import RemotingCommand
from metaq.protocols.remoting.headers import to_request
from metaq.protocols.remoting.headers.clients import HeartBeat
from metaq.protocols.remoting.headers.pulls import SUBSCRIPTION, SUSPEND

SQL = "price > 10 AND color IN ('red', 'blue')"


class Asked:
    """A broker that carries out pulls and heartbeats; ``t`` is its topic."""

    def __init__(self, broker: WaitingBroker) -> None:
        config = cast(RocketmqConfig, broker.engine.config.rocketmq)
        self.broker, self.session = broker, FakeSession()
        self.held = WaitingPulls(broker.store, 100, 100)
        groups = GroupState(broker.groups, broker.members, GroupOffsets(broker.state))
        Pulls(broker.store, broker.topics, groups, config, self.held).add_to(broker.dispatcher)
        check = filter_checker(config.has_conditions)
        locks = QueueLocks(broker.clock.monotonic)
        MemberRequests(broker.members, broker.groups, locks, broker.topics, check).mount(broker.dispatcher)

    def post(self, command: RemotingCommand) -> None:
        self.broker.dispatcher.carry_out(Call(command, cast("Any", self.session)))

    async def answer(self, number: int = 0) -> RemotingCommand:
        await until(lambda: len(self.session.responses) > number)
        found = self.session.responses[number]
        assert found is not None
        return found

    async def pull(self, **changed: object) -> RemotingCommand:
        number = len(self.session.responses)
        self.post(pull(**changed))
        return await self.answer(number)

    def subscribe(self, text: str, kind: str = "SQL92", version: int = 1) -> None:
        subscription = SubscriptionData(topic="t", sub_string=text, expression_type=kind, sub_version=version)
        data = ConsumerData(group_name="g", subscription_data_set=(subscription,))
        body = HeartbeatData(client_id="1", consumer_data_set=(data,)).to_json()
        self.post(to_request(HeartBeat(), body))
        response = self.session.responses.pop()
        assert response is not None
        assert response.code == 0, "a heartbeat is taken whatever it says, as RocketMQ does"

    async def send(self, *prices: int, color: str = "red") -> None:
        await asyncio.gather(
            *(self.broker.stored(b"%d" % price, {"price": str(price), "color": color}) for price in prices)
        )


def pull(offset: int = 0, wait_ms: int = 0, text: str | None = SQL, kind: str = "SQL92") -> RemotingCommand:
    """``text``: ``None`` = what the group's heartbeat said."""
    header = pull_header(
        offset,
        consumer_group="g",
        sys_flag=(0 if text is None else SUBSCRIPTION) | (SUSPEND if wait_ms else 0),
        suspend_timeout_millis=wait_ms,
        subscription=text,
        expression_type=None if text is None else kind,
    )
    return to_request(header)
