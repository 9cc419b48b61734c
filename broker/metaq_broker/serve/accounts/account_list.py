"""Accounts and their permissions, with the rules of RocketMQ's ``plain_acl.yml``.

An account has permissions for topics and for groups by name, and a default for all others. ``DENY`` overrides
everything beside it. An administrator without listed names may do everything.

Some addresses need no account at all; addresses in an account's own list need no signature.
"""

from __future__ import annotations

import contextlib
import ipaddress
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Flag
from typing import Final

from metaq_broker.serve.accounts.simple_yaml import Value, parse_yaml


class Permission(Flag):
    """The permissions. A request may need any one of several."""

    NONE = 0
    DENY = 1
    PUB = 4
    SUB = 8


ANY: Final = Permission.PUB | Permission.SUB

SECRET_CHARACTERS_MIN: Final = 7
ACCOUNTS_MAX: Final = 100_000

_PERMISSIONS: Final = {"DENY": Permission.DENY, "PUB": Permission.PUB, "SUB": Permission.SUB, "ANY": ANY}
_FILE_KEYS: Final = frozenset({"globalWhiteRemoteAddresses", "accounts"})
_IGNORED_KEYS: Final = frozenset({"dataVersion"})
_ACCOUNT_KEYS: Final = frozenset(
    {"accessKey", "secretKey", "whiteRemoteAddress", "admin", "defaultTopicPerm", "defaultGroupPerm"}
) | {"topicPerms", "groupPerms"}


class AccountsInvalid(ValueError):
    """A file of accounts has an invalid value; the text names it, without secrets."""


class AddressPattern:
    """A pattern of addresses: ``*``, one address, a network (``10.0.0.0/8``), or an address with variable parts.

    A part between dots may be ``*``, a range ``10-20``, or a choice ``{1,5,9}``.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self._network: ipaddress.IPv4Network | ipaddress.IPv6Network | None = None
        self._parts: list[frozenset[int] | range] = []
        self._everything = text in ("*", "*.*.*.*")
        if self._everything:
            return
        try:
            self._network = ipaddress.ip_network(text)
        except ValueError:
            parts = text.split(".")
            if len(parts) != 4:
                allowed = "expected an address such as 10.1.2.3, 10.1.*.* or *"
                raise AccountsInvalid(f"address {text[:80]!r}; {allowed}") from None
            self._parts = [_part(text, part) for part in parts]

    def matches(self, address: ipaddress.IPv4Address | ipaddress.IPv6Address | None) -> bool:
        """Return whether an address matches; ``None`` is an unknown address."""
        if self._everything:
            return True
        if self._network is not None:
            return address is not None and address in self._network
        if not isinstance(address, ipaddress.IPv4Address):
            return False
        return all(number in part for number, part in zip(address.packed, self._parts, strict=True))


def _part(text: str, part: str) -> frozenset[int] | range:
    if part == "*":
        return range(256)
    if re.fullmatch(r"\d{1,3}", part):
        return frozenset({int(part)})
    if re.fullmatch(r"\d{1,3}-\d{1,3}", part):
        low, high = map(int, part.split("-"))
        return range(low, high + 1)
    if re.fullmatch(r"\{\d{1,3}(,\d{1,3})*\}", part):
        return frozenset(map(int, part.strip("{}").split(",")))
    raise AccountsInvalid(f"address {text[:80]!r}; expected an address such as 10.1.2.3, 10.1.*.*, 10.1.2-5.* or *")


@dataclass(frozen=True, slots=True)
class Account:
    """One account. The secret is not in the ``repr``."""

    access_key: str
    secret_key: str = field(repr=False)
    is_admin: bool = False
    default_topic: Permission = Permission.DENY
    default_group: Permission = Permission.DENY
    topics: Mapping[str, Permission] = field(default_factory=dict)
    groups: Mapping[str, Permission] = field(default_factory=dict)
    trusted_addresses: tuple[AddressPattern, ...] = ()

    def may_use_topic(self, topic: str, needed: Permission) -> bool:
        return self._is_almighty or _suffices(self.topics.get(topic, self.default_topic), needed)

    def names(self, topic: str) -> bool:
        """Return whether the account lists a topic by name, or may do everything; the default does not count."""
        return self._is_almighty or topic in self.topics

    def may_use_group(self, group: str, needed: Permission = Permission.SUB) -> bool:
        return self._is_almighty or _suffices(self.groups.get(group, self.default_group), needed)

    @property
    def _is_almighty(self) -> bool:
        return self.is_admin and not self.topics and not self.groups


@dataclass(frozen=True, slots=True)
class AccountList:
    """All accounts by access key. ``trusted_addresses`` need no account."""

    accounts: Mapping[str, Account] = field(default_factory=dict)
    trusted_addresses: tuple[AddressPattern, ...] = ()

    def is_trusted(self, address: str) -> bool:
        """Return whether a client at this IP address needs no account."""
        return _is_among(address, self.trusted_addresses)


def is_trusted_by(account: Account, address: str) -> bool:
    """Return whether a client at this IP address may use the account without a signature."""
    return _is_among(address, account.trusted_addresses)


def _is_among(address: str, patterns: Iterable[AddressPattern]) -> bool:
    patterns = tuple(patterns)
    if not patterns:
        return False
    parsed: ipaddress.IPv4Address | ipaddress.IPv6Address | None = None
    with contextlib.suppress(ValueError):
        parsed = ipaddress.ip_address(address.split("%")[0])
    if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped is not None:
        parsed = parsed.ipv4_mapped
    return any(pattern.matches(parsed) for pattern in patterns)


def _suffices(owned: Permission, needed: Permission) -> bool:
    return not owned & Permission.DENY and bool(owned & needed)


# ---- the file


def parse_accounts(text: str) -> AccountList:
    """Parse a file of accounts.

    Raises:
        YamlRefused: It is not in the supported part of YAML.
        AccountsInvalid: An unknown key, a wrong value, or a duplicate account.
    """
    content = _mapping(parse_yaml(text), "the file", _FILE_KEYS | _IGNORED_KEYS)
    if _FILE_KEYS.isdisjoint(content):  # for example a file that is being written, or was truncated by a full disk
        raise AccountsInvalid(f"it has neither {' nor '.join(sorted(_FILE_KEYS, reverse=True))}")
    rows = content.get("accounts", [])
    if not isinstance(rows, list):
        raise AccountsInvalid("accounts: expected a list of accounts")
    if len(rows) > ACCOUNTS_MAX:
        raise AccountsInvalid(f"{len(rows)} accounts; expected at most {ACCOUNTS_MAX}")
    accounts: dict[str, Account] = {}
    for row in rows:
        account = _account(row)
        if account.access_key in accounts:
            raise AccountsInvalid(f"account {account.access_key!r} is there twice")
        accounts[account.access_key] = account
    trusted = _texts(content, "globalWhiteRemoteAddresses", "the file")
    return AccountList(accounts, tuple(map(AddressPattern, trusted)))


def _account(row: Value) -> Account:
    values = _mapping(row, "an account", _ACCOUNT_KEYS)
    access_key, secret_key = _text(values, "accessKey", "an account"), ""
    where = f"account {access_key!r}"
    if not access_key:
        raise AccountsInvalid("an account has no accessKey")
    secret_key = _text(values, "secretKey", where)
    if len(secret_key) < SECRET_CHARACTERS_MIN:
        raise AccountsInvalid(f"{where}: its secretKey has fewer than {SECRET_CHARACTERS_MIN} characters")
    admin = _text(values, "admin", where).lower() or "false"
    if admin not in ("true", "false"):
        raise AccountsInvalid(f"{where}: admin {admin[:40]!r}; expected true or false")
    white = _text(values, "whiteRemoteAddress", where)
    return Account(
        access_key,
        secret_key,
        admin == "true",
        _permission(_text(values, "defaultTopicPerm", where) or "DENY", where),
        _permission(_text(values, "defaultGroupPerm", where) or "DENY", where),
        _permissions(values, "topicPerms", where),
        _permissions(values, "groupPerms", where),
        tuple(AddressPattern(each.strip()) for each in re.split(r"[;,](?![^{]*\})", white) if each.strip()),
    )


def _mapping(value: Value, where: str, known: frozenset[str]) -> dict[str, Value]:
    if not isinstance(value, dict):
        raise AccountsInvalid(f"{where}: expected KEY: VALUE, one a line")
    unknown = sorted(value.keys() - known)
    if unknown:
        raise AccountsInvalid(f"{where}: unknown key {unknown[0][:40]!r}; expected {', '.join(sorted(known))}")
    return value


def _text(values: Mapping[str, Value], key: str, where: str) -> str:
    value = values.get(key, "")
    if not isinstance(value, str):
        raise AccountsInvalid(f"{where}: {key} is not one text")
    return value


def _texts(values: Mapping[str, Value], key: str, where: str) -> list[str]:
    value = values.get(key) or []
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise AccountsInvalid(f"{where}: {key} is not a list of texts")
    return [each for each in value if isinstance(each, str)]


def _permissions(values: Mapping[str, Value], key: str, where: str) -> dict[str, Permission]:
    found = {}
    for text in _texts(values, key, where):
        name, equals, permission = (part.strip() for part in text.partition("="))
        if not name or not equals:
            raise AccountsInvalid(f"{where}: {key} {text[:80]!r}; expected NAME=PERMISSION")
        found[name] = _permission(permission, f"{where}: {key} {name!r}")
    return found


def _permission(text: str, where: str) -> Permission:
    result = Permission.NONE
    for word in text.split("|"):
        if word.strip() not in _PERMISSIONS:
            raise AccountsInvalid(f"{where}: permission {word[:40]!r}; expected PUB, SUB, PUB|SUB or DENY")
        result |= _PERMISSIONS[word.strip()]
    return result
