"""The settings of consumer groups, durable. A group that was not created explicitly gets the defaults on first use."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

from metaq_broker.log.state.state_table import OnDurable, StateTable
from metaq_broker.rocketmq.groups.limits import DEFAULT_LIMITS, GroupLimitReached, GroupLimits, check_group, check_name

PREFIX: Final = "group/"


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """``consume_enable``: it may pull. ``retry_queues``: of its retry topic. ``retry_max``: attempts of a message.

    ``slow_broker_id``: the broker suggested to it when it is far behind. ``broker_id``: the broker suggested otherwise.
    """

    consume_enable: bool = True
    consume_from_min: bool = True
    consume_broadcast: bool = True
    retry_queues: int = 1
    retry_max: int = 16
    broker_id: int = 0
    slow_broker_id: int = 1
    notify_changes: bool = True


_NAMES: Final = tuple(field.name for field in fields(GroupSettings))


class Groups:
    """The settings by group. With ``create_unknown`` a group is created on first use.

    ``built_in`` are groups that always exist; they can be changed.
    """

    def __init__(
        self,
        table: StateTable,
        limits: GroupLimits = DEFAULT_LIMITS,
        *,
        create_unknown: bool = True,
        built_in: Iterable[str] = (),
    ) -> None:
        self.create_unknown = create_unknown
        self.changes = 0
        """How often something was changed since the start."""
        self.when_full: Callable[[], None] = lambda: None
        """Called when there are too many; it may ``delete`` some."""
        self._table = table
        self._limits = limits
        self._built_in = {name: GroupSettings() for name in built_in}
        self._groups = {key.removeprefix(PREFIX): _read(value) for key, value in table.items(PREFIX)}

    def get(self, group: str) -> GroupSettings | None:
        """Return the settings of a group, ``None`` if it is not known."""
        return self._groups.get(group) or self._built_in.get(group)

    def find(self, group: str) -> GroupSettings | None:
        """Return the settings of a group, made now if it is not known; ``None`` where groups must be made before.

        Raises:
            GroupLimitReached, NameRefused, StateFull: There are too many groups, or it cannot have this name.
        """
        settings = self.get(group)
        if settings is None and self.create_unknown:
            settings = GroupSettings()
            self.put(group, settings)
        return settings

    def all(self) -> Mapping[str, GroupSettings]:
        return {**self._built_in, **self._groups}

    def unchanged(self) -> list[str]:
        """Return the groups with default settings."""
        return [group for group, settings in self._groups.items() if settings == GroupSettings()]

    def check(self, group: str) -> None:
        """Check that a group may have this name. Raises ``NameRefused``."""
        check_group(group)

    def put(self, group: str, settings: GroupSettings, on_durable: OnDurable | None = None) -> None:
        """Create or change a group. Raises as ``find``."""
        self.check(group)
        self._check_count([group])
        self._table.put(PREFIX + group, _written(settings), on_durable, is_of_clients=True)
        self._groups[group] = settings
        self.changes += 1

    def check_all(self, groups: Mapping[str, GroupSettings]) -> None:
        """Check that these groups can be created or changed, every one of them. Raises as ``put``."""
        for group in groups:
            self.check(group)
        self._check_count(groups)
        entries = {PREFIX + group: _written(settings) for group, settings in groups.items()}
        self._table.check_all(entries, is_of_clients=True)

    def _check_count(self, groups: Collection[str]) -> None:
        if self._are_too_many(groups):
            self.when_full()
        if self._are_too_many(groups):
            raise GroupLimitReached("groups", self._limits.groups_max)

    def _are_too_many(self, groups: Collection[str]) -> bool:
        new = sum(group not in self._groups for group in groups)
        return new > 0 and len(self._groups) + new > self._limits.groups_max

    def delete(self, group: str, on_durable: OnDurable | None = None) -> None:
        """Delete a group, if it exists. It is created again on its next use.

        Raises:
            NameRefused: It is not a valid group name.
        """
        check_name(group)
        if self._groups.pop(group, None) is not None:
            self.changes += 1
        self._table.delete(PREFIX + group, on_durable)


def _written(settings: GroupSettings) -> bytes:
    return json.dumps(asdict(settings)).encode()


def _read(value: bytes) -> GroupSettings:
    found: dict[str, Any] = json.loads(value)
    return GroupSettings(**{name: found[name] for name in _NAMES if name in found})
