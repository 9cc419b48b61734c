"""The command ``group``: requests about consumer groups become calls of ``KeptGroups``, and their results JSON.

Answers to ``claim`` and ``save`` are sent when everything is on the disk.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from metaq.discovery.zk_layout import GroupOffset
from metaq.errors import MetaqError
from metaq.protocols.text.commands import GroupRequest
from metaq.protocols.text.group_bodies import (
    SESSION_MS_MAX,
    SESSION_MS_MIN,
    GroupBody,
    LocalPartition,
    StoredOffset,
    decode_body,
    encode_body,
    offset_rows,
)
from metaq.statuses import BAD_REQUEST, CONFLICT, FAILED, FORBIDDEN, NOT_FOUND, OK, UNAVAILABLE
from metaq_broker.text.groups.group_state import GroupRefused, IdTaken, KeptGroups, NotMember
from metaq_broker.text.refusals import Refused

Answer = Callable[[int, str], None]
"""Receives the code and the text of the reply, once."""

May = Callable[[str], Refused | None]
"""Returns why the client may not do something with a name."""


class GroupRights(NamedTuple):
    """What a client may do: read a topic, and use a group."""

    subscribe: May
    use_group: May


EVERYTHING: Final = GroupRights(lambda topic: None, lambda group: None)


NAME_CHARS_MAX: Final = 1024
"""Limit on the names of groups, consumers and topics, and on tokens."""

_OFF: Final = "this broker keeps no consumer groups: it has a role in replication"


class GroupCommands:
    """Carries out ``group`` commands on the event loop. ``groups`` is ``None`` at a broker without groups."""

    def __init__(self, groups: KeptGroups | None) -> None:
        self._groups = groups

    def carry_out(self, request: GroupRequest, rights: GroupRights, answer: Answer) -> None:
        """Carry out a request, and call ``answer``, now or when it is durable."""
        groups = self._groups
        if groups is None:
            answer(UNAVAILABLE, _OFF)
            return
        try:
            code, text, waits = self._result(groups, request, rights)
        except IdTaken as error:
            answer(CONFLICT, str(error))
            return
        except NotMember as error:
            answer(NOT_FOUND, str(error))
            return
        except (GroupRefused, MetaqError) as error:  # StateFull
            answer(FAILED, str(error))
            return
        except ValueError as error:
            answer(BAD_REQUEST, str(error))
            return
        if not waits:
            answer(code, text)
            return

        def durable(error: Exception | None) -> None:
            answer(*((code, text) if error is None else (FAILED, str(error))))

        groups.table.when_durable(durable)

    def _result(self, groups: KeptGroups, request: GroupRequest, rights: GroupRights) -> tuple[int, str, bool]:
        """Return code and text, and whether they must wait until all changes are on the disk."""
        name, body = request.group, decode_body(request.body)
        _check(name)
        if request.action != "names" and (refused := rights.use_group(name)) is not None:
            return FORBIDDEN, refused.text, False
        forgotten = {topic for topic, _ in groups.offsets(name)} if request.action == "forget" else set()
        for topic in _topics(request.action, body) | forgotten:
            _check(topic)
            if (refused := rights.subscribe(topic)) is not None:
                return FORBIDDEN, refused.text, False
        match request.action:
            case "join":
                token, topics = _name(body, "token"), body.texts("topics")
                length_s = body.number("session_ms", SESSION_MS_MIN, SESSION_MS_MAX) / 1000
                groups.join(name, token, _name(body, "consumer"), length_s, topics)
                fields: dict[str, object] = {
                    "members": groups.members(name),
                    "generation": groups.generation(name),
                    "owned": groups.owned(name, token),
                }
            case "leave":
                groups.leave(name, _name(body, "token"))
                fields = {}
            case "claim":
                token = _name(body, "token")
                groups.claim(name, token, body.places("partitions"))
                fields = {"owned": groups.owned(name, token)}
            case "release":
                groups.release(name, _name(body, "token"), body.places("partitions"))
                fields = {}
            case "load":
                fields = {"offsets": offset_rows(groups.load(name, body.places("partitions")))}
            case "save":
                fields = {"changed": offset_rows(_save(groups, name, body))}
            case "forget":
                groups.forget(name)
                fields = {}
            case "names":
                fields = {"names": groups.names()}
            case "list":
                fields = {"members": groups.members(name), "offsets": offset_rows(groups.offsets(name))}
            case _:
                raise ValueError(f"group: unknown action {request.action[:40]!r}")
        return OK, encode_body(**fields).decode(), request.action in ("claim", "save", "forget")


def _save(groups: KeptGroups, name: str, body: GroupBody) -> dict[LocalPartition, StoredOffset]:
    offsets, expected = body.offsets("offsets"), body.offsets("expected") if body.has("expected") else None
    for stored in (*offsets.values(), *(expected or {}).values()):
        if stored.offset is not None:
            GroupOffset.parse(stored.offset)
        if stored.incarnation is not None:
            _check(stored.incarnation)
    return groups.save(name, _name(body, "token"), offsets, expected)


def _topics(action: str, body: GroupBody) -> set[str]:
    match action:
        case "join":
            return set(body.texts("topics"))
        case "claim" | "load":
            return {topic for topic, _ in body.places("partitions")}
        case "save":
            return {topic for topic, _ in body.offsets("offsets")}
    return set()


def _name(body: GroupBody, field: str) -> str:
    return _check(body.text(field))


def _check(text: str) -> str:
    if len(text) > NAME_CHARS_MAX:
        raise ValueError(f"group request: a name of {len(text)} characters; the limit is {NAME_CHARS_MAX}")
    return text
