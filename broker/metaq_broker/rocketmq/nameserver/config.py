"""The name server's configuration: RocketMQ's keys in a properties file, checked once, before anything starts.

Keys of RocketMQ without a meaning here (numbers of threads, sizes of socket buffers) and unknown ones are accepted with
a warning. An invalid value raises an error that says what is allowed.

Source: docs/name-server.md, "Keys".
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from metaq import ports
from metaq.protocols.remoting.frames import FRAME_BYTES_MAX
from metaq_broker.operate.config.ini import ConfigError
from metaq_broker.operate.config.keys import OUR_OWN, Key, key, keys_of
from metaq_broker.operate.config.properties import read_properties, write_property

TLS_MODES: Final = ("disabled", "permissive", "enforcing")
CLIENT_AUTH: Final = {"none": "none", "optional": "optional", "require": "required"}

_BOOLEANS: Final = {"true": True, "false": False}
_LARGE: Final = 0x7FFFFFFF


def _number(least: int, most: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        digits = text.strip()
        if not digits.isdecimal() or not least <= int(digits) <= most:
            raise ValueError(f"expected a number from {least} to {most}")
        return int(digits)

    return read


def _boolean(text: str) -> bool:
    if text.strip().lower() not in _BOOLEANS:
        raise ValueError("expected true or false")
    return _BOOLEANS[text.strip().lower()]


def _one_of(*allowed: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text.strip().lower() not in allowed:
            raise ValueError(f"expected {', '.join(allowed)}")
        return text.strip().lower()

    return read


def _text(text: str) -> str:
    return text.strip()


def _client_auth(text: str) -> str:
    return CLIENT_AUTH[_one_of(*CLIENT_AUTH)(text)]


def _home_path(name: str) -> str:
    return str(Path.home() / "namesrv" / name)


@dataclass(frozen=True, slots=True, kw_only=True)
class NameServerConfig:
    """All keys that mean something here; units last. The TLS keys are JVM properties in RocketMQ."""

    # fmt: off
    listen_port: int = key("listenPort", _number(0, 65535), "0 = any free port", ports.NAME_SERVER)
    bind_address: str = key("bindAddress", _text, "where it listens", "0.0.0.0")
    kv_config_path: str = key(
        "kvConfigPath", _text,
        "key-value pairs", _home_path("kvConfig.json"), shown="`~/namesrv/kvConfig.json`",
    )
    config_store_path: str = key(
        "configStorePath", _text,
        "where changed settings are kept, and read from, if there is no `-c`", _home_path("namesrv.properties"),
        shown="`~/namesrv/namesrv.properties`",
    )
    rocketmq_home: str = key("rocketmqHome", _text, "shown, without effect", "")
    product_env_name: str = key("productEnvName", _text, "shown, without effect", "center")
    cluster_test: bool = key("clusterTest", _boolean, "shown, without effect", False)
    order_messages: bool = key(
        "orderMessageEnable", _boolean,
        "routes carry the order configuration of their topic", False,
    )
    idle_timeout_s: int = key(
        "serverChannelMaxIdleTimeSeconds", _number(1, 1_000_000),
        "seconds after which an idle connection is closed", 120,
    )
    scan_interval_ms: int = key(
        "scanNotActiveBrokerInterval", _number(10, 600_000),
        "milliseconds between two checks for silent brokers", 5000,
    )
    oneways_max: int = key(
        "serverOnewaySemaphoreValue", _number(1, _LARGE),
        "one-way requests of the server's own that may be in flight on a connection", 256,
    )
    requests_max: int = key(
        "serverAsyncSemaphoreValue", _number(1, _LARGE),
        "requests of the server's own that may be in flight on a connection", 64,
    )
    connections_max: int = key(
        "maxConnections", _number(1, 1_000_000),
        "connections; more are refused", 10_000, kind=OUR_OWN,
    )
    pipelined_requests_max: int = key(
        "maxPipelinedRequests", _number(1, 1_000_000),
        "requests of a connection that are not answered yet; the next ones wait", 1000, kind=OUR_OWN,
    )
    frame_bytes_max: int = key(
        "maxFrameBytes", _number(1024, 1 << 30),
        "a longer frame ends its connection (RocketMQ: `com.rocketmq.remoting.frameMaxLength`)", FRAME_BYTES_MAX,
        kind=OUR_OWN,
    )
    output_bytes_max: int = key(
        "maxOutputBytes", _number(1024, _LARGE),
        "answers that a client does not take; it is not read from then", 4 << 20, kind=OUR_OWN,
    )
    buffered_bytes_max: int = key(
        "maxBufferedBytes", _number(1 << 20, 1 << 40),
        "bytes that all connections together hold; beyond, the largest is closed", 256 << 20, kind=OUR_OWN,
    )
    brokers_max: int = key("maxBrokers", _number(1, 1_000_000), "addresses of brokers", 10_000, kind=OUR_OWN)
    queues_max: int = key(
        "maxTopicQueues", _number(1, 100_000_000),
        "topics of all broker names, added up", 1_000_000, kind=OUR_OWN,
    )
    kv_bytes_max: int = key(
        "maxKvConfigBytes", _number(1024, 1 << 30),
        "size of `kvConfig.json`", 16 << 20, kind=OUR_OWN,
    )
    tls_mode: str = key(
        "tls.server.mode", _one_of(*TLS_MODES),
        "`disabled`; `permissive`: with TLS or without, by the first byte of a connection; `enforcing`: "
        "with TLS only", "permissive",
    )
    tls_cert_file: str = key("tls.server.certPath", _text, "certificate, PEM. Without it there is no TLS", "")
    tls_key_file: str = key("tls.server.keyPath", _text, "key of the certificate, PEM", "")
    tls_client_ca_file: str = key("tls.server.trustCertPath", _text, "who signs the certificates of clients", "")
    tls_client_auth: str = key(
        "tls.server.need.client.auth", _client_auth,
        "`none`, `optional`, `require`: certificates of clients", "none",
    )
    tls_handshake_timeout_ms: int = key(
        "tls.server.handshakeTimeoutMillis", _number(100, 600_000),
        "ms for a client's handshake", 10_000,
    )
    # fmt: on

    @property
    def idle_timeout_ms(self) -> int:
        """The idle timeout, as connections want it."""
        return self.idle_timeout_s * 1000


KEYS: Final = keys_of(NameServerConfig)

IGNORED_KEYS: Final = frozenset(
    {
        *("serverWorkerThreads", "serverCallbackExecutorThreads", "serverSelectorThreads", "defaultThreadPoolNums"),
        *("serverSocketSndBufSize", "serverSocketRcvBufSize", "serverSocketBacklog", "useEpollNativeSelector"),
        *("writeBufferHighWaterMark", "writeBufferLowWaterMark", "serverPooledByteBufAllocatorEnable"),
        *("clientRequestThreadPoolNums", "defaultThreadPoolQueueCapacity", "clientRequestThreadPoolQueueCapacity"),
        *("unRegisterBrokerQueueCapacity", "serverNettyWorkerGroupEnable", "enableShutdownGracefully"),
    }
)
"""Keys of RocketMQ for its implementation, not its behaviour."""

CHANGEABLE: Final = frozenset({"orderMessageEnable", "productEnvName", "clusterTest"})
"""Keys that request 318 may change. The others would let any client of the port move files or end TLS."""


def load(text: str, where: str) -> tuple[NameServerConfig, list[str]]:
    """Parse a properties file; return the configuration and warnings. ``where`` names the file in errors and warnings.

    Raises:
        ConfigError: A value is not allowed.
    """
    try:
        values = {name: value.rstrip() for name, value in read_properties(text).items()}
    except ValueError as error:
        raise ConfigError(where, str(error)) from None
    fields = {key.attribute: _value(key, values.pop(key.name, None), where) for key in KEYS}
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
        return key.default
    try:
        return key.read(text)
    except ValueError as error:
        raise ConfigError(f"{where} {key.name}", f"value {text!r}; {error}") from None


def to_text(config: NameServerConfig) -> str:
    """Return all keys and values as a properties file."""
    java = {written: name for name, written in CLIENT_AUTH.items()}
    values = dataclasses.asdict(config)
    values["tls_client_auth"] = java[config.tls_client_auth]
    lines = (write_property(key.name, _written(values[key.attribute])) for key in KEYS)
    return "".join(f"{line}\n" for line in sorted(lines))


def _written(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def check(name: str, text: str) -> None:
    """Check the value of a key.

    Raises:
        ConfigError: It is not allowed.
    """
    _value(next(each for each in KEYS if each.name == name), text, "request")
