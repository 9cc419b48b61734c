"""What happens when bytes that a query had to read are gone: one function decides, for everybody."""

from __future__ import annotations

import logging

from metaq.errors import BrokerError, DataMissing, MetaqError
from metaq_spark.errors import DataLoss

_log = logging.getLogger(__name__)


def report_data_loss(what: str, *, fail: bool) -> None:
    """Fail the query, or log a warning and return, as the option ``failOnDataLoss`` says.

    Raises:
        DataLoss: ``fail`` is true.
    """
    if fail:
        raise DataLoss(what)
    _log.warning("%s. Reading on, because failOnDataLoss is false", what)


def is_data_loss(error: MetaqError) -> bool:
    """Whether an error says that there is no such partition, or nothing at an offset."""
    return isinstance(error, DataMissing) or (isinstance(error, BrokerError) and error.code == 404)


class LossReport:
    """``report_data_loss`` for somebody who meets the same loss with every look at the brokers: warns of each once."""

    def __init__(self, *, fail: bool) -> None:
        self._fail = fail
        self._told: set[str] = set()

    def __call__(self, what: str) -> None:
        """Fail, or warn if that was not said before.

        Raises:
            DataLoss: Losses fail the query.
        """
        if what not in self._told:
            report_data_loss(what, fail=self._fail)
            self._told.add(what)
