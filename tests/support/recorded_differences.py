"""Where this broker answers otherwise than RocketMQ's did when it was recorded.

A reason is the beginning of a row of a table of docs/rocketmq-broker.md, or, for ``OF_ROUTES``, of docs/name-server.md.
One in ``OF_THE_TEST`` says why the answers differ although the brokers do not.
"""

from __future__ import annotations

from typing import Final

Reasons = dict[str, tuple[int, str]]
"""Label of the step -> the code here, and why the answer is another."""

FIELDS: Final = "a field that is missing, in the header or in the body of 34, 41, 42 and 46,"
TIMERS: Final = "a batch with a `TIMER_*` property for all of its messages"
HALF: Final = "a message that is prepared (sysFlag 4) and has no `TRAN_MSG`, or no `PGROUP`,"
HALF_LATER: Final = "a half message with `DELAY`"
NAME_SERVER: Final = "routes are asked of name servers only"
NUMBERS: Final = "topics with a negative number of queues, or permissions that do not exist,"
NEWER: Final = "351 and 352 (one topic, one group) are not known"
DELETED: Final = "a reader of a topic that is deleted leaves its offset behind"
BINARY: Final = "a pull with a binary header that had to wait is answered with a JSON header"
INDEX: Final = "`indexLastUpdatePhyoffset` of a lookup (12)"
TIMES_ASKED: Final = "`TRANSACTION_CHECK_TIMES` is in the half message"
VERSION: Final = "the `dataVersion` of groups (201)"
REGION: Final = "the properties `MSG_REGION` and `TRACE_ON`"

BEHIND_REFUSED: Final = "the offset is another: this message, or this end, is behind batches that are refused"
SYSTEM_TOPICS: Final = "the system topics, which are those of this broker"
GROUPS_HERE: Final = "the groups that earlier requests made: one without a group makes none"
OTHER_SETTINGS: Final = "the body is left out of the recording, and has other settings"
DELIVERED: Final = "the broker of this test has delivered delayed messages"
STORE_TIME: Final = "a store time, which is that of the test"
OF_THE_TEST: Final = frozenset({BEHIND_REFUSED, SYSTEM_TOPICS, GROUPS_HERE, OTHER_SETTINGS, DELIVERED, STORE_TIME})

OF_SENDS_AND_PULLS: Final = {
    "32 of TT[0]": STORE_TIME,
    "361 lite pull": "361 is not known",
    "route asked of a broker": NAME_SERVER,
    "send to the read-only topic": "a topic without write permission takes messages",
}
"""Label of the step of b_send_pull.jsonl -> why the answer is another."""

OF_REQUESTS: Final[dict[str, Reasons]] = {
    "requests.jsonl": {
        "TAG 'Aa'": (0, "tags are compared by their hashes"),
        "SQL that cannot be compiled": (23, "a pull whose condition cannot be compiled gets every message"),
        "unknown kind": (1, "a filter of an unknown kind in a pull lets every message pass"),
        "rollback after a commit": (1, "a transaction that is committed twice, or after a rollback,"),
    },
    "batches.jsonl": {
        "retry topic": (13, "a batch to a retry topic is stored"),
        "TIMER_DELAY_SEC 30": (13, TIMERS),
        "TIMER_DELAY_MS 30000": (13, TIMERS),
        "TIMER_DELAY_SEC x": (1, TIMERS),
        "TIMER_DELIVER_MS 1700000000000": (0, BEHIND_REFUSED),
        "the end": (0, BEHIND_REFUSED),
    },
    "batches_550.jsonl": {
        "TIMER_DELAY_SEC 30": (13, TIMERS),
        "TIMER_DELAY_MS 30000": (13, TIMERS),
        "TIMER_DELAY_SEC x": (1, TIMERS),
        "what is stored": (0, "5.5.0 stores the messages of a batch without `CLUSTER`"),
    },
    "wrong_values.jsonl": {},
    "resets_550.jsonl": {f"message {number}": (0, "5.5.0 makes an id for a message") for number in range(4)},
    "wrong_requests.jsonl": {
        **{f"12 without {name}": (1, FIELDS) for name in ("topic", "key")},
        "14 without consumerGroup": (1, FIELDS),
        **{f"15 without {name}": (1, FIELDS) for name in ("consumerGroup", "topic")},
        **{f"{code} empty object": (1, FIELDS) for code in (34, 41, 46)},
        "35 without a client": (1, FIELDS),
        "TRAN_MSG without PGROUP": (0, HALF),
        "DELAY and TRAN_MSG": (0, HALF_LATER),
        **{f"{code}": (0, NAME_SERVER) for code in (105, 106)},
        "305 without fields": (0, SYSTEM_TOPICS),
        "314 without fields": (3, "copies of offsets (314) can be asked for"),
        "317 without fields": (0, GROUPS_HERE),
    },
}
"""By the file of the recording."""

OF_ADMINISTRATION: Final[dict[int, tuple[int, str]]] = {
    7: (1, NUMBERS),
    8: (1, NUMBERS),
    14: (0, "the broker's figures (28)"),
    15: (0, OTHER_SETTINGS),
    17: (0, DELIVERED),
    19: (1, FIELDS),
    25: (1, FIELDS),
    39: (1, FIELDS),
    43: (1, FIELDS),
    53: (1, FIELDS),
    60: (0, "a goodbye (35) makes its group"),
    80: (206, "new offsets for a group that is online and has committed none (222) are refused"),
    85: (16, "settings of the broker are changed by anybody who reaches it (25)"),
    86: (0, NEWER),
    87: (0, NEWER),
    94: (0, DELETED),
    96: (0, DELETED),
}
"""Line of the recording, from 1 -> the code here, and why it, or the body, is another."""

MISSING_FIELD: Final = "a field that is needed is missing"
UNKNOWN_CODE: Final = "unknown request code"
NEW_TOPIC: Final = "a new topic, under the data version of the last registration"
BARE_KEYS: Final = "a header that is no JSON (bare keys)"
ACTING_MASTER: Final = "`enableActingMaster` of brokers in routes (105)"

OF_ROUTES: Final[dict[int, tuple[int | None, str]]] = {
    34: (0, NEW_TOPIC),
    49: (1, MISSING_FIELD),  # topics of a cluster without cluster
    58: (1, MISSING_FIELD),  # wipe without brokerName
    81: (1, MISSING_FIELD),  # put without value: Java keeps a null, which no client can read
    94: (1, MISSING_FIELD),  # delete without topic
    95: (3, UNKNOWN_CODE),  # 217
    125: (3, UNKNOWN_CODE),
    126: (3, UNKNOWN_CODE),  # a heartbeat
    149: (None, BARE_KEYS),
    157: (3, UNKNOWN_CODE),  # a header without any field: code 0
}
"""Number of the step of ns_routes.jsonl -> the code here (``None``: the connection is closed), and why."""

OF_FIELDS: Final[dict[str, dict[str, str]]] = {
    "clients_java497.jsonl": {
        "indexLastUpdateTimestamp": INDEX,
        "indexLastUpdatePhyoffset": INDEX,
        "timestamp": STORE_TIME,
        "TRANSACTION_CHECK_TIMES": TIMES_ASKED,
    },
    "administration.jsonl": {"dataVersion": VERSION},
    "ns_routes.jsonl": {"enableActingMaster": ACTING_MASTER},
}
"""By the file of the recording: fields that are not compared with it, and why."""

TESTED: Final = {
    BINARY: "test_rocketmq_broker.py::test_a_pull_waits_for_a_message",
    INDEX: "rocketmq/messages/test_lookups.py::test_by_key_and_by_unique_key",
    TIMES_ASKED: "rocketmq/half_messages/test_transactions.py::"
    "test_an_unknown_outcome_gets_no_answer_and_the_producer_is_asked",
    VERSION: "rocketmq/administration/test_administration_requests.py::test_groups_are_made_shown_and_deleted",
    REGION: "rocketmq/test_new_clients.py::test_region_and_trace_of_messages_and_flags_of_topics",
}
"""Rows that no recording shows whole -> the test in tests/broker of what this broker does."""
