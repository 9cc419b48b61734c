"""Keeps a broker registered in ZooKeeper, beside the event loop: nothing on the loop ever waits for ZooKeeper.

::

    claim    before the first client: connect, take the broker id         fails the start when it cannot be had
    publish  when clients are served: the topics, then the ready line
    keep     topics that come and go, a reload, a new session after the old one expired; away = try again later
    withdraw nodes away, time for clients to notice; then the end of serving

The node of the broker id is the lock that two brokers of one id cannot both hold. It is ephemeral: after a kill -9
ZooKeeper keeps it until the dead session expires, so a start waits for that long. Whoever holds it longer is alive. A
node with this broker's own address is of an earlier life: this process has the port now. Clients that need no ZooKeeper
are served meanwhile.

What somebody deletes or changes is made again: the nodes are looked at every few seconds.

State belongs to the loop. Calls to ZooKeeper run one after the other in a worker thread, on values made on the loop;
what the client's threads notice is handed over by ``call_soon_threadsafe``.

Source: docs/operations.md, "ZooKeeper".
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from metaq.directory.zk_client import Node, SessionState, ZooKeeperClient
from metaq.errors import MetaqError, ZooKeeperAway, ZooKeeperRefused
from metaq_broker.config import ZooKeeperConfig
from metaq_broker.registration.tree import BrokerTree
from metaq_broker.registration.wanted import BrokerNodes

_LOG: Final = logging.getLogger(__name__)

ANSWER_S_MAX: Final = 10.0
"""Longest wait for ZooKeeper's answer to one call, whatever zk.zkConnectionTimeoutMs says."""

CLAIM_PAUSE_S: Final = 0.2
"""Between two looks whether the broker id is free."""

AGAIN_S: Final = 2.0
"""Between two attempts when something other than the connection is wrong."""

LOOK_S: Final = 3.0
"""Between two looks whether the nodes are still there, ..."""

LOOK_SHARE: Final = 20
"""... or so many times as long as a look took, if that is more."""

TOGETHER_S: Final = 0.05
"""Topics that appear within this time are registered together."""

OWN_SESSION: Final = "an earlier life of this broker is still registered, until its session expires"

_T = TypeVar("_T")


class RegistrationFailed(MetaqError):
    """The broker cannot be registered at its start; the text says why and what can be done."""


class Standing(enum.Enum):
    """How the broker stands in ZooKeeper. The value is the word for operators."""

    STARTING = "starting"
    WAITING = "waiting"
    REGISTERED = "registered"
    AWAY = "away"
    REFUSED = "refused"


class Registration:
    """See the module. ``wanted`` tells what the nodes should be now; it is called on the loop."""

    def __init__(self, config: ZooKeeperConfig, wanted: Callable[[], BrokerNodes]) -> None:
        self.address = config.address
        self.standing, self.reason = Standing.STARTING, ""
        self._config, self._wanted = config, wanted
        self._loop = asyncio.get_running_loop()
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="zookeeper")
        timeout_s = min(config.connection_timeout_ms / 1000, ANSWER_S_MAX)
        self._client = ZooKeeperClient(
            config.address.hosts, config.session_timeout_ms / 1000, timeout_s, self._tell_state_from_thread
        )
        self._tree = BrokerTree(self._client)
        self._connected, self._due = asyncio.Event(), asyncio.Event()
        self._afresh = True
        self._claimed = False
        self._task: asyncio.Task[None] | None = None

    # ---- life

    async def claim(self) -> None:
        """Connect and take the broker id.

        Raises:
            RegistrationFailed: ZooKeeper cannot be reached, refuses, or another broker has the id.
        """
        timeout_ms = self._config.connection_timeout_ms
        self._client.start()
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self._connected.wait()
        except TimeoutError:
            raise RegistrationFailed(
                f"ZooKeeper at {self.address.hosts} cannot be reached within {timeout_ms} ms "
                "(zk.zkConnectionTimeoutMs); check zk.zkConnect, or set zk.zkEnable=false to run without ZooKeeper"
            ) from None
        self._claimed = await self._claim_id()

    async def _claim_id(self) -> bool:
        """Take the broker id, or wait for it; false: an earlier life of this broker has it, ``publish`` takes it."""
        patience_s = self._config.session_timeout_ms / 1000 * 1.5 + 5
        end_s = self._loop.time() + patience_s
        waiting = False
        while (problem := await self._try_claim()) is not None:
            if self._is_own(problem):
                self._stand(Standing.WAITING, OWN_SESSION)
                return False
            if self._loop.time() >= end_s:
                raise RegistrationFailed(self._taken(problem, patience_s))
            if not waiting:
                waiting = True
                fields = {"reason": _holder(problem), "wait_s_max": patience_s}
                _LOG.warning("waiting for the broker id, it is still registered", extra={"fields": fields})
            await asyncio.sleep(CLAIM_PAUSE_S)
        return True

    def _is_own(self, problem: Node | ZooKeeperAway) -> bool:
        return isinstance(problem, Node) and problem.text == self._wanted().address

    async def _try_claim(self) -> Node | ZooKeeperAway | None:
        nodes = self._wanted()
        try:
            return await self._work(lambda: self._tree.claim(nodes))
        except ZooKeeperAway as error:
            return error
        except ZooKeeperRefused as error:
            raise RegistrationFailed(str(error)) from error

    async def publish(self) -> None:
        """Register the topics, and keep everything registered from now on; ZooKeeper may come and go."""
        await self._match()
        self._task = self._loop.create_task(self._keep(), name="ZooKeeper registration")

    def refresh(self) -> None:
        """Take note that topics or the configuration are others now."""
        self._due.set()

    async def withdraw(self) -> None:
        """Take the nodes away, and give clients zk.zkSyncTimeMs to notice while they are still served."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        claimed, self._claimed = self._claimed, False
        if not claimed or not self._connected.is_set():
            return
        nodes = self._wanted()
        try:
            await self._work(lambda: self._tree.withdraw(nodes))
        except MetaqError as error:
            fields = {"reason": str(error)}
            _LOG.warning("still in ZooKeeper, which forgets the broker later", extra={"fields": fields})
        else:
            await asyncio.sleep(self._config.sync_time_ms / 1000)

    async def end(self) -> None:
        """End the session, and with it whatever is still registered."""
        await self.withdraw()
        await self._work(self._client.close)
        self._worker.shutdown(wait=False)

    @property
    def registered(self) -> bool:
        """Whether everything is in ZooKeeper as it should be, as far as is known."""
        return self.standing is Standing.REGISTERED

    # ---- keeping it

    async def _keep(self) -> None:
        pause_s = LOOK_S
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._due.wait()
            await self._connected.wait()
            if self._due.is_set():
                await asyncio.sleep(TOGETHER_S)
                self._due.clear()
                await self._match()
            elif self.registered:
                began_s = self._loop.time()
                await self._look()
                pause_s = max(LOOK_S, LOOK_SHARE * (self._loop.time() - began_s))

    async def _look(self) -> None:
        """Have nodes again that somebody deleted or changed."""
        nodes = self._wanted()
        try:
            lost = await self._work(lambda: self._tree.lost(nodes))
        except MetaqError as error:
            self._failed(Standing.AWAY, str(error))
            return
        if lost:
            fields = {"nodes": len(lost), "first": lost[0]}
            _LOG.warning("nodes were deleted or changed by somebody, they are made again", extra={"fields": fields})
            self._afresh = True
            await self._match()

    async def _match(self) -> None:
        """Have the nodes that are wanted; what goes wrong is noted, and tried again."""
        afresh, self._afresh = self._afresh, False
        nodes = self._wanted()
        try:
            holder = await self._work(lambda: self._tree.match(nodes, afresh=afresh))
        except ZooKeeperAway as error:
            self._failed(Standing.AWAY, str(error))
        except ZooKeeperRefused as error:
            self._failed(Standing.REFUSED, str(error))
        else:
            if holder is None:
                self._claimed = True
                self._stand(Standing.REGISTERED)
            elif self._is_own(holder):
                self._failed(Standing.WAITING, OWN_SESSION)
            else:
                self._failed(Standing.REFUSED, f"the broker id is registered by {_holder(holder)}")

    def _failed(self, standing: Standing, reason: str) -> None:
        self._stand(standing, reason)
        self._afresh = True
        self._loop.call_later(AGAIN_S, self._due.set)

    def _stand(self, standing: Standing, reason: str = "") -> None:
        """Remember how the broker stands; say so when that is news."""
        if standing is not self.standing:
            if standing is Standing.REGISTERED:
                _LOG.info("registered in ZooKeeper", extra={"fields": {"zookeeper": self.address}})
            elif standing is Standing.WAITING:
                _LOG.warning("waiting for the broker id, clients are served", extra={"fields": {"reason": reason}})
            elif standing is Standing.AWAY:
                fields = {"zookeeper": self.address, "reason": reason}
                _LOG.warning(
                    "ZooKeeper is away; serving goes on, it is registered again later", extra={"fields": fields}
                )
            else:
                _LOG.error("not registered in ZooKeeper, serving goes on", extra={"fields": {"reason": reason}})
        self.standing, self.reason = standing, reason

    # ---- threads

    def _tell_state_from_thread(self, state: SessionState) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._state_changed, state)

    def _state_changed(self, state: SessionState) -> None:
        if state is SessionState.CONNECTED:
            self._afresh = True
            self._connected.set()
            self._due.set()
            return
        self._connected.clear()
        if self._task is not None and not self._task.done():
            lost = "the session expired" if state is SessionState.LOST else "the connection was lost"
            self._stand(Standing.AWAY, lost)

    async def _work(self, call: Callable[[], _T]) -> _T:
        """Run ``call`` in the worker thread."""
        return await self._loop.run_in_executor(self._worker, call)

    def _taken(self, problem: Node | ZooKeeperAway, patience_s: float) -> str:
        if isinstance(problem, ZooKeeperAway):
            return str(problem)
        registrant = self._wanted().registrant
        place = f"broker id {registrant.broker_id}"
        if registrant.slave is not None:
            place = f"slave id {registrant.slave} of {place}"
        return (
            f"{place} is taken: {_holder(problem)}, is registered in ZooKeeper at "
            f"{self.address} and was still there after {patience_s:g} s. Every broker needs an id of its own"
        )


def _holder(problem: Node | ZooKeeperAway) -> str:
    return f"another broker, {problem.text}" if isinstance(problem, Node) else str(problem)
