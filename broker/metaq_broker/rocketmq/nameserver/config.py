"""The name server's configuration: RocketMQ's keys in a properties file, checked once, before anything starts.

Keys of RocketMQ that mean nothing here (numbers of threads, sizes of socket buffers) and unknown ones are accepted, as
there, and warned of. A value that cannot be is an error that says what is allowed.

Source: docs/name-server.md, "Keys".
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from metaq.protocols.remoting.frames import FRAME_BYTES_MAX
from metaq_broker.operate.config.ini import ConfigError
from metaq_broker.rocketmq.nameserver.properties import read_properties, write_property

TLS_MODES: Final = ("disabled", "permissive", "enforcing")
CLIENT_AUTH: Final = {"none": "none", "optional": "optional", "require": "required"}

_BOOLEANS: Final = {"true": True, "false": False}
_LARGE: Final = 0x7FFFFFFF


@dataclass(frozen=True, slots=True)
class NameServerConfig:
    """One field for each key of ``KEYS``; units last. ``file`` is where it was read and where changes are kept."""

    listen_port: int
    bind_address: str
    kv_config_path: str
    config_store_path: str
    rocketmq_home: str
    product_env_name: str
    cluster_test: bool
    order_messages: bool
    idle_timeout_s: int
    scan_interval_ms: int
    oneways_max: int
    requests_max: int
    connections_max: int
    pipelined_requests_max: int
    frame_bytes_max: int
    output_bytes_max: int
    buffered_bytes_max: int
    brokers_max: int
    queues_max: int
    kv_bytes_max: int
    tls_mode: str
    tls_cert_file: str
    tls_key_file: str
    tls_client_ca_file: str
    tls_client_auth: str
    tls_handshake_timeout_ms: int

    @property
    def idle_timeout_ms(self) -> int:
        """The idle timeout, as connections want it."""
        return self.idle_timeout_s * 1000


@dataclass(frozen=True, slots=True)
class Key:
    """A key of the file: its field, how its text is read, its default."""

    name: str
    field: str
    read: Callable[[str], Any]
    default: Any


def _number(least: int, most: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        digits = text.strip()
        if not digits.isdecimal() or not least <= int(digits) <= most:
            raise ValueError(f"allowed is a number from {least} to {most}")
        return int(digits)

    return read


def _boolean(text: str) -> bool:
    if text.strip().lower() not in _BOOLEANS:
        raise ValueError("allowed is true or false")
    return _BOOLEANS[text.strip().lower()]


def _one_of(*allowed: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text.strip().lower() not in allowed:
            raise ValueError(f"allowed is {', '.join(allowed)}")
        return text.strip().lower()

    return read


def _text(text: str) -> str:
    return text.strip()


def _client_auth(text: str) -> str:
    return CLIENT_AUTH[_one_of(*CLIENT_AUTH)(text)]


def _home_path(name: str) -> str:
    return str(Path.home() / "namesrv" / name)


KEYS: Final = (
    Key("listenPort", "listen_port", _number(0, 65535), 9876),
    Key("bindAddress", "bind_address", _text, "0.0.0.0"),
    Key("kvConfigPath", "kv_config_path", _text, lambda: _home_path("kvConfig.json")),
    Key("configStorePath", "config_store_path", _text, lambda: _home_path("namesrv.properties")),
    Key("rocketmqHome", "rocketmq_home", _text, ""),
    Key("productEnvName", "product_env_name", _text, "center"),
    Key("clusterTest", "cluster_test", _boolean, False),
    Key("orderMessageEnable", "order_messages", _boolean, False),
    Key("serverChannelMaxIdleTimeSeconds", "idle_timeout_s", _number(1, 1_000_000), 120),
    Key("scanNotActiveBrokerInterval", "scan_interval_ms", _number(10, 600_000), 5000),
    Key("serverOnewaySemaphoreValue", "oneways_max", _number(1, _LARGE), 256),
    Key("serverAsyncSemaphoreValue", "requests_max", _number(1, _LARGE), 64),
    Key("maxConnections", "connections_max", _number(1, 1_000_000), 10_000),
    Key("maxPipelinedRequests", "pipelined_requests_max", _number(1, 1_000_000), 1000),
    Key("maxFrameBytes", "frame_bytes_max", _number(1024, 1 << 30), FRAME_BYTES_MAX),
    Key("maxOutputBytes", "output_bytes_max", _number(1024, _LARGE), 4 << 20),
    Key("maxBufferedBytes", "buffered_bytes_max", _number(1 << 20, 1 << 40), 256 << 20),
    Key("maxBrokers", "brokers_max", _number(1, 1_000_000), 10_000),
    Key("maxTopicQueues", "queues_max", _number(1, 100_000_000), 1_000_000),
    Key("maxKvConfigBytes", "kv_bytes_max", _number(1024, 1 << 30), 16 << 20),
    Key("tls.server.mode", "tls_mode", _one_of(*TLS_MODES), "permissive"),
    Key("tls.server.certPath", "tls_cert_file", _text, ""),
    Key("tls.server.keyPath", "tls_key_file", _text, ""),
    Key("tls.server.trustCertPath", "tls_client_ca_file", _text, ""),
    Key("tls.server.need.client.auth", "tls_client_auth", _client_auth, "none"),
    Key("tls.server.handshakeTimeoutMillis", "tls_handshake_timeout_ms", _number(100, 600_000), 10_000),
)
"""All that mean something here. The TLS keys are JVM properties in RocketMQ; those with ``max`` are our own."""

IGNORED_KEYS: Final = frozenset(
    {
        *("serverWorkerThreads", "serverCallbackExecutorThreads", "serverSelectorThreads", "defaultThreadPoolNums"),
        *("serverSocketSndBufSize", "serverSocketRcvBufSize", "serverSocketBacklog", "useEpollNativeSelector"),
        *("writeBufferHighWaterMark", "writeBufferLowWaterMark", "serverPooledByteBufAllocatorEnable"),
        *("clientRequestThreadPoolNums", "defaultThreadPoolQueueCapacity", "clientRequestThreadPoolQueueCapacity"),
        *("unRegisterBrokerQueueCapacity", "serverNettyWorkerGroupEnable", "enableShutdownGracefully"),
    }
)
"""Keys of RocketMQ that say how it does its work, not what it does."""

CHANGEABLE: Final = frozenset({"orderMessageEnable", "productEnvName", "clusterTest"})
"""Keys that request 318 may change. The others would let any client of the port move files or end TLS."""


def load(text: str, where: str) -> tuple[NameServerConfig, list[str]]:
    """Return what a properties file says, and what to warn of; ``where`` names the file in both.

    Raises:
        ConfigError: A value is not allowed.
    """
    values = read_properties(text)
    fields = {key.field: _value(key, values.pop(key.name, None), where) for key in KEYS}
    warnings = [
        f"{where}: {name} {'is ignored: there is nothing like it here' if name in IGNORED_KEYS else 'is unknown'}"
        for name in values
    ]
    config = NameServerConfig(**fields)
    if config.tls_cert_file and not config.tls_key_file:
        raise ConfigError(f"{where} tls.server.certPath", "it needs tls.server.keyPath, the key of the certificate")
    if config.tls_mode == "enforcing" and not config.tls_cert_file:
        raise ConfigError(f"{where} tls.server.mode", "enforcing needs tls.server.certPath and tls.server.keyPath")
    if config.tls_client_auth != "none" and not config.tls_client_ca_file:
        what = "it needs tls.server.trustCertPath, which signs the certificates of clients"
        raise ConfigError(f"{where} tls.server.need.client.auth", what)
    return config, warnings


def _value(key: Key, text: str | None, where: str) -> Any:
    if text is None:
        return key.default() if callable(key.default) else key.default
    try:
        return key.read(text)
    except ValueError as error:
        raise ConfigError(f"{where} {key.name}", f"value {text!r}; {error}") from None


def to_text(config: NameServerConfig) -> str:
    """Return all keys and values as a properties file."""
    java = {written: name for name, written in CLIENT_AUTH.items()}
    values = dataclasses.asdict(config)
    values["tls_client_auth"] = java[config.tls_client_auth]
    lines = (write_property(key.name, _written(values[key.field])) for key in KEYS)
    return "".join(f"{line}\n" for line in sorted(lines))


def _written(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def check(name: str, text: str) -> None:
    """Check the value of a key.

    Raises:
        ConfigError: It is not allowed.
    """
    key = next(key for key in KEYS if key.name == name)
    _value(key, text, "request")
