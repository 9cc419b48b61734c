"""``metaq-broker dev``: a broker without any configuration, for trying things out on one machine."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from metaq import ports
from metaq_broker.operate.config.configuration import BrokerConfig, development
from metaq_broker.operate.config.ini import ConfigError
from metaq_broker.serve.server import bind


@contextlib.contextmanager
def data_folder(given: str | None) -> Iterator[Path]:
    """Yield the folder for the messages: ``given``, or a temporary one that is deleted afterwards."""
    if given is not None:
        yield Path(given).expanduser().absolute()
        return
    with tempfile.TemporaryDirectory(prefix="metaq-dev-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def rocketmq_port(given: int | None, port: int) -> tuple[int, str | None]:
    """Return the port for RocketMQ's clients of a broker on ``port``, and a note for the user, if any.

    Without a ``given`` port, it is the default port if that is free, else any free one, which the broker prints.
    """
    if given is not None:
        return given, None
    if port == 0:
        return 0, None
    try:
        bind("127.0.0.1", ports.ROCKETMQ).close()
    except OSError:
        return 0, f"port {ports.ROCKETMQ} is taken by another program, so RocketMQ's clients are served on another one"
    return ports.ROCKETMQ, None


def dashboard_port(given: int | None) -> tuple[int, str | None]:
    """Return the port for the dashboard, and a note for the user, if any.

    Without a ``given`` port, it is the default port if that is free, else any free one, which the broker prints.
    """
    if given is not None:
        return given, None
    try:
        bind("127.0.0.1", ports.METAQ_DASHBOARD).close()
    except OSError:
        return 0, f"port {ports.METAQ_DASHBOARD} is taken by another program, so the dashboard is on another one"
    return ports.METAQ_DASHBOARD, None


def dev_config(
    folder: Path, port: int, partitions: int, for_rocketmq: int | None, dashboard: tuple[int, bool] | None = None
) -> BrokerConfig:
    """Return the configuration of a development broker; ``for_rocketmq`` is the port for RocketMQ's clients,
    ``dashboard`` the port of the dashboard, and whether it may change something.

    Raises:
        ConfigError: The folder's name cannot be written into a configuration, or a number is outside its range.
    """
    return development(checked_folder(folder), port, partitions, for_rocketmq, dashboard)


def checked_folder(folder: Path) -> Path:
    """Return ``folder`` if its name can be written into a configuration.

    Raises:
        ConfigError: It cannot.
    """
    if any(character in str(folder) for character in "\r\n") or str(folder) != str(folder).strip():
        raise ConfigError("DATA", f"folder {str(folder)!r} has a line end or a blank at its end; choose another")
    return folder


def snippet(host: str, port: int) -> str:
    """Return Spark code, ready to paste, that writes to the broker and reads it."""
    return f"""\
Paste into pyspark:

broker = {{"brokers": "{host}:{port}"}}
rows = spark.createDataFrame([("one tea",), ("two scones",)], "value string")
rows.write.format("metaq").options(**broker).option("topic", "test").mode("append").save()
spark.read.format("metaq").options(**broker).option("subscribe", "test").load().selectExpr("string(value)").show()
"""
