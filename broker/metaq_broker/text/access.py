"""Decides which commands a client may use, by allow lists and accounts and the names in its certificate.

* to publish to a topic (``put``, ``mput``, also inside of transactions, ``sync``, ``copy``): ``allowPublish``; for
  ``pair``, to all topics
* to subscribe to a topic (``get``, ``fget``, ``fetch``, ``messageType``, ``offset``, ``group``): ``allowSubscribe``; of
  all topics where messages of all wait
* transactions (``transaction``, ``decide``): who may publish to at least one topic; to end a branch, to decide about a
  query or to let it be forgotten, to all of its topics
* ``stats``, lists of groups: who may publish or subscribe to at least one topic

``version`` and ``quit`` are always allowed. The lists of the configuration in effect at the command apply.

If clients need accounts, an account belongs to a client if its access key is a name in the client's certificate, or if
it lists the client's address. Publishing needs ``PUB``, subscribing ``SUB``; for topics that are hidden from users, the
account must name them. ``group`` needs ``SUB`` on the group, too, as RocketMQ's clients do for theirs. Any account
allows ``stats``, the names of groups, and transactions.

Source: docs/operations.md, "Who may do what".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from metaq.protocols.text.commands import (
    Copy,
    Decide,
    Fetch,
    Get,
    GetFiltered,
    GetOffset,
    GroupRequest,
    MemberMessage,
    Oversized,
    Put,
    PutBatch,
    ReportTypes,
    Stats,
    Sync,
    TransactionCommand,
)
from metaq.statuses import FORBIDDEN
from metaq_broker.operate.config.configuration import BrokerConfig
from metaq_broker.serve.accounts.account_list import Account, AccountList, Permission, is_trusted_by
from metaq_broker.text.refusals import Refused

_NAMES_SHOWN: Final = 5
_WITH_ANY_ACCOUNT: Final = (TransactionCommand, Decide, Stats, GroupRequest, Oversized)


class Access:
    """What one client may do. ``names`` are from its certificate; none if it showed none.

    ``accounts`` returns the client's current accounts; ``None`` if clients need none.
    """

    def __init__(
        self,
        names: frozenset[str],
        config: Callable[[], BrokerConfig],
        peer: str = "",
        accounts: Callable[[], AccountList | None] = lambda: None,
    ) -> None:
        self._names = names
        self._config = config
        self._address = peer.rpartition(":")[0].strip("[]")
        self._accounts = accounts
        self._known: AccountList | None = None
        self._own: Sequence[Account] | None = None

    def refusal(self, command: object) -> Refused | None:
        """Return why a command is refused; ``None`` if it is allowed."""
        if isinstance(command, _WITH_ANY_ACCOUNT) and self._needs_account() and not self._own:
            return self._forbidden("do this without an account", "aclFile")
        match command:
            case Put(topic=topic) | PutBatch(topic=topic) | Sync(topic=topic) | Copy(topic=topic):
                return self.publish(topic)
            case Oversized(word="put" | "mput", topic=topic):
                return self.publish(topic)
            case Get(topic=topic) | GetFiltered(topic=topic) | GetOffset(topic=topic):
                return self.subscribe(topic)
            case Fetch(topic=topic) | ReportTypes(topic=topic) | Oversized(word="messageType", topic=topic):
                return self.subscribe(topic)
            case TransactionCommand() | Decide() | Oversized():
                return None if self._publishes_anywhere() else self._forbidden("use transactions", "allowPublish")
            case MemberMessage():
                return self.publish_all(self._config().topics)
            case Stats() | GroupRequest():
                if self._publishes_anywhere() or self._subscribes_anywhere():
                    return None
                return self._forbidden("look at the broker", "allowPublish, allowSubscribe")
        return None

    def publish_all(self, topics: Iterable[str]) -> Refused | None:
        """Return why this client may not write to all of ``topics``; ``None`` if it may."""
        return next((refused for topic in sorted(topics) if (refused := self.publish(topic)) is not None), None)

    def may_publish_all(self, topics: Iterable[str]) -> bool:
        return self.publish_all(topics) is None

    def publish(self, topic: str) -> Refused | None:
        """Return why this client may not put messages to ``topic``; ``None`` if it may."""
        if not self._is_among(self._config().topic_settings(topic).allow_publish):
            return self._forbidden(f"publish to topic {topic}", "allowPublish")
        if not self._has_permission(topic, Permission.PUB):
            return self._forbidden(f"publish to topic {topic}", "aclFile")
        return None

    def subscribe(self, topic: str) -> Refused | None:
        """Return why this client may not read from ``topic``; ``None`` if it may."""
        if not all(map(self._is_among, self._config().reader_lists(topic))):
            return self._forbidden(f"subscribe to topic {topic}", "allowSubscribe")
        if not self._has_permission(topic, Permission.SUB):
            return self._forbidden(f"subscribe to topic {topic}", "aclFile")
        return None

    def use_group(self, group: str) -> Refused | None:
        """Return why this client may not be in ``group``, or see and change what belongs to it; ``None`` if it may."""
        if self._needs_account() and not any(each.may_use_group(group) for each in self._own or ()):
            return self._forbidden(f"use group {group}", "aclFile")
        return None

    def _needs_account(self) -> bool:
        """Update the client's accounts; return whether it needs one."""
        accounts = self._accounts()
        if accounts is not self._known:
            self._known, self._own = accounts, None
        if accounts is None or accounts.is_trusted(self._address):
            return False
        if self._own is None:
            own = (accounts.accounts.get(name) for name in self._names)
            trusting = (each for each in accounts.accounts.values() if is_trusted_by(each, self._address))
            self._own = (*(each for each in own if each is not None), *trusting)
        return True

    def _has_permission(self, topic: str, needed: Permission) -> bool:
        if not self._needs_account():
            return True
        hidden = self._config().hides(topic)
        return any(each.may_use_topic(topic, needed) and (not hidden or each.names(topic)) for each in self._own or ())

    def _publishes_anywhere(self) -> bool:
        config = self._config()
        lists = (config.system.allow_publish, *(topic.allow_publish for topic in config.topics.values()))
        return any(map(self._is_among, lists))

    def _subscribes_anywhere(self) -> bool:
        config = self._config()
        lists = (config.system.allow_subscribe, *(topic.allow_subscribe for topic in config.topics.values()))
        return any(map(self._is_among, lists))

    def _is_among(self, allowed: Iterable[str]) -> bool:
        return not allowed or not self._names.isdisjoint(allowed)

    def _forbidden(self, action: str, keys: str) -> Refused:
        shown = ", ".join(sorted(self._names)[:_NAMES_SHOWN])
        who = f"client {shown}" if shown else "a client without certificate"
        return Refused(FORBIDDEN, f"{who} may not {action} ({keys})")
