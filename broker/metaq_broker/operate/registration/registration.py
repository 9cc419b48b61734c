"""Keeps a broker registered in ZooKeeper; the event loop never waits for ZooKeeper. ::

    claim    before the first client: connect, take the broker id         fails the start if another broker has it
    publish  when clients are served: the topics, then the ready line
    keep     changed topics, a reload, a new session after an expiry; retries while ZooKeeper is away
    withdraw delete the nodes, give clients time to notice; then stop serving

The ephemeral node of the broker id is a lock: two brokers with the same id cannot both have it. After a kill -9,
ZooKeeper keeps the node until the dead session expires. If it is this broker's own earlier node, by its address and by
the session that the data folder names, clients are served meanwhile, and the broker registers when the node is gone.
Otherwise the start waits for that long; if the node is still there, another broker is running.

If others delete or change this broker's nodes, they are restored: the nodes are watched, and compared regularly.

State belongs to the loop. Calls to ZooKeeper run one after the other in a worker thread, on values made on the loop;
events from the client's threads are passed on with ``call_soon_threadsafe``.

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

from metaq.discovery.zk_client import Node, SessionState, ZooKeeperClient
from metaq.errors import MetaqError, ZooKeeperAway, ZooKeeperChanged, ZooKeeperRefused
from metaq_broker.background import begin_work, stop_work
from metaq_broker.operate.config.sections import ZooKeeperConfig
from metaq_broker.operate.registration.own_session import OwnSession
from metaq_broker.operate.registration.tree import BrokerTree
from metaq_broker.operate.registration.wanted import BrokerNodes

_LOG: Final = logging.getLogger(__name__)

ANSWER_S_MAX: Final = 10.0
"""Longest wait for ZooKeeper's answer to one call, whatever ``zk.zkConnectionTimeoutMs`` is."""

CLAIM_PAUSE_S: Final = 0.2
"""Seconds between two checks whether the broker id is free."""

CHECK_S: Final = 10.0
"""Seconds between two comparisons of all nodes; normally, changes are noticed at once."""

CHECK_SHARE: Final = 50
"""A comparison is followed by a pause of at least this many times its duration."""

LOOK_S_MAX: Final = 3.0
"""Longest wait for ZooKeeper when an operator asks for the state."""

AGAIN_S: Final = 2.0
"""Seconds between two attempts after errors other than a lost connection."""

TOGETHER_S: Final = 0.05
"""Changes of topics and nodes within this time are handled together."""

_T = TypeVar("_T")


class RegistrationFailed(MetaqError):
    """The broker cannot be registered at its start; the text says why and what to do."""


class RegistrationState(enum.Enum):
    """The state of the registration. The value is the word for operators."""

    STARTING = "starting"
    WAITING = "waiting"
    REGISTERED = "registered"
    INCOMPLETE = "incomplete"
    AWAY = "away"
    REFUSED = "refused"
    WITHDRAWN = "withdrawn"


class Registration:
    """``wanted`` returns the current nodes; it is called on the loop."""

    def __init__(
        self,
        config: ZooKeeperConfig,
        wanted: Callable[[], BrokerNodes],
        session: OwnSession,
        *,
        takes_over: bool = False,
    ) -> None:
        """``takes_over``: this broker was elected, so the nodes of its predecessor are replaced, once."""
        self.address = address = config.address
        self.state, self.reason = RegistrationState.STARTING, ""
        self._config, self._wanted = config, wanted
        self._loop = asyncio.get_running_loop()
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="zookeeper")
        timeout_s = min(config.connection_timeout_ms / 1000, ANSWER_S_MAX)
        self._client = ZooKeeperClient(
            address.hosts,
            config.session_timeout_ms / 1000,
            timeout_s,
            self._pass_state_on,
            self._note_change_from_thread,
        )
        self._tree, self._session = BrokerTree(self._client, takes_over=takes_over), session
        self.gives_way = False
        """Whether another broker has been elected in place of this one: then clients need no time to notice."""
        self._earlier_session = session.read()
        self._connected, self._due = asyncio.Event(), asyncio.Event()
        self._afresh = True
        self._check_s, self._check_all = CHECK_S, False
        self._claimed = False
        self._task: asyncio.Task[None] | None = None

    # ---- start and stop

    async def claim(self) -> None:
        """Connect and take the broker id; if this broker's own earlier session has it, register later.

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
        await self._claim_id()
        self._claimed = True

    async def _claim_id(self) -> None:
        patience_s = self._config.session_timeout_ms / 1000 * 1.5 + 5
        end_s = self._loop.time() + patience_s
        waiting = False
        while (problem := await self._try_claim()) is not None:
            if self._is_earlier(problem) and await self._announced():
                known: dict[str, object] = {"zookeeper": self.address}
                _LOG.warning(
                    "waiting for the broker id, clients are served: an earlier run has it", extra={"fields": known}
                )
                return
            if self._loop.time() >= end_s:
                raise RegistrationFailed(self._taken(problem, patience_s))
            if not waiting:
                waiting = True
                fields = {"reason": _holder(problem), "wait_s_max": patience_s}
                _LOG.warning("waiting for the broker id, it is still registered", extra={"fields": fields})
            await asyncio.sleep(CLAIM_PAUSE_S)

    async def _announced(self) -> bool:
        """Announce the topics of this run before clients are served without the broker id; return whether that was
        possible.
        """
        try:
            await self.announce(self._wanted())
        except ZooKeeperAway:
            return False
        except ZooKeeperRefused as error:
            raise RegistrationFailed(str(error)) from error
        return True

    async def announce(self, nodes: BrokerNodes) -> None:
        """Record in ZooKeeper which topics the broker may have, before a new configuration takes effect.

        Raises:
            ZooKeeperAway, ZooKeeperRefused: They are not recorded.
        """
        if self.state not in (
            RegistrationState.REFUSED,
            RegistrationState.WITHDRAWN,
        ):  # then the nodes are another broker's, or deleted
            await self._work(lambda: self._tree.announce(nodes))

    async def _try_claim(self) -> Node | ZooKeeperAway | ZooKeeperChanged | None:
        nodes = self._wanted()
        try:
            return await self._work(lambda: self._claim(nodes))
        except (ZooKeeperAway, ZooKeeperChanged) as error:  # changed: a broker that leaves has deleted a node meanwhile
            return error
        except ZooKeeperRefused as error:
            raise RegistrationFailed(str(error)) from error

    def _claim(self, nodes: BrokerNodes) -> Node | None:
        holder = self._tree.claim(nodes)
        if holder is None:
            self._session.write(self._client.session_id)
        return holder

    def _is_earlier(self, problem: object) -> bool:
        """Return whether a node was created by this broker before a crash: with its data folder and its address."""
        if not isinstance(problem, Node) or problem.owner != self._earlier_session:
            return False
        return problem.text == self._wanted().address

    async def publish(self) -> None:
        """Register the topics, and keep everything registered from now on, through losses of the connection."""
        await self._match()
        self._task = begin_work(self._keep(), "ZooKeeper registration")

    def refresh(self) -> None:
        """Register again: topics or the configuration have changed."""
        self._due.set()

    async def unregister(self) -> None:
        """Delete the nodes, and give clients ``zk.zkSyncTimeMs`` to notice while they are still served."""
        await stop_work(self._task)
        claimed, self._claimed = self._claimed, False
        self._stand(RegistrationState.WITHDRAWN)
        if not claimed or not self._connected.is_set():
            return
        nodes = self._wanted()
        try:
            await self._work(lambda: self._tree.unregister(nodes))
        except MetaqError as error:
            fields = {"reason": str(error)}
            _LOG.warning("still in ZooKeeper, which forgets the broker later", extra={"fields": fields})
        else:
            if not self.gives_way:
                await asyncio.sleep(self._config.sync_time_ms / 1000)

    async def end(self) -> None:
        """End the session, which deletes the remaining nodes."""
        await self.unregister()
        await self._work(self._client.close)
        self._worker.shutdown(wait=False)

    @property
    def registered(self) -> bool:
        """Whether all nodes are as they should be, as far as is known."""
        return self.state is RegistrationState.REGISTERED

    # ---- keeping it

    async def look(self) -> tuple[RegistrationState, str]:
        """Return the state of the registration, read from ZooKeeper now, and its reason."""
        if not (self._claimed and self._connected.is_set()):
            return self.state, self.reason
        nodes = self._wanted()
        try:
            async with asyncio.timeout(LOOK_S_MAX):
                differing = await self._work(lambda: self._tree.differing(nodes))
        except TimeoutError:
            return RegistrationState.AWAY, f"no answer within {LOOK_S_MAX:g} s"
        except ZooKeeperAway as error:
            return RegistrationState.AWAY, str(error)
        except ZooKeeperRefused as error:
            return RegistrationState.REFUSED, str(error)
        if not differing:
            return RegistrationState.REGISTERED, ""
        if self.state in (RegistrationState.WAITING, RegistrationState.REFUSED):
            return self.state, self.reason
        self._check_all = True
        self._due.set()
        return RegistrationState.INCOMPLETE, _differing_text(differing, len(nodes.texts()))

    async def _keep(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self._check_s):
                    await self._due.wait()
            except TimeoutError:
                self._check_all = True
            await self._connected.wait()
            await asyncio.sleep(TOGETHER_S)
            self._due.clear()
            await self._match()

    async def _match(self) -> None:
        """Create the wanted nodes; errors are recorded, and the next attempt is scheduled."""
        afresh, self._afresh = self._afresh, False
        check_all, self._check_all = self._check_all, False
        nodes, began_s = self._wanted(), self._loop.time()
        try:
            holder = await self._work(lambda: self._bring_about(nodes, afresh, check_all))
        except ZooKeeperAway as error:
            self._failed(RegistrationState.AWAY, str(error))
        except ZooKeeperChanged as error:
            self._failed(
                RegistrationState.INCOMPLETE, f"node {error.path} was deleted while others were made", TOGETHER_S
            )
        except ZooKeeperRefused as error:
            self._failed(RegistrationState.REFUSED, str(error))
        else:
            if holder is None:
                self._stand(RegistrationState.REGISTERED)
            elif self._is_earlier(holder):
                reason = "ZooKeeper has not given up the session of this broker's earlier run yet"
                self._failed(RegistrationState.WAITING, reason, CLAIM_PAUSE_S)
            else:
                self._failed(RegistrationState.REFUSED, f"the broker id is registered by {_holder(holder)}")
        self._check_s = max(CHECK_S, (self._loop.time() - began_s) * CHECK_SHARE)

    def _bring_about(self, nodes: BrokerNodes, afresh: bool, check_all: bool) -> Node | None:
        """Create and watch the nodes; return one that another session has, if any (blocking)."""
        restored = [] if afresh else self._tree.check(nodes, all_of_them=check_all)
        holder = self._tree.match(nodes, afresh=afresh)
        if holder is None:
            self._session.write(self._client.session_id)
            if self._tree.check(nodes, all_of_them=False):  # they are watched now; changed before: once more
                self._change_from_thread()
        if restored and self.state is RegistrationState.REGISTERED:
            reason = _differing_text(restored, len(nodes.texts()))
            self._warn_of_changes(reason)
        return holder

    @staticmethod
    def _warn_of_changes(reason: str) -> None:
        _LOG.warning(
            "nodes were deleted or changed by others, they are created again", extra={"fields": {"reason": reason}}
        )

    def _failed(self, state: RegistrationState, reason: str, pause_s: float = AGAIN_S) -> None:
        self._stand(state, reason)
        self._afresh = True
        self._loop.call_later(pause_s, self._due.set)

    def _stand(self, state: RegistrationState, reason: str = "") -> None:
        """Record the state; log it if it has changed."""
        if state is not self.state:
            if state is RegistrationState.REGISTERED:
                _LOG.info("registered in ZooKeeper", extra={"fields": {"zookeeper": self.address}})
            elif state is RegistrationState.AWAY:
                fields = {"zookeeper": self.address, "reason": reason}
                _LOG.warning(
                    "ZooKeeper is away; clients are still served, the broker registers again later",
                    extra={"fields": fields},
                )
            elif state is RegistrationState.INCOMPLETE:
                self._warn_of_changes(reason)
            elif state is RegistrationState.REFUSED:
                _LOG.error(
                    "not registered in ZooKeeper, clients are still served", extra={"fields": {"reason": reason}}
                )
        self.state, self.reason = state, reason

    # ---- threads

    def _pass_state_on(self, state: SessionState) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._state_changed, state)

    def _note_change_from_thread(self, path: str) -> None:
        self._tree.note_change(path)
        self._change_from_thread()

    def _change_from_thread(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._due.set)

    def _state_changed(self, state: SessionState) -> None:
        if state is SessionState.CONNECTED:
            self._afresh = True
            self._connected.set()
            self._due.set()
            return
        self._connected.clear()
        if self._task is not None and not self._task.done():
            lost = "the session expired" if state is SessionState.LOST else "the connection was lost"
            self._stand(RegistrationState.AWAY, lost)

    async def _work(self, call: Callable[[], _T]) -> _T:
        return await self._loop.run_in_executor(self._worker, call)

    def _taken(self, problem: Node | ZooKeeperAway | ZooKeeperChanged, patience_s: float) -> str:
        if not isinstance(problem, Node):
            return str(problem)
        registrant = self._wanted().registrant
        place = f"broker id {registrant.broker_id}"
        if registrant.slave is not None:
            place = f"slave id {registrant.slave} of {place}"
        return (
            f"{place} is taken: {_holder(problem)}, is registered in ZooKeeper at "
            f"{self.address} and was still there after {patience_s:g} s. Every broker needs an id of its own"
        )


def _holder(problem: Node | ZooKeeperAway | ZooKeeperChanged) -> str:
    return f"another broker, {problem.text}" if isinstance(problem, Node) else str(problem)


def _differing_text(paths: list[str], total: int) -> str:
    return f"{len(paths)} of {total} nodes are missing, or not as this broker makes them: first {paths[0]}"
