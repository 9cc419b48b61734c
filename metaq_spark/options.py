"""Every option of ``format("metaq")``: one table, and the frozen objects that the rest of the connector works with.

``OPTIONS`` says of each option how it is spelt, how its text is read, what it defaults to, where it may stand and
what it is for; the tables in ``docs/connector.md`` are checked against it. Nothing else reads the raw options, which
Spark hands over as text under lower-cased keys.
"""

from __future__ import annotations

import difflib
import enum
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from metaq.client.tls import TlsSettings
from metaq.client.transport import Timeouts
from metaq.model import Address
from metaq_spark import option_values as values
from metaq_spark.errors import OptionError
from metaq_spark.positions import Earliest, Latest, Position, parse_position


class Use(enum.Enum):
    """What an option may be given for. The value is the wording in messages and in the documentation."""

    BATCH_READ = "batch read"
    STREAM_READ = "streaming read"
    WRITE = "write"


READ: Final = frozenset({Use.BATCH_READ, Use.STREAM_READ})
BATCH_READ: Final = frozenset({Use.BATCH_READ})
STREAM_READ: Final = frozenset({Use.STREAM_READ})
WRITE: Final = frozenset({Use.WRITE})
ANY: Final = READ | WRITE

REQUIRED: Final = "required"
UNSET: Final = ""
"""Default of an option that has no value unless it is given."""

SYSTEM_CA: Final = "system"
"""What `tlsCaFile` says for the authorities that the machine trusts."""

SET_BY_SPARK: Final = frozenset({"checkpointlocation", "queryname"})
"""Options of Spark's own that it hands to a source or sink as well."""


@dataclass(frozen=True, slots=True)
class Option:
    """One row of the table.

    ``field`` is the attribute of the parsed object; ``default`` the text that stands in when the option is not given,
    or one text for each use where they differ.
    """

    name: str
    field: str
    parse: Callable[[str], Any]
    default: str | Mapping[Use, str]
    uses: frozenset[Use]
    doc: str

    def default_for(self, use: Use) -> str:
        """The default text when the option is used for ``use``."""
        return self.default if isinstance(self.default, str) else self.default[use]


OPTIONS: Final = (
    Option(
        "brokers", "brokers", values.addresses, REQUIRED, ANY,
        "Brokers to talk to: `host:port`, separated by commas. Every broker of the topics must be named.",
    ),
    Option(
        "subscribe", "topics", values.topics, REQUIRED, READ,
        "Topics to read, separated by commas.",
    ),
    Option(
        "startingOffsets", "starting_offsets", parse_position,
        {Use.BATCH_READ: "earliest", Use.STREAM_READ: "latest"}, READ,
        "Where to start: `earliest`, `latest` (streams only), or JSON with one byte offset for each partition. "
        "A stream uses it only when its checkpoint is new.",
    ),
    Option(
        "endingOffsets", "ending_offsets", parse_position, "latest", BATCH_READ,
        "Where to stop (exclusive): `latest`, or JSON with one byte offset for each partition.",
    ),
    Option(
        "maxBytesPerTrigger", "trigger_bytes_max", values.size, "1g", STREAM_READ,
        "Most bytes of one micro-batch, shared out over the partitions in proportion to their backlog.",
    ),
    Option(
        "failOnDataLoss", "fail_on_data_loss", values.boolean, "true", READ,
        "Whether a query fails when bytes that it had to read are gone; `false` logs a warning and reads on.",
    ),
    Option(
        "fetchBytes", "fetch_bytes", values.size_up_to(1 << 30), "1m", READ,
        "Bytes asked of a broker at a time. A broker may answer with fewer.",
    ),
    Option(
        "offsetPollMs", "offset_poll_ms", values.milliseconds, "100", STREAM_READ,
        "Shortest time between two questions to the brokers for their newest offsets.",
    ),
    Option(
        "topic", "topic", values.topic, UNSET, WRITE,
        "Topic to write to; takes precedence over a `topic` column.",
    ),
    Option(
        "blockBytes", "block_bytes", values.size_up_to(1 << 26), "256k", WRITE,
        "Bytes of messages sent to a partition in one request; not above the broker's `maxBatchSize`.",
    ),
    Option(
        "connectTimeoutMs", "connect_timeout_ms", values.milliseconds, "5000", ANY,
        "Longest wait for a connection to a broker.",
    ),
    Option(
        "requestTimeoutMs", "request_timeout_ms", values.milliseconds, "30000", ANY,
        "Longest wait for a broker's answer.",
    ),
    Option(
        "retries", "retries", values.count, "3", ANY,
        "How often in a row something is asked or sent again after a lost connection or no answer.",
    ),
    Option(
        "retryIntervalMs", "retry_interval_ms", values.pause, "200", ANY,
        "Pause before the first such try; it doubles with each further one.",
    ),
    Option(
        "tlsCaFile", "tls_ca_file", values.path, UNSET, ANY,
        "Turns TLS on: PEM file of the authority that signs the brokers' certificates, on the driver and on every "
        "executor; `system` = those that the machine trusts.",
    ),
    Option(
        "tlsCertFile", "tls_cert_file", values.path, UNSET, ANY,
        "PEM file of the certificate to show to brokers that ask for one.",
    ),
    Option(
        "tlsKeyFile", "tls_key_file", values.path, UNSET, ANY,
        "PEM file of its key, if that is not in `tlsCertFile`.",
    ),
)  # fmt: skip

_BY_KEY: Final = {option.name.lower(): option for option in OPTIONS}


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerOptions:
    """How to reach the brokers. Times in milliseconds."""

    brokers: tuple[Address, ...]
    connect_timeout_ms: int
    request_timeout_ms: int
    retries: int
    retry_interval_ms: int
    tls_ca_file: str | None = None
    tls_cert_file: str | None = None
    tls_key_file: str | None = None

    @property
    def tls(self) -> TlsSettings | None:
        """How connections are secured, ``None`` if they are not."""
        if self.tls_ca_file is None:
            return None
        ca_file = None if self.tls_ca_file == SYSTEM_CA else self.tls_ca_file
        return TlsSettings(ca_file, self.tls_cert_file, self.tls_key_file)

    @property
    def timeouts(self) -> Timeouts:
        """The deadlines of a connection."""
        return Timeouts(self.connect_timeout_ms / 1000, self.request_timeout_ms / 1000)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions(BrokerOptions):
    """A read, batch or streaming. Options of the other kind of read hold their defaults and go unused."""

    topics: tuple[str, ...]
    starting_offsets: Position
    ending_offsets: Position
    trigger_bytes_max: int
    fail_on_data_loss: bool
    fetch_bytes: int
    offset_poll_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions(BrokerOptions):
    """A write. ``topic`` is ``None`` when every row names its own."""

    topic: str | None
    block_bytes: int


def check_source_options(raw: Mapping[str, str]) -> None:
    """Check what can be said before it is known whether the read is a batch or a stream.

    Raises:
        OptionError: An option is unknown, is for writing, is missing or cannot be read.
    """
    _refuse_strangers(raw, READ)
    for option in _allowed(READ):
        _read(option, raw, Use.BATCH_READ)


def parse_source_options(raw: Mapping[str, str], use: Use) -> SourceOptions:
    """The options of a batch read or a streaming read.

    Raises:
        OptionError: An option is unknown, is not for this use, is missing or cannot be read.
    """
    _refuse_strangers(raw, frozenset({use}))
    options = SourceOptions(**{option.field: _read(option, raw, use) for option in _allowed(READ)})
    if use is Use.BATCH_READ and isinstance(options.starting_offsets, Latest):
        raise OptionError("startingOffsets", "a batch read cannot start at latest, it would read nothing; use earliest")
    if isinstance(options.ending_offsets, Earliest):
        raise OptionError("endingOffsets", "a read cannot end at earliest, it would read nothing; use latest")
    _check_tls(options)
    return options


def parse_sink_options(raw: Mapping[str, str]) -> SinkOptions:
    """The options of a write.

    Raises:
        OptionError: An option is unknown, is for reading, is missing or cannot be read.
    """
    _refuse_strangers(raw, WRITE)
    options = SinkOptions(**{option.field: _read(option, raw, Use.WRITE) for option in _allowed(WRITE)})
    _check_tls(options)
    return options


def _check_tls(options: BrokerOptions) -> None:
    """Refuse TLS files that do nothing, and those that cannot be used."""
    for name, given, needed, there in (
        ("tlsCertFile", options.tls_cert_file, "tlsCaFile", options.tls_ca_file),
        ("tlsKeyFile", options.tls_key_file, "tlsCertFile", options.tls_cert_file),
    ):
        if given is not None and there is None:
            raise OptionError(name, f"it has no effect without {needed}; give that as well")
    try:
        if options.tls is not None:
            options.tls.context()
    except ValueError as error:
        raise OptionError("tlsCaFile, tlsCertFile, tlsKeyFile", str(error)) from None


def _allowed(uses: frozenset[Use]) -> list[Option]:
    return [option for option in OPTIONS if option.uses & uses]


def _refuse_strangers(raw: Mapping[str, str], uses: frozenset[Use]) -> None:
    for key in raw:
        option = _BY_KEY.get(key.lower())
        if option is None and key.lower() not in SET_BY_SPARK:
            raise OptionError(key, _unknown(key, uses))
        if option is not None and not option.uses & uses:
            raise OptionError(option.name, _misplaced(option, uses))


def _unknown(key: str, uses: frozenset[Use]) -> str:
    allowed = {option.name.lower(): option.name for option in _allowed(uses)}
    if key.lower() == "path":
        hint = "a topic has no path; name it with the option " + ("topic" if uses == WRITE else "subscribe")
    else:
        near = difflib.get_close_matches(key.lower(), allowed, n=1)
        hint = "there is no such option" + (f"; did you mean {allowed[near[0]]}?" if near else "")
    return f"{hint} Allowed for a {_wording(uses)}: {', '.join(allowed.values())}"


def _misplaced(option: Option, uses: frozenset[Use]) -> str:
    allowed = ", ".join(o.name for o in _allowed(uses))
    return f"it is for a {_wording(option.uses)}, not for a {_wording(uses)}. Allowed here: {allowed}"


def _wording(uses: Iterable[Use]) -> str:
    return " or a ".join(use.value for use in Use if use in uses)


def _read(option: Option, raw: Mapping[str, str], use: Use) -> Any:
    text = next((value for key, value in raw.items() if key.lower() == option.name.lower()), None)
    if text is None and option.default == REQUIRED:
        raise OptionError(option.name, f"it is required. {option.doc}")
    if text is None and option.default == UNSET:
        return None
    try:
        return option.parse(option.default_for(use) if text is None else text)
    except ValueError as error:
        raise OptionError(option.name, f"{text!r}: {error}") from None
