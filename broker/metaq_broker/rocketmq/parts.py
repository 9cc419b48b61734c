"""Creates parts of the front end from the configuration: waiting messages, look-ups, limits."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from metaq.formats.topic_names import GROUP_PREFIXES
from metaq.model import Address
from metaq_broker.clock import Clock
from metaq_broker.log.engine.engine import Engine
from metaq_broker.log.engine.topics import Topics
from metaq_broker.log.files.files import Files
from metaq_broker.log.partitions.log_store import KEYS_NAME
from metaq_broker.log.partitions.partition_log import PartitionLog
from metaq_broker.log.state.state_stream import StateStream
from metaq_broker.log.state.state_table import OnDurable, StateTable
from metaq_broker.operate.config.configuration import BrokerConfig
from metaq_broker.operate.config.rocketmq import RocketmqConfig
from metaq_broker.rocketmq.delays.levels import DelayLevels
from metaq_broker.rocketmq.delays.waiting_parts import MaySend, WaitingParts
from metaq_broker.rocketmq.half_messages.half_messages import AskPolicy
from metaq_broker.rocketmq.key_index.coverage import Partition
from metaq_broker.rocketmq.key_index.key_index import KeyIndex
from metaq_broker.rocketmq.messages.lookups import LookupRequests
from metaq_broker.rocketmq.messages.message_store import MessageStore
from metaq_broker.rocketmq.pulls.pulls import GroupState
from metaq_broker.rocketmq.system_topics import NOT_WRITTEN_BY_CLIENTS, built_in_topics
from metaq_broker.start_errors import StartFailed, listen_fault


@dataclass(frozen=True, slots=True)
class FrontEndParts:
    """The broker's parts that the front end uses.

    ``apply`` sets the engine's configuration; ``delete_messages`` deletes a topic's messages; ``retire`` removes
    expired messages. ``slave`` returns the address of the slave of a synchronous pair, and whether it is in sync.
    """

    config: BrokerConfig
    engine: Engine
    files: Files
    clock: Clock
    apply: Callable[[BrokerConfig], None]
    delete_messages: Callable[[str], Awaitable[None]]
    retire: Callable[[], Awaitable[object]]
    slave: Callable[[], tuple[Address, bool] | None]
    stream: StateStream | None = None
    """In a pair: the stream of the state file. It has the file until the front end opens it, at an election."""
    when_current: Callable[[OnDurable], None] | None = None
    """In a pair: calls back once what is known here is certainly current."""


class RemotingUnavailable(StartFailed):
    """The front end cannot start; the text is the reason."""


def not_listening(host: str, port: int, error: OSError) -> RemotingUnavailable:
    """Return the error for a port that cannot be used."""
    return RemotingUnavailable(
        listen_fault(host, port, error, use=", for RocketMQ's clients,", instead="choose another one")
    )


def client_topics(parts: FrontEndParts, config: RocketmqConfig, state: StateTable) -> Topics:
    """Return the topics that clients created or expect, after adding them to the engine's configuration."""
    built_in = built_in_topics(
        config.broker_name,
        config.cluster_name,
        create_topics=config.auto_create_topics,
        delay_levels=len(config.delay_levels_s),
        trace_topic=config.trace_topic if config.has_trace_topic else None,
    )
    return Topics(
        state,
        parts.engine.stores,
        parts.config,
        parts.apply,
        parts.clock.now_ms,
        built_in,
        GROUP_PREFIXES,
        config.wait_for_disk,
        reserved=NOT_WRITTEN_BY_CLIENTS,
    )


def offset_of(log: PartitionLog | None, ordinal: int) -> int | None:
    """Return the byte offset of a message, or one before it if that is not known now; ``None``: no partition."""
    if log is None:
        return None
    try:
        return log.offset_of_message(ordinal)
    except OSError:
        return log.start_offset


def waiting_parts(
    store: MessageStore,
    state: StateTable,
    topics: Topics,
    groups: GroupState,
    engine: Engine,
    clock: Clock,
    config: RocketmqConfig,
    may_send: MaySend,
) -> WaitingParts:
    """Return the parts for delays, retries, recalls and transactions, which run while the broker accepts messages."""
    policy = AskPolicy(
        config.transaction_timeout_ms, config.transaction_check_interval_ms, config.transaction_check_max
    )
    levels = DelayLevels(tuple(1000 * seconds for seconds in config.delay_levels_s))
    return WaitingParts(
        store,
        state,
        topics,
        groups.settings,
        groups.members,
        clock,
        levels,
        policy,
        config.broker_name,
        lambda: engine.gate.shut_by is None,
        may_send,
    )


def lookups(store: MessageStore, engine: Engine, files: Files, data: Path) -> LookupRequests:
    """Return the look-up of messages by key, with its index in the folder ``data`` (blocking).

    Raises:
        OSError: The index's folder cannot be created or read.
    """

    def ranges() -> dict[Partition, tuple[int, int]]:
        queues = [(log.topic, log.index) for log in engine.stores.logs()]
        return {queue: (store.min_offset(*queue), store.reported_offset(*queue)) for queue in queues}

    def name_of(topic: str, queue: int) -> str:
        log = engine.stores.get(topic, queue)
        incarnation = None if log is None else log.incarnation
        return topic if incarnation is None else f"{topic}/{incarnation}"

    def ends() -> dict[Partition, int]:
        return {(name_of(*queue), queue[1]): end for queue, (_, end) in ranges().items()}

    requests = LookupRequests(store, KeyIndex.open(files, data / KEYS_NAME, ends), ranges, name_of)
    store.when_stored(requests.stored)
    return requests


def forget_keys(files: Files, data: Path) -> None:
    """Delete the index of keys in the folder ``data`` (blocking), to be rebuilt: its messages have other physical
    offsets.

    Raises:
        OSError: The disk refuses.
    """
    folder = data / KEYS_NAME
    for name in files.listdir(folder) if files.exists(folder) else ():
        files.unlink(folder / name)
