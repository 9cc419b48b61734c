"""Administrators ask about accounts, as of 4.x (50 to 54): they are shown without secrets, and changed in their file.

The file is the operator's, with comments, and on both machines of a pair: it is not written by the broker.
"""

from __future__ import annotations

import json
from typing import Final

from metaq.protocols.remoting.bodies.administration import AclConfig, PlainAccessConfig
from metaq.protocols.remoting.bodies.registration import DataVersion
from metaq.protocols.remoting.command import RemotingCommand
from metaq.protocols.remoting.headers.administration import (
    DeleteAclConfig,
    GetBrokerClusterAclConfig,
    GetBrokerClusterAclInfo,
    GetBrokerClusterAclInfoResponse,
    UpdateAndCreateAclConfig,
    UpdateGlobalWhiteAddrsConfig,
)
from metaq_broker.rocketmq.dispatcher import Dispatcher
from metaq_broker.rocketmq.registration import BrokerIdentity
from metaq_broker.rocketmq.session import Call
from metaq_broker.serve.accounts.account_list import Account, Permission
from metaq_broker.serve.accounts.accounts_file import AccountsFile

CHANGED_IN_FILE: Final = "accounts are changed in the file that aclFile names; the broker reads it again within seconds"

_REFUSALS: Final[dict[int, int]] = {
    UpdateAndCreateAclConfig.CODE: 209,
    DeleteAclConfig.CODE: 210,
    UpdateGlobalWhiteAddrsConfig.CODE: 211,
}
"""The codes with which 4.x refuses these requests. 5.x, which has not these requests, means other things by them."""


class AccountRequests:
    """``accounts`` is the file, ``None`` where nobody needs an account; ``who`` is this broker."""

    def __init__(self, accounts: AccountsFile | None, who: BrokerIdentity) -> None:
        self._accounts, self._who = accounts, who

    def mount(self, dispatcher: Dispatcher) -> None:
        """Register the handlers."""
        dispatcher.add(_REFUSALS, self._refuse)
        dispatcher.add([GetBrokerClusterAclInfo.CODE], self._version)
        dispatcher.add([GetBrokerClusterAclConfig.CODE], self._show)

    def _refuse(self, call: Call) -> RemotingCommand:
        code = _REFUSALS[call.request.code]
        remark = "this broker has no accounts: aclEnable is false" if self._accounts is None else CHANGED_IN_FILE
        return call.request.reply(code, remark=remark)

    def _version(self, call: Call) -> RemotingCommand:
        who, accounts = self._who, self._accounts
        version = DataVersion(timestamp=0 if accounts is None else accounts.changed_ms).to_json().decode()
        files = {} if accounts is None else {str(accounts.path): json.loads(version)}
        header = GetBrokerClusterAclInfoResponse(
            broker_name=who.name,
            broker_addr=str(who.address),
            cluster_name=who.cluster,
            version=version,
            all_acl_file_version=json.dumps(files),
        )
        return call.request.reply(ext=header.ext())

    def _show(self, call: Call) -> RemotingCommand:
        if self._accounts is None:
            return call.request.reply(body=AclConfig().to_json())
        found = self._accounts.accounts
        body = AclConfig(
            global_white_addrs=tuple(each.text for each in found.trusted_addresses),
            plain_access_configs=tuple(_shown(each) for _, each in sorted(found.accounts.items())),
        )
        return call.request.reply(body=body.to_json())


def _shown(account: Account) -> PlainAccessConfig:
    """Return an account without its secret."""
    return PlainAccessConfig(
        access_key=account.access_key,
        white_remote_address=",".join(each.text for each in account.trusted_addresses) or None,
        admin=account.is_admin,
        default_topic_perm=_words(account.default_topic),
        default_group_perm=_words(account.default_group),
        topic_perms=tuple(f"{name}={_words(each)}" for name, each in sorted(account.topics.items())),
        group_perms=tuple(f"{name}={_words(each)}" for name, each in sorted(account.groups.items())),
    )


def _words(permission: Permission) -> str:
    return "|".join(each.name or "" for each in (Permission.DENY, Permission.PUB, Permission.SUB) if each in permission)
